"""NEXMark: events a second of each query alone and of all at once, on threads and Spark, and on Spark itself.

Every side reads the same Parquet files, asks the text of ``examples/nexmark`` and throws results away.  Spark
itself is Structured Streaming over the same text: ``availableNow``, output mode append where it takes it and
update elsewhere, with a watermark of no delay on every time.  A query that it refuses has no rate, and
those that it takes are also asked at once on every side.  A side is a process of its own and is warmed up
with q0.  A query alone reads only its own tables, but rates count all events, as NEXMark does.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

import headgate as hg
from benchmarks import apart
from benchmarks.peers import structured_files
from benchmarks.result import Result
from benchmarks.workloads.nexmark import TABLES, generate
from headgate.api.loading import load_file

EVENTS, QUICK_EVENTS = 1_000_000, 50_000
LIMIT = 200.0
"""Seconds after which a side begins no further query."""
SIDES = {
    "structured": "Structured Streaming",
    "threads": "Headgate, threads",
    "spark": "Headgate on Spark",
}
ALL = "all at once"
SHARED = "what all sides take, at once"
QUICK = ["q0", "q2", "q5", "q8", "q13"]
_APP = load_file(apart.ROOT / "examples" / "nexmark" / "app.py")
QUERIES = [query for query in _APP.QUERIES if query not in _APP.REFUSED]


def _nothing(query: str, batch: pa.RecordBatch) -> None:
    """A sink that throws results away."""


def headgate(engine: str, data: Path) -> Callable[[list[str]], float]:
    """Asks queries of Headgate and says how many seconds it took."""

    def ask(queries: list[str]) -> float:
        app = hg.App("nexmark")
        for table in (*TABLES, "side_input"):
            app.source(table, hg.from_files(data / table))
        for query in queries:
            app.sql(_APP.text(query)).to(query, hg.to_function(_nothing))
        report = app.run(hg.Threads(workers=2) if engine == "threads" else hg.Spark(master="local[2]"))
        for answered in report.queries.values():
            if answered.error is not None:
                raise answered.error
        return report.seconds

    return ask


def structured(data: Path) -> Callable[[list[str]], float | None]:
    """Asks queries of Structured Streaming; None if it refuses one."""
    from pyspark.errors import PySparkException

    spark = structured_files.session()
    for table in TABLES:
        schema = spark.read.parquet(str(data / table)).schema
        frame = spark.readStream.schema(schema).parquet(str(data / table))
        frame.withWatermark("dateTime", "0 seconds").createOrReplaceTempView(table)
    spark.read.parquet(str(data / "side_input")).createOrReplaceTempView("side_input")

    def start(query: str, place: str) -> Any:
        frame = spark.sql(_APP.text(query))
        for mode in ("append", "update"):
            writer = frame.writeStream.format("noop").outputMode(mode).trigger(availableNow=True)
            try:
                return writer.option("checkpointLocation", f"{place}/{query}-{mode}").start()
            except PySparkException:
                if mode == "update":
                    raise
        raise AssertionError("one of the modes has returned or raised")

    def ask(queries: list[str]) -> float | None:
        running = []
        with tempfile.TemporaryDirectory() as place:
            begin = time.perf_counter()
            try:
                for query in queries:
                    running.append(start(query, place))
                for query in running:
                    query.awaitTermination()
            except PySparkException:
                for query in running:
                    query.stop()
                return None
            return time.perf_counter() - begin

    return ask


def measure(
    side: str, data: Path, queries: list[str], shared: list[str], limit: float
) -> dict[str, float | None]:
    """By query, and of several at once, the seconds that a side takes; what it has no time for is left out.

    ``shared``: the queries that all sides take; empty: those that this one takes.
    """
    ask: Callable[[list[str]], float | None]
    ask = structured(data) if side == "structured" else headgate(side, data)
    ask(["q0"])
    end, found = time.monotonic() + limit, dict[str, float | None]()
    for query in queries:
        if time.monotonic() < end:
            found[query] = ask([query])
    if time.monotonic() < end:
        found[SHARED] = ask(shared or [query for query in queries if found.get(query) is not None])
    if side != "structured" and time.monotonic() < end:
        found[ALL] = ask(queries)
    return found


def main() -> None:
    """In a process of its own; what to measure is its arguments."""
    side, data, queries, shared, limit = map(json.loads, sys.argv[1:])
    print(json.dumps(measure(side, Path(data), queries, shared, limit)))


def run(quick: bool, console: Console, rows: int | None = None) -> list[Result]:
    """All sides, one after the other.  ``rows``: how many events."""
    events = rows or (QUICK_EVENTS if quick else EVENTS)
    queries = QUICK if quick else QUERIES
    seconds: dict[str, dict[str, float | None]] = {}
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder), events)
        for side in SIDES:
            taken = seconds.get("structured", {})
            shared = [query for query in queries if taken.get(query) is not None]
            arguments = map(json.dumps, (side, folder, queries, shared, LIMIT))
            program = f"from {__name__} import main; main()"
            seconds[side] = apart.found(SIDES[side], program, *arguments)
    shown = Table("query", *SIDES.values(), title=f"thousand events a second, {events:,} events")
    results = []
    for query in [*queries, SHARED, ALL]:
        rates = {side: _rate(found.get(query), events) for side, found in seconds.items()}
        cells = [_cell(seconds[side], query, rate) for side, rate in rates.items()]
        shown.add_row(query, *cells)
        for side in ("threads", "spark"):
            rate = rates[side]
            if rate is not None:
                claim = f"events a second of {query}, beside Structured Streaming"
                results.append(Result(f"nexmark {side}", "NEXMark", claim, rate, rates["structured"], None))
    console.print(shown)
    return results


def _rate(seconds: float | None, events: int) -> float | None:
    return None if seconds is None else events / seconds


def _cell(found: dict[str, float | None], query: str, rate: float | None) -> str:
    if query not in found:
        return "no time left"
    return "refused" if rate is None else f"{rate / 1000:,.0f}"
