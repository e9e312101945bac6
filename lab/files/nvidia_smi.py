#!/usr/bin/python3 -IS
"""Stand-in of nvidia-smi that answers as on a DGX Spark (one GB10, memory readings not supported).

/etc/lab/gpus: number of GPUs (absent: 1). /etc/lab/compute-apps.csv: one line a process that holds a GPU,
`pid, process name, used MiB[, GPU index]` (absent: none).

Starts about as fast as the real one: eight nodes of the lab are asked on two processors.
"""

import hashlib
import os
import sys
import time

SETTINGS = os.environ.get("LAB_SETTINGS", "/etc/lab")
DRIVER, CUDA = "580.95.05", "13.0"
NO_DEVICE, BAD_FIELD, BAD_ARGUMENT = 6, 2, 1
DESKTOP = (("/usr/lib/xorg/Xorg", 18), ("/usr/bin/gnome-shell", 6))
UNITS = {"memory.total": "MiB", "memory.used": "MiB", "memory.free": "MiB", "utilization.gpu": "%", "power.draw": "W"}
UNITS |= {"utilization.memory": "%", "used_gpu_memory": "MiB"}


def setting(name: str) -> str:
    """A file of the settings; OSError where there is none."""
    with open(f"{SETTINGS}/{name}", encoding="utf-8") as file:  # noqa: PTH123 - to import pathlib takes longer than all of this
        return file.read()


def gpu_count() -> int:
    """How many GPUs the driver finds."""
    try:
        return int(setting("gpus"))
    except (OSError, ValueError):
        return 1


def gpu_uuid(index: int) -> str:
    """The same for a node at every call, another for every node."""
    name = hashlib.sha256(f"{os.uname().nodename}-{index}".encode()).hexdigest()
    return "GPU-" + "-".join((name[:8], name[8:12], name[12:16], name[16:20], name[20:32]))


def bus_id(index: int) -> str:
    """PCI address in the driver's spelling."""
    return f"{0xF + index:08X}:01:00.0"


def gpu_fields(index: int) -> dict[str, str]:
    """Everything that --query-gpu can be asked."""
    return {
        "index": str(index),
        "name": "NVIDIA GB10",
        "gpu_name": "NVIDIA GB10",
        "uuid": gpu_uuid(index),
        "gpu_uuid": gpu_uuid(index),
        "count": str(gpu_count()),
        "driver_version": DRIVER,
        "pci.bus_id": bus_id(index),
        "gpu_bus_id": bus_id(index),
        "compute_cap": "12.1",
        "memory.total": "[N/A]",
        "memory.used": "[N/A]",
        "memory.free": "[N/A]",
        "utilization.gpu": "0",
        "utilization.memory": "0",
        "temperature.gpu": "38",
        "power.draw": "4.12",
        "pstate": "P8",
        "persistence_mode": "Enabled",
        "compute_mode": "Default",
        "mig.mode.current": "[N/A]",
    }


def compute_apps() -> list[dict[str, str]]:
    """Everything that --query-compute-apps can be asked, a row a process."""
    try:
        lines = setting("compute-apps.csv").splitlines()
    except OSError:
        return []
    rows = []
    for line in lines:
        parts = [part.strip() for part in line.split(",")]
        if len(parts) >= 3 and parts[0].isdigit():
            index = int(parts[3]) if len(parts) > 3 else 0
            row = {"gpu_uuid": gpu_uuid(index), "gpu_name": "NVIDIA GB10", "gpu_bus_id": bus_id(index)}
            row |= {"pid": parts[0], "process_name": parts[1], "used_gpu_memory": parts[2].removesuffix("MiB").strip()}
            rows.append(row)
    return rows


ALIASES = {"used_memory": "used_gpu_memory"}
APP_FIELDS = ("gpu_uuid", "gpu_name", "gpu_bus_id", "pid", "process_name", "used_gpu_memory")


def query(fields: str, shape: str, known: "tuple[str, ...] | list[str]", rows: "list[dict[str, str]]") -> int:
    """Print rows as csv, as nvidia-smi formats them."""
    names = [ALIASES.get(name.strip(), name.strip()) for name in fields.split(",")]
    if "process_name" in known:
        names = ["process_name" if name == "name" else name for name in names]
    for name in names:
        if name not in known:
            print(f'Field "{name}" is not a valid field to query.\n')
            return BAD_FIELD
    options = shape.split(",")
    if "csv" not in options:
        print('"--format=" switch is missing "csv" value or is given with unknown values.')
        return BAD_FIELD
    units = "nounits" not in options
    if "noheader" not in options:
        print(", ".join(f"{name} [{UNITS[name]}]" if name in UNITS else name for name in names))
    for row in rows:
        cells = [
            f"{row[name]} {UNITS[name]}" if units and name in UNITS and row[name] != "[N/A]" else row[name]
            for name in names
        ]
        print(", ".join(cells))
    return 0


def plain_table() -> None:
    """What nvidia-smi prints without arguments."""
    line = "+" + "-" * 41 + "+" + "-" * 24 + "+" + "-" * 22 + "+"
    full = "+" + "-" * 89 + "+"
    print(time.strftime("%a %b %e %H:%M:%S %Y       ", time.gmtime()))
    print(full)
    print(f"| NVIDIA-SMI {DRIVER:<23}Driver Version: {DRIVER:<15}CUDA Version: {CUDA:<9}|")
    print(line)
    print("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |")
    print("| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |")
    print("|                                         |                        |               MIG M. |")
    print(line.replace("-", "=").replace("+", "|"))
    for index in range(gpu_count()):
        print(f"| {index:>3}  NVIDIA GB10                    On  |   {bus_id(index)} Off |                  N/A |")
        print("| N/A   38C    P8              4W /  N/A  | Not Supported          |      0%      Default |")
        print("|                                         |                        |                  N/A |")
        print(line)
    print()
    print(full)
    print("| Processes:                                                                              |")
    print("|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |")
    print("|        ID   ID                                                               Usage      |")
    print("|" + "=" * 89 + "|")
    processes = [(3011 + 200 * place, "G", name, used) for place, (name, used) in enumerate(DESKTOP)]
    processes += [(int(a["pid"]), "C", a["process_name"], int(float(a["used_gpu_memory"]))) for a in compute_apps()]
    for pid, kind, name, used in processes:
        print(f"|    0   N/A  N/A {pid:>15}      {kind}   {name[:36]:<36} {f'{used}MiB':>9} |")
    print(full)


def main(arguments: "list[str]") -> int:
    """Answer as nvidia-smi does. Codes: 0, 1 bad arguments, 2 unknown field, 6 no GPU."""
    if gpu_count() == 0:
        print("No devices were found")
        return NO_DEVICE
    if not arguments:
        plain_table()
        return 0
    if arguments in (["-L"], ["--list-gpus"]):
        for index in range(gpu_count()):
            print(f"GPU {index}: NVIDIA GB10 (UUID: {gpu_uuid(index)})")
        return 0
    options = dict(argument.partition("=")[::2] for argument in arguments)
    shape = options.pop("--format", "")
    gpus = [gpu_fields(index) for index in range(gpu_count())]
    if list(options) == ["--query-gpu"]:
        return query(options["--query-gpu"], shape, list(gpu_fields(0)), gpus)
    if list(options) in (["--query-compute-apps"], ["--query-apps"]):
        return query(next(iter(options.values())), shape, APP_FIELDS, compute_apps())
    print("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n")
    return BAD_ARGUMENT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
