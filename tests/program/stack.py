"""Runs the whole program under Pulumi's mocks: recorded surveys in, registered resources and outputs out."""

from __future__ import annotations

import json
import logging
import runpy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulumi
import pytest
from pulumi.runtime import mocks, rpc, set_all_config

from engines import vllm_image
from hosts import operation
from hosts import survey as surveying
from hosts.faults import Fault
from hosts.images.contents import Contents
from hosts.survey import Survey
from hosts.weights import hub_access
from settings import Cluster
from tests.samples import IMAGE_ID, STACK, contents, settings, surveys

PROGRAM = Path(__file__).parents[2] / "__main__.py"
PROJECT = "dgx-spark-cluster"
KEY = "sk-very-secret"

CONTAINER = "docker:index/container:Container"
VOLUME = "docker:index/volume:Volume"
PROVIDER = "pulumi:providers:docker"


@dataclass(frozen=True)
class Resource:
    """One registration."""

    urn: str
    type: str
    name: str
    inputs: dict[str, Any]
    """Inputs without the pickled provider."""
    parent: str
    provider: str
    dependencies: frozenset[str]
    deleted_with: str
    delete_before_replace: bool
    before_create: tuple[str, ...]
    ignore_changes: tuple[str, ...]

    @property
    def labels(self) -> dict[str, str]:
        """Docker's labels by name."""
        return {one["label"]: one["value"] for one in self.inputs["labels"]}

    @property
    def environment(self) -> dict[str, str]:
        """Environment, whether it is secret or not."""
        envs = self.inputs["envs"]
        return dict(line.split("=", 1) for line in (rpc.unwrap_rpc_secret(envs) if rpc.is_rpc_secret(envs) else envs))


class Monitor(mocks.MockMonitor):
    """Keeps the requests, which have the options that mocks do not see."""

    def __init__(self, answers: mocks.Mocks) -> None:
        super().__init__(answers)
        self.found: list[Resource] = []

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802 - gRPC's name
        answer = super().RegisterResource(request)  # type: ignore[no-untyped-call]
        if request.type == "pulumi:pulumi:Stack":  # once per process, by the mocks themselves
            return answer
        inputs = rpc.deserialize_properties(request.object)
        self.found.append(
            Resource(
                urn=answer.urn,
                type=request.type,
                name=request.name,
                inputs={key: value for key, value in inputs.items() if key != "__provider"},
                parent=request.parent,
                provider=request.provider,
                dependencies=frozenset(request.dependencies),
                deleted_with=request.deletedWith,
                delete_before_replace=request.deleteBeforeReplace,
                before_create=tuple(request.hooks.before_create),
                ignore_changes=tuple(request.ignoreChanges),
            )
        )
        return answer


class Answers(mocks.Mocks):
    """What the providers would say: ids that name their resource."""

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        outs = dict(args.inputs)
        if args.typ.endswith(":NodeImage"):
            outs["image_id"] = outs.get("image_id") or IMAGE_ID
            outs["identity"] = outs.get("identity") or "1f" * 32
        if args.typ.endswith(":ModelWeights") and outs.get("download"):
            below = "snapshots/" + "4" * 40
            outs |= {"below": below, "digest": "d" * 64}
            outs["offer"] = {"blobs/aa": {"size": 9, "found": None, "from": outs["connection"]["node"]}}
            outs["offered_links"] = {f"{below}/config.json": "../../blobs/aa"}
            outs["offered_refs"] = {"refs/main": "4" * 40}
        if args.typ.endswith(":GpuGate"):
            outs["ray"] = "2.53.0"
        if args.typ.endswith(":ImageGate"):
            outs["vllm"] = "0.17.1"
        if args.typ.endswith(":ServeGate"):
            outs |= {"first_token_seconds": 0.12, "tokens_per_second": 27.1}
        return f"id-of-{args.name}", outs

    def call(self, args: mocks.MockCallArgs) -> tuple[dict[str, Any], list[tuple[str, str]] | None]:
        raise AssertionError(f"the program calls {args.token}")


class Log(logging.Handler):
    """What the program says to the engine."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        levels = {logging.ERROR: self.errors, logging.WARNING: self.warnings, logging.INFO: self.lines}
        if record.levelno in levels:
            levels[record.levelno].append(record.getMessage())


@dataclass
class Outcome:
    """What one run of the program did."""

    resources: list[Resource] = field(default_factory=list)
    outputs: dict[str, Any] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    """What the program says besides."""
    exit_code: int = 0

    def of(self, type_: str) -> list[Resource]:
        """Resources whose type ends like this."""
        return [one for one in self.resources if one.type.endswith(type_)]

    def __getitem__(self, name: str) -> Resource:
        """The Docker or dynamic resource of this name; by `type name` where several have it."""
        type_, _, last = name.rpartition(" ")
        found = [one for one in self.resources if one.name == last and (not type_ or one.type.endswith(f":{type_}"))]
        assert len(found) == 1, f"{name}: {[one.urn for one in found]}"
        return found[0]

    def reaches(self, one: Resource, other: Resource) -> bool:
        """Whether `one` is created only after `other`, directly or through others."""
        by_urn = {resource.urn: resource for resource in self.resources}
        seen: set[str] = set()
        ahead = set(one.dependencies)
        while ahead:
            urn = ahead.pop()
            seen.add(urn)
            if urn in by_urn:
                ahead |= by_urn[urn].dependencies - seen
        return other.urn in seen


@dataclass
class Program:
    """The program with its surroundings replaced; by default two good Sparks."""

    monkeypatch: pytest.MonkeyPatch

    def run(
        self,
        cluster: object = None,
        *,
        facts: Mapping[str, Survey] | None = None,
        faults: tuple[Fault, ...] = (),
        key: str | None = None,
        secrets: object = None,
        hub_token: str | None = None,
        encrypted: bool = True,
        cluster_encrypted: bool = False,
        destroying: bool = False,
        image: Contents | None = None,
        hub: Sequence[tuple[bool, Fault]] | None = None,
    ) -> Outcome:
        """Run it once, as `pulumi up` or, with `destroying`, as `pulumi destroy` does.

        API key and secret environment are given as secrets, or as plain text where they are not `encrypted`. What the
        hub says of the model is given by `hub`; without it the hub must not be asked.
        """

        def survey_all(_cluster: Cluster) -> tuple[dict[str, Survey], list[Fault]]:
            return dict(surveys() if facts is None else facts), list(faults)

        def asked(*_: object) -> Sequence[tuple[bool, Fault]]:
            assert hub is not None, "the hub is asked"
            return hub

        self.monkeypatch.setattr(surveying, "survey_all", survey_all)
        self.monkeypatch.setattr(hub_access, "check", asked)
        self.monkeypatch.setattr(operation, "destroying", lambda: destroying)
        self.monkeypatch.setattr(vllm_image, "ask", lambda *_, **__: image or contents())
        value = settings() if cluster is None else cluster
        log, monitor, outcome = Log(), Monitor(Answers()), Outcome()
        logger = logging.Logger("engine")  # noqa: LOG001 - one of this run's own, known to no other
        logger.addHandler(log)
        mocks.set_mocks(Answers(), project=PROJECT, stack=STACK, logger=logger, monitor=monitor)
        config = {f"{PROJECT}:cluster": value if isinstance(value, str) else json.dumps(value)}
        config |= {f"{PROJECT}:apiKey": key} if key is not None else {}
        config |= {f"{PROJECT}:hubToken": hub_token} if hub_token else {}
        config |= {f"{PROJECT}:secretEnvironment": json.dumps(secrets)} if secrets is not None else {}
        secret = [f"{PROJECT}:{name}" for name in ("apiKey", "secretEnvironment", "hubToken")]
        secret = [*(secret if encrypted else []), *([f"{PROJECT}:cluster"] if cluster_encrypted else [])]
        set_all_config(config, secret)

        def program() -> pulumi.Output[Any]:
            stack: Any = pulumi.runtime.get_root_resource()
            stack.outputs.clear()
            try:
                runpy.run_path(str(PROGRAM), run_name="__main__")
            except SystemExit as end:
                outcome.exit_code = int(end.code or 0)
            exported: pulumi.Output[dict[str, Any]] = pulumi.Output.from_input(dict(stack.outputs))
            return exported.apply(outcome.outputs.update)

        mocks.test(program)()  # type: ignore[no-untyped-call]
        outcome.resources = monitor.found
        outcome.errors, outcome.warnings, outcome.lines = log.errors, log.warnings, log.lines
        return outcome
