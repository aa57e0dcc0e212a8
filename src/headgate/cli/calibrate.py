"""``headgate calibrate``: measure this machine for simulations of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from headgate.cli.calibration import predictions
from headgate.cli.calibration.calibrate import Tell, calibrate
from headgate.cli.calibration.yardstick import Yardstick
from headgate.cli.checkout import load_app
from headgate.cli.display import console, shown
from headgate.demo.tpcx_bb.queries import Shop
from headgate.engines.base import default_packet_rows
from headgate.errors import PipelineError
from headgate.machine.calibration import Calibration

calibration = typer.Typer()


@calibration.command("calibrate")
def command(
    apps: Annotated[
        list[Path] | None,
        typer.Argument(help="Applications whose operators to measure; the TPCx-BB queries if none is named."),
    ] = None,
    output: Annotated[Path, typer.Option(help="Where to write what was measured.")] = Path("host.costs"),
    quick: Annotated[bool, typer.Option("--quick", help="Rougher, in seconds.")] = False,
    validate: Annotated[
        bool,
        typer.Option(
            "--validate", help="Then fit one TPCx-BB query, predict the other four, and measure them too."
        ),
    ] = False,
) -> None:
    """Measure what memory, box calls and operators cost on this machine, for `hg.Simulated(costs=FILE)`.

    Example: `headgate calibrate --quick --output host.costs`
    """
    if apps and validate:
        raise PipelineError("--validate is for the TPCx-BB queries: name no application with it.")
    if not output.parent.is_dir():
        raise PipelineError(f"--output {output}: there is no folder {output.parent}.")
    rows = (predictions.FEW_PACKETS if quick else predictions.PACKETS) * default_packet_rows()
    with _progress() as tell:
        tell("TPCx-BB rows", 0.0)
        yardstick = Yardstick()
        whole = predictions.Measured(Shop(rows), yardstick) if validate else None
        measured = [load_app(app).network for app in apps] if apps else predictions.networks()
        found = calibrate(measured, quick, tell, yardstick, whole.again if whole else None)
        if whole is not None:
            tell(f"fit {predictions.REFERENCE}", 1.0)
            found = predictions.fitted(found, whole)
    found.save(output)
    _show(found)
    for box in (box for network in measured for box in network.boxes):
        if box.operator.cost is None and box.operator.label not in found.operators:
            console.print(
                f"No row of the sample came to '{shown(box.name)}': in a simulation it costs nothing."
            )
    console.print(f"Written to {output}.")
    if whole is not None:
        with _progress() as tell:
            compared = predictions.predictions(found, whole, tell)
        _compare(compared)


@contextmanager
def _progress() -> Iterator[Tell]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda what, part: progress.update(task, description=shown(what[:48]), completed=part)


def _show(found: Calibration) -> None:
    memory = found.memory
    table = Table(title="memory", title_justify="left")
    for column in ("read from", "ns per byte beyond the fastest"):
        table.add_column(column, justify="left" if column == "read from" else "right")
    for level, price in sorted(memory.levels.items()):
        table.add_row(f"L{level}", f"{price * 1e9:.4f}")
    table.add_row("memory", f"{memory.memory * 1e9:.4f}")
    console.print(table)
    if memory.bandwidth is not None:
        console.print(f"Memory gives all cores of a node together {memory.bandwidth / 1e9:.1f} GB/s.")
    console.print(f"A box call costs {found.call_overhead * 1e6:.0f} µs beside its operator.")
    table = Table(title="operators alone", title_justify="left")
    table.add_column("operator")
    for column in ("µs per call", "ns per tuple", "per result", "per key"):
        table.add_column(column, justify="right")
    for label, cost in sorted(found.operators.items()):
        each = [f"{part * 1e9:.1f}" for part in cost[1:]]
        table.add_row(shown(label), f"{cost.call * 1e6:.1f}", *each)
    console.print(table)


def _compare(compared: Sequence[predictions.Prediction]) -> None:
    table = Table(title="throughput of one worker, tuples per second", title_justify="left")
    table.add_column("query")
    for column in ("predicted", "measured", "error"):
        table.add_column(column, justify="right")
    for one in compared:
        colour = "green" if abs(one.error) <= predictions.CLOSE else "red"
        table.add_row(
            one.query, f"{one.predicted:,.0f}", f"{one.measured:,.0f}", f"[{colour}]{one.error:+.0%}[/]"
        )
    console.print(table)
    console.print(f"{predictions.REFERENCE} was measured to fit; the aim is an error of at most 15 %.")
