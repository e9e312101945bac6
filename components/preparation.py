"""Preparation: what the settings call stale on a node is stopped before anything of ours comes there (ADR 9)."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime

import pulumi
from pulumi_command import local

from hosts.ssh import Connection
from hosts.stale import Stale

SCRIPT = "hosts/preparation_script.py"
"""Relative to the project, where local commands run: what refresh and destroy send is the current code."""


class Preparation(pulumi.ComponentResource):
    """Two commands on a node: one remembers what was found and puts it back when it is deleted, one stops it.

    They are two so that the state knows what was found before the first unit is stopped, whatever happens then.
    Everything of ours on the node must depend on :attr:`stopped`, and so be gone before units are put back.
    """

    def __init__(
        self,
        node: str,
        connection: Connection,
        stale: Stale,
        *,
        restore: bool,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """Declare it on a node, whether or not there is anything to stop: what was stopped must be remembered.

        Args:
            node: its name.
            connection: to the node.
            stale: what is alive there now.
            restore: whether units are put back.
            opts: as usual.
        """
        super().__init__("dgx-spark-cluster:index:Preparation", node, None, opts)

        def command(verb: str, *records: str) -> str:
            encoded = (f'"$(printf %s "${record}" | base64 | tr -d \'\\n\')"' for record in records)
            return " ".join([shlex.join(connection.command("python3", "-", node, verb)), *encoded, "<", SCRIPT])

        if stale:
            pulumi.log.warn(f"{node}: preparation {stale}; `stale_units` and `stale_containers` name them")
        # What is found alive again is a change; that nothing is alive any more is none.
        unless_found = pulumi.ResourceOptions(parent=self, ignore_changes=[] if stale else ["environment"])
        found = {"FOUND": stale.dump()}
        self.found = local.Command(
            f"{node}-found",
            create=command("remember", "FOUND", "PULUMI_COMMAND_STDOUT"),
            delete=command("restore", "PULUMI_COMMAND_STDOUT") if restore else None,
            environment=found,
            logging=local.Logging.NONE,
            opts=unless_found,
        )
        self.stopped = local.Command(
            f"{node}-stopped",
            create=command("stop", "FOUND"),
            logging=local.Logging.STDOUT,  # what it says of a failure is in the error
            # With the time: the same unit may be alive again after the next reboot.
            environment={**found, "AT": datetime.now(UTC).isoformat(timespec="seconds")},
            opts=pulumi.ResourceOptions.merge(unless_found, pulumi.ResourceOptions(depends_on=[self.found])),
        )
        self.register_outputs({})
