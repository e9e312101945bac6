"""What host preparation stops on a node: the units and containers that the settings call stale and the survey found."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Self

from hosts.survey import Container, Survey, Unit
from settings import Overridable


@dataclass(frozen=True)
class Stale:
    """Stale units that are alive and stale containers that exist; false where there is neither."""

    units: tuple[Unit, ...]
    containers: tuple[Container, ...]

    @classmethod
    def of(cls, own: Overridable, facts: Survey) -> Self:
        """What a survey found of it, by the settings in force on the node."""
        return cls(facts.units, tuple(one for one in facts.docker.containers if one.name in own.stale_containers))

    def __bool__(self) -> bool:
        return bool(self.units or self.containers)

    @property
    def runs(self) -> bool:
        """Whether any of it runs now, and so may hold memory."""
        return any(one.runs for one in self.units) or any(one.state == "running" for one in self.containers)

    def holds(self, container: str, unit: str) -> bool:
        """Whether a process of this container (by id) or unit goes with what is stopped."""
        return container in {one.id for one in self.containers} or unit in {one.name for one in self.units}

    def dump(self) -> str:
        """What hosts/preparation_script.py takes, as JSON. No environment, no arguments: they may hold secrets."""
        units = {one.name: {"runs": one.runs, "enabled": one.enabled} for one in self.units}
        containers = {one.name: {"id": one.id, "image": one.image} for one in self.containers}
        return json.dumps({"units": units, "containers": containers}, sort_keys=True)

    def __str__(self) -> str:
        """What happens to it, in words."""
        parts = [f"stops and disables unit {one.name} ({one.active}, {one.enabled or 'static'})" for one in self.units]
        parts += [f"removes container {one.name} ({one.state})" for one in self.containers]
        return ", ".join(parts)
