"""Commands of the lab: up, down, status, fault."""

import json
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Annotated, Never

import typer
from rich.console import Console
from rich.markup import escape

from lab import faults, lifecycle, processes
from lab.layout import MOST_NODES, NODES
from lab.processes import LabError, StoppingError

INTERRUPTED = 130
app = typer.Typer(help="Two simulated DGX Sparks on this machine.", no_args_is_help=True, add_completion=False)
console = Console(soft_wrap=True)
errors = Console(stderr=True, soft_wrap=True)


def _interrupt(_number: int, _frame: FrameType | None) -> Never:
    raise KeyboardInterrupt


def _guarded(work: Callable[[], None]) -> None:
    """Run a command so that it ends in one clear message, whatever happens, and leaves no child behind."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        work()
    except (KeyboardInterrupt, StoppingError):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        processes.stop_all()
        errors.print("interrupted; run the command again: it goes on from here")
        raise typer.Exit(INTERRUPTED) from None
    except LabError as error:
        errors.print(f"[red]error:[/] {escape(error.problem)}")
        if error.evidence:
            errors.print(escape(error.evidence.strip()), style="dim")
        if error.next_step:
            errors.print(f"[bold]next:[/] {escape(error.next_step)}")
        raise typer.Exit(1) from None


@app.command()
def up(
    *,
    nodes: Annotated[
        int, typer.Option(min=len(NODES), max=MOST_NODES, help="How many there shall be; those beyond are removed.")
    ] = len(NODES),
) -> None:
    """Bring the lab up; what is right already is left alone."""

    def work() -> None:
        began = time.monotonic()
        lifecycle.up(console, nodes)
        console.print(f"[green]the lab is up[/] after {time.monotonic() - began:.1f} s", highlight=False)

    _guarded(work)


@app.command()
def down(
    *, purge: Annotated[bool, typer.Option("--purge", help="Remove downloads, images and built files too.")] = False
) -> None:
    """Remove the nodes and networks, and stop the Docker daemon if the lab started it."""
    _guarded(lambda: lifecycle.down(console, purge=purge))


@app.command()
def status(*, as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False) -> None:
    """Tell what is there; exit code 0 only if all of it is ready."""

    def work() -> None:
        report = lifecycle.report()
        if as_json:
            typer.echo(json.dumps(report, indent=2))
        else:
            console.print(lifecycle.table(report))
        if not report["ready"]:
            raise typer.Exit(1)

    _guarded(work)


@app.command()
def fault(
    name: Annotated[str | None, typer.Argument(help="What to do; the list of all without it.")] = None,
    target: Annotated[str | None, typer.Argument(help="Role or node; the first in the list without it.")] = None,
    *,
    heal: Annotated[bool, typer.Option("--heal", help="Take it back, where that is not the program's work.")] = False,
) -> None:
    """Do to the lab what happens to real Sparks."""

    def work() -> None:
        if name is None:
            for key, one in faults.FAULTS.items():
                console.print(f"{key:15} {one.about}  ({' | '.join(one.targets)})", highlight=False, markup=False)
        else:
            console.print(faults.inject(name, target, heal=heal), highlight=False)

    _guarded(work)


if __name__ == "__main__":
    app(prog_name="python -m lab")
