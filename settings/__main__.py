"""Writes what is generated from the settings: `python -m settings`, in the project's directory."""

from __future__ import annotations

import json
from pathlib import Path

from settings.reference import reference
from settings.schema import stack_schema


def generated() -> dict[Path, str]:
    """Text of every generated file by its path."""
    return {
        Path("docs/stack.schema.json"): json.dumps(stack_schema(), indent=2, ensure_ascii=False) + "\n",
        Path("docs/settings.md"): reference(),
    }


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text)
        print(f"wrote {path}")
