"""``headgate demo``: a live shop; with ``--compare`` also its small queries as plain Structured Streaming."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
from rich.live import Live
from rich.table import Table

from headgate.api import App
from headgate.cli import checkout
from headgate.cli.display import console, errors, say, shown, summary, titled
from headgate.cli.display import seconds as duration
from headgate.connectors.json_encode import encode
from headgate.connectors.kafka import from_kafka
from headgate.connectors.python import to_function
from headgate.connectors.rate import RateSource, from_rate
from headgate.connectors.source import Source
from headgate.demo.broker import Broker
from headgate.demo.examples import load_example
from headgate.demo.ramp import Ramp
from headgate.demo.small_queries import QUESTIONS, TIGHT
from headgate.engines.base import Engine, Progress
from headgate.graph.qos import QoS
from headgate.runtime.change import Change
from headgate.runtime.report import QueryReport, Report
from headgate.scheduling.interface import Policy

TIGHT_ENDS = 10.0
"""A QoS graph is tight if results are worth nothing after so many seconds."""
PLAIN_EVERY = 5.0
"""Seconds between lines of progress where the output is not a terminal."""

FIVE = {
    "q1": "pairs of items sold together, in the last hour",
    "q2": "products viewed together in a session",
    "q3": "items viewed before a purchase",
    "q4": "pages visited by those who leave a full cart, by hour",
    "q15": "categories with flat or declining sales",
}
SHOWN = ("big-purchase", "revenue", "top-items")
JOINING = "dear-sales"
JOINS = "SELECT user, item, price, ts FROM clicks WHERE kind = 'buy' AND price > 199"
"""A query that joins while the shop is open."""


POLICY = "qos"
"""What the shop runs under, unless it is told otherwise: its queries have goals."""
BLIND = "fcfs"
"""The policy that knows no goals, which takes over for a part of the rush."""
PAST = 1.2
"""The rush, in parts of what this machine can do."""
WARM_ROWS, TRIED_ROWS = 100_000, 400_000
"""Rows of a backlog by which that is measured, once everything is warm."""


def demo(
    seconds: float = 60.0,
    rate: float = 2_000.0,
    compare: bool = False,
    kafka: bool = False,
    engine: str | Engine = "spark",
    policy: str | Policy = POLICY,
    workers: int | None = None,
    *,
    rush: float | None = 1.0,
    page: bool | str = False,
) -> None:
    """Run the shop for some seconds, showing how it does; then answers, and the comparison if asked for.

    ``rush``: so many times as many rows come in the middle; None: more than this machine can do.
    """
    # Before the run: a missing checkout is an error at once, not after the shop has closed.
    other = checkout.benchmarks("experiments.spark.shop") if compare else None
    opened = threading.Event()
    if rush is None:
        rush = max(1.0, PAST * _capacity(rate, engine, policy, workers) / rate)
    with _stream(rate, opened) if kafka else nullcontext() as source:
        report = _shop(seconds, rate, source, opened, engine, policy, workers, rush, page)
    if other is not None:
        other.compare(report, seconds, rate, console)


@contextmanager
def _stream(rate: float, opened: threading.Event) -> Iterator[Source]:
    """A Kafka broker on this machine; a thread writes rows to a topic of it once the shop is open."""
    console.print("Starting a Kafka broker (its packages are fetched the first time) …")
    numbers = from_rate(rate, burst=max(1, round(rate / 20)), start_time=datetime.now(UTC))
    with Broker() as broker:
        broker.create_topic("numbers", 1)
        over = threading.Event()
        writer = threading.Thread(target=_produce, args=(broker, numbers, opened, over), daemon=True)
        writer.start()
        try:
            yield from_kafka(broker.servers, "numbers", schema=numbers.schema)
        finally:
            over.set()
            opened.set()
            writer.join()


def _produce(broker: Broker, numbers: RateSource, opened: threading.Event, over: threading.Event) -> None:
    """Write the rows of a rate to the topic, each when it is due."""
    opened.wait()
    begin, sent = time.time(), 0
    while not over.wait(0.05):
        due = numbers.due(time.time() - begin)
        if due > sent:
            rows = encode(numbers.batch(sent, due))
            broker.produce("numbers", rows.to_pylist())
            sent = due


def _capacity(rate: float, engine: str | Engine, policy: str | Policy, workers: int | None) -> float:
    """Rows a second that the shop does here, of a backlog."""
    build = load_example("shop/app").build
    with console.status("Measuring how many rows a second this machine can do …"):
        for rows in (WARM_ROWS, TRIED_ROWS):
            numbers = from_rate(1e9, limit=rows)
            app: App = build(rate=rate, sink=lambda query: to_function(lambda *_: None), source=numbers)
            report = app.run(engine, policy, workers, "drained")
    return report.tuples / report.seconds


def _shop(
    seconds: float,
    rate: float,
    source: Source | None,
    opened: threading.Event,
    engine: str | Engine,
    policy: str | Policy,
    workers: int | None,
    rush: float,
    page: bool | str,
) -> Report:
    newest: dict[str, pa.RecordBatch] = {}
    build = load_example("shop/app").build
    story, changes = _story(seconds, rate, rush, policy) if source is None else (None, [])
    app: App = build(rate=rate, sink=lambda query: to_function(newest.__setitem__), source=source or story)
    if story is not None:
        joins = app.sql(JOINS)
        joins.to(JOINING, to_function(newest.__setitem__), qos=TIGHT)
        changes.append(Change(at=seconds / 8, add=JOINING))
    graphs = {output.name: output.qos for output in app.network.outputs}
    console.print(
        f"{len(QUESTIONS) + len(FIVE)} queries over one live stream of {rate:,.0f} rows a second, "
        f"for {seconds:g} seconds: "
        f"five of TPCx-BB and {len(QUESTIONS)} small ones."
    )
    if story is not None:
        for line in _told(seconds, rush, changes):
            console.print(line, highlight=False)
    with _following(graphs) as show:

        def progress(report: Report) -> None:
            opened.set()
            show(report)

        report = app.run(engine, policy, workers, seconds, progress=progress, changes=changes, page=page)
    console.print(class_table(report, graphs, "what it did, from the first second on"))
    console.print(summary(report))
    for query in report.queries.values():
        if query.error is not None:
            say(f"[red]Query '{shown(query.name)}' failed:[/] {shown(query.error)}", errors)
    _answers(newest)
    return report


def _story(
    seconds: float, rate: float, rush: float, policy: str | Policy
) -> tuple[Ramp | None, list[Change]]:
    """A rush in the middle half of the demo; in the middle of it, goals are forgotten for a while."""
    if rush == 1.0:
        return None, []
    burst = max(1, round(rate / 20))
    steps = [(0.0, rate), (seconds / 4, rate * rush), (seconds * 3 / 4, rate)]
    changes = [Change(at=seconds / 2, policy=BLIND), Change(at=seconds * 5 / 8, policy=policy)]
    return Ramp(steps, burst, datetime.now(UTC)), changes


def _told(seconds: float, rush: float, changes: list[Change]) -> list[str]:
    """What will happen, in the order of time."""
    told = [
        (seconds / 4, f"a rush, {rush:.3g} times as many rows: loose queries wait, tight ones must not"),
        (seconds * 3 / 4, "the rush is over: loose queries catch up"),
    ]
    for change in changes:
        if change.chosen is None:
            told.append((change.at, f"a query joins, in SQL: {JOINS}"))
        elif change.chosen.name == BLIND:
            told.append((change.at, f"policy {BLIND}, which knows no goals: tight queries fall behind"))
        else:
            told.append((change.at, f"policy {change.chosen.name} again: they come back"))
    return [f"[bold]{at:4.0f} s[/]  {shown(what)}" for at, what in sorted(told)]


# --- classes ----------------------------------------------------------------------------------------------


def is_tight(qos: QoS | None) -> bool:
    return qos is not None and qos.points[-1][0] <= TIGHT_ENDS


def classes(report: Report, graphs: dict[str, QoS | None]) -> Iterator[tuple[str, list[QueryReport]]]:
    """The queries of each class that have given results."""
    for name, tight in (("tight", True), ("loose", False)):
        yield name, [q for q in report.queries.values() if is_tight(graphs[q.name]) == tight and q.tuples_out]


def class_table(report: Report, graphs: dict[str, QoS | None], title: str) -> Table:
    """A row per class: the median query's latency, the worst query's, and the mean QoS."""
    columns = ("queries with results", "results", "p50", "p99", "worst query's p99", "QoS")
    table = titled(title, "QoS class", right=columns)
    for name, queries in classes(report, graphs):
        table.add_row(
            name,
            str(len(queries)),
            f"{sum(q.tuples_out for q in queries):,}",
            duration(median(q.latency.p50 for q in queries)),
            duration(median(q.latency.p99 for q in queries)),
            duration(max((q.latency.p99 for q in queries), default=math.nan)),
            f"{mean_qos(queries):.3f}",
        )
    return table


def _line(report: Report, graphs: dict[str, QoS | None]) -> str:
    parts = [f"{report.seconds:5.1f} s, {report.tuples:,} rows"]
    for name, queries in classes(report, graphs):
        p50, p99 = median(q.latency.p50 for q in queries), median(q.latency.p99 for q in queries)
        parts.append(f"{name}: p50 {duration(p50)}, p99 {duration(p99)}, QoS {mean_qos(queries):.3f}")
    return "   ".join(parts)


def median(values: Iterable[float]) -> float:
    found = list(values)
    return statistics.median(found) if found else math.nan


def mean_qos(queries: list[QueryReport]) -> float:
    found = [q.qos for q in queries if q.qos is not None]
    return statistics.fmean(found) if found else math.nan


@contextmanager
def _following(graphs: dict[str, QoS | None]) -> Iterator[Progress]:
    """A line that follows the run; where the output is not a terminal, one every few seconds."""
    if console.is_terminal:
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            yield lambda report: live.update(_line(report, graphs))
        return
    last = time.monotonic()

    def show(report: Report) -> None:
        nonlocal last
        if time.monotonic() - last >= PLAIN_EVERY:
            last = time.monotonic()
            say(_line(report, graphs))

    yield show


# --- answers ----------------------------------------------------------------------------------------------


def _answers(newest: dict[str, pa.RecordBatch]) -> None:
    """The newest results of some queries, so that one sees answers and not only figures."""
    small = {question.name: question.asks for question in QUESTIONS if question.name in SHOWN}
    for query, question in {**FIVE, **small, JOINING: JOINS}.items():
        if query == JOINING and query not in newest:
            continue  # without a rush it does not join
        console.print(f"\n[bold]{query}[/]: {question}")
        batch = newest.get(query)
        if batch is None:
            console.print("  (no results yet)")
            continue
        if "window_end" in batch.schema.names:
            ends = batch.column("window_end")
            batch = batch.filter(pc.equal(ends, pc.max(ends))).drop_columns(["window_start"])
        for row in batch.slice(0, 3).to_pylist():
            console.print(
                "  " + ", ".join(f"{name} {_plain(value)}" for name, value in row.items()), highlight=False
            )


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
