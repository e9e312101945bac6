"""Whatever is done to settings, parse() answers with a Cluster or with a SettingsError that says something."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import HealthCheck, given
from hypothesis import settings as run
from hypothesis import strategies as st

from hosts.ssh import Connection
from settings import Cluster, SettingsError, parse, secret_faults
from tests.samples import MINIMAL
from tests.unit.test_settings import FULL

SCALAR = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return inner | st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)


JSON = nested(nested(SCALAR))


def paths(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in nested data."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in inner for place in ((*prefix, key), *paths(item, (*prefix, key)))]


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """Valid settings after one to three accidents."""
    value = copy.deepcopy(draw(st.sampled_from([MINIMAL, FULL])))
    for _ in range(draw(st.integers(1, 3))):
        places = paths(value)
        if not places:
            break
        *way, last = draw(st.sampled_from(places))
        parent = value
        for key in way:
            parent = parent[key]
        accident = draw(st.sampled_from(["drop", "mistype", "replace", "twice"]))
        if accident == "drop":
            del parent[last]
        elif accident == "mistype" and isinstance(last, str):
            parent[last[1:] + draw(st.text(max_size=2))] = parent.pop(last)
        elif accident == "twice" and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[last]))
        else:
            parent[last] = draw(JSON)
    return value


def outcome(value: object) -> Cluster | None:
    """The cluster, or None after a refusal that says something."""
    try:
        return parse(value)
    except SettingsError as error:
        text = str(error)
    assert all(line.startswith("dgx-spark-cluster:cluster") for line in text.split("\n")), text
    assert len(text) > len("dgx-spark-cluster:cluster: ")
    return None


@run(max_examples=2000, suppress_health_check=[HealthCheck.too_slow])
@given(mutated())
def test_mutated_settings_give_a_usable_cluster_or_a_refusal(value: object) -> None:
    found = outcome(value)
    if found is None:
        return
    assert found.tensor_parallel * found.pipeline_parallel_size == found.gpus
    assert len({node.name for node in found.nodes}) == len(found.nodes)
    for node in found.nodes:
        own = found.of(node)
        assert {mount.key for mount in node.mounts} <= {mount.key for mount in own.mounts}
        assert own.environment.items() >= node.environment.items()
        connection = Connection.of(found, node)
        assert Connection.load(connection.dump()) == connection
        assert all(isinstance(part, str) and "\0" not in part for part in connection.command("true"))


@run(max_examples=100)
@given(JSON)
def test_arbitrary_json_is_refused(value: object) -> None:
    assert outcome(value) is None


@run(max_examples=200)
@given(JSON)
def test_arbitrary_json_as_secrets_is_accepted_or_refused_without_showing_it(value: object) -> None:
    lines = list(secret_faults(value))
    assert all(line.startswith("dgx-spark-cluster:secretEnvironment") and "\n" not in line for line in lines)
    assert lines or (isinstance(value, dict) and all(isinstance(part, str) for part in value.values()))
