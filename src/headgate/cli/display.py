"""What people see: a live table while a run goes on, and the tables of its report."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from headgate.engines.base import Progress
from headgate.errors import printable
from headgate.runtime.report import QueryReport, Report

console = Console()
errors = Console(stderr=True)
if not console.is_terminal and "COLUMNS" not in os.environ:
    console.width = 160  # a file has no window, and figures must not be cut off
FULL = 0.9995
"""An attainable utility that is shown as 1 need not be shown."""


def shown(text: object) -> str:
    """A name or a message as rich prints it: no markup, and no sequence that the terminal would obey."""
    return escape(printable(text))


def say(text: str, to: Console = console) -> None:
    """A line for people, and for programs that read it: neither wrapped nor coloured by guess."""
    to.print(text, soft_wrap=True, highlight=False)


def titled(title: str | None, *left: str, right: Sequence[str] = ()) -> Table:
    """An empty table with columns of words and, behind them, of figures."""
    table = Table(title=title, title_justify="left")
    for column in left:
        table.add_column(column)
    for column in right:
        table.add_column(column, justify="right")
    return table


def seconds(value: float) -> str:
    """A duration for people: 1.2 s, 34 ms, 56 µs."""
    if math.isnan(value):
        return "-"
    if value >= 1:
        return f"{value:.2f} s"
    if value >= 0.001:
        return f"{value * 1e3:.1f} ms"
    return f"{value * 1e6:.0f} µs"


def rate(value: float) -> str:
    """Tuples per second for people."""
    if math.isnan(value):
        return "-"
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{unit}/s"
    return f"{value:.0f}/s"


def query_table(report: Report, title: str | None = None) -> Table:
    """One row per query: tuples, throughput, latency, QoS."""
    table = Table(title=None if title is None else shown(title), title_justify="left")
    table.add_column("query", overflow="fold")
    queries = report.queries.values()
    # What was not answered has columns of its own if there is any.
    shedding, waiting = any(query.shed for query in queries), any(query.waiting for query in queries)
    missing = [name for name, given in (("shed", shedding), ("waiting", waiting)) if given]
    utility = ["utility"] if missing and any(query.utility is not None for query in queries) else []
    for name in ("tuples in", "results", "rate in", "p50", "p99", "QoS", *utility, "late", *missing):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    for query in report.queries.values():
        qos = "-" if query.qos is None else f"{query.qos:.3f}"
        if query.qos is not None and query.attainable is not None and query.attainable < FULL:
            qos += f" of {query.attainable:.3f}"
        table.add_row(
            shown(query.name),
            f"{query.tuples_in:,}",
            f"{query.tuples_out:,}",
            rate(query.tuples_in / report.seconds if report.seconds else math.nan),
            seconds(query.latency.p50),
            seconds(query.latency.p99),
            qos,
            *(["-" if query.utility is None else f"{query.utility:.3f}"] if utility else []),
            f"{query.late:,}",
            *([f"{query.shed:,}"] if shedding else []),
            *([f"{query.waiting:,}"] if waiting else []),
            _state(query),
        )
    return table


def _state(query: QueryReport) -> str:
    if query.error is not None:
        return "[red]failed[/]"
    return "[green]ok[/]" if query.waits_for is None else "[yellow]waiting[/]"


def summary(report: Report) -> str:
    """One line on the whole run."""
    return (
        f"{report.engine}, policy {shown(report.policy)}, {report.workers} workers: "
        f"{report.tuples:,} tuples in {seconds(report.seconds)} = "
        f"[bold]{rate(report.throughput)}[/]; {_outside_boxes(report)}"
    )


def _outside_boxes(report: Report) -> str:
    """Where time went outside the boxes; on Spark, within the steps."""
    if report.steps:
        parts = [f"{part} {seconds(spent / report.steps)}" for part, spent in report.step_seconds.items()]
        return f"{report.steps:,} steps, each on average: {', '.join(parts)}"
    over = report.overhead
    return (
        f"overhead: worker {seconds(over.worker)}, storage {seconds(over.storage)}, "
        f"scheduler {seconds(over.scheduler)}"
    )


def details(report: Report) -> list[str]:
    """A line each on what only some runs have: sleeping workers, the allocator, caches and memory nodes."""
    lines = []
    calls = sum(box.calls for box in report.boxes.values())
    if report.semaphores:
        lines.append(f"sleeping workers: {report.semaphores:,} operations on semaphores, {calls:,} box calls")
    memory = report.memory
    if memory is not None and memory.allocations:
        kept = f"{memory.outstanding:,} are still in use: sinks have kept them, or they have leaked"
        lines.append(
            f"allocator {memory.allocator}: {memory.allocations:,} blocks, {memory.share:.1%} of packets' "
            f"bytes, {memory.rounding:.1%} of them rounding, in {memory.superblocks} superblocks; "
            f"{kept if memory.outstanding else 'all have come back'}"
        )
    traffic = report.traffic
    if traffic is not None:
        total = max(sum(traffic.bytes.values()), 1)
        parts = ", ".join(f"{place} {size / total:.0%}" for place, size in sorted(traffic.bytes.items()))
        lines.append(
            f"bytes read and written: {parts}; workers spent {seconds(traffic.seconds)} on them, and "
            f"{seconds(traffic.waited)} waiting for memory that others kept busy"
        )
    return lines


@contextmanager
def live_table(title: str) -> Iterator[Progress]:
    """A table that follows a run; nothing but the end result where the output is not a terminal."""
    if not console.is_terminal:
        yield lambda report: None
        return
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        yield lambda report: live.update(query_table(report, f"{title}: {seconds(report.seconds)} …"))
