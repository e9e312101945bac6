"""The program: settings, a survey of all nodes, the cluster, outputs."""

from __future__ import annotations

import pulumi

from components.cluster import Cluster, ClusterArgs
from hosts.faults import Fault, Faults
from hosts.operation import destroying
from hosts.preflight import check
from hosts.survey import survey_all
from settings import SettingsError, parse


def main() -> None:
    """Register the stack; every fault of configuration or host ends as one clear message."""
    config = pulumi.Config()
    stack = pulumi.get_stack()
    try:
        settings = parse(config.get_object("cluster"))
        surveys, faults = survey_all(settings)
        if not destroying():
            faults += check(settings, stack, surveys)
        if faults:
            raise Faults(faults)
        cluster = Cluster(ClusterArgs(stack, settings, surveys, config.get_secret("apiKey")))
    except (SettingsError, Fault, Faults) as error:
        raise pulumi.RunError(str(error)) from None
    for name, value in cluster.outputs.items():
        pulumi.export(name, value)


main()
