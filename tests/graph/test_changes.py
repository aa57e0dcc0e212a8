"""A snapshot and the changes since are the state itself, however they are cut, split by key and written."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_streams import SCHEMA, assert_same, batch_of, cuts, end_packet, packets_of, row_lists, rows_of

from depth import examples
from headgate.graph.operator import Operator
from headgate.graph.operators import join_state, process, running, window_state
from headgate.graph.operators.drop_duplicates import DropDuplicates
from headgate.graph.operators.join import Join
from headgate.graph.operators.join_shape import HOW
from headgate.graph.operators.process import KeyedProcess, Process
from headgate.graph.operators.running import Running
from headgate.graph.operators.top import Top
from headgate.graph.operators.top_per_key import TopPerKey
from headgate.graph.operators.universal import Universal
from headgate.graph.operators.window import WindowAggregate
from headgate.graph.packet import Order, Packet
from headgate.graph.partition import buckets
from headgate.graph.time import ticks_of
from headgate.graph.windows import Window

quick = settings(derandomize=True, deadline=None, max_examples=examples(80))

IN_WINDOWS = [
    "count(*) AS n",
    "sum(x) AS total",
    "sum(f) AS floats",
    "max(x) AS most",
    "min(s) AS word",
    "first(s) AS f",
    "last(x, true) AS l",
    "avg(x) AS mean",
    "stddev(x) AS deviation",
    "collect_list(s) AS words",
    "count(DISTINCT s) AS different",
    "count(DISTINCT f) AS numbers",
    "approx_percentile(x, 0.5) AS median",
    "collect_list(x) FILTER (WHERE x > 0) AS positive",
]
RUNNING = [
    "count(*) AS n",
    "sum(x) AS total",
    "avg(f) AS mean",
    "max(f) AS highest",
    "stddev(x) AS deviation",
    "first(s) AS fs",
    "last(s, true) AS lk",
    "min(s) AS word",
    "count(DISTINCT s) AS words",
    "count(DISTINCT f) AS numbers",
]


@dataclass(frozen=True)
class Plan:
    """How a stream is cut, when the state is written, and when changes are taken."""

    at: list[int]
    begin: int
    """Calls before the snapshot."""
    stop: int
    """Calls before the last changes."""
    asked: int
    """A bit for every call, whether changes are taken after it."""
    split: int
    revive: bool
    """Whether tracking starts in a state that was restored."""
    compact: bool
    """Whether dead groups and keys are forgotten at once."""


PLANS = st.builds(
    Plan,
    at=st.lists(st.integers(0, 60), max_size=8),
    begin=st.integers(0, 4),
    stop=st.integers(0, 8),
    asked=st.integers(0, 255),
    split=st.sampled_from([1, 1, 3]),
    revive=st.booleans(),
    compact=st.booleans(),
)
KEYS = st.sampled_from([["k"], ["s", "k"], []])
ROWS = row_lists(keys=12)


def through_ipc(table: pa.Table) -> pa.Table:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return pa.ipc.open_stream(sink.getvalue()).read_all()


def parts(table: pa.Table, keys: int, split: int) -> list[pa.Table]:
    """The table as an engine writes it: by bucket of the key columns, which come first."""
    if split == 1:
        return [through_ipc(table)]
    chunks = table.combine_chunks().to_batches()
    bucket = np.zeros(0) if not chunks else buckets(chunks[0], table.column_names[:keys], split)
    return [through_ipc(table.filter(pa.array(bucket == b))) for b in range(split)]


def plainly(value: Any) -> Any:
    if isinstance(value, list):
        return sorted(value, key=repr)
    return pickle.loads(value) if isinstance(value, bytes) and value.startswith(b"\x80") else value


def content(tables: Sequence[pa.Table]) -> list[tuple[Any, ...]]:
    """The rows of tables without their order, that of lists in them included."""
    rows = [tuple(plainly(v) for v in row.values()) for table in tables for row in table.to_pylist()]
    return sorted(rows, key=repr)


def assert_equal(states: Sequence[Any], state: Any) -> None:
    """``states`` are together what ``state`` is."""
    tables, table = [s.snapshot() for s in states], state.snapshot()
    assert_same(content(tables), content([table]))
    for mine in tables:
        assert mine.schema.equals(table.schema)
        assert mine.schema.metadata == table.schema.metadata
    assert [s.late for s in states] == [state.late] * len(states)


def results(operator: Operator, calls: Sequence[list[Packet]], state: Any) -> list[Any]:
    """Everything that leaves until the stream has ended."""
    outputs: list[list[Packet]] = [[] for _ in operator.outputs]
    for packets in calls:
        for kept, out in zip(outputs, operator.process(packets, state), strict=True):
            kept.append(out)
    for kept, out in zip(outputs, operator.finish(state, end_packet(operator.inputs[0])), strict=False):
        kept.append(out)
    return [rows_of(kept, schema) for kept, schema in zip(outputs, operator.outputs, strict=True)]


def check(operator: Operator, calls: Sequence[list[Packet]], keys: int, plan: Plan) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if plan.compact:
            for module, name in (
                (window_state, "_FEW"),
                (running, "_FEW"),
                (process, "SPARE_KEYS"),
                (join_state, "_SPARE_KEYS"),
            ):
                patch.setattr(module, name, 0)
        _check(operator, calls, keys, plan)


def _check(operator: Operator, calls: Sequence[list[Packet]], keys: int, plan: Plan) -> None:
    split = plan.split if keys else 1
    state: Any = operator.open()
    for packets in calls[: plan.begin]:
        operator.process(packets, state)
    written = parts(state.snapshot(), keys, split)
    if plan.revive:
        state = operator.restore([through_ipc(state.snapshot())])
    state.track()
    assert state.changes().num_rows == 0
    others: list[Any] = [operator.restore([part]) for part in written]

    def tell() -> None:
        for other, part in zip(others, parts(state.changes(), keys, split), strict=True):
            other.apply(part)
        assert state.changes().num_rows == 0, "it has been told"
        assert_equal(others, state)

    stop = max(plan.begin, plan.stop)
    for place, packets in enumerate(calls[plan.begin : stop], plan.begin):
        operator.process(packets, state)
        if plan.asked >> place & 1:
            tell()
    tell()
    going_on, others = others, [operator.restore([one.snapshot()]) for one in others]
    found = [
        results(operator, [of_bucket(packets, keys, split, place) for packets in calls[stop:]], one)
        for place, one in enumerate(going_on)
    ]
    expected = results(operator, calls[stop:], state)
    if split == 1:
        assert_same(found[0], expected)
        assert_equal(going_on, state)
    for place, rows in enumerate(expected):
        together = [row for one in found for row in one[place]]
        assert_same(sorted(together, key=repr), sorted(rows, key=repr))
    tell()


def of_bucket(packets: list[Packet], keys: int, split: int, place: int) -> list[Packet]:
    """The rows of one bucket, told of time by ticks."""
    if split == 1:
        return packets
    mine = [np.flatnonzero(buckets(p.batch, ["s", "k"][2 - keys :], split) == place) for p in packets]
    column = SCHEMA.get_field_index("ts")
    return [
        Packet(p.batch.take(pa.array(rows)), p.order.take(rows), ticks=ticks_of(p, column))
        for p, rows in zip(packets, mine, strict=True)
    ]


def calls_of(rows: list[Any], plan: Plan) -> list[list[Packet]]:
    return [[packet] for packet in packets_of(rows, cuts(plan.at, len(rows)))]


WINDOWS = st.builds(
    lambda kind, size, every, late: Window(kind, size, min(size, every) if every else size, "ts", late),
    st.sampled_from(["tumbling", "session"]),
    st.integers(1, 12),
    st.none(),
    st.integers(0, 8),
) | st.builds(
    lambda size, every, late: Window("sliding", size, min(size, every), "ts", late),
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(0, 8),
)


@settings(quick, max_examples=examples(160))
@given(ROWS, PLANS, WINDOWS, KEYS, st.none() | st.integers(1, 9))
def test_changes_of_windows_are_its_state(
    rows: Any, plan: Plan, window: Window, keys: list[str], early: int | None
) -> None:
    operator = WindowAggregate(SCHEMA, keys, window, IN_WINDOWS, None if early is None else early / 1e6)
    check(operator, calls_of(rows, plan), len(keys), plan)


@settings(quick, max_examples=examples(100))
@given(ROWS, PLANS, KEYS, st.none() | st.integers(1, 12))
def test_changes_of_running_aggregates_are_its_state(
    rows: Any, plan: Plan, keys: list[str], expire: int | None
) -> None:
    on = None if expire is None else "ts"
    operator = Running(SCHEMA, keys, RUNNING, None if expire is None else expire / 1e6, on)
    check(operator, calls_of(rows, plan), len(keys), plan)


@quick
@given(ROWS, PLANS, st.sampled_from([["k"], ["s", "k"]]), st.none() | st.integers(1, 12))
def test_changes_of_drop_duplicates_are_its_state(
    rows: Any, plan: Plan, keys: list[str], within: int | None
) -> None:
    on = None if within is None else "ts"
    operator = DropDuplicates(SCHEMA, keys, None if within is None else within / 1e6, on)
    check(operator, calls_of(rows, plan), len(keys), plan)


@settings(quick, max_examples=examples(200))
@given(
    ROWS,
    PLANS,
    st.none() | st.integers(0, 12),
    st.sampled_from([["k"], ["s", "k"]]),
    st.integers(0, 2**60),
    st.sampled_from(HOW),
)
def test_changes_of_a_join_are_its_state(
    rows: Any, plan: Plan, within: int | None, keys: list[str], sides: int, how: str
) -> None:
    on = None if within is None else "ts"
    operator = Join(SCHEMA, SCHEMA, keys, keys, None if within is None else within / 1e6, on, how)

    def both() -> Iterator[list[Packet]]:
        for [packet] in calls_of(rows, plan):
            left = np.array([sides >> (s // 10) & 1 for s in packet.order.serials.tolist()], dtype=bool)
            yield [
                Packet(packet.batch.take(pa.array(mine)), packet.order.take(mine))
                for mine in (np.flatnonzero(left), np.flatnonzero(~left))
            ]

    check(operator, list(both()), len(keys), plan)


def counting(row: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    state["n"] = state.get("n", 0) + 1
    state.setdefault("words", []).append(row["s"])
    return {"n": state["n"], "w": "".join(word or "-" for word in state["words"])}


COUNTED = pa.schema([("n", pa.int64()), ("w", pa.string())])


@quick
@given(ROWS, PLANS, st.sampled_from([["k"], ["s", "k"]]), st.none() | st.integers(1, 12))
def test_changes_of_a_keyed_process_are_its_state(
    rows: Any, plan: Plan, keys: list[str], expire: int | None
) -> None:
    limit = None if expire is None else expire / 1e6
    operator = KeyedProcess(SCHEMA, keys, counting, COUNTED, {}, limit, None if expire is None else "ts")
    check(operator, calls_of(rows, plan), len(keys), plan)


@settings(quick, max_examples=examples(60))
@given(ROWS, PLANS)
def test_changes_of_a_process_are_its_state(rows: Any, plan: Plan) -> None:
    check(Process(SCHEMA, counting, COUNTED, {}), calls_of(rows, plan), 0, plan)


@settings(quick, max_examples=examples(120))
@given(ROWS, PLANS, st.integers(1, 4), st.none() | st.integers(1, 12), st.integers(0, 8), KEYS)
def test_changes_of_a_top_are_its_state(
    rows: Any, plan: Plan, n: int, every: int | None, lateness: int, keys: list[str]
) -> None:
    on = None if every is None else "ts"
    operator = Top(SCHEMA, n, "x DESC, s", every and every / 1e6, on, lateness / 1e6, keys)
    check(operator, calls_of(rows, plan), len(keys), plan)


@quick
@given(ROWS, PLANS, st.integers(1, 4), st.sampled_from([["k"], ["s", "k"]]))
def test_changes_of_a_top_per_key_are_its_state(rows: Any, plan: Plan, n: int, keys: list[str]) -> None:
    check(TopPerKey(SCHEMA, keys, n, "x DESC, s", "place"), calls_of(rows, plan), len(keys), plan)


@settings(quick, max_examples=examples(60))
@given(ROWS, PLANS, st.sampled_from([["k"], ["s", "k"]]), st.sampled_from([0, 3]))
def test_changes_of_a_universal_box_are_its_state(
    rows: Any, plan: Plan, keys: list[str], state_bytes: int
) -> None:
    operator = Universal(SCHEMA, "box", 0, 1, keys=keys, state_bytes=state_bytes)
    check(operator, calls_of(rows, plan), len(keys), plan)


def rows_for(keys: Sequence[int], time: int, word: str = "a") -> list[dict[str, Any]]:
    return [{"k": k, "s": word, "ts": time, "x": k, "f": 0.5} for k in keys]


def packet_for(keys: Sequence[int], time: int, word: str = "a") -> Packet:
    return Packet(batch_of(rows_for(keys, time, word)), Order(0, 0.0, len(keys)))


KEYED = {
    "tumbling": WindowAggregate(SCHEMA, ["k"], Window("tumbling", 100, 100, "ts", 0), IN_WINDOWS),
    "sliding": WindowAggregate(SCHEMA, ["k"], Window("sliding", 100, 50, "ts", 0), IN_WINDOWS),
    "session": WindowAggregate(SCHEMA, ["k"], Window("session", 100, 100, "ts", 0), IN_WINDOWS),
    "running": Running(SCHEMA, ["k"], RUNNING),
    "expiring": Running(SCHEMA, ["k"], RUNNING, 1e-3, "ts"),
    "process": KeyedProcess(SCHEMA, ["k"], counting, COUNTED, {}),
    "universal": Universal(SCHEMA, "box", 0, 1, keys=["k"], state_bytes=4),
}


@pytest.mark.parametrize("operator", KEYED.values(), ids=KEYED)
def test_changes_hold_the_touched_keys_only(operator: Operator) -> None:
    state: Any = operator.open()
    operator.process([packet_for(range(1000), 0)], state)
    state.track()
    operator.process([packet_for([7, 8, 7, 999], 1)], state)
    operator.process([packet_for([8, 2000], 2)], state)
    assert sorted(state.changes().column("k").to_pylist()) == [7, 8, 999, 2000]
    assert state.snapshot().num_rows == 1001


def test_a_join_tells_new_rows_only() -> None:
    operator = Join(SCHEMA, SCHEMA, ["k"], ["k"], 1, "ts")
    state = operator.open()
    operator.process([packet_for(range(500), 0), packet_for(range(500), 0)], state)
    state.track()
    operator.process([packet_for([1, 2], 1), packet_for([1], 1)], state)
    assert sorted(state.changes().column("_side").to_pylist()) == [0, 0, 1]


@pytest.mark.parametrize("operator", [KEYED["tumbling"], KEYED["sliding"], KEYED["running"]])
def test_values_that_were_told_are_not_told_again(operator: Operator) -> None:
    """A long list costs what has come to it."""
    state: Any = operator.open()
    for number in range(20):
        operator.process([packet_for([1], 0, f"old {number}")], state)
    state.track()
    operator.process([packet_for([1], 0, "new")], state)
    table = state.changes()
    lists = [c for c in table.columns if pa.types.is_list(c.type) and c.type.value_type == pa.string()]
    assert [c.to_pylist() for c in lists] == [[["new"]]] * len(lists)
    assert lists


def test_a_window_that_time_closes_is_not_told() -> None:
    operator = KEYED["tumbling"]
    state: Any = operator.open()
    operator.process([packet_for(range(100), 0)], state)
    other: Any = operator.restore([state.snapshot()])
    state.track()
    operator.process([packet_for([5], 1000)], state)
    changes = state.changes()
    assert changes.num_rows == 1
    other.apply(changes)
    assert other.snapshot().column("k").to_pylist() == [5]


def test_late_rows_are_counted_as_last_told() -> None:
    operator = KEYED["tumbling"]
    state: Any = operator.open()
    state.track()
    operator.process([packet_for([1], 1000)], state)
    operator.process([packet_for([1, 2], 3)], state)
    other: Any = operator.open()
    other.late = 9
    other.apply(state.changes())
    assert (other.late, other.seen) == (2, 3)


def test_the_end_of_the_stream_is_told() -> None:
    for name in ("tumbling", "sliding", "session"):
        operator = KEYED[name]
        state: Any = operator.open()
        operator.process([packet_for([1, 2], 5)], state)
        other: Any = operator.restore([state.snapshot()])
        state.track()
        operator.finish(state, end_packet())
        other.apply(through_ipc(state.changes()))
        assert other.snapshot().num_rows == 0
        # The stream goes on after all: the same rows open new windows in both.
        for one in (state, other):
            operator.process([packet_for([1], 5)], one)
        assert_equal([other], state)
        other.apply(state.changes().slice(0, 0))
        assert other.snapshot().num_rows == 1


def test_a_state_that_does_not_track_cannot_tell() -> None:
    for operator in (*KEYED.values(), Process(SCHEMA, counting, COUNTED, {}), Top(SCHEMA, 1, "x", 1, "ts")):
        state: Any = operator.open()
        with pytest.raises(RuntimeError, match="track"):
            state.changes()


def test_a_key_that_starts_afresh_has_forgotten_its_values() -> None:
    operator = Running(SCHEMA, ["k"], ["count(DISTINCT s) AS words"], 1e-3, "ts")
    state: Any = operator.open()
    operator.process([packet_for([1], 0, "a")], state)
    other: Any = operator.restore([state.snapshot()])
    state.track()
    operator.process([packet_for([1], 5000, "b")], state)
    other.apply(state.changes())
    assert_equal([other], state)
    [packet] = operator.process([packet_for([1], 5001, "a")], other)
    assert packet.batch.column("words").to_pylist() == [2]
