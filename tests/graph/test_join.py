"""The interval join equals one that goes tuple by tuple, however the stream is cut, bucketed or restored."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import HeadgateError, PipelineError, TypeMismatch
from headgate.graph.operators.interval import Run
from headgate.graph.operators.join import Join, JoinState
from headgate.graph.packet import Order, Packet, Ticks
from headgate.graph.time import NEVER, event_times

FIXED = settings(derandomize=True, deadline=None, max_examples=150)

LEFT = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("us")), ("id", pa.string())])
RIGHT = pa.schema([("key", pa.int64()), ("ts", pa.timestamp("us")), ("id", pa.string()), ("y", pa.int64())])


@dataclass(frozen=True)
class Row:
    side: int
    serial: int
    key: int | None
    ts: int | None
    id: str


def join(within: float = 5e-6) -> Join:
    return Join(LEFT, RIGHT, ["k"], ["key"], within, "ts")


def packet(rows: Sequence[Row], side: int, ticks: Ticks | None = None) -> Packet:
    mine = [r for r in rows if r.side == side]
    columns: list[list[object]] = [[r.key for r in mine], [r.ts for r in mine], [r.id for r in mine]]
    if side == 1:
        columns.append([len(r.id) for r in mine])
    batch = pa.record_batch(columns, schema=(LEFT, RIGHT)[side])
    serials = np.array([r.serial for r in mine], dtype=np.int64)
    return Packet(batch, Order(serials, serials.astype(float) / 10, len(mine)), ticks=ticks)


def results(packets: list[Packet]) -> list[tuple[int, str, str]]:
    [out] = packets
    assert out.order.arrival_array().tolist() == [s / 10 for s in out.order.serials]
    ids = zip(out.batch.column("id").to_pylist(), out.batch.column("id_right").to_pylist(), strict=True)
    return [(int(s), left, right) for s, (left, right) in zip(out.order.serials, ids, strict=True)]


def reference(rows: Sequence[Row], within: int, out_from: dict[int, int]) -> list[tuple[int, str, str]]:
    """Tuple by tuple, with everything remembered for ever."""
    come = sorted(rows, key=lambda r: (r.serial, r.side))
    found = []
    for i, row in enumerate(come):
        maxima = []
        for side in (0, 1):
            seen = [r.ts for r in come if r.side == side and r.serial <= row.serial and r.ts is not None]
            if row.serial < out_from.get(side, 1 << 60):
                maxima.append(max(seen, default=NEVER))
        time = min(maxima, default=NEVER)
        for partner in come[:i]:
            if partner.side == row.side or None in (row.key, partner.key, row.ts, partner.ts):
                continue
            assert row.ts is not None
            assert partner.ts is not None
            if row.key == partner.key and abs(row.ts - partner.ts) <= within and partner.ts + within >= time:
                left, right = (row, partner) if row.side == 0 else (partner, row)
                found.append((row.serial, left.id, right.id))
    return found


@dataclass(frozen=True)
class Case:
    """A stream of both inputs and where it is cut, dense enough that rows meet, go and come late."""

    seed: int
    size: int
    keys: int
    disorder: int
    cutting: float

    def rows(self) -> list[Row]:
        """Some serials are on both inputs, some there several times; some keys and times are null."""
        random = np.random.default_rng(self.seed)
        serials = np.cumsum(random.integers(0, 3, self.size))
        rows = []
        for number, serial in enumerate(serials.tolist()):
            key = None if random.random() < 0.05 else int(random.integers(self.keys))
            ts = None if random.random() < 0.05 else serial + int(random.integers(-self.disorder, 3))
            rows.append(Row(int(random.integers(2)), serial, key, ts, f"{number}"))
        return rows

    def calls(self, rows: Sequence[Row]) -> list[list[Row]]:
        """The stream in calls, cut only between serials."""
        random = np.random.default_rng(self.seed + 1)
        calls: list[list[Row]] = [[]]
        for serial in sorted({r.serial for r in rows}):
            if random.random() < self.cutting:
                calls.append([])
            calls[-1].extend(r for r in rows if r.serial == serial)
        return calls


CASES = st.builds(
    Case,
    seed=st.integers(0, 10**6),
    size=st.integers(0, 70),
    keys=st.integers(1, 4),
    disorder=st.sampled_from([1, 5, 12]),
    cutting=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)


@FIXED
@given(CASES, st.integers(0, 8), st.booleans(), st.none() | st.integers(0, 40))
def test_any_cut_gives_what_going_tuple_by_tuple_gives(
    case: Case, within: int, restoring: bool, left_ends: int | None
) -> None:
    rows = case.rows()
    operator = pickle.loads(pickle.dumps(join(within / 1e6)))
    state = operator.open()
    ended = {}
    if left_ends is not None:
        rows = [r for r in rows if r.side == 1 or r.serial < left_ends]
        ended = {0: left_ends}
    got = []
    for call in case.calls(rows):
        state.ended = ended
        got += results(operator.process([packet(call, 0), packet(call, 1)], state))
        if restoring:
            state = operator.restore([state.snapshot()])
    assert got == reference(rows, within, ended)


@FIXED
@given(CASES, st.integers(0, 8), st.integers(1, 5))
def test_buckets_give_together_what_one_gives(case: Case, within: int, regroup_every: int) -> None:
    """Each bucket sees only its keys but all ticks; states are split by key and put together on the way."""
    rows = case.rows()
    operator = join(within / 1e6)

    def bucket(row: Row) -> int:
        return (row.key or 0) % 2

    states = [operator.open(), operator.open()]
    got = []
    for number, call in enumerate(case.calls(rows)):
        whole = [packet(call, side) for side in (0, 1)]
        ticks = [Ticks(p.order, event_times(p.batch.column("ts"))) for p in whole]
        outs = []
        for b, state in enumerate(states):
            mine = [r for r in call if bucket(r) == b]
            outs += results(operator.process([packet(mine, side, ticks[side]) for side in (0, 1)], state))
        got += sorted(outs, key=lambda r: r[0])
        if number % regroup_every == 0:
            tables = [state.snapshot() for state in states]
            parts = [
                [
                    t.filter(pa.array([k % 2 == b for k in t.column("k").to_pylist()], pa.bool_()))
                    for t in tables
                ]
                for b in (0, 1)
            ]
            states = [operator.restore(p) for p in parts]
    # Rows of one serial in different buckets come bucket by bucket here.
    assert sorted(got) == sorted(reference(rows, within, {}))


def test_pairs_leave_with_the_later_row_by_the_partners_order() -> None:
    rows = [
        Row(0, 0, 7, 10, "L0"),
        Row(1, 1, 7, 12, "R1"),
        Row(0, 2, 7, 15, "L2"),
        Row(0, 2, 7, 14, "L2b"),
        Row(1, 3, 7, 13, "R3"),
        Row(0, 4, 7, 12, "L4"),
        Row(1, 4, 7, 12, "R4"),
    ]
    operator = join(3e-6)
    state = operator.open()
    state.maxima = [NEVER, NEVER]
    got = results(operator.process([packet(rows, 0), packet(rows, 1)], state))
    assert got == [
        (1, "L0", "R1"),
        (2, "L2", "R1"),
        (2, "L2b", "R1"),
        (3, "L0", "R3"),
        (3, "L2", "R3"),
        (3, "L2b", "R3"),
        (4, "L4", "R1"),
        (4, "L4", "R3"),
        (4, "L0", "R4"),
        (4, "L2", "R4"),
        (4, "L2b", "R4"),
        (4, "L4", "R4"),
    ]


def test_columns_of_the_result() -> None:
    assert join().outputs[0] == pa.schema(
        [
            ("k", pa.int64()),
            ("ts", pa.timestamp("us")),
            ("id", pa.string()),
            ("ts_right", pa.timestamp("us")),
            ("id_right", pa.string()),
            ("y", pa.int64()),
        ]
    )


def test_memory_follows_the_interval_not_the_stream() -> None:
    operator = join(100e-6)
    state = operator.open()
    for call in range(200):
        serials = np.arange(call * 100, call * 100 + 100)
        sides = []
        for side, schema in enumerate((LEFT, RIGHT)):
            columns = [serials * 7 + side, serials, serials.astype(str), serials][: len(schema)]
            batch = pa.record_batch(
                [pa.array(c).cast(f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
            )
            sides.append(Packet(batch, Order(call * 100, 0.0, 100)))
        operator.process(sides, state)
    assert sum(map(len, state.shelves)) < 2_000
    assert all(len(shelf.runs) < 10 for shelf in state.shelves)


def test_rows_that_are_gone_leave_memory_even_if_few_come_after_them() -> None:
    operator = join(10e-6)
    state = operator.open()
    burst = [Row(i % 2, i, i, 0, str(i)) for i in range(2_000)]
    operator.process([packet(burst, 0), packet(burst, 1)], state)
    assert sum(map(len, state.shelves)) == 2_000
    for serial in range(2_000, 2_004):
        rows = [Row(serial % 2, serial, 1, 100, str(serial))]
        operator.process([packet(rows, 0), packet(rows, 1)], state)
    assert sum(map(len, state.shelves)) == 4


def test_keys_that_are_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.graph.operators.join._SPARE_KEYS", 10)
    operator = join(3e-6)
    state = operator.open()
    rows = [Row(serial % 2, serial, serial // 2, serial, str(serial)) for serial in range(200)]
    got = []
    for place in range(0, 200, 5):
        got += results(operator.process([packet(rows[place : place + 5], side) for side in (0, 1)], state))
    assert got == reference(rows, 3, {})
    assert len(got) == 100
    assert len(state.index) < 40


def test_an_idle_input_does_not_hold_time_back() -> None:
    operator = join(5e-6)

    def time_after(idle: set[int]) -> int:
        state: JoinState = operator.open()
        state.idle = idle
        rows = [Row(0, 0, 1, 10, "a"), Row(1, 1, 1, 11, "b"), Row(1, 2, 1, 100, "c")]
        operator.process([packet(rows, 0), packet(rows, 1)], state)
        return state.clock

    assert time_after(set()) == 10
    assert time_after({0}) == 100
    # The other one still holds it up to its last row.
    assert time_after({1}) == 10


def test_an_idle_inputs_time_is_the_same_in_a_bucket_that_has_no_rows() -> None:
    operator = join(5e-6)
    state = operator.open()
    state.idle = {0}
    rows = [Row(0, 0, 1, 10, "a"), Row(1, 1, 1, 11, "b"), Row(1, 2, 1, 100, "c")]
    ticks = [Ticks(p.order, event_times(p.batch.column("ts"))) for p in (packet(rows, 0), packet(rows, 1))]
    operator.process([packet([], side, ticks[side]) for side in (0, 1)], state)
    assert state.clock == 100


def test_time_never_goes_back_when_an_idle_input_wakes() -> None:
    operator = join(5e-6)
    state = operator.open()
    state.idle = {0}
    rows = [Row(0, 0, 1, 10, "a"), Row(1, 1, 1, 100, "b")]
    operator.process([packet(rows, 0), packet(rows, 1)], state)
    state = operator.restore([state.snapshot()])
    late = [Row(0, 2, 1, 11, "c"), Row(1, 3, 1, 12, "d")]
    assert results(operator.process([packet(late, 0), packet(late, 1)], state)) == []
    assert state.clock == 100


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(-4, 4)), min_size=8, max_size=30),
    st.lists(st.tuples(st.integers(0, 60), st.integers(-5, 5), st.integers(0, 3)), max_size=10),
    st.sampled_from([1, 1 << 58]),
)
def test_a_run_finds_rows_by_slot_and_time_however_far_apart(
    rows: list[tuple[int, int]], asked: list[tuple[int, int, int]], unit: int
) -> None:
    slots, times = (np.array([r[i] for r in rows], dtype=np.int64) for i in (0, 1))
    numbers = np.arange(len(rows), dtype=np.int64)
    run = Run(pa.record_batch([numbers], names=["n"]), slots, times * unit, numbers)
    assert run.batch.column("n").to_pylist() == run.sequence.tolist()
    slot, middle, reach = (np.array([a[i] for a in asked], dtype=np.int64) for i in (0, 1, 2))
    i, row = run.pairs(slot, (middle - reach) * unit, (middle + reach) * unit)
    assert sorted(zip(i.tolist(), run.sequence[row].tolist(), strict=True)) == [
        (a, r)
        for a, (slot_, middle_, reach_) in enumerate(asked)
        for r, (s, t) in enumerate(rows)
        if s == slot_ and abs(t - middle_) <= reach_
    ]
    assert run.before(unit) == sum(t < 1 for _, t in rows)
    assert sorted(run.since(unit).sequence.tolist()) == [r for r, (_, t) in enumerate(rows) if t >= 1]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"left_keys": ["kk"]}, HeadgateError, ["left key", "'kk'", "'k'"]),
        ({"left_keys": []}, PipelineError, ["0 key columns", "right one 1"]),
        ({"left_keys": ["id"]}, TypeMismatch, ["'id' is string", "'key' is int64", "CAST"]),
        ({"on": "id"}, HeadgateError, ["'id'", "timestamp"]),
        ({"on": ("ts", "when")}, HeadgateError, ["right", "'when'"]),
        ({"on": ("ts",)}, PipelineError, ["pair"]),
        ({"within": "soon"}, PipelineError, ["within", "'soon'"]),
    ],
)
def test_a_join_that_cannot_work_is_refused(
    arguments: dict[str, object], error: type[Exception], words: list[str]
) -> None:
    good = {"left_keys": ["k"], "right_keys": ["key"], "within": "1 second", "on": "ts"}
    with pytest.raises(error) as raised:
        Join(LEFT, RIGHT, **{**good, **arguments})  # type: ignore[arg-type]
    for word in words:
        assert word in str(raised.value)


def test_names_that_clash_even_with_the_suffix_are_refused() -> None:
    left = LEFT.append(pa.field("id_right", pa.int64()))
    with pytest.raises(PipelineError, match="'id_right'"):
        Join(left, RIGHT, ["k"], ["key"], 1, "ts")
