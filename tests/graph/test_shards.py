"""Shards of a keyed box, put together, give row for row what one box gives, wherever its keys are kept."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_streams import SCHEMA, assert_same, batch_of, cuts, end_packet, plain, row_lists

from depth import examples
from headgate.errors import PipelineError
from headgate.graph.extended import added, bare, extended
from headgate.graph.operator import Operator
from headgate.graph.operators import window_gather
from headgate.graph.operators.filter import Filter
from headgate.graph.operators.join import Join
from headgate.graph.operators.process import KeyedProcess
from headgate.graph.operators.running import Running
from headgate.graph.operators.universal import Universal
from headgate.graph.operators.window import WindowAggregate
from headgate.graph.packet import Marker, Order, Packet
from headgate.graph.partition import buckets as buckets_of
from headgate.graph.shards import Shard, merge, split, split_gathered
from headgate.graph.windows import Window

FIXED = settings(derandomize=True, deadline=None, max_examples=examples(60))
END = 10**9
KEYS = st.sampled_from([["k"], ["s"], ["f"], ["k", "s"]])


@dataclass(frozen=True)
class Layouts:
    """Which shards there are, call by call; some have no bucket."""

    seed: int
    buckets: int
    steady: bool

    def __iter__(self) -> Iterator[list[Shard]]:
        random = np.random.default_rng(self.seed)
        layout: list[Shard] = []
        while True:
            if not layout or (not self.steady and random.random() < 0.5):
                inner = random.integers(0, self.buckets + 1, random.integers(0, 5)).tolist()
                bounds = [0, *sorted(inner), self.buckets]
                layout = [
                    range(low, high) if random.random() < 0.5 else (low, high)
                    for low, high in itertools.pairwise(bounds)
                ]
                random.shuffle(layout)
            yield layout


LAYOUTS = st.builds(Layouts, st.integers(0, 10**6), st.integers(1, 16), st.booleans())


class Sharded:
    """A box as shards whose packets, results and states travel between processes."""

    def __init__(self, operator: Operator, layouts: Layouts) -> None:
        self.operator = operator
        self.late = 0
        self._layouts = iter(layouts)
        self._buckets = layouts.buckets
        self._layout = next(self._layouts)
        self.states: list[Any] = [operator.open() for _ in self._layout]

    def process(self, packets: Sequence[Packet], prepare: Callable[[Any], None] = id) -> list[Packet]:
        layout = next(self._layouts)
        if layout != self._layout:
            self._move(layout)
        parts = pickle.loads(pickle.dumps(split(self.operator, packets, layout, self._buckets)))
        before = [state.late for state in self.states]
        results = []
        for part, state in zip(parts, self.states, strict=True):
            prepare(state)
            results.append(self.operator.process(part, state))
        self.late += sum(state.late for state in self.states) - sum(before)
        return merge(self.operator, pickle.loads(pickle.dumps(results)))

    def absorb(self, packets: Sequence[Packet]) -> Packet | None:
        """The first output for a range of packets, gathered, then split; None if that does not pay."""
        gathered = self.operator.gather(packets)
        layout = next(self._layouts)
        if layout != self._layout:
            self._move(layout)
        if gathered is None:
            return None
        parts = pickle.loads(pickle.dumps(split_gathered(self.operator, gathered, layout, self._buckets)))
        before = sum(state.late for state in self.states)
        results = [self.operator.absorb(part, state) for part, state in zip(parts, self.states, strict=True)]
        self.late += sum(state.late for state in self.states) - before
        return merge(self.operator, pickle.loads(pickle.dumps(results)))[0]

    def finish(self, end: Packet) -> list[Packet]:
        return merge(self.operator, [self.operator.finish(state, end) for state in self.states])

    def _move(self, layout: list[Shard]) -> None:
        """Every shard's state by bucket to the shards of ``layout``."""
        tables = [state.snapshot().combine_chunks() for state in self.states]
        self.states = [
            self.operator.restore([self._buckets_in(table, shard) for table in tables]) for shard in layout
        ]
        self._layout = layout

    def _buckets_in(self, table: pa.Table, shard: Shard) -> pa.Table:
        keys = self.operator.keys_by_input[0]
        low, high = (shard.start, shard.stop) if isinstance(shard, range) else shard
        bucket = np.zeros(0)
        if table.num_rows:
            bucket = buckets_of(table.to_batches()[0], keys, self._buckets)
        return table.filter(pa.array((low <= bucket) & (bucket < high)))


def contents(packet: Packet) -> list[Any]:
    """Serial, arrival and values of every row."""
    assert packet.order.ordinals is None
    assert packet.order.length == packet.batch.num_rows
    columns = [plain(column) for column in packet.batch.columns]
    return list(
        zip(packet.order.serials.tolist(), packet.order.arrival_array().tolist(), *columns, strict=True)
    )


def assert_equal(found: list[Packet], expected: list[Packet]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.batch.schema.equals(other.batch.schema)
        assert_same(contents(one), contents(other))


def packets_of(rows: list[dict[str, Any]], at: list[int], seed: int) -> list[Packet]:
    """The stream cut anywhere, also between rows of one serial."""
    random = np.random.default_rng(seed)
    serials = np.cumsum(random.choice([0, 0, 1, 7], len(rows))).astype(np.int64)
    batch = batch_of(rows)
    places = cuts(at, len(rows))
    return [
        Packet(batch.slice(low, high - low), Order(serials[low:high], serials[low:high] / 10.0, high - low))
        for low, high in itertools.pairwise(places)
    ]


STREAMS = st.builds(
    packets_of, row_lists(keys=6), st.lists(st.integers(0, 60), max_size=6), st.integers(0, 10**6)
)


def check(operator: Operator, packets: list[Packet], layouts: Layouts) -> None:
    state = operator.open()
    sharded = Sharded(pickle.loads(pickle.dumps(operator)), layouts)
    assert state is not None
    for packet in packets:
        assert_equal(sharded.process([packet]), operator.process([packet], state))
        assert sharded.late == state.late
    end = end_packet(operator.inputs[0])
    assert_equal(sharded.finish(end), operator.finish(state, end))


def a_window(kind: str, size: int, every: int, lateness: int) -> Window:
    return Window(kind, size, min(size, every) if kind == "sliding" else size, "ts", lateness)


WINDOWS = st.builds(
    a_window,
    st.sampled_from(["tumbling", "sliding", "session"]),
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(0, 8),
)
AGGREGATES = [
    "count(*) AS n",
    "sum(x) AS total",
    "max(f) AS highest",
    "first(x) AS fx",
    "last(s, true) AS ls",
    "collect_list(x) AS xs",
    "count(DISTINCT f) AS numbers",
]


@FIXED
@given(STREAMS, KEYS, WINDOWS, st.none() | st.integers(1, 10), LAYOUTS)
def test_shards_of_windows_give_what_one_box_gives(
    packets: list[Packet], keys: list[str], window: Window, early: int | None, layouts: Layouts
) -> None:
    early_seconds = None if early is None else early / 1e6
    check(WindowAggregate(SCHEMA, keys, window, AGGREGATES, early_seconds), packets, layouts)


@FIXED
@given(STREAMS, KEYS, WINDOWS, LAYOUTS, st.integers(1, 3))
def test_windows_gathered_range_by_range_give_what_one_box_gives(
    packets: list[Packet], keys: list[str], window: Window, layouts: Layouts, ranges: int
) -> None:
    """Whatever came before a range: rows out of order, late for the range, or for what came before it."""
    aggregates = ["count(*) AS n", "sum(x) AS total", "max(s) AS highest", "stddev(x) AS spread"]
    operator = WindowAggregate(SCHEMA, keys, window, aggregates)
    assert operator.gathers == (window.kind != "session")
    assert not WindowAggregate(SCHEMA, keys, window, ["last(x) AS x"]).gathers
    if not operator.gathers:
        return
    state = operator.open()
    sharded = Sharded(pickle.loads(pickle.dumps(operator)), layouts)
    with mock.patch.object(window_gather, "_PAYS", 2.0):
        for start in range(0, len(packets), ranges):
            part = [packet for packet in packets[start : start + ranges] if len(packet)]
            if not part:
                continue
            expected = [operator.process([packet], state)[0] for packet in part]
            found = sharded.absorb(part)
            assert found is not None
            assert_same(contents(found), [row for packet in expected for row in contents(packet)])
            assert sharded.late == state.late
    end = end_packet(operator.inputs[0])
    assert_equal(sharded.finish(end), operator.finish(state, end))


def test_nearly_as_many_groups_as_rows_are_not_gathered() -> None:
    rows = [{"k": i, "ts": 0} for i in range(20)]
    packet = Packet(batch_of(rows), Order(0, 0.0, len(rows)))
    window = a_window("tumbling", 10, 10, 0)
    assert WindowAggregate(SCHEMA, ["k"], window, ["count(*) AS n"]).gather([packet]) is None
    assert WindowAggregate(SCHEMA, ["s"], window, ["count(*) AS n"]).gather([packet]) is not None


@FIXED
@given(STREAMS, KEYS, st.none() | st.integers(1, 12), LAYOUTS)
def test_shards_of_running_aggregates_give_what_one_box_gives(
    packets: list[Packet], keys: list[str], expire: int | None, layouts: Layouts
) -> None:
    some = [text for text in AGGREGATES if "collect" not in text]
    expire_seconds = None if expire is None else expire / 1e6
    check(Running(SCHEMA, keys, some, expire_seconds, "ts"), packets, layouts)


def remember(row: dict[str, Any], memory: list[Any]) -> list[dict[str, Any]]:
    """Up to two results per row, which tell the key's last rows."""
    memory.append(row["x"])
    return [{"copy": i, "xs": str(memory)} for i in range((row["x"] or 0) % 3)]


@FIXED
@given(STREAMS, KEYS, st.none() | st.integers(1, 12), LAYOUTS)
def test_shards_of_a_process_give_what_one_box_gives(
    packets: list[Packet], keys: list[str], expire: int | None, layouts: Layouts
) -> None:
    out = pa.schema([("copy", pa.int64()), ("xs", pa.string())])
    expire_seconds = None if expire is None else expire / 1e6
    check(KeyedProcess(SCHEMA, keys, remember, out, [], expire_seconds, "ts"), packets, layouts)


@FIXED
@given(STREAMS, KEYS, st.sampled_from([0.4, 1.0, 2.5]), st.sampled_from([0, 3]), LAYOUTS)
def test_shards_of_a_universal_box_give_what_one_box_gives(
    packets: list[Packet], keys: list[str], selectivity: float, size: int, layouts: Layouts
) -> None:
    check(Universal(SCHEMA, "box", 0.0, selectivity, size, keys, 4), packets, layouts)


LEFT = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("us")), ("id", pa.int64())])
RIGHT = pa.schema([("key", pa.int64()), ("time", pa.timestamp("us")), ("other", pa.int64())])


@dataclass(frozen=True)
class Calls:
    """Calls of a join: rows of both inputs, cut only between serials, and which inputs are idle."""

    seed: int
    size: int
    keys: int
    disorder: int
    cutting: float
    idling: float

    def __iter__(self) -> Iterator[tuple[list[Packet], set[int]]]:
        random = np.random.default_rng(self.seed)
        serials = np.cumsum(random.choice([0, 0, 1, 2], self.size)).tolist()
        rows: tuple[list[Any], list[Any]] = ([], [])
        for number, serial in enumerate(serials):
            if number and serial != serials[number - 1] and random.random() < self.cutting:
                yield self._packets(rows), self._idle(random)
                rows = ([], [])
            key = None if random.random() < 0.05 else int(random.integers(self.keys))
            time = None if random.random() < 0.05 else serial + int(random.integers(-self.disorder, 4))
            rows[int(random.integers(2))].append((serial, key, time, number))
        yield self._packets(rows), self._idle(random)

    def _idle(self, random: np.random.Generator) -> set[int]:
        return {side for side in (0, 1) if random.random() < self.idling}

    @staticmethod
    def _packets(rows: tuple[list[Any], list[Any]]) -> list[Packet]:
        packets = []
        for schema, mine in zip((LEFT, RIGHT), rows, strict=True):
            columns = [[row[place] for row in mine] for place in (1, 2, 3)]
            serials = np.array([row[0] for row in mine], dtype=np.int64)
            packets.append(
                Packet(pa.record_batch(columns, schema=schema), Order(serials, serials / 10.0, len(mine)))
            )
        return packets


CALLS = st.builds(
    Calls,
    st.integers(0, 10**6),
    st.integers(0, 80),
    st.integers(1, 6),
    st.sampled_from([1, 5, 12]),
    st.sampled_from([0.0, 0.1, 0.5]),
    st.sampled_from([0.0, 0.3]),
)


@FIXED
@given(CALLS, st.integers(0, 8), st.none() | st.integers(0, 40), LAYOUTS)
def test_shards_of_a_join_give_what_one_box_gives(
    calls: Calls, within: int, left_ends: int | None, layouts: Layouts
) -> None:
    operator = Join(LEFT, RIGHT, ["k"], ["key"], within / 1e6, ("ts", "time"))
    sharded, state = Sharded(pickle.loads(pickle.dumps(operator)), layouts), operator.open()
    for packets, idle in calls:

        def prepare(one: Any, idle: set[int] = idle) -> None:
            one.idle = idle
            if left_ends is not None:
                one.ended = {0: left_ends}

        prepare(state)
        assert_equal(sharded.process(packets, prepare), operator.process(packets, state))
        assert {(s.clock, *s.maxima) for s in sharded.states} == {(state.clock, *state.maxima)}


def window_of(
    rows: list[dict[str, Any]], keys: Sequence[str] = ("k",), lateness: int = 0
) -> tuple[Operator, Packet]:
    """Windows of ten microseconds, and a packet whose rows are one tuple's."""
    operator = WindowAggregate(SCHEMA, keys, a_window("tumbling", 10, 10, lateness), ["count(*) AS n"])
    rows = [dict.fromkeys(SCHEMA.names) | row for row in rows]
    return operator, Packet(batch_of(rows), Order(np.zeros(len(rows), dtype=np.int64), 0.0, len(rows)))


def run(operator: Operator, packet: Packet, shards: Sequence[Shard], states: Sequence[Any]) -> list[Packet]:
    parts = split(operator, [packet], shards, 2)
    return merge(operator, [operator.process(p, s) for p, s in zip(parts, states, strict=True)])


def key_in(buckets: range, count: int, but: Sequence[int] = ()) -> int:
    """A key of one of ``buckets``."""
    keys = np.arange(100)
    found = buckets_of(pa.record_batch({"k": pa.array(keys)}), ["k"], count)
    return next(
        k for k, b in zip(keys.tolist(), found.tolist(), strict=True) if b in buckets and k not in but
    )


def test_rows_of_one_serial_are_late_one_by_one() -> None:
    """The second row closes the first one's window, so the third is late; all are one tuple's results."""
    mine, other = key_in(range(1), 2), key_in(range(1, 2), 2)
    operator, packet = window_of([{"k": mine, "ts": 1}, {"k": other, "ts": 30}, {"k": mine, "ts": 2}])
    states = [operator.open(), operator.open()]
    results, late = run(operator, packet, [range(1), range(1, 2)], states)
    assert results.batch.select(["k", "n"]).to_pylist() == [{"k": mine, "n": 1}]
    assert [row["ts"].microsecond for row in late.batch.to_pylist()] == [2]
    assert [state.late for state in states if state is not None] == [1, 0]


def test_results_of_one_cause_leave_by_window_end_and_key_whatever_their_shard() -> None:
    first = key_in(range(1), 2)
    second = key_in(range(1, 2), 2, but=range(first))
    third = key_in(range(1), 2, but=range(second + 1))
    rows = [{"k": k, "ts": ts} for ts in (11, 1) for k in (third, second, None, first)]
    rows.insert(0, {"k": first, "ts": 5})
    operator, packet = window_of(rows, lateness=5)
    shards: list[Shard] = [range(1, 2), (0, 1)]
    states = [operator.open() for _ in shards]
    run(operator, packet, shards, states)
    [results, _] = merge(operator, [operator.finish(state, end_packet()) for state in states])
    found = [(row["window_end"].microsecond, row["k"]) for row in results.batch.to_pylist()]
    assert found == [(end, k) for end in (10, 20) for k in (None, *sorted([first, second, third]))]
    assert results.order.serials.tolist() == [END] * 8


def test_what_has_no_rows_in_a_shard_still_moves_its_time() -> None:
    mine, other = key_in(range(1), 2), key_in(range(1, 2), 2)
    operator, packet = window_of([{"k": mine, "ts": 1}])
    state = operator.open()
    [part], _ = split(operator, [packet], [range(1), range(1, 2)], 2)
    operator.process([part], state)
    _, packet = window_of([{"k": other, "ts": 12}])
    [part], _ = split(operator, [packet], [range(1), range(1, 2)], 2)
    assert len(part) == 0
    [results, _] = operator.process([part], state)
    assert results.batch.column("k").to_pylist() == [mine]


def test_a_box_that_looks_at_no_time_is_sent_no_ticks() -> None:
    _, packet = window_of([{"k": 1, "ts": 1}, {"k": 2, "ts": 2}])
    shards = [range(1), range(1, 2)]
    for operator in (Running(SCHEMA, ["k"], ["count(*) AS n"]), Universal(SCHEMA, "b", 0.0, keys=["k"])):
        assert [p.ticks for [p] in split(operator, [packet], shards, 2)] == [None, None]
    expiring = Running(SCHEMA, ["k"], ["count(*) AS n"], 1, "TS")
    assert all(p.ticks is not None for [p] in split(expiring, [packet], shards, 2))


def test_markers_go_through_once() -> None:
    operator, packet = window_of([{"k": k, "ts": 1} for k in range(20)])
    marked = packet.with_markers((Marker(0, 0.5),))
    parts = split(operator, [marked], [range(3), range(3, 8)], 8)
    results, _ = merge(operator, [operator.process(part, operator.open()) for part in parts])
    assert results.markers == (Marker(0, 0.5),)


@pytest.mark.parametrize(
    ("shards", "complaint"),
    [
        ([range(2), range(1, 4)], "shard 1 has buckets 1 to 3"),
        ([range(2), (2, 5)], "not among the 4"),
        ([range(2), (3, 4)], "bucket 2 of 4 falls to no shard"),
        ([], "bucket 0 of 4"),
    ],
)
def test_shards_that_do_not_share_out_the_buckets_are_refused(shards: list[Shard], complaint: str) -> None:
    operator, packet = window_of([{"k": 1, "ts": 1}])
    with pytest.raises(PipelineError, match=complaint):
        split(operator, [packet], shards, 4)


def test_a_box_without_keys_is_refused() -> None:
    for operator in (window_of([], keys=())[0], Filter(SCHEMA, "x > 1")):
        with pytest.raises(PipelineError, match="only a keyed box"):
            split(operator, [window_of([])[1]], [range(1), range(1, 2)], 2)


@FIXED
@given(
    st.integers(0, 2**32),
    st.booleans(),
    st.lists(st.sampled_from(["filter", "take", "slice", "concat", "pickle", "look"]), max_size=8),
)
def test_ordinals_are_selected_with_serials_and_arrivals(seed: int, dense: bool, steps: list[str]) -> None:
    random = np.random.default_rng(seed)
    size = int(random.integers(0, 30))
    places = random.permutation(size)
    order = Order(3, 0.5, size) if dense else Order(np.arange(3, 3 + size), np.arange(size) / 2, size)
    order = order.with_ordinals(places)
    rows = np.arange(size)
    for step in steps:
        if step == "filter":
            kept = [[True, False, None][i] for i in random.integers(0, 3, len(rows))]
            rows = rows[[k is True for k in kept]]
            order = order.filter(pa.array(kept, pa.bool_()), len(rows))
        elif step == "take" and len(rows):
            chosen = random.integers(0, len(rows), int(random.integers(0, 30)))
            rows, order = rows[chosen], order.take(chosen)
        elif step == "slice":
            low, high = sorted(random.integers(0, len(rows) + 1, 2).tolist())
            rows, order = rows[low:high], order.slice(low, high - low)
        elif step == "concat":
            rows, order = (
                np.concatenate([rows, rows[:2]]),
                Order.concat([order, order.slice(0, len(rows[:2]))]),
            )
        elif step == "pickle":
            order = pickle.loads(pickle.dumps(order))
        elif step == "look":
            assert len(order.serials) == len(rows)
    assert order.length == len(rows)
    plain_order = order.with_ordinals(None)
    assert order.ordinals is not None
    assert order.ordinals.tolist() == places[rows].tolist()
    for one in (order, plain_order, order.with_ordinals(rows)):
        assert one.serials.tolist() == (rows + 3).tolist()
        assert one.arrival_array().tolist() == (np.full(len(rows), 0.5) if dense else rows / 2).tolist()
    assert plain_order.ordinals is None


def test_rows_of_unknown_place_make_places_unknown() -> None:
    known, unknown = Order(0, 0.0, 2, np.array([5, 7])), Order(2, 0.0, 1)
    assert Order.concat([known, unknown]).ordinals is None
    both = Order.concat([known, Order(0, 0.0, 0), known])
    assert both.ordinals is not None
    assert both.ordinals.tolist() == [5, 7, 5, 7]


@FIXED
@given(st.lists(st.tuples(st.integers(0, 9) | st.none(), st.integers(-5, 5)), min_size=1, max_size=60))
def test_rows_that_a_box_only_adds_to_need_not_go_to_shards(
    rows: list[tuple[int | None, int]],
) -> None:
    """Shards see the columns that are read, and what they add is put beside the rows by place."""
    schema = pa.schema([("text", pa.string()), ("k", pa.int64()), ("x", pa.int64()), ("y", pa.float64())])
    operator = Running(schema, ["k"], ["sum(x) AS s", "max(x) AS most", "count(*) AS n"])
    columns = [
        pa.array([f"row {place}" for place in range(len(rows))]),
        pa.array([k for k, _ in rows], pa.int64()),
        pa.array([x for _, x in rows], pa.int64()),
        pa.array([x / 2 for _, x in rows], pa.float64()),
    ]
    packet = Packet(pa.RecordBatch.from_arrays(columns, schema=schema), Order(5, 1.0, len(rows)))
    [expected] = operator.process([packet], operator.open())
    less = bare(packet, operator)
    assert [column.null_count == len(rows) for column in less.batch.columns][0::3] == [True, True]
    shards = [(0, 3), (3, 8), (8, 16)]
    parts = split(operator, [less], shards, 16)
    told = [added(operator.process(part, operator.open())[0], operator) for part in parts]
    found = extended(packet, told, operator.outputs[0])
    assert found.batch.equals(expected.batch)
    assert found.order.serials.tolist() == expected.order.serials.tolist()
