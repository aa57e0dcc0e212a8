"""What a step costs the Spark engine's driver, with tasks that answer at once.

Three questions.  How does a step grow with the queries that are in it?  With the tasks that it is shared out
to?  And what do queries cost that are *not* in it: ten queries per source, sources take turns, and each step
has the ten of one?  The last must not grow with the application.

Costs are CPU seconds of the driver's process, so whatever else the machine does changes them little; steps
per second are their inverse, what one driver can do at most.  Each measurement is a process of its own.
Spark's own part of a job is not in it, nor is the disk's part of a commit.
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from benchmarks.experiments.spark.driver_worker import Cost
from benchmarks.experiments.spark.many import worker
from benchmarks.parts import chosen
from benchmarks.result import Result
from headgate.errors import HeadgateError

SIZES = (10, 100, 1_000)
KINDS = {
    "together": "queries, all in every step",
    "apart": "queries, ten of them in every step",
    "slices": "cores, one stateless query",
    "shards": "cores, one keyed query",
}
LIMIT = 90.0
"""Seconds after which a measurement is given up."""
PARTS = ("plan", "order", "collect", "record", "log", "position", "tell", "rest")


def run(quick: bool, console: Console, *, part: str | None = None) -> list[Result]:
    """All kinds and sizes, or one kind; then what was to be shown."""
    found: dict[tuple[str, int], Cost] = {}
    seconds = 2.0 if quick else 10.0
    for kind in chosen("spark-driver", KINDS, part):
        for size in SIZES:
            try:
                options = ("--size", str(size))
                data = worker(kind, seconds, 1.0, *options, module="driver_worker", limit=LIMIT)
            except HeadgateError as error:
                console.print(f"{size} {KINDS[kind]}: {error}", highlight=False, markup=False)
                continue
            found[kind, size] = cost = Cost(**data)
            console.print(f"{size:,} {KINDS[kind]}: {1e3 * cost.all:.2f} ms a step", highlight=False)
    console.print(table(found))
    return claims(found)


def table(found: dict[tuple[str, int], Cost]) -> Table:
    """What a step costs, and where that goes."""
    made = Table(title="CPU of the driver per step, ms", title_justify="left")
    made.add_column("what")
    for column in ("size", "nodes", "tasks", "all", *PARTS, "steps/s", "log bytes"):
        made.add_column(column, justify="right")
    for (kind, size), cost in found.items():
        made.add_row(
            KINDS[kind],
            f"{size:,}",
            f"{cost.nodes:.0f}",
            f"{cost.tasks:.0f}",
            f"{1e3 * cost.all:.2f}",
            *[f"{1e3 * cost.parts.get(part, 0.0):.2f}" for part in PARTS],
            f"{1 / cost.all:,.0f}",
            f"{cost.log_bytes:,.0f}",
        )
    made.caption = (
        "Nodes: boxes and outlets in a step. plan: the policy and the step. order: the work order, pickled. "
        "collect: what tasks say, unpickled. record, log, position: what the log is told. tell: the policy "
        "hears of the commit. rest: sinks, reports, the feeder, threads. Steps/s: if this were all."
    )
    return made


def claims(found: dict[tuple[str, int], Cost]) -> list[Result]:
    """A step's cost follows what is in it."""
    results = []
    for (kind, size), cost in found.items():
        name = f"spark-driver, {size:,} {KINDS[kind]}"
        least = found.get((kind, SIZES[0]))
        baseline = None if least is None or size == SIZES[0] else 1e3 * least.all
        claim, holds = "CPU per step, ms", None
        if kind == "apart" and baseline is not None:
            claim += f": at most twice that of {SIZES[0]} queries"
            holds = 1e3 * cost.all <= 2 * baseline
        elif kind == "together" and baseline is not None:
            claim += f": grows less than the queries, against {SIZES[0]}"
            holds = 1e3 * cost.all <= baseline * size / SIZES[0]
        results.append(Result(name, "our aim", claim, 1e3 * cost.all, baseline, holds))
    return results
