"""The policies of the pack: which rule, under which name, how strictly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pulumi_policy import (
    EnforcementLevel,
    Policy,
    ReportViolation,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    StackValidationArgs,
    StackValidationPolicy,
)

from policies import resource_rules, stack_rules
from policies.registered import Registered, stack_of

NAME = "dgx-spark-cluster"
LAB_STACK = "lab"
"""The stack of simulated nodes, where an image has no digest and nobody else reaches the API."""

ResourceRule = Callable[[Registered], Iterator[str]]
StackRule = Callable[[Sequence[Registered]], Iterator[stack_rules.Violation]]


def resource_policy(name: str, description: str, rule: ResourceRule) -> Policy:
    """A mandatory policy on single resources."""
    return _on_stacks(name, description, rule, EnforcementLevel.MANDATORY, lambda _stack: True)


def lenient_on_lab(name: str, description: str, rule: ResourceRule) -> list[Policy]:
    """Two policies of one rule, since a policy has one level: mandatory everywhere, but advisory on the lab."""
    return [
        _on_stacks(name, description, rule, EnforcementLevel.MANDATORY, lambda stack: stack != LAB_STACK),
        _on_stacks(f"{name}-{LAB_STACK}", description, rule, EnforcementLevel.ADVISORY, lambda s: s == LAB_STACK),
    ]


def stack_policy(name: str, description: str, rule: StackRule) -> Policy:
    """A mandatory policy on a whole stack."""

    def validate(args: StackValidationArgs, report: ReportViolation) -> None:
        for urn, text in rule([Registered.of(resource) for resource in args.resources]):
            report(text, urn)

    return StackValidationPolicy(name, description, validate, EnforcementLevel.MANDATORY)


def _on_stacks(
    name: str, description: str, rule: ResourceRule, level: EnforcementLevel, applies: Callable[[str], bool]
) -> Policy:
    def validate(args: ResourceValidationArgs, report: ReportViolation) -> None:
        if applies(stack_of(args.urn)):
            for text in rule(Registered.of(args)):
                report(text, None)

    return ResourceValidationPolicy(name, description, validate, level)


POLICIES: list[Policy] = [
    resource_policy("container-owned", "Containers carry stack, role and node as labels.", resource_rules.owned),
    resource_policy("container-on-its-node", "Containers are on their node's provider.", resource_rules.on_its_node),
    resource_policy("container-confined", "No container controls its node.", resource_rules.confined),
    *lenient_on_lab("image-pinned", "Images are pinned by digest or id.", resource_rules.pinned),
    *lenient_on_lab("api-key", "The API asks for a key beyond loopback.", resource_rules.key_beyond_loopback),
    stack_policy("fabric-addresses", "Roles use the fabric addresses.", stack_rules.on_the_fabric),
    stack_policy("serve-behind-gates", "Serve is started and verified by gates.", stack_rules.behind_gates),
]
