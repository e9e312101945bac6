"""The reference page of the settings (docs/settings.md), from the schema."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from settings.cluster import Cluster, Node
from settings.host import Overridable
from settings.schema import FOR_ALL_CONTAINERS, FOR_CLIENTS, FOR_THE_HUB, PROJECT, stack_schema

HEAD = f"""# Settings

All settings of a stack, under `config:` of its `Pulumi.STACK.yaml`; written by `make schema`, do not edit.
Unknown settings are refused, and a wrong value is named by its path. `–` as default means that the setting is required.

## Secrets

| path | type | default | meaning |
|---|---|---|---|
| `{PROJECT}:apiKey` | secret | none | {FOR_CLIENTS} |
| `{PROJECT}:secretEnvironment` | mapping of secrets | none | {FOR_ALL_CONTAINERS} |
| `{PROJECT}:hubToken` | secret | none | {FOR_THE_HUB} |
"""


def reference() -> str:
    """The page as Markdown."""
    models = stack_schema()["$defs"]
    both = list(Overridable.model_fields)
    merging = " ".join((Overridable.__doc__ or "").split())
    text = f"{merging} Each of these may also be given as `nodes[].…`."
    pages = [
        HEAD,
        _section("Cluster", "", models["Cluster"], [name for name in Cluster.model_fields if name not in both]),
        _section("Node", "nodes[].", models["Node"], [name for name in Node.model_fields if name not in both]),
        _section("Cluster and node", "", models["Cluster"], both, text),
    ]
    for path, schema in models["Cluster"]["properties"].items():
        name = next((name for name in models if f"#/$defs/{name}" in json.dumps(schema)), "Node")
        if name != "Node":
            prefix = f"{path}[]." if "items" in schema else f"{path}."
            pages.append(_section(name, prefix, models[name], list(models[name]["properties"])))
    return "\n".join(pages)


def _section(title: str, prefix: str, model: dict[str, Any], fields: Iterable[str], text: str = "") -> str:
    lines = [f"## {title}\n\n{text or model['description']}\n"]
    if not prefix:
        lines.append(f"Paths are below `{PROJECT}:cluster`.\n")
    lines.append("| path | type | default | meaning |\n|---|---|---|---|")
    for field in fields:
        schema = model["properties"][field]
        default = "–" if field in model.get("required", ()) else _default(schema)
        cells = (f"`{prefix}{field}`", _kind(schema), default, schema.get("description", ""))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


def _default(schema: dict[str, Any]) -> str:
    """What holds where nothing is given; a model's own defaults are in its section."""
    value = schema.get("default")
    return "see below" if "$ref" in schema else "none" if value is None else f"`{json.dumps(value)}`"


def _kind(schema: dict[str, Any]) -> str:
    """A type in words."""
    match schema:
        case {"$ref": name}:
            kind = str(name.rpartition("/")[2]).lower()
        case {"enum": values}:
            kind = "one of " + ", ".join(f"`{value}`" for value in values)
        case {"type": "string", "anyOf": _}:
            kind = "address"
        case {"anyOf": [variant, *_]}:
            kind = _kind(variant)
        case {"type": "array", "items": items}:
            kind = f"list of {_kind(items)}"
        case {"type": "integer" | "number" as number}:
            lower = f"from {schema['minimum']}" if "minimum" in schema else f"above {schema['exclusiveMinimum']}"
            kind = f"{number} {lower}" + (f" to {schema['maximum']}" if "maximum" in schema else "")
        case _:
            words = {"string": "text", "object": "mapping of names to text"}
            kind = words.get(schema["type"], schema["type"])
    return kind
