"""What `up`, `down` and `status` do, in terms of the lab's pieces."""

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lab import access, daemon, docker, engine, image, layout, model, network, nodes, processes
from lab.layout import ENGINE, IMAGE_ARCHIVE, LOCK, MODELS, NETWORKS, NODES, STATE, TEMPORARY
from lab.processes import LabError
from lab.rootfs import NODE_ROOT, SERVING_ROOT, clear
from lab.steps import HEARTBEAT, Step, run_steps


def steps(count: int) -> list[Step]:
    """Everything `up` brings about for so many nodes, with what each step needs."""
    packages, outer, node_root, serving_root = "packages", "Docker daemon", "node packages", "image packages"
    keys, networks, environment, node_image = "ssh keys and config", "networks", "engine environment", "node image"
    serving_image, tiny_model = "serving image", "tiny model"

    return [
        Step(packages, daemon.packages_ready, daemon.install_packages),
        Step(outer, docker.answers, daemon.start, (packages,)),
        Step(keys, access.ready, access.make, (packages,)),
        Step(node_root, NODE_ROOT.ready, NODE_ROOT.make, (packages,)),
        Step(serving_root, SERVING_ROOT.ready, SERVING_ROOT.make, (packages,)),
        Step(environment, engine.ready, engine.make),
        Step(networks, network.ready, network.make, (outer,)),
        Step(node_image, image.node_ready, image.make_node, (outer, node_root)),
        Step(serving_image, image.serving_ready, image.make_serving, (outer, serving_root)),
        Step(tiny_model, model.ready, model.make, (environment, serving_image)),
        Step(
            "nodes",
            partial(nodes.ready, count),
            partial(nodes.make, count=count),
            (keys, networks, node_image, environment, tiny_model),
        ),
    ]


@contextlib.contextmanager
def alone(note: Callable[[str], None]) -> Iterator[None]:
    """One `up` or `down` of a checkout at a time; the next one waits. The lock ends with the process."""
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with LOCK.open("w") as lock:
        began = told = time.monotonic()
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                now = time.monotonic()
                if told == began or now - told > HEARTBEAT:
                    note(f"waiting for another `python -m lab` of this checkout to finish, {now - began:.0f} s")
                    told = now
                processes.pause(0.2)
        yield


def up(console: Console, count: int) -> None:
    """Bring the lab up with so many nodes."""
    with alone(console.print):
        STATE.mkdir(parents=True, exist_ok=True)
        if TEMPORARY.exists():
            clear(TEMPORARY)  # of a run that was killed
        run_steps(steps(count), console)


def down(console: Console, *, purge: bool) -> None:
    """Remove what `up` made from Docker and the network, in whatever state it is."""

    def note(line: str) -> None:
        console.print(line, highlight=False)

    with alone(note):
        _down(note, purge=purge)
    console.print("[green]the lab is down[/]")


def _down(note: Callable[[str], None], *, purge: bool) -> None:
    if not docker.answers() and daemon.RECORD.exists():
        # Killed, not stopped: its containers may live on, and only a daemon can end them.
        daemon.start(note)
    shared = False
    if docker.answers():
        nodes.remove_all()
        docker.remove("network", docker.labelled("network"))
        if purge:
            image.remove_all()
        note("nodes and networks removed")
        shared = bool(docker.labelled("container", owner=None))
        if shared:
            note("the nodes of another checkout's lab run in this Docker daemon: it stays, with its devices and route")
        else:
            daemon.stop(note)
    if not shared:
        for each in NETWORKS:
            if not docker.answers() or docker.inspect("network", each.name) is None:
                network.remove_device(each)
        network.remove_route()
    if purge:
        clear(STATE)
        note(f"{STATE} removed")


def report() -> dict[str, Any]:
    """What there is, for `status`."""
    answers = docker.answers()
    own = daemon.own_daemon()
    found: dict[str, Any] = {
        "daemon": {"ready": answers, "started_by_lab": own is not None, "pid": own.pid if own else None},
        "networks": {each.name: {"ready": answers and network.network_ready(each)} for each in NETWORKS},
        "access": {"ready": access.ready(), "ssh_config": str(layout.SSH_CONFIG)},
        "nodes": {},
        "image": {"ready": image.serving_ready(), "path": str(IMAGE_ARCHIVE)},
        "engine": {"ready": engine.ready(), "path": str(ENGINE)},
        "model": {"ready": model.ready(), "path": str(MODELS / model.NAME)},
    }
    for node in dict.fromkeys((*NODES, *(nodes.present() if answers else ()))):
        try:
            facts = nodes.describe(node) if answers else {"running": False}
        except LabError as error:
            facts = {"running": False, "error": error.problem}
        found["nodes"][node.name] = {"ready": bool(facts.get("docker") and facts.get("as_defined")), **facts}
    parts = [found["daemon"], found["access"], found["image"], found["engine"], found["model"]]
    parts += [*found["networks"].values(), *found["nodes"].values()]
    return {"ready": all(part["ready"] for part in parts), **found}


def table(found: dict[str, Any]) -> Table:
    """The report for people."""
    shown = Table(title="lab", title_justify="left")
    for column in ("part", "ready", "facts"):
        shown.add_column(column)
    rows = {name: found[name] for name in ("daemon", "access", "image", "engine", "model")}
    rows |= {f"network {name}": facts for name, facts in found["networks"].items()}
    rows |= {f"node {name}": facts for name, facts in found["nodes"].items()}
    for name, facts in rows.items():
        text = ", ".join(f"{key} {value}" for key, value in facts.items() if key != "ready")
        shown.add_row(name, "[green]yes[/]" if facts["ready"] else "[red]no[/]", escape(text))
    return shown
