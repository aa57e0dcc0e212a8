"""Tools for testing pipelines and policies: lists in and out, a clock turned by hand, recorded traces.

from headgate import testing

def test_filter():
    rows = [{"a": 1}, {"a": 5}]
    assert testing.run(rows, lambda s: s.filter("a > 2")) == [{"a": 5}]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.api import App, Stream
from headgate.connectors.batches import from_batches
from headgate.connectors.python import to_list
from headgate.connectors.source import Chunk, Reader, Source, Wait
from headgate.engines.base import Engine
from headgate.engines.simulated.engine import Simulated
from headgate.engines.simulated.run import SimulatedRun
from headgate.errors import PipelineError
from headgate.graph.qos import QoS
from headgate.graph.schema import normalise
from headgate.runtime.report import Report
from headgate.scheduling import policies
from headgate.scheduling.catalog import BoxEntry, Catalog
from headgate.scheduling.events import Event
from headgate.scheduling.interface import Decision, Policy
from headgate.scheduling.wrapper import Around

Rows = Sequence[Mapping[str, Any]]


def batch(rows: Rows, schema: pa.Schema | None = None) -> pa.RecordBatch:
    """Dicts as a record batch; the schema is guessed if none is given."""
    if not rows and schema is None:
        raise PipelineError("testing.batch: with no rows, say what their schema would be.")
    made = pa.RecordBatch.from_pylist([dict(row) for row in rows], schema=schema)
    return made if schema is not None else made.cast(normalise(made.schema))


def from_rows(rows: Rows, schema: pa.Schema | None = None) -> Source:
    """A source of these rows, all of which arrive at time 0."""
    return from_batches([batch(rows, schema)])


def run(
    rows: Rows,
    pipeline: Callable[[Stream], Stream],
    *,
    schema: pa.Schema | None = None,
    engine: str | Engine = "simulated",
    policy: str | Policy | None = None,
    workers: int | None = None,
) -> list[dict[str, Any]]:
    """Send rows through a pipeline until it is drained, and return what comes out, in order."""
    out: list[dict[str, Any]] = []
    app = App("test")
    pipeline(app.source("rows", from_rows(rows, schema))).to("result", to_list(out))
    app.run(engine, policy, workers)
    return out


class Timed(Source):
    """A source whose rows arrive when they are told to: ``Timed([(0.0, rows), (1.5, more)])``."""

    live = True

    def __init__(self, arrivals: Iterable[tuple[float, Rows]], schema: pa.Schema | None = None) -> None:
        self.finite = True
        self.arrivals = sorted(((at, batch(rows, schema)) for at, rows in arrivals), key=lambda pair: pair[0])
        if not self.arrivals:
            raise PipelineError("testing.Timed: give at least one (time, rows).")
        self.schema = self.arrivals[0][1].schema

    def open(self) -> Reader:
        return _TimedReader(self.arrivals)


class _TimedReader(Reader):
    def __init__(self, arrivals: Sequence[tuple[float, pa.RecordBatch]]) -> None:
        self._left = [(at, rows) for at, rows in arrivals if rows.num_rows]

    def poll(self, now: float, max_rows: int) -> Chunk | Wait | None:
        if not self._left:
            return None
        at, rows = self._left[0]
        if at > now:
            return Wait(at)
        taken = rows.slice(0, max_rows)
        if taken.num_rows < rows.num_rows:
            self._left[0] = (at, rows.slice(max_rows))
        else:
            self._left.pop(0)
        return Chunk(taken, np.full(taken.num_rows, at))


class Crank:
    """An application in virtual time, moved on by hand.

    with Crank(app, workers=2) as crank:
        crank.advance(1.0)
        assert results == [...]
        assert crank.calls == [("filter-1", 3)]
    """

    def __init__(
        self,
        app: App,
        policy: str | Policy | None = None,
        *,
        workers: int = 1,
        call_overhead: float = 0.0,
        seed: int = 0,
        **options: Any,
    ) -> None:
        engine = Simulated(call_overhead=call_overhead, **options)
        self._run = SimulatedRun(
            engine.settings, app.network, policies.chosen(policy, app.network.goals), workers, seed=seed
        )

    def __enter__(self) -> Crank:
        self._run.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run.close()

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return self._run.clock.now()

    def advance(self, seconds: float) -> None:
        """Let so much time pass, and everything happen that happens in it."""
        self._run.advance(self.now + seconds)

    def drain(self) -> Report:
        """Run to the end of the sources and report."""
        self._run.advance(float("inf"))
        return self._run.report()

    @property
    def calls(self) -> list[tuple[str, int]]:
        """The box calls so far: box and tuples."""
        return calls(self._run.report())

    @property
    def report(self) -> Report:
        return self._run.report()


def calls(report: Report) -> list[tuple[str, int]]:
    """A report's trace as (box, tuples), to compare with what one expects."""
    return [(call.box, call.tuples) for call in report.trace]


class Recorder(Around):
    """A policy that passes everything on to another and writes down every event and decision."""

    def __init__(self, policy: str | Policy) -> None:
        super().__init__(policies.get(policy))
        self.log: list[tuple[Event, tuple[Decision, ...]]] = []

    def handle(self, event: Event) -> Sequence[Decision]:
        decisions = tuple(self.policy.handle(event))
        self.log.append((event, decisions))
        return decisions


def play(
    policy: str | Policy,
    boxes: Sequence[BoxEntry],
    events: Iterable[Event],
    *,
    workers: int = 1,
    seed: int = 0,
    goals: Mapping[str, QoS] | None = None,
) -> list[Decision]:
    """What a policy decides on a sequence of events, without any engine."""
    chosen, catalog = policies.get(policy), Catalog(boxes, goals)
    decisions = list(chosen.start(catalog, workers, seed))
    for event in events:
        catalog.apply(event)
        decisions += chosen.handle(event)
    return decisions
