"""``headgate calibrate``: measure this machine for simulations of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from headgate.api import App
from headgate.cli import checkout
from headgate.cli.calibration.calibrate import Tell, calibrate
from headgate.cli.calibration.yardstick import Yardstick
from headgate.cli.display import console, shown, titled
from headgate.connectors.python import to_function
from headgate.connectors.rate import from_rate
from headgate.demo.examples import load_example
from headgate.errors import PipelineError
from headgate.graph.network import Network
from headgate.machine.calibration import Calibration

calibration = typer.Typer()
_ROWS_PER_SECOND, _ROWS_PER_DAY = 5_000, 100_000


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
            "--validate",
            help="Then fit one TPCx-BB query, predict the other four, and measure them too. In a checkout.",
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
    predicted = checkout.benchmarks("experiments.predictions") if validate else None
    with _progress() as tell:
        tell("TPCx-BB rows", 0.0)
        yardstick = Yardstick()
        whole = predicted.measured(quick, yardstick) if predicted else None
        if predicted:
            measured = predicted.networks()
        else:
            measured = [checkout.load_app(app).network for app in apps] if apps else [_shop()]
        found = calibrate(measured, quick, tell, yardstick, whole.again if whole else None)
        if predicted:
            tell(f"fit {predicted.REFERENCE}", 1.0)
            found = predicted.fitted(found, whole)
    found.save(output)
    _show(found)
    for box in (box for network in measured for box in network.boxes):
        if box.operator.cost is None and box.operator.label not in found.operators:
            console.print(
                f"No row of the sample came to '{shown(box.name)}': in a simulation it costs nothing."
            )
    console.print(f"Written to {output}.")
    if predicted:
        with _progress() as tell:
            compared = predicted.predictions(found, whole, tell)
        predicted.show(compared, console)


def _shop() -> Network:
    """The five TPCx-BB queries of the live shop."""
    app = App("shop")
    numbers = app.source("numbers", from_rate(_ROWS_PER_SECOND))
    for query, (stream, _) in load_example("shop/app").five(numbers, _ROWS_PER_DAY).items():
        stream.to(query, to_function(lambda query, batch: None))
    return app.network


@contextmanager
def _progress() -> Iterator[Tell]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda what, part: progress.update(task, description=shown(what[:48]), completed=part)


def _show(found: Calibration) -> None:
    memory = found.memory
    table = titled("memory", "read from", right=["ns per byte beyond the fastest"])
    for level, price in sorted(memory.levels.items()):
        table.add_row(f"L{level}", f"{price * 1e9:.4f}")
    table.add_row("memory", f"{memory.memory * 1e9:.4f}")
    console.print(table)
    if memory.bandwidth is not None:
        console.print(f"Memory gives all cores of a node together {memory.bandwidth / 1e9:.1f} GB/s.")
    console.print(f"A box call costs {found.call_overhead * 1e6:.0f} µs in addition to its operator.")
    columns = ("µs per call", "ns per tuple", "per result", "per key")
    table = titled("operators alone", "operator", right=columns)
    for label, cost in sorted(found.operators.items()):
        each = [f"{part * 1e9:.1f}" for part in cost[1:]]
        table.add_row(shown(label), f"{cost.call * 1e6:.1f}", *each)
    console.print(table)
