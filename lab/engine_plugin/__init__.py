"""vLLM platform plugin of the lab: the CPU of a simulated Spark stands for its GPU.

Installed into the engine environment as the package `dgx_spark_lab_engine`.
"""


def register() -> str:
    """Entry point of the group vllm.platform_plugins: the platform to use."""
    return "dgx_spark_lab_engine.platform.CpuAsGpuPlatform"
