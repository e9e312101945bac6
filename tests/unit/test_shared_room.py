"""Image and model on one file system: an error where both cannot stay, a warning where one may be in the way."""

from __future__ import annotations

from typing import Any

import pytest

from hosts.findings import look
from hosts.survey import Survey
from tests.samples import STACK, cluster, inspected, model, survey

ABSENT = {"exists": False, "weights": False, "files": {}, "lacks": {}}


def nodes(free: float, *, images: int | None = 0, model_device: int | None = 7, **worker: Any) -> dict[str, Survey]:
    """A good node, and an empty one with so many GB free: the image needs 21 GB (42 on its way), the model 10.5."""
    docker: dict[str, Any] = {"version": "28", "containers": [], "image": None, "images": images}
    rooms = {
        "image_room": {"path": "/var/lib/docker", "free": int(free * 1e9), "device": 7},
        "model_room": {"path": "/srv/models", "free": int(free * 1e9), "device": model_device},
    }
    empty: dict[str, Any] = {"docker": docker, "model": model(**ABSENT, free=int(free * 1e9))} | rooms | worker
    return {"spark-1": survey(1), "spark-2": survey(2, **empty)}


def told(known: dict[str, Survey]) -> tuple[list[str], list[str]]:
    """Causes of errors and of warnings, without what comes behind the colon."""
    found = look(cluster(), STACK, known)
    return [one.cause.split(":")[0] for one in found.faults], [one.cause.split(":")[0] for one in found.warnings]


HINT = "there may be no room for image and model together"


def test_what_may_be_in_the_way_for_a_while_is_a_warning() -> None:
    assert told(nodes(52.6)) == ([], [])
    assert told(nodes(52.4)) == ([], [HINT])
    (warning,) = look(cluster(), STACK, nodes(52.4)).warnings
    assert warning.node == "spark-2"
    assert "42.0 GB in /var/lib/docker, where it is unpacked, and 10.5 GB in /srv/models" in warning.cause
    assert warning.cause.endswith("on the same file system, 52.4 GB free")


def test_what_cannot_stay_is_an_error_and_only_where_no_layer_is_there() -> None:
    """A model of 63 GB beside an image of 21 GB."""
    large = {f"model-{number}.safetensors": 30_000_000_000 for number in (1, 2)}
    seed = {"spark-1": survey(1, model=model(files=large))}
    assert told(nodes(80) | seed) == (["no room for image and model together"], [])
    for images in (3, None):
        assert told(nodes(80, images=images) | seed) == ([], [HINT])


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"model_device": 8}, id="two file systems"),
        pytest.param({"model_device": None}, id="not known"),
        pytest.param({"docker": {"version": "28", "containers": [], "image": inspected()}}, id="image is there"),
        pytest.param({"model": model()}, id="model is there"),
    ],
)
def test_either_alone_is_no_matter(changes: dict[str, Any]) -> None:
    assert told(nodes(52.4, **changes)) == ([], [])


def test_image_that_does_not_fit_by_itself_is_told_once() -> None:
    faults, warnings = told(nodes(41.9))
    assert (len(faults), warnings) == (1, [])
