"""The tiny model: a two-layer Qwen3 with real weights, made with the engine's own libraries in the serving image."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from lab import docker, engine, image, layout
from lab.layout import ENGINE, FILES, MODELS, OWNER, OWNER_LABEL, TEMPORARY
from lab.rootfs import clear

NAME = "tiny-qwen3"
SCRIPT = FILES / "make_model.py"
STAMP = MODELS.parent / "model.stamp"


def definition() -> str:
    """Hash of what the model is made from."""
    return layout.digest(SCRIPT, NAME)


def ready() -> bool:
    """Whether the model is there and made by this script."""
    return (MODELS / NAME / "config.json").exists() and layout.read_stamp(STAMP) == definition()


def make(note: Callable[[str], None]) -> None:
    """Make the model in a temporary folder, then put it in place."""
    image.load_serving(note)
    TEMPORARY.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="model-", dir=TEMPORARY))
    try:
        command = ["run", "--rm", "--network", "none", "--label", f"{OWNER_LABEL}={OWNER}"]
        command += ["--volume", f"{ENGINE}:{engine.MOUNTED_AT}:ro", "--volume", f"{SCRIPT}:/make_model.py:ro"]
        command += ["--volume", f"{work}:/out", "--env", "HF_HUB_OFFLINE=1", "--entrypoint", "python3"]
        docker.docker_long([*command, layout.SERVING_IMAGE, "/make_model.py", f"/out/{NAME}"], note)
        target = MODELS / NAME
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            target.rename(work / "replaced")
        (work / NAME).rename(target)
        STAMP.write_text(definition())
    finally:
        clear(work)
