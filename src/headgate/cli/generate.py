"""``headgate generate``: the papers' workloads, each a command with options of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from typer.core import TyperGroup

from headgate.cli import checkout
from headgate.cli.display import console
from headgate.errors import PipelineError
from headgate.graph.qos import QoS

Seed = Annotated[int, typer.Option(help="The same seed gives the same data.")]
KINDS = ("tight", "loose")


class _Workloads(TyperGroup):
    """A workload that is not there is a mistake like any other: one readable line."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            raise PipelineError(
                f"There is no workload '{args[0]}' to generate. There are: {', '.join(self.commands)}."
            )
        return super().resolve_command(ctx, args)


generate = typer.Typer(
    name="generate",
    cls=_Workloads,
    help="Generate a workload, in a checkout: the data of a benchmark, or an application.\n\n"
    "Example: `headgate generate tpcx-bb data/tpcx-bb --rows 1000000`",
    no_args_is_help=True,
)


@generate.command("tpcx-bb")
def tpcx_bb(
    directory: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("data/tpcx-bb"),
    rows: Annotated[int, typer.Option(help="Rows of each stream.")] = 1_000_000,
    seed: Seed = 0,
) -> None:
    """TPCx-BB's clickstreams, store sales, items and pages as parquet, of any size.

    Example: `headgate generate tpcx-bb data/tpcx-bb --rows 1000000`
    """
    shop = checkout.benchmarks("workloads.tpcx_bb")
    with _progress() as progress:
        tasks = {table: progress.add_task(f"generating {table}", total=rows) for table in shop.STREAMS}

        def show(table: str, done: int, total: int) -> None:
            progress.update(tasks[table], completed=done, total=total)

        shop.generate(directory, rows, seed, progress=show)
    console.print(f"Wrote {rows:,} clicks and {rows:,} sales to {directory}.")


@generate.command("sp2bench")
def sp2bench(
    directory: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("data/sp2bench"),
    triples: Annotated[int, typer.Option(min=1, help="About how many triples.")] = 1_000_000,
    seed: Seed = 0,
) -> None:
    """SP²Bench's bibliography as RDF: indexed for `headgate request`, and as N-Triples (data.nt).

    Example: `headgate generate sp2bench data/sp2bench --triples 1000000`
    """
    bibliography = checkout.benchmarks("workloads.sp2bench")
    with _progress() as progress:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(f"writing {what}", total=total)
            progress.update(tasks[what], completed=done, total=total)

        written = bibliography.generate(directory, triples, seed, progress=show)
    console.print(f"Wrote {written:,} triples to {directory}.")


def _progress() -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console, transient=True)


@generate.command("aurora")
def aurora(
    file: Annotated[Path, typer.Argument(help="The application file to write.")] = Path("aurora.py"),
    queries: Annotated[int, typer.Option(help="Application trees, each with an output of its own.")] = 5,
    depth: Annotated[int, typer.Option(help="Levels of a tree.")] = 5,
    fan_out: Annotated[float, typer.Option(help="Children of a box; a fraction is an average.")] = 3,
    cost: Annotated[str, typer.Option(help="Seconds per tuple, or a range to draw from: LOW:HIGH.")] = (
        "0.0001:0.001"
    ),
    selectivity: Annotated[
        str, typer.Option(help="Share of tuples that a box lets pass, or a range: LOW:HIGH.")
    ] = "1",
    load: Annotated[
        float, typer.Option(help="Share of the workers' ideal capacity that is asked for.")
    ] = 0.5,
    burst: Annotated[int, typer.Option(help="Tuples that an input gets at a time.")] = 1,
    qos: Annotated[
        list[str] | None,
        typer.Option(help="QoS graphs to draw from: tight, loose, or points as 0:1,0.5:1,2:0. Repeatable."),
    ] = None,
    tuples: Annotated[int, typer.Option(help="Input tuples of the whole network.")] = 1000,
    workers: Annotated[int, typer.Option(help="Workers whose capacity the load is a share of.")] = 1,
    seed: Seed = 0,
) -> None:
    """An artificial network of Aurora's experiments, as an application to run or to simulate.

    Example: `headgate generate aurora net.py --queries 20 --fan-out 1 --load 0.8 --tuples 5000`
    """
    options: dict[str, Any] = {
        "queries": queries,
        "depth": depth,
        "fan_out": int(fan_out) if fan_out.is_integer() else fan_out,
        "cost": _range("cost", cost),
        "selectivity": _range("selectivity", selectivity),
        "load": load,
        "burst": burst,
        "tuples": tuples,
        "workers": workers,
        "seed": seed,
    }
    networks = checkout.benchmarks("workloads.aurora")
    kinds = qos or KINDS
    graphs = [getattr(networks, kind.upper()) if kind in KINDS else _graph(kind) for kind in kinds]
    try:
        app = networks.network(**options, qos=graphs)
    except networks.ParameterError as error:
        option = error.parameter.replace("_", "-")
        raise PipelineError(f"--{option} {error.value}: {error.problem}") from None
    if not file.parent.is_dir():
        raise PipelineError(f"There is no folder {file.parent} to write {file.name} to.")
    shown = [
        f"aurora.{kind.upper()}" if kind in KINDS else repr(g) for kind, g in zip(kinds, graphs, strict=True)
    ]
    given = [*(f"{name}={value!r}" for name, value in options.items()), f"qos=[{', '.join(shown)}]"]
    file.write_text(_FILE.format(file=file.name, options="\n".join(f"    {line}," for line in given)))
    console.print(
        f"Wrote {file}: {len(app.network.boxes):,} boxes, {len(app.network.sources):,} inputs, {queries:,} "
        f"outputs. Try: headgate simulate {file} --workers {workers} --policy mc",
        soft_wrap=True,
    )


_FILE = '''"""An artificial network of Aurora's experiments (section 5.1).

headgate simulate {file} --policy mc --call-overhead 0.00006
headgate run {file} --engine threads --policy qos
"""

from benchmarks.workloads import aurora

app = aurora.network(
{options}
)
'''


def _range(option: str, text: str) -> tuple[float, float]:
    """``"LOW:HIGH"``, or one number for both."""
    try:
        low, high = (float(part) for part in (text.split(":") if ":" in text else (text, text)))
    except ValueError:
        raise PipelineError(f"--{option} {text}: give a number, or a range as LOW:HIGH.") from None
    return low, high


def _graph(text: str) -> tuple[tuple[float, float], ...]:
    """The points of a graph."""
    try:
        points = tuple((float(x), float(y)) for x, y in (point.split(":") for point in text.split(",")))
    except ValueError:
        raise PipelineError(
            f"--qos {text}: give {', '.join(KINDS)}, or points LATENCY:UTILITY as 0:1,0.5:1,2:0."
        ) from None
    try:
        QoS(list(points))
    except PipelineError as error:
        raise PipelineError(f"--qos {text}: {error}") from None
    return points
