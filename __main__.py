"""The program: settings, a survey of all nodes, the cluster, outputs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pulumi
from pulumi.runtime.config import CONFIG

from components import monitor
from engines import vllm_image
from hosts.faults import Fault, Faults
from hosts.findings import look
from hosts.images import registry_access
from hosts.operation import LEAVE_OUT, destroying
from hosts.preflight import runs_containers
from hosts.readings import line
from hosts.survey import survey_all
from hosts.weights import hub_access
from settings import SettingsError, key_faults, parse, secret_faults, token_faults


def main() -> None:
    """Register the stack; every fault of configuration or host ends as one clear message."""
    monitor.mend()
    config = pulumi.Config()
    stack = pulumi.get_stack()
    try:
        settings = parse(read(config), beside(config))
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(survey_all, settings)
            # Pulumi's SDKs take as long to import as the nodes to answer.
            from components.cluster import Cluster, ClusterArgs  # noqa: PLC0415

            surveys, faults = asked.result()
        if destroying():
            if faults:
                raise Faults(faults, LEAVE_OUT)
            return  # what is destroyed is in the state; a port taken or a model gone must not stop it
        found = look(settings, stack, surveys)
        if found.image and found.image.pulled:
            found.add(registry_access.check(settings, found.image.seed))
        if found.weights and found.weights.download:
            seed = found.image.seed if found.image else settings.head.name
            found.add(hub_access.check(settings, surveys, seed, config.get("hubToken")))
        for name, facts in surveys.items():
            pulumi.log.info(line(name, facts, found.fabric.get(name)))
        for warning in found.warnings:
            pulumi.log.warn(str(warning))
        faults += found.faults
        sound = {name: facts for name, facts in surveys.items() if runs_containers(facts)}
        faults += vllm_image.check(settings, stack, sound, found.image, pulumi.log.info)
        if faults or not found.image:
            raise Faults(faults)
        cluster = Cluster(
            ClusterArgs(
                stack,
                settings,
                surveys,
                found.fabric,
                found.image,
                found.weights,
                config.get_secret("apiKey"),
                config.get_secret_object("secretEnvironment"),
                config.get_secret("hubToken"),
            )
        )
    except SettingsError as error:
        pulumi.log.error(f"{error}\n  next: correct Pulumi.{stack}.yaml; docs/settings.md lists every setting")
        sys.exit(monitor.REPORTED)
    except (Fault, Faults) as error:
        pulumi.log.error(str(error))
        sys.exit(monitor.REPORTED)
    for name, value in cluster.outputs.items():
        pulumi.export(name, value)


def read(config: pulumi.Config) -> object:
    """The configuration value; None where it is no mapping, as parse explains."""
    try:
        return config.get_object("cluster")
    except pulumi.ConfigTypeError:
        return None


def beside(config: pulumi.Config) -> Iterator[str]:
    """What is wrong with the keys beside the settings. No secret stands in the way of a destroy, which reads none."""
    yield from key_faults({**pulumi.runtime.get_config_env(), **CONFIG.get()})
    if destroying():
        return
    for name, where in (
        ("apiKey", "apiKey"),
        ("secretEnvironment", "--path secretEnvironment.NAME"),
        ("hubToken", "hubToken"),
    ):
        key = config.full_key(name)
        if config.get(name) is not None and not pulumi.runtime.is_config_secret(key):
            yield (
                f"{key}: stands in the stack's file as plain text: pulumi config rm {name}, choose a new value, then "
                f"pulumi config set --secret {where}"
            )
    if pulumi.runtime.is_config_secret(config.full_key("cluster")):
        yield (
            f"{config.full_key('cluster')}: holds a secret, which would stand in the state as plain text: give it with "
            "pulumi config set --secret --path secretEnvironment.NAME, and take it out here"
        )
    try:
        environment = config.get_object("secretEnvironment")
    except pulumi.ConfigTypeError:
        environment = "no mapping"
    if environment is not None:
        yield from secret_faults(environment)
    for name in ("apiKey", "hubToken"):
        if (token := config.get(name)) is not None:
            yield from token_faults(name, token)


main()
