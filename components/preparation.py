"""Preparation: what the settings call stale on a node is stopped last before Ray, and put back last of all (ADR 9)."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime

import pulumi
from pulumi_command import local

from hosts.ssh import Connection
from hosts.stale import Stale

SCRIPT = "hosts/preparation_script.py"
"""Relative to the project, where local commands run: what refresh and destroy send is the current code."""

NOTHING = ":"
"""What the shell does where nothing is to be stopped: not even a connection is made."""


class Preparation(pulumi.ComponentResource):
    """Two commands on a node: one remembers what was found and puts it back when it is deleted, one stops it.

    They are two so that the state knows what was found before the first unit is stopped, whatever happens then. The
    node keeps the record too, as it may get another name. Everything of ours on the node must depend on :attr:`found`,
    and so be gone before units are put back; what needs the GPU or a port, on what :meth:`stop` makes.
    """

    def __init__(
        self,
        node: str,
        connection: Connection,
        stale: Stale,
        *,
        stack: str,
        restore: bool,
        grace: int,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """Declare it on a node, whether or not there is anything to stop: what was stopped must be remembered.

        Args:
            node: its name.
            connection: to the node.
            stale: what is alive there now.
            stack: whose record it is that the node keeps.
            restore: whether units are put back.
            grace: seconds that what is stopped has for it.
            opts: as usual.
        """
        super().__init__("dgx-spark-cluster:index:Preparation", node, None, opts)
        self.node, self.connection, self.stale, self.stack, self.grace = node, connection, stale, stack, grace
        if stale:
            pulumi.log.warn(f"{node}: preparation {stale}; `stale_units` and `stale_containers` name them")
        self.found = local.Command(
            f"{node}-found",
            create=self._command("remember", "FOUND", "PULUMI_COMMAND_STDOUT"),
            delete=self._command("restore", "PULUMI_COMMAND_STDOUT") if restore else self._command("forget"),
            environment={"FOUND": stale.dump()},
            logging=local.Logging.NONE,
            # What is found alive again is a change; that nothing is alive any more is none.
            opts=pulumi.ResourceOptions(parent=self, ignore_changes=[] if stale else ["environment"]),
        )
        self.stopped: local.Command | None = None

    def stop(self, after: Sequence[pulumi.Resource]) -> None:
        """Declare what stops it, once `after` has shown that something can come in its place."""
        # With the time: the same unit may be alive again after the next reboot.
        when = {"AT": datetime.now(UTC).isoformat(timespec="seconds")} if self.stale else {}
        self.stopped = local.Command(
            f"{self.node}-stopped",
            create=self._command("stop", "FOUND", words=[str(self.grace)]) if self.stale else NOTHING,
            logging=local.Logging.STDOUT,  # what it says of a failure is in the error
            environment={"FOUND": self.stale.dump(), **when},
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=[self.found, *after],
                # Where nothing is alive, another way to the node must not stop once more what was alive long ago.
                ignore_changes=[] if self.stale else ["create", "environment"],
            ),
        )
        self.register_outputs({})

    def _command(self, verb: str, *records: str, words: Sequence[str] = ()) -> str:
        """The shell line that runs a verb of the script on the node, with words, and records from variables."""
        encoded = (f'"$(printf %s "${record}" | base64 | tr -d \'\\n\')"' for record in records)
        command = self.connection.command("python3", "-", f"{self.stack}/{self.node}", verb, *words)
        return " ".join([shlex.join(command), *encoded, "<", SCRIPT])
