"""ServeGate: exists only while the API completes a token; /health alone is 200 while generation fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pulumi
from pulumi.dynamic import Resource

from providers.gate import LiveGateProvider, Reading, Stuck, Verdict, Watched, read_once
from providers.probes import COMPLETION
from providers.wait import Wait

STUCK = {"silent": Stuck(0), "mute": Stuck(15), "failing": Stuck(15)}
"""An API that took the whole time for a completion in vain while no token flowed; one that does not even tell its
metrics; one that answers with errors of its own (5xx) may be about to exit, as vLLM does within 6 s when its engine
died."""


class ServeGateProvider(LiveGateProvider):
    """Asks for completions through a probe in serve's own container, which has the API key in its environment."""

    compared = ("url", "model", "watched")
    title = "Serve gate"
    remembered = ("probe",)

    def name(self, props: Mapping[str, Any]) -> str:
        """The API."""
        return str(props["url"])

    def now(self, props: Mapping[str, Any]) -> Verdict:
        """By one completion of one token."""
        watched = [Watched.load(one) for one in props["watched"]]
        limit = float(props["probe"])
        arguments = (str(props["url"]), str(props["model"]), str(limit))
        return judge(read_once(watched, COMPLETION, *arguments, timeout=limit + 5))

    def verify(self, props: Mapping[str, Any]) -> dict[str, Any]:
        """Wait for the first completion; measure a second one."""
        watched = [Watched.load(one) for one in props["watched"]]
        reading = Wait(
            name=self.title,
            probe=watched[0],
            script=COMPLETION,
            arguments=[str(props["url"]), str(props["model"]), str(props["completion"])],
            watched=watched,
            judge=judge,
            deadline=float(props["deadline"]),
            deadline_setting="deadlines.load",
            expected=[str(address) for address in props["addresses"]],
        ).until_open()
        return {**props, **{key: reading.get(key) for key in ("first_token_seconds", "tokens_per_second")}}


TEXTS = {
    "verified": "a completion came back",
    "busy": "busy with other completions: tokens flow",
    # vLLM binds its port at once and listens only when it has loaded: loading and dead look the same here.
    "refused": "loading (the port refuses connections)",
    "asked": "loaded; waiting for the first completion",
    "completed": "first completion; measuring another",
}


def judge(reading: Reading) -> Verdict:
    """What a reading of the API means: its `state`, as the probe has it, or `error`."""
    state = str(reading.get("state"))
    text = TEXTS.get(state) or f"completion fails: {reading.get('error', 'no reading')}"[:300]
    return Verdict(opened=state in ("verified", "busy"), text=text, stuck=STUCK.get(state))


class ServeGate(Resource, module="spark", name="ServeGate"):
    """The API, verified live by a completion."""

    first_token_seconds: pulumi.Output[float]
    """Time to first token of the gate's own completion, warm."""
    tokens_per_second: pulumi.Output[float]
    """Generation rate of the gate's own completion of 16 tokens."""

    def __init__(
        self,
        name: str,
        *,
        url: str,
        model: str,
        watched: pulumi.Input[Sequence[Mapping[str, Any]]],
        addresses: Sequence[str],
        deadlines: Mapping[str, float],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        props = {
            "url": url,
            "model": model,
            "watched": watched,
            "addresses": addresses,
            **deadlines,
            "first_token_seconds": None,
            "tokens_per_second": None,
        }
        super().__init__(ServeGateProvider(), name, props, opts)
