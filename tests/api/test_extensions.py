"""Operators, sources, sinks and policies from outside the package run on every engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headgate as hg
from headgate import testing
from headgate.errors import PipelineError, RunError, UnknownColumn
from headgate.extend import (
    BatchReader,
    BoxEntry,
    Call,
    Chunk,
    Kind,
    Operator,
    Packet,
    Plan,
    Pull,
    Reader,
    Sink,
    Source,
    State,
    Wait,
    Writer,
)

NUMBERS = pa.schema([("k", pa.int64()), ("n", pa.int64())])
ROWS = [{"k": i % 3, "n": i * i % 7} for i in range(20)]


class Double(Operator):
    """Stateless."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__([schema], [schema])

    def process(self, packets: Sequence[Packet], state: Any) -> list[Packet]:
        [packet] = packets
        column = packet.schema.get_field_index("n")
        doubled = pc.multiply(packet.batch.column(column), 2)
        return [packet.with_batch(packet.batch.set_column(column, packet.schema.field(column), doubled))]


class Last(State):
    """The last number, and nothing but what a small state must have."""

    def __init__(self) -> None:
        self.number = 0

    def snapshot(self) -> pa.Table:
        return pa.table({"last": [self.number]})

    def apply(self, changes: pa.Table) -> None:
        self.number = changes["last"][-1].as_py()


class Delta(Operator):
    """Stateful: the difference to the row before."""

    kind = Kind.STATEFUL

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__([schema], [pa.schema([("delta", pa.int64())])])

    def open(self) -> Last:
        return Last()

    def process(self, packets: Sequence[Packet], state: Last) -> list[Packet]:
        [packet] = packets
        numbers = packet.batch.column("n").to_numpy()
        deltas = np.diff(numbers, prepend=state.number)
        if len(numbers):
            state.number = int(numbers[-1])
        return [packet.with_batch(pa.record_batch([pa.array(deltas)], schema=self.outputs[0]))]


class Counts(State):
    def __init__(self) -> None:
        self.seen: dict[int, int] = {}

    def snapshot(self) -> pa.Table:
        return pa.table(
            [list(self.seen), list(self.seen.values())], pa.schema([("k", "int64"), ("n", "int64")])
        )

    def apply(self, changes: pa.Table) -> None:
        self.seen.update(zip(changes["k"].to_pylist(), changes["n"].to_pylist(), strict=True))


class Occurrence(Operator):
    """Keyed: how many rows of the key came so far."""

    kind = Kind.KEYED

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__([schema], [pa.schema([("k", pa.int64()), ("seen", pa.int64())])])
        self.keys_by_input = (("k",),)

    def open(self) -> Counts:
        return Counts()

    def process(self, packets: Sequence[Packet], state: Counts) -> list[Packet]:
        [packet] = packets
        keys = packet.batch.column("k")
        seen = []
        for key in keys.to_pylist():
            state.seen[key] = state.seen.get(key, 0) + 1
            seen.append(state.seen[key])
        return [
            packet.with_batch(pa.record_batch([keys, pa.array(seen, pa.int64())], schema=self.outputs[0]))
        ]


class Numbers(Source):
    """Finite, from any iterator; holds a lock, as a connection would."""

    finite = True
    schema = NUMBERS

    def __init__(self, rows: list[dict[str, int]]) -> None:
        self.rows = rows
        self.lock = threading.Lock()

    def open(self) -> Reader:
        halves = (self.rows[:7], self.rows[7:])
        return BatchReader((pa.RecordBatch.from_pylist(half, NUMBERS) for half in halves), NUMBERS)


class Ticker(Source):
    """Live: a row every hundredth of a second."""

    finite = True
    live = True
    schema = pa.schema([("n", pa.int64())])

    def __init__(self, ticks: int = 5) -> None:
        self.ticks = ticks

    def open(self) -> Reader:
        return Ticks(self.ticks)


class Ticks(Reader):
    def __init__(self, ticks: int) -> None:
        self.ticks = ticks
        self.next = 0

    def poll(self, now: float, max_rows: int) -> Chunk | Wait | None:
        if self.next == self.ticks:
            return None
        if now < self.next / 100:
            return Wait(self.next / 100)
        self.next += 1
        rows = pa.record_batch([[self.next]], schema=Ticker.schema)
        return Chunk(rows, (self.next - 1) / 100)


class Totals(Sink):
    def __init__(self) -> None:
        self.rows = 0
        self.closed: list[bool] = []

    def open(self, query: str, schema: pa.Schema) -> Writer:
        return Totalling(self)


class Totalling(Writer):
    def __init__(self, sink: Totals) -> None:
        self.sink = sink

    def write(self, batch: pa.RecordBatch) -> None:
        self.sink.rows += batch.num_rows

    def close(self, error: bool) -> None:
        self.sink.closed.append(error)


class LongestQueue(Pull):
    """The box with the most tuples waiting."""

    name = "longest_queue"

    def choose(self, worker: int, now: float) -> Plan | None:
        ready = self.catalog.ready
        if not ready:
            return None
        return (Call(max(ready, key=lambda box: self.catalog.boxes[box].queue.tuples), hg.trains.Share(1)),)


def test_a_stateless_operator_of_ones_own_runs_on_every_engine(engine: hg.Engine) -> None:
    found = testing.run(ROWS, lambda s: s.apply(Double(s.schema)), schema=NUMBERS, engine=engine)
    assert found == [{"k": row["k"], "n": 2 * row["n"]} for row in ROWS]


def test_a_stateful_operator_of_ones_own_runs_on_every_engine(engine: hg.Engine) -> None:
    found = testing.run(ROWS, lambda s: s.apply(Delta(s.schema), name="delta"), schema=NUMBERS, engine=engine)
    before = [0, *[row["n"] for row in ROWS]]
    assert [row["delta"] for row in found] == [
        row["n"] - last for row, last in zip(ROWS, before, strict=False)
    ]


def test_a_keyed_operator_of_ones_own_runs_on_every_engine(engine: hg.Engine) -> None:
    found = testing.run(ROWS, lambda s: s.apply(Occurrence(s.schema)), schema=NUMBERS, engine=engine)
    assert found == [{"k": i % 3, "seen": i // 3 + 1} for i in range(20)]


def test_a_finite_source_and_a_sink(engine: hg.Engine) -> None:
    app, rows, totals = hg.App("own"), [], Totals()
    numbers = app.source("numbers", Numbers(ROWS))
    numbers.to("rows", hg.to_list(rows)).to("totals", totals)
    app.run(engine)
    assert rows == ROWS
    assert (totals.rows, totals.closed) == (20, [False])


def test_a_live_source_of_ones_own_runs_on_every_engine(engine: hg.Engine) -> None:
    app, rows = hg.App("own"), []
    app.source("ticks", Ticker()).to("rows", hg.to_list(rows))
    app.run(engine)
    assert [row["n"] for row in rows] == [1, 2, 3, 4, 5]


def test_a_policy_of_ones_own_runs_on_every_engine(engine: hg.Engine) -> None:
    found = testing.run(
        ROWS, lambda s: s.filter("n > 1").select("k"), schema=NUMBERS, engine=engine, policy=LongestQueue()
    )
    assert found == [{"k": row["k"]} for row in ROWS if row["n"] > 1]


def test_a_small_state_is_restored_from_its_snapshot_and_from_its_changes() -> None:
    delta = Delta(NUMBERS)
    state = delta.open()
    state.track()
    state.number = 5
    assert delta.restore([state.snapshot()]).number == 5  # type: ignore[union-attr]
    other = delta.open()
    other.apply(state.changes())
    assert other.number == 5
    assert Double(NUMBERS).restore([]) is None


@pytest.mark.xdist_group("spark")
def test_the_state_of_an_own_operator_is_in_the_checkpoint(tmp_path: Path) -> None:
    """Two runs, each stopped somewhere. Without its state the second would start with a large delta."""
    found: list[dict[str, Any]] = []
    for _ in range(2):
        app, enough = hg.App("own"), len(found) + 5
        app.source("ticks", Ticker(10_000)).apply(Delta(Ticker.schema)).to("q", hg.to_list(found))
        with app.start(hg.Spark(workers=1, checkpoint=tmp_path / "state")) as running:
            while len(found) < enough and not running.over:
                time.sleep(0.01)
    assert len(found) >= 10
    assert {row["delta"] for row in found} == {1}


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        (Double, "is not an operator"),
        (Double(pa.schema([("n", pa.int64())])), "make the operator with stream.schema"),
        (Operator([NUMBERS], []), "exactly one output"),
        (Operator([NUMBERS, NUMBERS], [NUMBERS]), "has 2 inputs, and 1 streams"),
        (Operator([NUMBERS], [pa.schema([("n", pa.uint8())])]), "declare it as int16"),
    ],
)
def test_a_wrong_operator_is_refused_where_it_is_applied(operator: Any, message: str) -> None:
    stream = hg.App("own").source("numbers", Numbers(ROWS))
    with pytest.raises(PipelineError, match=message):
        stream.apply(operator)


def test_a_keyed_operator_must_name_its_keys_and_a_stateful_one_must_have_a_state() -> None:
    stream = hg.App("own").source("numbers", Numbers(ROWS))
    keyed = Occurrence(NUMBERS)
    keyed.keys_by_input = ()
    with pytest.raises(PipelineError, match="is keyed; set"):
        stream.apply(keyed)
    keyed.keys_by_input = (("nowhere",),)
    with pytest.raises(UnknownColumn, match="nowhere"):
        stream.apply(keyed)
    stateless = Delta(NUMBERS)
    stateless.open = lambda: None  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(PipelineError, match="must return a State"):
        stream.apply(stateless)


def test_streams_of_another_app_are_refused() -> None:
    stream = hg.App("own").source("numbers", Numbers(ROWS))
    other = hg.App("other").source("numbers", Numbers(ROWS))
    with pytest.raises(PipelineError, match="same app"):
        stream.apply(Operator([NUMBERS, NUMBERS], [NUMBERS]), other)


def test_an_own_sources_schema_is_brought_to_sparks_types_or_refused() -> None:
    source = Numbers(ROWS)
    source.schema = pa.schema([("n", pa.uint16())])
    assert hg.App("own").source("numbers", source).schema == pa.schema([("n", pa.int32())])
    source.schema = None
    with pytest.raises(PipelineError, match="source 'numbers': None is not a schema"):
        hg.App("own").source("numbers", source)


def test_an_own_operators_error_names_its_box() -> None:
    class Broken(Double):
        def process(self, packets: Sequence[Packet], state: Any) -> list[Packet]:
            raise ValueError("no such luck")

    with pytest.raises(RunError, match=r"Box 'mine' \(broken\) failed.*no such luck"):
        testing.run(ROWS, lambda s: s.apply(Broken(s.schema), name="mine"), schema=NUMBERS)


def test_what_a_policy_needs_for_its_tests_is_public() -> None:
    boxes = [BoxEntry("few", 1, (), (), ("q",)), BoxEntry("many", 1, (), (), ("q",))]
    queues = [hg.extend.QueueState(2), hg.extend.QueueState(9)]
    events: list[hg.extend.Event] = [
        hg.extend.Spawned(0.0, 0, queues[0]),
        hg.extend.Spawned(0.0, 1, queues[1]),
        hg.extend.Idle(0.0, 0),
    ]
    [decision] = testing.play(LongestQueue(), boxes, events)
    assert isinstance(decision, hg.extend.Run)
    assert [call.box for call in decision.plan] == [1]
