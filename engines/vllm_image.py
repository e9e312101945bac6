"""What vLLM over Ray needs of an image: both of them, and that they know the arguments they will be given.

A cluster that does not serve needs Ray alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from hosts.faults import Fault
from hosts.images.contents import CACHE, Contents, ask
from hosts.images.plan import Plan
from hosts.ssh import Connection
from hosts.survey import Survey
from settings import Cluster, Node
from settings.checks import ENGINE_FLAGS, dashed, near, refusal

Arguments = Mapping[str, Sequence[str]]
"""Arguments by command (`vllm serve`, `ray start`)."""

SERVE = "vllm serve"
OPTION = re.compile(r"--?[A-Za-z]")
"""Begins an option; a value may be a negative number."""
SHOWN = 4
"""Options that a message names of those that one may mean."""


def arguments(cluster: Cluster) -> dict[str, list[str]]:
    """Arguments that the settings give, by command that will run; no release of the engine promises their names."""
    ray = [*cluster.ray.arguments, *(argument for node in cluster.nodes for argument in node.ray_arguments)]
    return ({SERVE: list(cluster.engine_arguments)} if cluster.serve else {}) | {"ray start": ray}


def mounts(cluster: Cluster, node: Node, facts: Survey) -> list[str]:
    """The directories of the settings, read-only, as `docker run --volume` takes them."""
    return [f"{facts.path(mount.source)}:{mount.target}:ro" for mount in cluster.of(node).mounts]


def check(
    cluster: Cluster, stack: str, surveys: Mapping[str, Survey], image: Plan | None, say: Callable[[str], None]
) -> list[Fault]:
    """What is wrong with the image that a node has already; nothing where it has yet to come.

    Args:
        cluster: the settings.
        stack: whose containers ask.
        surveys: facts by name, of the nodes that have no fault.
        image: which it is; while that cannot be decided, as a node does not answer, the one under its name there.
        say: takes a line for the user when an image must be asked.
    """
    for node in cluster.nodes:
        if node.name not in surveys:
            continue
        found = surveys[node.name].docker.image
        if found and (image is None or (image.image and found.identity == image.image.identity)):
            connection, given = Connection.of(cluster, node), arguments(cluster)
            try:
                mounted = mounts(cluster, node, surveys[node.name])
                contents = ask(connection, found.id, given, mounts=mounted, stack=stack, say=say)
            except Fault as fault:
                return [fault]
            return list(faults(node.name, cluster.image, given, contents))
    return []


def faults(node: str, image: str, given: Arguments, contents: Contents) -> Iterator[Fault]:
    """What an image lacks.

    Args:
        node: where it was asked.
        image: its name in the settings.
        given: arguments by command.
        contents: what it holds.
    """
    versions = f"vLLM {contents.vllm or 'absent'}, Ray {contents.ray or 'absent'}, Python {contents.python}"
    asked = f"{versions}; asked once and kept in {CACHE}"
    if contents.vllm is None and SERVE in given:
        yield Fault(node, f"image {image} has no vLLM", "correct `image`: an image with vLLM and Ray", asked)
    if contents.ray is None:
        yield Fault(
            node,
            f"image {image} has no Ray ({versions})",
            "add it: set `image_build` to a directory whose Dockerfile is FROM this image and runs "
            "pip install 'ray[default]'; or choose an image that has it",
        )
    for command, written in given.items():
        known = contents.options[command].known
        if known and (wrong := list(_wrong(MEANT[command], known, written))):
            setting = "engine_arguments" if command == SERVE else "ray.arguments` or `ray_arguments"
            yield Fault(
                node,
                f"`{command}` of image {image} {'; '.join(wrong)}",
                f"correct `{setting}`; all options: `{command} --help{'=all' if command == 'vllm serve' else ''}` "
                "in the image",
                asked,
            )


def refused(node: str, image: str, said: str) -> Fault:
    """A value that the engine does not take, in its own words."""
    return Fault(
        node,
        f"`{SERVE}` of image {image} refuses its arguments: {said}",
        "correct `engine_arguments`; nothing was stopped for them",
    )


def _wrong(meant: Meant, known: Sequence[str], written: Sequence[str]) -> Iterator[str]:
    """What a command makes of arguments that it does not take, or that are not the user's; its name goes before."""
    unknown, stray, others = [], [], []
    value = False  # whether one may stand here; an option may take several, and no help tells which do
    for argument in written:
        name = argument.partition("=")[0]
        if not OPTION.match(argument):
            if not value:
                options = meant(known, f"--{name}")  # its dashes may have been forgotten
                stray.append(f"{name} (did you mean {options[0]}?)" if len(options) == 1 else name)
            continue
        value = "=" not in argument
        options = meant(known, argument)
        if not options:
            unknown.append(argument)
        elif len(options) > 1:
            named = ", ".join([*options[:SHOWN], *(["…"] if len(options) > SHOWN else [])])
            others.append(f"finds {name} ambiguous ({named})")
        elif name != options[0] and (reason := refusal(options[0], ENGINE_FLAGS)):
            others.append(f"takes {name} for {options[0]}, which {reason}")
    if unknown:
        yield f"does not know {', '.join(map(_near(known), unknown))}"
    if stray:
        yield f"takes no value without an option: {', '.join(stray)}"
    yield from others


def _ray_meant(known: Sequence[str], argument: str) -> list[str]:
    """Options that an argument may mean; click takes none but whole names."""
    name = argument.partition("=")[0]
    return [name] if name in known else []


def _vllm_meant(known: Sequence[str], argument: str) -> list[str]:
    """The same of vLLM's parser.

    argparse takes an option's beginning for it, and vLLM underscores for dashes, `--group.key` for a part of a JSON
    option, `-O3` and `-cc.key` (vllm/utils/argparse_utils.py, 0.17.1 to 0.32.0).
    """
    name = re.split(r"[=.]", argument, maxsplit=1)[0]
    if name.startswith("-O") and "--optimization-level" in known:  # replaced before argparse sees it
        return ["--optimization-level"]
    names = (name, dashed(name))
    if whole := [option for option in known if option in names]:
        return whole[:1]
    # A letter may have its value attached.
    return [option for option in known if option.startswith(names) or (len(option) == 2 and name.startswith(option))]


Meant = Callable[[Sequence[str], str], list[str]]
MEANT: dict[str, Meant] = {SERVE: _vllm_meant, "ray start": _ray_meant}


def _near(known: Sequence[str]) -> Callable[[str], str]:
    def shown(argument: str) -> str:
        name, _, _ = argument.partition("=")
        if " " in name:
            return f"{name!r} (an option and its value are two entries of the list, or one with =)"
        close = near(name, known)
        return f"{name} (did you mean {close[0]}?)" if close else name

    return shown
