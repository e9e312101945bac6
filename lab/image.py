"""The images: of a node, for the outer Docker, and the small serving image, as an archive for the program."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from lab import docker, layout
from lab.layout import DEFINITION_LABEL, FILES, IMAGE_ARCHIVE, OWNER, OWNER_LABEL, STATE, TEMPORARY
from lab.rootfs import NODE_ROOT, SERVING_ROOT, RootFilesystem, clear

Note = Callable[[str], None]
ARCHIVE_STAMP = STATE / "image.stamp"
NODE_FILES = ("Dockerfile.node", "node-init", "nvidia_smi.py", "nvidia-container-runtime-hook", "sshd.conf")
SERVING_FILES = ("Dockerfile.serving", "serving-entrypoint")


def node_definition() -> str:
    """Hash of what the node image is built from."""
    return layout.digest(NODE_ROOT.definition(), *(FILES / name for name in NODE_FILES))


def serving_definition() -> str:
    """Hash of what the serving image is built from."""
    return layout.digest(SERVING_ROOT.definition(), *(FILES / name for name in SERVING_FILES))


def _built(image: str, definition: str) -> bool:
    found = docker.inspect("image", image)
    return found is not None and docker.labels("image", found).get(DEFINITION_LABEL) == definition


def _build(image: str, definition: str, base: tuple[str, RootFilesystem], names: Sequence[str], note: Note) -> None:
    """Import the root file system and build on it, in a context that holds only the files named."""
    root_image, root = base
    if not _built(root_image, root.definition()):
        change = f"LABEL {DEFINITION_LABEL}={root.definition()}"
        docker.docker_long(["import", "--change", change, str(root.archive), root_image], note)
    TEMPORARY.mkdir(parents=True, exist_ok=True)
    context = Path(tempfile.mkdtemp(prefix="build-", dir=TEMPORARY))
    try:
        for name in names:
            shutil.copy2(FILES / name, context / name)
        marks = ["--label", f"{OWNER_LABEL}={OWNER}", "--label", f"{DEFINITION_LABEL}={definition}"]
        build = ["build", "--network", "none", "--force-rm", *marks, "--tag", image]
        docker.docker_long([*build, "--file", str(context / names[0]), str(context)], note)
    finally:
        clear(context)


def node_ready() -> bool:
    """Whether the outer Docker has the node image of this definition."""
    return _built(layout.NODE_IMAGE, node_definition())


def make_node(note: Note) -> None:
    """Build the node image."""
    _build(layout.NODE_IMAGE, node_definition(), (layout.NODE_ROOT_IMAGE, NODE_ROOT), NODE_FILES, note)


def serving_ready() -> bool:
    """Whether the archive of the serving image is there and of this definition."""
    return IMAGE_ARCHIVE.exists() and layout.read_stamp(ARCHIVE_STAMP) == serving_definition()


def load_serving(note: Note) -> None:
    """See that the outer Docker has the serving image."""
    if not _built(layout.SERVING_IMAGE, serving_definition()):
        if serving_ready():
            # The archive, not a new build: the image id stays the same for the nodes that have it.
            docker.docker_long(["load", "--input", str(IMAGE_ARCHIVE)], note)
        else:
            base = (layout.SERVING_ROOT_IMAGE, SERVING_ROOT)
            _build(layout.SERVING_IMAGE, serving_definition(), base, SERVING_FILES, note)


def make_serving(note: Note) -> None:
    """Build the serving image and save it."""
    load_serving(note)
    fresh = IMAGE_ARCHIVE.with_name("image.tar.new")
    docker.docker_long(["save", "--output", str(fresh), layout.SERVING_IMAGE], note)
    fresh.replace(IMAGE_ARCHIVE)
    ARCHIVE_STAMP.write_text(serving_definition())


def remove_all() -> None:
    """Remove the lab's images from the outer Docker."""
    images = (layout.NODE_IMAGE, layout.SERVING_IMAGE, layout.NODE_ROOT_IMAGE, layout.SERVING_ROOT_IMAGE)
    docker.remove("image", [image for image in images if docker.inspect("image", image)])
