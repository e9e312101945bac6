"""JSON schema of a whole stack file (Pulumi.STACK.yaml), by which editors complete, explain and check it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from settings.cluster import Cluster
from settings.host import Overridable

PROJECT = "dgx-spark-cluster"
SECURE: dict[str, Any] = {
    "type": "object",
    "properties": {"secure": {"type": "string", "description": "What `pulumi config set --secret` wrote."}},
    "required": ["secure"],
    "additionalProperties": False,
}
FOR_CLIENTS = "Key that clients of the API must send: `pulumi config set --secret apiKey`. Without one the API is open."
FOR_ALL_CONTAINERS = (
    "Secret environment of all containers, over `environment`: `pulumi config set --secret --path "
    "secretEnvironment.HF_TOKEN`. In Pulumi's state it is encrypted; on the node whoever may use Docker can read it."
)
FOR_THE_HUB = (
    "Token for a model that is downloaded from the hub, if it needs one: `pulumi config set --secret hubToken`. Only "
    "the hub gets it, not the engine."
)


def stack_schema() -> dict[str, Any]:
    """The schema; descriptions are the docstrings of the settings."""
    cluster = _plain(Cluster.model_json_schema())
    models = cluster.pop("$defs")
    for name in Overridable.model_fields:
        own = models["Node"]["properties"][name]
        own.pop("default", None)
        own["description"] = f"For this node, over the cluster's. {own['description']}"
    environment = {
        "description": FOR_ALL_CONTAINERS,
        "anyOf": [SECURE, {"type": "object", "additionalProperties": SECURE}],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Stack of {PROJECT}",
        "type": "object",
        "properties": {
            "config": {
                "type": "object",
                "description": "Configuration of the stack.",
                "properties": {
                    f"{PROJECT}:cluster": {"$ref": "#/$defs/Cluster"},
                    f"{PROJECT}:apiKey": {"description": FOR_CLIENTS, **SECURE},
                    f"{PROJECT}:secretEnvironment": environment,
                    f"{PROJECT}:hubToken": {"description": FOR_THE_HUB, **SECURE},
                },
                "patternProperties": {f"^(?!{PROJECT}:)[^:]+:.+$": {"description": "Configuration of Pulumi itself."}},
                "required": [f"{PROJECT}:cluster"],
                "additionalProperties": False,
            },
            "encryptionsalt": {"type": "string", "description": "Written by Pulumi for a passphrase."},
            "encryptedkey": {"type": "string", "description": "Written by Pulumi for a key of a cloud."},
            "secretsprovider": {"type": "string", "description": "Written by Pulumi: what encrypts secrets."},
            "environment": {"description": "Pulumi ESC environments."},
        },
        "required": ["config"],
        "additionalProperties": False,
        "$defs": {"Cluster": cluster, **models},
    }


def _plain(schema: Any) -> Any:
    """A schema without titles, which only repeat the names, and without the docstrings' line ends."""
    if isinstance(schema, list):
        return [_plain(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "patternProperties", "$defs"):
            found[key] = {name: _plain(part) for name, part in value.items()}
        elif key == "description":
            found[key] = " ".join(value.split())
        elif key != "title":
            found[key] = value if key == "default" else _plain(value)
    if "patternProperties" in found:
        found["additionalProperties"] = False
    return found
