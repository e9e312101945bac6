"""Room for `docker save` on a node that several others copy an image from at once."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator

from hosts.images.stock import check_room, stock
from hosts.ssh import Connection
from providers import progress
from providers.transfer import POLL_SECONDS, PROGRESS_SECONDS, check_interrupt

_ENDED = threading.Condition()
_UNDER_WAY: Counter[str] = Counter()
"""Saves that run now, by node: all copies of a run are threads of one process (providers/plugin.py)."""


@contextlib.contextmanager
def saving(source: Connection, target: str, reference: str, size: int) -> Iterator[None]:
    """Have room for one more `docker save` of an image while this block runs.

    A graph driver's writes all layers into a temporary directory before it sends the first, and keeps them to the end.
    Those under way may have written nothing yet: one that does not fit beside all of them waits until one has ended.

    Args:
        source: to the node that has the image.
        target: name of the node that gets it.
        reference: name of the image.
        size: its bytes.

    Raises:
        Fault: it does not fit even alone, or the user interrupts.
    """
    with _ENDED:
        there = stock(source)
        while not there.containerd and (beside := _UNDER_WAY[source.node]) and not there.fits(size * (beside + 1)):
            _wait(source.node, target, beside)
            there = stock(source)
        if not there.containerd:
            check_room(source, there, size, f"`docker save` of image {reference}")
        _UNDER_WAY[source.node] += 1
    try:
        yield
    finally:
        with _ENDED:
            _UNDER_WAY[source.node] -= 1
            _ENDED.notify_all()


def _wait(source: str, target: str, beside: int) -> None:
    """Wait until fewer saves than `beside` are under way."""
    shown = 0.0
    while _UNDER_WAY[source] >= beside:
        check_interrupt(target, "the image")
        if time.monotonic() - shown >= PROGRESS_SECONDS:
            shown = time.monotonic()
            progress.passing(
                f"Image of {target}, from {source}: waits for another copy to end; room there for {beside}"
            )
        _ENDED.wait(POLL_SECONDS)
