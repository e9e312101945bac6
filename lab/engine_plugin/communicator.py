"""Collectives between ranks of different hosts."""

from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator  # type: ignore[import-not-found]


class FabricCommunicator(CpuCommunicator):  # type: ignore[misc]
    """Never the shared memory of one host.

    The stock communicator takes ranks of two nodes for neighbours and fails with
    "open shm in SHMManager failed. errno: 2".
    """

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        return False
