"""The program: settings, a survey of all nodes, the cluster, outputs."""

from __future__ import annotations

import sys

import pulumi

from components.cluster import Cluster, ClusterArgs
from hosts.faults import Fault, Faults
from hosts.operation import destroying
from hosts.preflight import check
from hosts.survey import survey_all
from settings import SettingsError, parse, parse_secrets

REPORTED = 32
"""Exit code by which a language host knows that the user has been told: no message of its own follows."""

LEAVE_OUT = (
    "the other nodes can be cleaned now: pulumi destroy --run-program=false --refresh=false --continue-on-error; "
    "a plain pulumi destroy finishes it once these are back"
)


def main() -> None:
    """Register the stack; every fault of configuration or host ends as one clear message."""
    config = pulumi.Config()
    stack = pulumi.get_stack()
    try:
        settings = parse(read(config))
        surveys, faults = survey_all(settings)
        if destroying():
            if faults:
                raise Faults(faults, LEAVE_OUT)
            return  # what is destroyed is in the state; a port taken or a model gone must not stop it
        key, secrets, token = read_secrets(config)
        faults += check(settings, stack, surveys)
        if faults:
            raise Faults(faults)
        cluster = Cluster(ClusterArgs(stack, settings, surveys, key, secrets, token))
    except (SettingsError, Fault, Faults) as error:
        pulumi.log.error(str(error))
        sys.exit(REPORTED)
    for name, value in cluster.outputs.items():
        pulumi.export(name, value)


def read(config: pulumi.Config) -> object:
    """The configuration value; None where it is no mapping, as parse explains."""
    try:
        return config.get_object("cluster")
    except pulumi.ConfigTypeError:
        return None


Secret = pulumi.Output[str] | None


def read_secrets(config: pulumi.Config) -> tuple[Secret, pulumi.Output[dict[str, str]] | None, Secret]:
    """API key, secret environment and the hub's token; SettingsError where one is no secret or makes no sense."""
    for name, where in (
        ("apiKey", "apiKey"),
        ("secretEnvironment", "--path secretEnvironment.NAME"),
        ("hubToken", "hubToken"),
    ):
        key = config.full_key(name)
        if config.get(name) is not None and not pulumi.runtime.is_config_secret(key):
            raise SettingsError(
                f"{key}: stands in the stack's file as plain text: pulumi config rm {name}, choose a new value, then "
                f"pulumi config set --secret {where}"
            )
    try:
        environment = config.get_object("secretEnvironment")
    except pulumi.ConfigTypeError:
        environment = "no mapping"
    secrets = None if environment is None else pulumi.Output.secret(parse_secrets(environment))
    return config.get_secret("apiKey"), secrets, config.get_secret("hubToken")


main()
