"""Room for several `docker save` at once: side by side where it is enough for all, one after the other where not."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from hosts.faults import Fault
from hosts.images.stock import Stock
from hosts.ssh import Connection
from providers import image_saves
from providers.image_saves import saving

SOURCE = Connection("spark-1", ())
SIZE = 1000
ALONE, BESIDE = 1100, 2200
"""Bytes free for one image, with slack, and for two."""


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a copy says that it waits."""
    event = threading.Event()

    def passing(text: str) -> None:
        assert text == "Image of spark-3, from spark-1: waits for another copy to end; room there for 1"
        event.set()

    monkeypatch.setattr("providers.progress.passing", passing)
    return event


def free(monkeypatch: pytest.MonkeyPatch, room: int, *, containerd: bool = False) -> None:
    monkeypatch.setattr(image_saves, "stock", lambda _: Stock((), containerd, "/var/lib/docker", room))


@pytest.mark.parametrize(("room", "containerd"), [(BESIDE, False), (0, True)])
def test_copies_run_side_by_side_where_all_fit_or_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, room: int, containerd: bool
) -> None:
    free(monkeypatch, room, containerd=containerd)
    with saving(SOURCE, "spark-2", "vllm:1", SIZE), ThreadPoolExecutor(1) as pool:
        assert pool.submit(_save, "spark-3").result(20)


def _save(target: str) -> bool:
    with saving(SOURCE, target, "vllm:1", SIZE):
        return True


def test_copy_that_does_not_fit_beside_another_waits_for_its_end(
    monkeypatch: pytest.MonkeyPatch, waiting: threading.Event
) -> None:
    free(monkeypatch, ALONE)
    with ThreadPoolExecutor(1) as pool:
        with saving(SOURCE, "spark-2", "vllm:1", SIZE):
            second = pool.submit(_save, "spark-3")
            assert waiting.wait(20)
            assert not second.done()
        assert second.result(20)


def test_waiting_copy_begins_after_one_that_failed_too(
    monkeypatch: pytest.MonkeyPatch, waiting: threading.Event
) -> None:
    free(monkeypatch, ALONE)
    with ThreadPoolExecutor(1) as pool:
        with contextlib.suppress(Fault), saving(SOURCE, "spark-2", "vllm:1", SIZE):
            second = pool.submit(_save, "spark-3")
            assert waiting.wait(20)
            raise Fault("spark-2", "docker load failed", "look at it")
        assert second.result(20)


def test_interrupt_ends_the_wait(monkeypatch: pytest.MonkeyPatch, waiting: threading.Event) -> None:
    free(monkeypatch, ALONE)
    monkeypatch.setattr("providers.transfer.CANCELLED", waiting)
    with (
        ThreadPoolExecutor(1) as pool,
        saving(SOURCE, "spark-2", "vllm:1", SIZE),
        pytest.raises(Fault, match="spark-3: interrupted while the image was on its way"),
    ):
        pool.submit(_save, "spark-3").result(20)


def test_image_that_does_not_fit_alone_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, SIZE)
    with pytest.raises(Fault, match="no room for `docker save` of image vllm:1"):
        _save("spark-3")
    free(monkeypatch, ALONE)
    assert _save("spark-3")
