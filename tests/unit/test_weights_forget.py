"""What a destroy removes of a model: what the ledger names, and no more."""

from __future__ import annotations

from pathlib import Path

from hosts.weights.forget import forget
from hosts.weights.links import put
from hosts.weights.look import LEDGER
from tests.samples.models import contents, directory


def test_what_was_brought_is_removed_and_what_was_there_stays(tmp_path: Path) -> None:
    top = directory(tmp_path / "m", {"notes.txt": b"mine"})
    put(str(top), {"a/b.json": "c.json", "odd\u2028.\u2028.json": "c.json"}, {})
    forget(str(top))
    assert [path.name for path in top.iterdir()] == ["notes.txt"]


def test_model_that_was_there_and_was_mended_stays(tmp_path: Path) -> None:
    top = directory(tmp_path / "m", contents())
    put(str(top), {"extra.json": "config.json"}, {})
    forget(str(top))
    assert {path.name for path in top.iterdir()} == {*contents(), "extra.json", LEDGER}
