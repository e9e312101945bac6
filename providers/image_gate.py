"""ImageGate: exists only for an image that holds the engine and knows the arguments of the settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pulumi
from pulumi.dynamic import ReadResult, Resource

from engines import vllm_image
from engines.vllm_image import SERVE
from hosts.faults import Faults
from hosts.images.contents import ask, refusal
from hosts.ssh import Connection
from providers import progress
from providers.gate import GateProvider


class ImageGateProvider(GateProvider):
    """Asks the image once it is there, before a container that works is replaced by one that cannot."""

    compared = ("image_id", "mounts", "arguments")

    def name(self, props: Mapping[str, Any]) -> str:
        """The image's id."""
        return str(props["image_id"])

    def verify(self, props: Mapping[str, Any]) -> dict[str, Any]:
        """Versions found in the image; Faults where it lacks something."""
        connection = Connection.load(props["connection"])
        given = props["arguments"]
        asked: dict[str, Any] = {"mounts": props["mounts"], "stack": props["stack"], "say": progress.lasting}
        contents = ask(connection, props["image_id"], given, **asked)
        if found := list(vllm_image.faults(connection.node, props["image"], given, contents)):
            raise Faults(found)
        for command in given:
            if error := contents.options[command].error:
                progress.lasting(f"{connection.node}: options of `{command}` go unchecked: {error}")
        if said := refusal(connection, props["image_id"], SERVE, given.get(SERVE, ()), **asked):
            raise vllm_image.refused(connection.node, props["image"], said)
        return {**props, "vllm": contents.vllm}

    def read(self, id_: str, props: Mapping[str, Any]) -> ReadResult:
        """As it was: an image never changes under its id."""
        return ReadResult(id_, dict(props))


class ImageGate(Resource, module="spark", name="ImageGate"):
    """The image, verified to hold what the engine needs."""

    vllm: pulumi.Output[str | None]
    """vLLM's version; None of an image for Ray alone that has none."""

    def __init__(
        self,
        name: str,
        *,
        connection: Connection,
        stack: str,
        image: str,
        image_id: pulumi.Input[str],
        mounts: Sequence[str],
        arguments: vllm_image.Arguments,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """Declare what the image must hold.

        Args:
            name: of the resource.
            connection: to a node that has the image.
            stack: whose container asks.
            image: its name in the settings.
            image_id: Docker's id of it on that node.
            mounts: directories that its containers see (:func:`engines.vllm_image.mounts`).
            arguments: what the settings give the engine (:func:`engines.vllm_image.arguments`).
            opts: as usual.
        """
        props = {
            "connection": connection.dump(),
            "stack": stack,
            "image": image,
            "image_id": image_id,
            "mounts": list(mounts),
            "arguments": {command: list(written) for command, written in arguments.items()},
            "vllm": None,
        }
        super().__init__(ImageGateProvider(), name, props, opts)
