"""All that the surveys say, at once: what stands in the way, what is worth a warning, and what is decided from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hosts import preflight
from hosts.advice import advise, fallback, without_rdma
from hosts.fabric import Fabric, choose, unknown
from hosts.faults import Fault, Faults
from hosts.images.plan import Plan, own_sources, plan, unfit
from hosts.images.room import image_room
from hosts.shared_room import shared_room
from hosts.survey import Survey
from hosts.weights import plan as weights_plan
from hosts.weights.plan import WeightsPlan
from settings import Cluster


@dataclass
class Findings:
    """What a preview tells before anything is registered."""

    faults: list[Fault] = field(default_factory=list)
    warnings: list[Fault] = field(default_factory=list)
    fabric: Mapping[str, Fabric] = field(default_factory=dict)
    """Fabric ends by node; empty where they could not be chosen."""
    image: Plan | None = None
    """Which image, and where it comes from; None where that could not be decided."""
    weights: WeightsPlan | None = None
    """Who lacks which files of the model; None without a model, and while a node does not answer: it may have them."""

    def add(self, judged: Iterable[tuple[bool, Fault]]) -> None:
        """Take what is certain as a fault, else as a warning."""
        for certain, fault in judged:
            (self.faults if certain else self.warnings).append(fault)


def look(cluster: Cluster, stack: str, surveys: Mapping[str, Survey]) -> Findings:
    """Look at the surveys; what needs those of all nodes waits until all nodes answer."""
    found = Findings(preflight.check(cluster, stack, surveys))
    if len(surveys) < len(cluster.nodes):
        found.faults += unknown(cluster, surveys)
        try:
            own_sources(cluster, there=True)
        except Fault as fault:
            found.faults.append(fault)
        return found
    if cluster.model:
        found.weights = weights_plan.plan(cluster, surveys)
        found.faults += weights_plan.check(cluster, surveys, found.weights)
    try:
        found.image = plan(cluster, surveys)
        found.faults += unfit(cluster, surveys, found.image)
        found.add(image_room(cluster, surveys, found.image))
        if found.weights:
            found.add(shared_room(cluster, surveys, found.image, found.weights))
    except Fault as fault:
        found.faults.append(fault)
    try:
        found.fabric = choose(cluster, surveys)
    except Faults as several:
        found.faults += several.faults
    found.warnings += advise(cluster, stack, surveys, found.fabric)
    missed = [fallback(*one) for one in without_rdma(cluster, surveys, found.fabric)]
    (found.faults if cluster.require_rdma else found.warnings).extend(missed)
    return found
