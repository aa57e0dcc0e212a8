"""Overload: three times as much arrives as can be done, with load shedding and without.

Chains of universal boxes on threads, a third of the queries tight, the rest loose.  Capacity is measured
first, on the same boxes.  Each case runs in a process of its own, whose memory is looked at while it runs:
in its first and in its second half it must be about the same.  After the overload the load falls to a third
of capacity, and dropping has to stop.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from benchmarks import apart
from benchmarks.result import Result
from headgate.api import App
from headgate.connectors.batches import from_batches
from headgate.connectors.python import to_function
from headgate.connectors.source import Chunk, Reader, Source, Wait
from headgate.engines.threads import Threads
from headgate.graph.qos import QoS
from headgate.runtime.report import QueryReport, Report
from headgate.scheduling import policies
from headgate.scheduling.interface import Policy

TIGHT = QoS([(0, 1), (0.5, 1), (2, 0)])
LOOSE = QoS([(0, 1), (5, 1), (20, 0)])
QUERIES = 12
COST = 2e-4
"""Seconds per tuple of each of a query's two boxes."""
WORKERS = 2
PACKET_ROWS = 256
OVERLOAD, CALM = 3.0, 1 / 3
"""Load as a multiple of what was measured to be the capacity."""
PAUSE = 0.02
"""Seconds between looks at a source, so that a packet has some rows."""
_SCHEMA = pa.schema([("value", pa.int64()), ("worth", pa.float64())])


class Spells(Source):
    """Rows at one rate for a while, then at another; each is worth something, most of them little."""

    live = finite = True
    schema = _SCHEMA

    def __init__(self, spells: list[tuple[float, float]]) -> None:
        self.spells = spells

    def open(self) -> Reader:
        return _SpellReader(self.spells)


class _SpellReader(Reader):
    def __init__(self, spells: list[tuple[float, float]]) -> None:
        starts = np.cumsum([0.0, *(seconds for seconds, _ in spells)])
        times = [
            start + np.arange(int(s * rate)) / rate for start, (s, rate) in zip(starts, spells, strict=False)
        ]
        self._times = np.concatenate(times)
        self._worth = np.random.default_rng(0).pareto(1.5, len(self._times))
        self._next = 0

    def poll(self, now: float, max_rows: int) -> Chunk | Wait | None:
        start = self._next
        if start >= len(self._times):
            return None
        end = min(int(np.searchsorted(self._times, now, side="right")), start + max_rows)
        if end <= start:
            return Wait(max(float(self._times[start]), now + PAUSE))
        self._next = end
        columns = [pa.array(np.arange(start, end)), pa.array(self._worth[start:end])]
        return Chunk(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA), self._times[start:end])


@dataclass
class Case:
    """One run, as its process tells it."""

    tight: float = 0.0
    loose: float = 0.0
    """Mean utility of the results."""
    tight_kept: float = 0.0
    loose_kept: float = 0.0
    """The share of the tuples that were not dropped."""
    tuples: int = 0
    results: int = 0
    shed: int = 0
    worth_kept: float = 0.0
    """The share of all that tuples are worth which the results still have."""
    shed_calm: int = 0
    """Tuples dropped in the calm after the overload, but for its first seconds."""
    longest: float = 0.0
    memory: list[float] = field(default_factory=list)
    """MiB, as looked at through the run."""
    seconds: float = 0.0


class _Network:
    """The queries, and what their results were worth."""

    def __init__(self) -> None:
        self.worth = 0.0

    def take(self, query: str, batch: pa.RecordBatch) -> None:
        self.worth += float(np.sum(batch.column("worth").to_numpy()))

    def app(self, source: Any) -> App:
        app = App("overload")
        for number in range(QUERIES):
            stream = app.source(f"in {number}", source)
            for level in ("leaf", "root"):
                stream = stream.universal(cost=COST, name=f"{level} {number}")
            qos = TIGHT if number % 3 == 0 else LOOSE
            stream.to(f"q{number}", to_function(self.take), qos=qos, importance="worth")
        return app


def capacity(seconds: float) -> float:
    """Tuples per second and query that the trees can do on this machine, as busy as it is."""
    rows = int(seconds * WORKERS / (QUERIES * 2 * COST))
    batch = pa.RecordBatch.from_arrays([pa.array(range(rows)), pa.array(np.ones(rows))], schema=_SCHEMA)
    report = _Network().app(from_batches([batch])).run(Threads(WORKERS, PACKET_ROWS), "qos")
    return rows / report.seconds


def case(strategy: str, rate: float, overload: float, calm: float) -> Case:
    """The overload and the calm after it, with a strategy or, with "off", without any."""
    network, found = _Network(), Case()
    source = Spells([(overload, OVERLOAD * rate), (calm, CALM * rate)])
    policy: str | Policy = "qos" if strategy == "off" else policies.shedding("qos", strategy)
    shed: list[tuple[float, int]] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.5):
            found.memory.append(_resident())

    def progress(report: Report) -> None:
        shed.append((report.seconds, sum(query.shed for query in report.queries.values())))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    engine = Threads(WORKERS, PACKET_ROWS)
    # Without shedding what waits takes three times as long to drain: the time is up where the sources end.
    until: Any = "drained" if strategy != "off" else overload + calm
    report = network.app(source).run(engine, policy, until=until, progress=progress)
    stop.set()
    watcher.join()
    queries = list(report.queries.values())
    tight, loose = queries[::3], [q for place, q in enumerate(queries) if place % 3]
    found.tight, found.loose = _utility(tight), _utility(loose)
    found.tight_kept, found.loose_kept = _kept(tight), _kept(loose)
    found.tuples, found.results = report.tuples, sum(q.tuples_out for q in queries)
    found.shed = sum(q.shed for q in queries)
    found.worth_kept = network.worth / _all_worth(source, report.tuples // QUERIES)
    since = [count for at, count in shed if at >= overload + calm / 2]
    found.shed_calm = found.shed - since[0] if since else 0
    found.longest = max(q.latency.max for q in queries)
    found.seconds = report.seconds
    return found


def _utility(queries: list[QueryReport]) -> float:
    return sum(q.worth for q in queries) / max(sum(q.tuples_out for q in queries), 1)


def _kept(queries: list[QueryReport]) -> float:
    came = sum(q.tuples_in for q in queries)
    return 1 - sum(q.shed for q in queries) / max(came, 1)


def _all_worth(source: Spells, rows: int) -> float:
    """What the tuples that came are worth, all queries together; each has the same."""
    reader, total, left = source.open(), 0.0, rows
    while left > 0 and isinstance(found := reader.poll(float("inf"), left), Chunk):
        total += float(np.sum(found.batch.column(1).to_numpy()))
        left -= found.batch.num_rows
    return QUERIES * total


def _resident() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


def main() -> None:
    """In a process of its own: one case, told as JSON."""
    strategy, rate, overload, calm = sys.argv[1:]
    print(json.dumps(asdict(case(strategy, float(rate), float(overload), float(calm)))))


def _measure(strategy: str, rate: float, overload: float, calm: float) -> Case:
    program = "from benchmarks.experiments.overload import main; main()"
    given = (strategy, str(rate), str(overload), str(calm))
    return Case(**apart.found(f"the overload run with {strategy}", program, *given))


def _grows(memory: list[float]) -> tuple[float, float]:
    """The most memory in the first and in the second half, without the start."""
    settled = memory[len(memory) // 5 :]
    middle = len(settled) // 2
    return max(settled[:middle], default=0.0), max(settled[middle:], default=0.0)


def run(quick: bool, console: Console) -> list[Result]:
    """Shedding at random, by importance, and not at all."""
    overload, calm = (10.0, 8.0) if quick else (120.0, 30.0)
    rate = capacity(1.0 if quick else 3.0)
    console.print(
        f"{QUERIES} queries, {WORKERS} workers: {rate:,.0f} tuples/s each is all they can do; "
        f"{OVERLOAD:g} times that for {overload:g} s, then {CALM:.2g} times for {calm:g} s"
    )
    found: dict[str, Case] = {}
    table = Table(title="an overload", title_justify="left")
    for column in ("shedding", "tight", "loose", "tight kept", "loose kept", "worth kept", "dropped",
                   "longest",
                   "MiB first half", "second half"):  # fmt: skip
        table.add_column(column, justify="right")
    for strategy in ("off", "random", "semantic"):
        begin = time.perf_counter()
        own = found[strategy] = _measure(strategy, rate, overload, calm)
        first, second = _grows(own.memory)
        table.add_row(
            strategy,
            f"{own.tight:.3f}",
            f"{own.loose:.3f}",
            f"{own.tight_kept:.1%}",
            f"{own.loose_kept:.1%}",
            f"{own.worth_kept:.1%}",
            f"{own.shed:,}",
            f"{own.longest:.1f} s",
            f"{first:.0f}",
            f"{second:.0f}",
        )
        console.print(f"{strategy}: {time.perf_counter() - begin:.0f} s")
    console.print(table)
    return _results(found, overload)


def _results(found: dict[str, Case], overload: float) -> list[Result]:
    off, plain, told = found["off"], found["random"], found["semantic"]
    title = f"{OVERLOAD:g} times capacity, {overload:g} s"
    results = [
        Result(f"{title}: tight queries", "A11", "mean utility, shedding against none: at least 0.9",
               plain.tight, off.tight, plain.tight >= 0.9),
        Result(f"{title}: loose queries", "A11", "mean utility, shedding against none: at least 0.9",
               plain.loose, off.loose, plain.loose >= 0.9),
        Result(f"{title}: tuples lost and not counted", "A11", "0: tuples in = results + shed",
               float(plain.tuples - plain.results - plain.shed), None,
               plain.tuples == plain.results + plain.shed and told.tuples == told.results + told.shed),
        Result(f"{title}: dropped once the load has fallen", "A11", "tuples: 0",
               float(plain.shed_calm), None, plain.shed_calm == 0 and told.shed_calm == 0),
        Result(f"{title}: by importance", "A11", "share of the worth that is kept, more than at random",
               told.worth_kept, plain.worth_kept, told.worth_kept > plain.worth_kept),
    ]  # fmt: skip
    for name, own in (("with shedding", plain), ("with back-pressure only", off)):
        first, second = _grows(own.memory)
        claim = "MiB, second half against first: at most 1.1 times"
        results.append(Result(f"{title}: memory {name}", "A11", claim, second, first, second <= 1.1 * first))
    return results
