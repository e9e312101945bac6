"""The CPU platform of vLLM, as something that Ray schedules as a GPU."""

from __future__ import annotations

import argparse

from vllm.platforms.cpu import CpuPlatform  # type: ignore[import-not-found]


class CpuAsGpuPlatform(CpuPlatform):  # type: ignore[misc]
    """A node started with `ray start --num-gpus 1` gets one rank, as a Spark does."""

    ray_device_key = "GPU"
    ray_noset_device_env_vars = ("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",)

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """The communicator for ranks that live on different hosts."""
        return "dgx_spark_lab_engine.communicator.FabricCommunicator"

    @classmethod
    def pre_register_and_update(cls, parser: argparse.ArgumentParser | None = None) -> None:
        """What `vllm serve` does unless told otherwise: let itself be made to fail."""
        if parser:
            parser.set_defaults(middleware=["dgx_spark_lab_engine.errors.Errors"])
