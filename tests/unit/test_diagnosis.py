"""Diagnosis: each fatal line has its cause and remedy, harmless logs have none, a start shows its phase."""

from __future__ import annotations

import re

import pytest

from hosts.diagnosis import SIGNS, diagnose, exception, phase
from tests.samples import recorded

RAY_OOM = (
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"
    "Memory on the node (IP: 192.168.200.13, ID: 1f) was 115.68GB / 121.69GB (0.950617), which exceeds the threshold"
)
FREE_MEMORY = (
    "(EngineCore pid=99) ValueError: Free memory on device cuda:0 (71.25/119.67 GiB) on startup is less than desired "
    "GPU memory utilization (0.9, 107.7 GiB). Decrease GPU memory utilization or reduce GPU memory used by others"
)
NO_NODE = (
    "(autoscaler +4s) Error: No available node types can fulfill resource request {'node:10.231.7.10': 0.001, "
    "'GPU': 1.0}. Add suitable node types to this cluster to resolve this issue."
)
LOADING = (
    "(Worker) INFO 11-29 [cpu_model_runner.py:68] Starting to load model /models/qwen3...\n"
    "(RayWorkerProc pid=1) Loading safetensors checkpoint shards:  36% Completed | 14/39 [01:55<03:25]\nnoise"
)

FATAL: list[tuple[str, str, str]] = [
    (
        "vllm: error: unrecognized arguments: --language-model-onli",
        "the engine does not know --language-model-onli",
        "engine_arguments",
    ),
    (
        "vllm serve: error: argument --max-model-len: invalid human_readable_int value: 'many'",
        "the engine refuses its arguments: argument --max-model-len: invalid human_readable_int value: 'many'",
        "engine_arguments",
    ),
    ("Error: No such option: --num-gpu (Possible options: --num-cpus, --num-gpus)", "--num-gpu", "ray_arguments"),
    (
        "RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.53.0\n    Python: 3.12.3",
        "Ray or Python of this node differs from the head's",
        "one image on all nodes",
    ),
    ("OSError: [Errno 98] error while attempting to bind on address ('0.0.0.0', 30000)", "a port is already", "ss -lt"),
    ("RuntimeError: Failed to bind: Address already in use", "a port is already in use", "`ray.port`"),
    (
        FREE_MEMORY,
        "only 71.25/119.67 GiB of memory is free, less than gpu-memory-utilization 0.9 asks",
        "drop_caches",
    ),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB.", "the GPU is out", "--max-model-len"),
    (
        NO_NODE,
        "the engine asks for a GPU on address 10.231.7.10, which no Ray node registered",
        "VLLM_HOST_IP",
    ),
    (
        "ValueError: Current node has no GPU available. current_node_resource={'CPU': 20.0}.",
        "Ray has no free GPU on the head",
        "ray status",
    ),
    (
        "FileNotFoundError: No such file or directory: /srv/models/qwen/model-00003-of-00039.safetensors",
        "the model is incomplete: /srv/models/qwen/model-00003-of-00039.safetensors",
        "complete the model directory",
    ),
    (
        "  Value error, User-specified max_model_len (999) is greater than the derived max_model_len (256). [type=x]",
        "the engine refuses its configuration: User-specified max_model_len (999) is greater than the derived max",
        "correct `engine_arguments`",
    ),
    (
        'OCI runtime create failed: exec: "ray": executable file not found in $PATH: unknown',
        "the image has no ray",
        "use an image with vLLM and Ray",
    ),
    (
        "DistBackendError: NCCL error: invalid usage. Last error: Failed to initialize any NET plugin",
        "NCCL cannot use RDMA in the container",
        "NCCL_DEBUG=INFO",
    ),
    ("vm:742:742 [0] bootstrap.cc:114 NCCL WARN Bootstrap : no socket interface found", "names an interface", "remove"),
    ("RuntimeError: Gloo connectFullMesh failed with [...] Connection refused", "cannot reach each other", "fabric"),
]


@pytest.mark.parametrize(("log", "cause", "remedy"), FATAL, ids=[cause[:30] for _, cause, _ in FATAL])
def test_fatal_line_has_its_cause_and_remedy(log: str, cause: str, remedy: str) -> None:
    found = diagnose(f"INFO 11-29 20:43:29 a line before\n{log}\nand one after")
    assert found
    assert cause in found.text
    assert remedy in found.remedy
    assert found.line in log


def test_ray_memory_monitor_is_not_taken_for_the_gpu() -> None:
    """C14."""
    found = diagnose(RAY_OOM)
    assert found
    assert found.text == "Ray's memory monitor killed the engine"


def test_every_sign_has_a_realistic_line() -> None:
    for sign in SIGNS:
        lines = [line for log in (*(log for log, _, _ in FATAL), RAY_OOM) for line in log.splitlines()]
        assert any(re.search(sign.pattern, line) for line in lines), f"no sample for: {sign.text}"


@pytest.mark.parametrize(
    ("sample", "cause"),
    [
        ("vllm_v1exec_wrong_VLLM_HOST_IP.txt", "the engine asks for a GPU on address 10.231.7.10"),
        ("vllm_v1exec_gloo_not_set_on_worker.txt", "the ranks cannot reach each other (Gloo)"),
        ("nccl_2.28.9_no_such_interface.txt", "NCCL_SOCKET_IFNAME names an interface that the node does not have"),
    ],
)
def test_recorded_failure_is_recognised(sample: str, cause: str) -> None:
    found = diagnose(recorded(sample))
    assert found
    assert found.text.startswith(cause)


@pytest.mark.parametrize(
    "log",
    [
        "",
        recorded("vllm032_ray_v2_log_excerpt.txt"),
        recorded("ray_start_head_2.53.0.txt"),
        recorded("ray_worker_no_head_2.60.0.txt"),
        "WARNING Tensor parallel size (2) exceeds available GPUs (1). This may result in Ray placement group failures.",
        "The number of required GPUs exceeds the total number of available GPUs in the placement group.",
        'INFO:     127.0.0.1:5 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error',
        "INFO Loading tokenizer from /srv/models/qwen/tokenizer.json",
        "WARNING: NCCL_IB_DISABLE unset; error: none",
    ],
)
def test_harmless_log_has_no_cause(log: str) -> None:
    assert diagnose(log) is None


@pytest.mark.parametrize(
    ("log", "last"),
    [
        ("", ""),
        ("INFO an error: none\nERROR: nothing", ""),
        ("Traceback (most recent call last):\n  File x\nKeyError: 'a'\nmore\nRuntimeError: b c\n", "RuntimeError: b c"),
        ("(EngineCore pid=7) torch.cuda.SomeError: d", "torch.cuda.SomeError: d"),
        ("AssertionError", "AssertionError"),
    ],
)
def test_last_exception_of_a_log_is_found(log: str, last: str) -> None:
    assert exception(log) == last


def test_first_fatal_line_wins_over_what_follows_from_it() -> None:
    found = diagnose(f"{FATAL[6][0]}\n{FATAL[12][0]}")
    assert found
    assert "less than gpu-memory-utilization" in found.text


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        ("", "no log yet"),
        ("\n  \n", "no log yet"),
        ("first\nsecond\n", "second"),
        ("x" * 500, "x" * 120),
        (
            LOADING,
            "Loading safetensors checkpoint shards:  36% Completed | 14/39 [01:55<03:25]",
        ),
        ("Capturing CUDA graphs (decode, FULL):  80%|████\nnoise", "Capturing CUDA graphs (decode, FULL):  80%|████"),
        ("INFO:     Application startup complete.\nINFO: 127.0.0.1 GET", "Application startup complete"),
    ],
)
def test_phase_is_the_last_one_named(log: str, shown: str) -> None:
    assert phase(log) == shown


def test_phase_of_recorded_start() -> None:
    assert phase(recorded("vllm032_ray_v2_log_excerpt.txt")) == "Application startup complete"
    assert phase(recorded("ray_start_head_2.53.0.txt")) == "Ray runtime started"


def test_phase_of_coloured_lines_is_plain_text() -> None:
    coloured = "".join(recorded("ray_start_head_2.53.0.txt").splitlines(keepends=True)[:5])
    assert phase(coloured) == "Local node IP: 192.168.100.10"
