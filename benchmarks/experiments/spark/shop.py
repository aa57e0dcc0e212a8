"""``headgate demo --compare``: the shop's small queries as plain Structured Streaming."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from benchmarks.experiments.spark.latencies import Measurement
from benchmarks.experiments.spark.many import worker
from headgate.cli.demo import mean_qos, median
from headgate.cli.display import seconds as duration
from headgate.demo.small_queries import QUESTIONS
from headgate.runtime.report import Report


def compare(report: Report, seconds: float, rate: float, console: Console) -> None:
    """Run the small queries as Structured Streaming and show them next to the demo's report."""
    console.print(
        f"\nNow the {len(QUESTIONS)} small queries as plain Structured Streaming, a StreamingQuery each, in "
        "a process of their own (some minutes: it is measured once every query has answered) …"
    )
    found = worker("shop", seconds, 5.0, "--rate", str(round(rate)))
    console.print(comparison(report, [Measurement(**each) for each in found]))


def comparison(report: Report, theirs: list[Measurement]) -> Table:
    """The small queries by class, here and there; ``theirs``: the tight ones, then the loose ones."""
    table = Table(title="the small queries: latency from arrival to the function", title_justify="left")
    table.add_column("QoS class")
    table.add_column("system")
    for column in ("queries", "p50", "p99", "QoS", "p50, times lower"):
        table.add_column(column, justify="right")
    for tight, other in zip((True, False), theirs, strict=True):
        ours = [report.queries[q.name] for q in QUESTIONS if q.tight == tight]
        ours = [q for q in ours if q.tuples_out]
        p50 = median(q.latency.p50 for q in ours)
        name = "tight" if tight else "loose"
        table.add_row(
            name,
            "Headgate",
            str(len(ours)),
            duration(p50),
            duration(median(q.latency.p99 for q in ours)),
            f"{mean_qos(ours):.3f}",
            f"{other.p50 / p50:.1f}",
        )
        answered = f"{other.queries - other.silent} of {other.queries}"
        qos = "-" if other.qos is None else f"{other.qos:.3f}"
        table.add_row(
            name, "Structured Streaming", answered, duration(other.p50), duration(other.p99), qos, ""
        )
    table.caption = (
        "Headgate: the whole run, start included, with five larger queries. Structured Streaming: warm, "
        "and nothing else runs; queries that were silent meanwhile count with the time since they answered."
    )
    return table
