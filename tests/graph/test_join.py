"""The interval join equals one that goes tuple by tuple, however the stream is cut, bucketed or restored."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headgate as hg
from depth import examples
from headgate import testing
from headgate.errors import HeadgateError, PipelineError, TypeMismatch
from headgate.graph.operators.interval import Run
from headgate.graph.operators.join import Join
from headgate.graph.operators.join_shape import HOW
from headgate.graph.operators.join_state import JoinState
from headgate.graph.packet import Order, Packet, Ticks
from headgate.graph.shards import merge, split, split_state
from headgate.graph.time import NEVER, event_times

FIXED = settings(derandomize=True, deadline=None, max_examples=examples(150))

LEFT = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("us")), ("id", pa.string())])
RIGHT = pa.schema([("key", pa.int64()), ("ts", pa.timestamp("us")), ("id", pa.string()), ("y", pa.int64())])


@dataclass(frozen=True)
class Row:
    side: int
    serial: int
    key: int | None
    ts: int | None
    id: str


Interval = float | tuple[float, float] | None


def join(within: Interval = 5e-6, how: str = "inner", lateness: float = 0) -> Join:
    return Join(LEFT, RIGHT, ["k"], ["key"], within, None if within is None else "ts", how, lateness)


def packet(rows: Sequence[Row], side: int, ticks: Ticks | None = None) -> Packet:
    mine = [r for r in rows if r.side == side]
    columns: list[list[object]] = [[r.key for r in mine], [r.ts for r in mine], [r.id for r in mine]]
    if side == 1:
        columns.append([len(r.id) for r in mine])
    batch = pa.record_batch(columns, schema=(LEFT, RIGHT)[side])
    serials = np.array([r.serial for r in mine], dtype=np.int64)
    return Packet(batch, Order(serials, serials.astype(float) / 10, len(mine)), ticks=ticks)


Result = tuple[int, str | None, str | None]
END = 1 << 40


def results(packets: list[Packet]) -> list[Result]:
    out = packets[0]
    assert out.order.arrival_array().tolist() == [s / 10 for s in out.order.serials]
    left = out.batch.column("id").to_pylist()
    right = out.batch.column("id_right").to_pylist() if "id_right" in out.schema.names else [None] * len(out)
    return list(zip(out.order.serials.tolist(), left, right, strict=True))


def end() -> Packet:
    return Packet(packet([], 0).batch, Order(END, END / 10, 1))


def reference(
    rows: Sequence[Row], within: Interval, out_from: dict[int, int], how: str = "inner", lateness: int = 0
) -> list[Result]:
    """Tuple by tuple, with everything remembered for ever; times in microseconds."""
    low, high = within if isinstance(within, tuple) else (-END, END) if within is None else (-within, within)
    come = sorted(rows, key=lambda r: (r.serial, r.side))
    alone = {"left": {0}, "anti": {0}, "right": {1}, "full": {0, 1}}.get(how, set())
    matched, gone = set[str](), set[str]()
    found: list[Result] = []

    def time_at(serial: int) -> float:
        maxima = []
        for side in (0, 1):
            seen = [r.ts for r in come if r.side == side and r.serial <= serial and r.ts is not None]
            if serial < out_from.get(side, END):
                maxima.append(max(seen, default=NEVER) - lateness)
        return NEVER if within is None else min(maxima, default=NEVER)

    def last(row: Row) -> float:
        if row.key is None or (row.ts is None and within is not None):
            return -END * END
        moment = 0 if within is None else row.ts
        assert moment is not None
        return moment + (high if row.side == 0 else -low)

    def leave(serial: int, leaving: Sequence[Row]) -> list[tuple[int, int, int, Row]]:
        """Rows without partner, in the order in which they leave."""
        mine = [r for r in leaving if r.side in alone and r.id not in matched | gone]
        gone.update(r.id for r in leaving)
        return [(-1 if r.key is None else r.key, 1 + r.side, int(r.id), r) for r in mine]

    highest = [NEVER, NEVER]
    clock: float = NEVER
    for i, row in enumerate(come):
        clock = max(clock, time_at(row.serial))
        step: list[tuple[int, int, int, Result]] = []
        usable = last(row) > -END * END
        for partner in come[:i] if usable else ():
            if partner.side == row.side or row.key != partner.key or last(partner) < clock:
                continue
            left, right = (row, partner) if row.side == 0 else (partner, row)
            if within is not None and not low <= (right.ts or 0) - (left.ts or 0) <= high:
                continue
            if how == "semi" and left.id not in matched:
                step.append((row.key or 0, 0, int(left.id), (row.serial, left.id, None)))
            elif how not in ("semi", "anti"):
                step.append((row.key or 0, 0, int(partner.id), (row.serial, left.id, right.id)))
            matched.update((left.id, right.id))
        due = [row] if last(row) < clock or not usable else []
        if within is not None and row.ts is not None and row.ts > highest[row.side]:
            highest[row.side] = row.ts
            due += [r for r in come[:i] if last(r) < clock]
        for key, kind, number, r in leave(row.serial, due):
            ids = (r.id, None) if r.side == 0 else (None, r.id)
            step.append((key, kind, number, (row.serial, *ids)))
        found += [result for *_, result in sorted(step, key=lambda s: s[:3])]
    for _, _, _, r in sorted(leave(END, come), key=lambda s: s[:3]):
        found.append((END, r.id, None) if r.side == 0 else (END, None, r.id))
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


INTERVALS = st.none() | st.integers(0, 8) | st.tuples(st.integers(-6, 2), st.integers(2, 9))


def operator_for(within: Interval, how: str, lateness: int) -> Join:
    scaled = tuple(bound / 1e6 for bound in within) if isinstance(within, tuple) else within and within / 1e6
    return join(scaled, how, lateness / 1e6)  # type: ignore[arg-type]


@settings(derandomize=True, deadline=None, max_examples=examples(400))
@given(
    CASES,
    INTERVALS,
    st.sampled_from(HOW),
    st.sampled_from([0, 3]),
    st.booleans(),
    st.none() | st.integers(0, 40),
)
def test_any_cut_gives_what_going_tuple_by_tuple_gives(
    case: Case, within: Interval, how: str, lateness: int, restoring: bool, left_ends: int | None
) -> None:
    rows = case.rows()
    operator = pickle.loads(pickle.dumps(operator_for(within, how, lateness)))
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
    last = results(operator.finish(state, end()))
    assert got + last == reference(rows, within, ended, how, lateness)


@settings(derandomize=True, deadline=None, max_examples=examples(250))
@given(
    CASES,
    INTERVALS,
    st.sampled_from(HOW),
    st.sampled_from([0, 3]),
    st.integers(1, 5),
    st.none() | st.integers(0, 40),
)
def test_shards_give_together_what_one_gives(
    case: Case, within: Interval, how: str, lateness: int, regroup_every: int, left_ends: int | None
) -> None:
    """Each shard sees only its keys and how time moves; states are split by key on the way."""
    rows = case.rows()
    operator = operator_for(within, how, lateness)
    ended = {} if left_ends is None else {0: left_ends}
    rows = [r for r in rows if r.side == 1 or left_ends is None or r.serial < left_ends]
    shards = [range(3), range(3, 7)]
    states = [operator.open(), operator.open()]
    got = []
    for number, call in enumerate(case.calls(rows)):
        parts = split(operator, [packet(call, side) for side in (0, 1)], shards, 7)
        outs = []
        for part, state in zip(parts, states, strict=True):
            state.ended = ended
            outs.append(operator.process(part, state))
        got += results(merge(operator, outs))
        if number % regroup_every == 0:
            states = split_state(
                operator, operator.restore([s.snapshot() for s in states]), [(0, 3), (3, 7)], 7
            )
    last = results(merge(operator, [operator.finish(state, end()) for state in states]))
    assert got + last == reference(rows, within, ended, how, lateness)


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
    monkeypatch.setattr("headgate.graph.operators.join_state._SPARE_KEYS", 10)
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


@settings(derandomize=True, deadline=None, max_examples=examples(60))
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
        ({"within": None}, PipelineError, ["within=", "on="]),
        ({"within": ("5 minutes", "-5 minutes")}, PipelineError, ["later than the second"]),
        ({"within": ("1 minute",)}, PipelineError, ["at least and at most"]),
        ({"how": "outer"}, PipelineError, ["'outer'", "full"]),
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


def test_every_kind_of_join_on_every_engine(engine: hg.Engine) -> None:
    """An order waits ten minutes for its payment, and a payment may come one minute before its order."""

    def at(minute: int) -> datetime:
        return datetime(2024, 1, 1, 0, minute)

    app = hg.App("payments")
    orders = app.source(
        "orders", testing.from_rows([{"id": n, "ts": at(n * 5), "item": f"i{n}"} for n in range(5)])
    )
    paid = [(0, 3), (1, 16), (1, 14), (7, 14), (3, 14), (4, 21)]
    payments = app.source("payments", testing.from_rows([{"order": n, "ts": at(m)} for n, m in paid]))
    found: dict[str, list[dict[str, Any]]] = {how: [] for how in (*HOW, "ever")}
    for how in HOW:
        within = ("-1 minute", "10 minutes")
        paid_orders = orders.key_by("id").join(
            payments.key_by("order"), within=within, on="ts", how=how, lateness="5 minutes"
        )
        paid_orders.to(how, hg.to_list(found[how]))
    ever = orders.key_by("id").join(payments.key_by("order"), how="anti")
    ever.to("ever", hg.to_list(found["ever"]))
    app.run(engine)
    pairs = {(0, "i0", 3), (1, "i1", 14), (3, "i3", 14), (4, "i4", 21)}
    alone = {(2, "i2", None)}, {(1, None, 16), (7, None, 14)}
    expected = {"inner": pairs, "left": pairs | alone[0], "right": pairs | alone[1]}
    expected["full"] = pairs | alone[0] | alone[1]
    for how, rows in expected.items():
        shown = [(r["id"], r["item"], r["ts_right"] and r["ts_right"].minute) for r in found[how]]
        assert (len(shown), set(shown)) == (len(rows), rows), how
    assert [r["id"] for r in found["semi"]] == [0, 1, 3, 4]
    assert [r["id"] for r in found["anti"]] == [2]
    assert [r["id"] for r in found["ever"]] == [2]
