"""What ``headgate bench haren`` runs: chains of operators of varying cost and selectivity, and bursts."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headgate.api import App
from headgate.connectors.python import to_function
from headgate.connectors.source import Chunk, Reader, Source, Wait
from headgate.engines.base import Engine
from headgate.runtime.report import Report
from headgate.scheduling import policies
from headgate.scheduling.catalog import Catalog
from headgate.scheduling.events import Changed, Event, Finished, Rescheduled, Spawned, Started
from headgate.scheduling.interface import Decision, Policy
from headgate.scheduling.wrapper import Around

VALUE = pa.schema([("a", pa.int64())])


class Bursts(Source):
    """So many rows at each of these times."""

    schema = VALUE
    live = True
    finite = True

    def __init__(self, times: Sequence[float], rows: int) -> None:
        self.times, self.rows = times, rows

    def open(self) -> Reader:
        return _Bursts(self.times, self.rows)


class _Bursts(Reader):
    def __init__(self, times: Sequence[float], rows: int) -> None:
        self._times, self._rows = times, rows
        self._place = self._given = 0

    def poll(self, now: float, max_rows: int) -> Chunk | Wait | None:
        if self._place == len(self._times):
            return None
        at = self._times[self._place]
        if at > now:
            return Wait(at)
        first = self._place * self._rows + self._given
        taken = min(max_rows, self._rows - self._given)
        self._given += taken
        if self._given == self._rows:
            self._place, self._given = self._place + 1, 0
        rows = pa.array(np.arange(first, first + taken, dtype=np.int64))
        return Chunk(pa.RecordBatch.from_arrays([rows], schema=VALUE), np.full(taken, at))


@dataclass(frozen=True)
class Chain:
    """A query: operators one after the other, as (seconds per tuple, selectivity)."""

    name: str
    operators: tuple[tuple[float, float], ...]
    query_class: int = 0

    @property
    def seconds(self) -> float:
        """What a tuple takes all the way through."""
        total, reached = 0.0, 1.0
        for cost, selectivity in self.operators:
            total += reached * cost
            reached *= selectivity
        return total


def chains(count: int, length: int, seed: int = 0, query_class: int = 0, name: str = "chain") -> list[Chain]:
    """Costs from 10 µs to 1 ms, each magnitude as often; most operators let through less than they get."""
    draw = np.random.default_rng(seed)
    return [
        Chain(
            f"{name}-{number}",
            tuple(
                (float(10 ** draw.uniform(-5, -3)), float(draw.choice([0.1, 0.3, 0.6, 0.9, 1.0, 1.2])))
                for _ in range(length)
            ),
            query_class,
        )
        for number in range(count)
    ]


def bursts(rate: float, rows: int, seconds: float, seed: int) -> list[float]:
    """When bursts of that many rows come, at random, ``rate`` rows a second on average."""
    draw, now = np.random.default_rng(seed), 0.0
    times: list[float] = []
    while True:
        now += float(draw.exponential(rows / rate))
        if now >= seconds:
            return times or [0.0]
        times.append(now)


def application(load: Sequence[tuple[Chain, Sequence[float], int]]) -> App:
    """Chains with the times and sizes of their bursts."""
    app = App("haren")
    for chain, times, rows in load:
        stream = app.source(chain.name, Bursts(times, rows))
        for place, (cost, selectivity) in enumerate(chain.operators):
            stream = stream.universal(cost=cost, selectivity=selectivity, name=f"{chain.name}-{place}")
        stream.to(chain.name, to_function(_ignore), query_class=chain.query_class)
    return app


def _ignore(query: str, batch: pa.RecordBatch) -> None:
    pass


class Watched(Around):
    """Another policy, its scheduling tasks, and the tuples in queues and calls: their mean, and the most."""

    def __init__(self, policy: str | Policy) -> None:
        super().__init__(policies.get(policy))
        self.tasks = self.most = self._waiting = 0
        self._area = self._since = 0.0

    def start(self, catalog: Catalog, workers: int, seed: int = 0) -> Sequence[Decision]:
        self._boxes = catalog.boxes
        self._known = [0] * len(catalog.boxes)
        return super().start(catalog, workers, seed)

    def handle(self, event: Event) -> Sequence[Decision]:
        self._area += self._waiting * (event.time - self._since)
        self._since = event.time
        if isinstance(event, Started):
            self._waiting += event.tuples
        elif isinstance(event, Finished):
            self._waiting -= event.tuples_in
        elif isinstance(event, Rescheduled):
            self.tasks += 1
        for place in _touched(event):
            now = self._boxes[place].queue.tuples
            self._waiting += now - self._known[place]
            self._known[place] = now
        self.most = max(self.most, self._waiting)
        return super().handle(event)

    @property
    def mean(self) -> float:
        return self._area / self._since if self._since else 0.0


def _touched(event: Event) -> Iterator[int]:
    if isinstance(event, Spawned | Started | Finished | Changed):
        yield event.box
    if isinstance(event, Finished):
        for other, _ in event.queues:
            yield other


@dataclass(frozen=True)
class Measured:
    """One policy over one load."""

    policy: str
    throughput: float
    mean: float
    most: float
    """Latency of all results: their mean, and the longest."""
    queued: float
    queued_most: float
    cpu: float
    """Seconds of CPU per thousand source tuples; in simulation nothing."""
    tasks: int
    """Scheduling tasks."""
    report: Report

    @property
    def crowded(self) -> float:
        """How many times longer calls took than they kept a processor busy: others wanted it too."""
        wanted = sum(box.tuples_in * box.cost for box in self.report.boxes.values())
        return self.report.busy / wanted if wanted else 1.0


def measure(app: App, engine: Engine, policy: str | Policy) -> Measured:
    """Run it until it is drained."""
    watched = Watched(policy)
    gc.collect()  # what runs before have left is not to be swept up inside this one
    begin = time.process_time()
    report = app.run(engine, watched)
    cpu = time.process_time() - begin
    for query in report.queries.values():
        if query.error is not None:
            raise query.error
    seen = [(q.latency, q.tuples_out) for q in report.queries.values() if q.tuples_out]
    results = sum(count for _, count in seen)
    return Measured(
        watched.name,
        report.throughput,
        sum(latency.mean * count for latency, count in seen) / results,
        max(latency.max for latency, _ in seen),
        watched.mean,
        watched.most,
        0.0 if report.engine == "simulated" else cpu / report.tuples * 1e3,
        watched.tasks,
        report,
    )
