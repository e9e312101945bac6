"""From the values of a stack's configuration to validated settings, or to a text that says what is wrong with them."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from settings.checks import SECRETS, environment_faults, near, suggest
from settings.cluster import DOUBTFUL, Cluster, Node
from settings.fields import (
    ALLOWED,
    ALLOWED_KEYS,
    ContradictionError,
    EnvironmentName,
    EnvironmentValue,
    Model,
    Place,
    SettingsError,
)

PROJECT = "dgx-spark-cluster"
KEYS = ("cluster", "apiKey", "secretEnvironment", "hubToken")
"""All that the configuration of a stack may hold of ours."""
ROOT = f"{PROJECT}:{KEYS[0]}"
BEARER = re.compile(r"[\x21-\x7e]+")
"""What HTTP can carry as a token: RFC 6750 (2.1) allows less, and servers take more than that."""
PASSES = 4
"""Values by themselves, what fits together within an entry, a node and the cluster."""
_secrets = TypeAdapter(dict[EnvironmentName, EnvironmentValue])


def parse(value: object, beside: Iterable[str] = ()) -> Cluster:
    """Validate the configuration value.

    Args:
        value: of the key `cluster`.
        beside: what is wrong with the other keys, a line each, to be told at the same time.

    Raises:
        SettingsError: lists every fault with its YAML path.
    """
    lines = list(beside)
    try:
        found = _cluster(value)
    except SettingsError as error:
        lines.append(str(error))
    if lines:
        raise SettingsError("\n".join(lines))
    return found


def _cluster(value: object) -> Cluster:
    if not isinstance(value, dict):
        raise SettingsError(f"{ROOT}: must be a mapping with nodes, image and model: start from Pulumi.spark.yaml")
    lines: list[str] = []
    rest, doubtful = json.loads(json.dumps(value)), set[str]()
    for _ in range(PASSES):
        try:
            # As JSON and strict: a list may be a tuple there, but "30000" is no number.
            found = Cluster.model_validate_json(json.dumps(rest), strict=True, context={DOUBTFUL: doubtful})
        except ValidationError as error:
            faults = _faults(error)
        else:
            if not lines:
                return found
            break
        lines += [line for fault in faults if not lines or _contradicts(fault) for line in _explain(fault)]
        for fault in faults:
            doubtful |= _leave_out(rest, fault)
    raise SettingsError("\n".join(dict.fromkeys(lines)))


def _faults(error: ValidationError) -> list[Any]:
    """A list whose entries are invalid is also reported as too short: only the entries are at fault."""
    faults = error.errors(include_url=False)
    inner = {fault["loc"][:depth] for fault in faults for depth in range(len(fault["loc"]))}
    return [fault for fault in faults if not (fault["type"] == "too_short" and fault["loc"] in inner)]


def _contradicts(fault: Any) -> bool:
    return isinstance(fault.get("ctx", {}).get("error"), ContradictionError)


def _leave_out(settings: Any, fault: Any) -> set[str]:
    """Take what is wrong out of the settings: what fits together is only checked where every value by itself is right.

    What must be there gets a stand-in, and no entry of a list another place.

    Returns:
        Names of the settings that are not as the user meant them any more.
    """
    ends = [below for below, _ in fault["ctx"]["error"].faults] if _contradicts(fault) else [()]
    places = [[part for part in (*fault["loc"], *end) if part != "[key]"] for end in ends]
    return {name for place in places if place for name in _taken_out(settings, place, fault["type"])}


def _taken_out(settings: Any, place: list[str | int], kind: str) -> Iterator[str]:
    if kind == "extra_forbidden":
        yield from near(str(place[-1]), {name for name, _ in _places(Cluster)})
    *above, last = _dispensable(place)
    index = next((part for part in place if isinstance(part, int)), 0)
    stand_ins = {"name": f"node-{index}", "ssh": f"host-{index}", "image": "image", "model": "/model"}
    yield from Node.model_fields if isinstance(last, int) else (last,)
    with contextlib.suppress(KeyError, IndexError, TypeError):  # it went with another one
        for part in above:
            settings = settings[part]
        if isinstance(last, int):
            settings[last] = {key: stand_ins[key] for key in ("name", "ssh")}
        elif last in stand_ins:
            settings[last] = stand_ins[last]
        else:
            del settings[last]


def _dispensable(place: list[str | int]) -> list[str | int]:
    """The part of a place without which the rest is valid: a list, or what has required settings, goes as a whole."""
    model: type[Model] = Cluster
    for depth, name in enumerate(place):
        if isinstance(name, int):
            if place[depth - 1] != "nodes":
                return place[:depth]
        elif name in model.model_fields:
            model = next(_models(model.model_fields[name].annotation), model)
            if model not in (Cluster, Node) and any(field.is_required() for field in model.model_fields.values()):
                return place[: depth + 1]
    return place


def key_faults(configuration: Iterable[str]) -> Iterator[str]:
    """Mistyped keys beside the settings, which nothing reads: without its API key the API would be open."""
    for key in configuration:
        project, _, name = key.partition(":")
        if project == PROJECT and name not in KEYS:
            yield f"{PROJECT}:{name}: unknown setting{suggest(name, KEYS)}"


def secret_faults(value: object) -> Iterator[str]:
    """What is wrong with the secret environment, without its values."""
    try:
        _secrets.validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        yield from (f"{_path(SECRETS, f['loc'])}: must be text under the name of a variable" for f in error.errors())
    if isinstance(value, dict):
        yield from (f"{_path(SECRETS, (name,))}: {text}" for name in value for text in environment_faults(str(name)))


def token_faults(name: str, value: str) -> Iterator[str]:
    """What is wrong with the API key or the hub's token, without showing it; an HTTP client's error would quote it."""
    if not BEARER.fullmatch(value):
        yield (
            f"{PROJECT}:{name}: must be letters, digits and signs of ASCII without a space or a line's end, not empty: "
            f"pulumi config set --secret {name}"
        )


def _path(root: str, place: Place) -> str:
    """A path as it is written of YAML; a key that is no plain word in quotes."""
    parts = [part for part in place if part != "[key]"]
    return root + "".join(
        f".{part}" if isinstance(part, str) and re.fullmatch(r"[\w./-]+", part) else f"[{_shown(part)}]"
        for part in parts
    )


def _explain(fault: Any) -> Iterator[str]:
    """Lines with path, value, what is allowed, and a suggestion where there is a near one."""
    place: Place = fault["loc"]
    path, last = _path(ROOT, place), str(place[-1]) if place else ""
    match fault["type"]:
        case "extra_forbidden":
            hint = _elsewhere(last) or suggest(last, _settings_at(place[:-1])) or "; docs/settings.md has all"
            yield f"{path}: unknown setting{hint}"
        case "missing":
            yield f"{path}: is required"
        case "value_error" if _contradicts(fault):
            yield from (f"{_path(ROOT, (*place, *below))}: {text}" for below, text in fault["ctx"]["error"].faults)
        case "value_error":
            yield f"{path}: {fault['ctx']['error']}, got {_shown(fault['input'])}"
        case "literal_error":
            allowed = re.findall(r"'([^']*)'", fault["ctx"]["expected"])
            meant = suggest(str(fault["input"]), allowed)
            yield f"{path}: must be one of {', '.join(allowed)}, got {_shown(fault['input'])}" + (
                meant if "mean" in meant else ""
            )
        case "string_pattern_mismatch":
            yield f"{path}: {_allowed(place)}, got {_shown(fault['input'])}{_mended(place)}"
        case _:
            yield f"{path}: {_words(fault['msg'])}, got {_shown(fault['input'])}"


def _allowed(place: Place) -> str:
    known = ALLOWED_KEYS if place[-1] == "[key]" else ALLOWED
    names = [part for part in place if isinstance(part, str) and part in known]
    return known[names[-1]] if names else "must be one line of text, not empty"


def _mended(place: Place) -> str:
    """A name of a variable like the one that was refused."""
    if place[-1] != "[key]" or "environment" not in place:
        return ""
    near = re.sub(r"\W", "_", str(place[-2]), flags=re.ASCII)
    return f"; did you mean {near!r}?" if re.match(r"[A-Za-z_]", near) else ""


def _words(message: str) -> str:
    """Pydantic's words as said of a setting."""
    return (
        re.sub(r"^(Input|Value|Tuple|String|List) should ", "must ", message)
        .replace(" after validation", "")
        .removesuffix(", not 0")
        .replace("an object", "a mapping")
        .replace("valid array", "list")
    )


def _shown(value: object) -> str:
    """A value as it may stand in YAML, shortened."""
    text = json.dumps(value, ensure_ascii=False, default=str).encode(errors="replace").decode()
    return text if len(text) <= 80 else f"{text[:77]}…"


def _settings_at(place: Place) -> list[str]:
    """Names of the settings allowed at a place, for suggestions; a model's own before those it inherits."""
    model: type[Model] = Cluster
    for name in (part for part in place if isinstance(part, str)):
        model = next(_models(model.model_fields[name].annotation)) if name in model.model_fields else model
    inherited = {name for base in model.__bases__ if issubclass(base, Model) for name in base.model_fields}
    return sorted(model.model_fields, key=inherited.__contains__)


def _elsewhere(name: str) -> str:
    """Where a setting of this very name belongs, to append to a message; nothing where there is none."""
    if name in KEYS[1:]:
        key = f"--path {name}.NAME" if name == "secretEnvironment" else name
        return f" here; it is a secret beside it: pulumi config set --secret {key}"
    paths = [path for known, path in _places(Cluster) if known == name]
    return f" here; it belongs to {' or '.join(f'`{path}`' for path in paths)}" if paths else ""


def _places(model: type[Model], above: str = "") -> Iterator[tuple[str, str]]:
    """Names and paths of all settings at and below a model."""
    for name, field in model.model_fields.items():
        yield name, f"{above}{name}"
        many = "[]" if get_origin(field.annotation) is tuple else ""
        for inner in _models(field.annotation):
            yield from _places(inner, f"{above}{name}{many}.")


def _models(annotation: Any) -> Iterator[type[Model]]:
    """Models within a type such as tuple[Node, ...] | None."""
    if isinstance(annotation, type) and issubclass(annotation, Model):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)
