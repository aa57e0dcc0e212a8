"""Functions with a memory: one for the stream or one per key, kept over cuts, snapshots and buckets."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

from depth import examples
from headgate import testing
from headgate.errors import HeadgateError, OperatorError, PipelineError
from headgate.graph.operator import Kind
from headgate.graph.operators.process import KeyedProcess, Process
from headgate.graph.operators.process_packets import KeyArrays, KeyedPackets
from headgate.graph.packet import Order, Packet, Ticks
from headgate.graph.time import event_times

FIXED = settings(derandomize=True, deadline=None, max_examples=examples(100))

SCHEMA = pa.schema([("k", pa.string()), ("ts", pa.timestamp("us")), ("v", pa.int64())])
OUT = pa.schema([("k", pa.string()), ("n", pa.int64())])
Row = tuple[str | None, int | None]


def packet(rows: list[Row], first: int = 0, serials: list[int] | None = None) -> Packet:
    batch = pa.record_batch(
        [[r[0] for r in rows], [r[1] for r in rows], list(range(len(rows)))], schema=SCHEMA
    )
    if serials is None:
        return Packet(batch, Order(first, 0.0, len(rows)))
    return Packet(batch, Order(np.array(serials, dtype=np.int64), 0.0, len(rows)))


def count_packets(batch: pa.RecordBatch, state: KeyArrays) -> pa.RecordBatch:
    """The same with a state in arrays; rows of one key stand together for a moment."""
    by_key = np.argsort(state.slots, kind="stable")
    slots = state.slots[by_key]
    place = np.empty(len(slots), dtype=np.int64)
    place[by_key] = np.arange(len(slots)) - np.searchsorted(slots, slots)
    n = state["n"][state.slots] + place + 1
    state["n"][state.slots] = n
    state["pair"][state.slots] = n[:, np.newaxis]
    assert (state["pair"][:, 0] == state["n"]).all()
    return pa.record_batch([batch.column("k"), pa.array(n)], schema=OUT)


def keyed(packets: bool, expire: Any) -> Any:
    if packets:
        state = {"n": 0, "pair": np.zeros(2, dtype=np.int64)}
        return KeyedPackets(SCHEMA, ["k"], count_packets, OUT, state, expire, "ts")
    return KeyedProcess(SCHEMA, ["k"], count, OUT, None, expire, "ts")


def count(row: dict[str, Any], state: dict[str, int]) -> dict[str, Any]:
    state["n"] = state.get("n", 0) + 1
    return {"k": row["k"], "n": state["n"]}


def numbers(out: list[Packet]) -> list[int]:
    return out[0].batch.column("n").to_pylist()  # type: ignore[no-any-return]


def test_one_memory_for_the_whole_stream() -> None:
    operator = pickle.loads(cloudpickle.dumps(Process(SCHEMA, count, OUT)))
    assert (operator.kind, operator.slow, operator.label) == (Kind.STATEFUL, True, "process(count)")
    state = operator.open()
    assert numbers(operator.process([packet([("a", 0), ("b", 0)])], state)) == [1, 2]
    restored = operator.restore([state.snapshot()])
    assert numbers(operator.process([packet([("a", 0)])], restored)) == [3]
    assert numbers(operator.process([packet([("a", 0)])], operator.open())) == [1]
    assert numbers(operator.process([packet([("a", 0)])], operator.restore([]))) == [1]


def test_an_initial_value_is_copied_and_a_function_called() -> None:
    initial = {"n": 10}
    operator = Process(SCHEMA, count, OUT, initial)
    for _ in range(2):
        assert numbers(operator.process([packet([("a", 0)])], operator.open())) == [11]
    assert initial == {"n": 10}
    made = KeyedProcess(SCHEMA, ["k"], count, OUT, lambda: {"n": 5})
    assert numbers(made.process([packet([("a", 0), ("b", 0), ("a", 0)])], made.open())) == [6, 6, 7]


@pytest.mark.parametrize("state", [0, "x", (1,), int])
def test_a_state_that_cannot_change_in_place_is_refused(state: Any) -> None:
    with pytest.raises(PipelineError, match="cannot be changed in place"):
        Process(SCHEMA, count, OUT, state)


def test_a_factory_that_fails_is_refused() -> None:
    def make(size: int) -> dict[str, int]:
        return {}

    with pytest.raises(PipelineError, match="state=make"):
        Process(SCHEMA, count, OUT, make)


def running_sum(batch: pa.RecordBatch, state: dict[str, int]) -> Any:
    sums = np.cumsum(batch.column("v").to_numpy()) + state.get("s", 0)
    state["s"] = int(sums[-1])
    every_other = np.arange(0, len(sums), 2)
    keys = batch.column("k").take(pa.array(every_other))
    return pa.record_batch([keys, sums[every_other]], schema=OUT), every_other


def test_whole_packets_with_a_memory() -> None:
    operator = Process(SCHEMA, running_sum, OUT, packets=True)
    assert not operator.slow
    state = operator.open()
    [out] = operator.process([packet([("a", 0)] * 4, first=10)], state)
    assert (numbers([out]), out.order.serials.tolist()) == ([0, 3], [10, 12])
    [out] = operator.process([packet([("a", 0)] * 3, first=14)], state)
    assert numbers([out]) == [6, 9]
    assert numbers(operator.process([packet([])], state)) == []


def reference(rows: list[Row], expire: int | None) -> list[int]:
    states: dict[str | None, tuple[int, int]] = {}
    now, out = -(1 << 62), []
    for key, ts in rows:
        now = now if ts is None else max(now, ts)
        n, seen = states.get(key, (0, now))
        if expire is not None and now - seen > expire:
            n = 0
        states[key] = (n + 1, now)
        out.append(n + 1)
    return out


def stream(seed: int, size: int) -> list[Row]:
    """Few keys, times that rise with some disorder, some of both null."""
    random = np.random.default_rng(seed)
    keys = [None, "a", "b", "c"]
    times = np.arange(size) * 2 + random.integers(-8, 9, size)
    return [(keys[random.integers(4)], None if random.random() < 0.1 else t) for t in times.tolist()]


ROWS = st.builds(stream, st.integers(0, 10**6), st.integers(0, 40))
CUTS = st.integers(0, 2**40).map(lambda bits: {place for place in range(40) if bits >> place & 1})


@FIXED
@given(ROWS, st.none() | st.integers(1, 15), CUTS, st.booleans(), st.booleans())
def test_a_memory_per_key_does_not_depend_on_cuts(
    rows: list[Row], expire: int | None, cuts: set[int], restoring: bool, packets: bool
) -> None:
    operator = keyed(packets, None if expire is None else expire / 1e6)
    state = operator.open()
    got, places = [], [0, *sorted(c for c in cuts if 0 < c < len(rows)), len(rows)]
    for begin, end in itertools.pairwise(places):
        got += numbers(operator.process([packet(rows[begin:end], begin)], state))
        if restoring:
            state = operator.restore([state.snapshot()])
    assert got == reference(rows, expire)


@FIXED
@given(ROWS, st.integers(1, 15), CUTS, st.booleans())
def test_buckets_that_see_all_ticks_give_the_same(
    rows: list[Row], expire: int, cuts: set[int], packets: bool
) -> None:
    operator = keyed(packets, expire / 1e6)
    states = [operator.open(), operator.open()]
    places = [0, *sorted(c for c in cuts if 0 < c < len(rows)), len(rows)]
    got: dict[int, int] = {}
    for begin, end in itertools.pairwise(places):
        whole = packet(rows[begin:end], begin)
        ticks = Ticks(whole.order, event_times(whole.batch.column("ts")))
        for bucket in (0, 1):
            mine = [i for i in range(begin, end) if (rows[i][0] == "a") == bool(bucket)]
            part = packet([rows[i] for i in mine], serials=mine)
            part = Packet(part.batch, part.order, ticks=ticks)
            out = operator.process([part], states[bucket])
            got.update(zip(out[0].order.serials.tolist(), numbers(out), strict=True))
        tables = [state.snapshot() for state in states]
        parts = [
            [t.filter(pa.array([(k == "a") == bool(b) for k in t.column("k").to_pylist()])) for t in tables]
            for b in (0, 1)
            if all(t.num_rows for t in tables)
        ]
        if parts:
            states = [operator.restore(p) for p in parts]
    assert [got[i] for i in range(len(rows))] == reference(rows, expire)


@pytest.mark.parametrize("packets", [False, True])
def test_expired_keys_are_forgotten(packets: bool) -> None:
    operator = keyed(packets, "10 us")
    state = operator.open()
    for begin in range(0, 20_000, 500):
        rows: list[Row] = [(str(i), i) for i in range(begin, begin + 500)]
        assert set(numbers(operator.process([packet(rows, begin)], state))) == {1}
    assert len(state.arrays["n"] if packets else state.values) < 4_000 + 4_000 * packets, "with room to grow"
    assert len(state.index) < 4_000
    assert state.snapshot().num_rows == 11


def test_the_message_names_function_tuple_and_column() -> None:
    def broken(row: dict[str, Any], state: Any) -> Any:
        if row["v"] == 1:
            raise RuntimeError("no")
        return {"k": row["k"], "n": 1}

    for operator in (Process(SCHEMA, broken, OUT), KeyedProcess(SCHEMA, ["k"], broken, OUT)):
        with pytest.raises(
            OperatorError, match=r"process\(broken.*\): failed on tuple 41: RuntimeError: no"
        ) as error:
            operator.process([packet([("a", 0)] * 3, 40)], operator.open())
        assert isinstance(error.value.__cause__, RuntimeError)
    wrong = Process(SCHEMA, lambda row, state: {"k": 5, "n": 1}, OUT)
    with pytest.raises(OperatorError, match="'k' was promised as string, but tuple 40 gave 5"):
        wrong.process([packet([("a", 0)], 40)], wrong.open())
    whole = Process(SCHEMA, lambda batch, state: batch, OUT, packets=True)
    with pytest.raises(
        OperatorError, match=r"tuples 40 to 41.*'n' was promised|'n' was promised.*tuples 40 to 41"
    ):
        whole.process([packet([("a", 0)] * 2, 40)], whole.open())


def test_a_state_that_cannot_be_saved_is_explained() -> None:
    operator = Process(SCHEMA, count, OUT, lambda: {"f": lambda: 1})
    with pytest.raises(OperatorError, match=r"process\(count\): its state cannot be saved"):
        operator.open().snapshot()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"keys": ["kk"]}, ["'kk'", "Did you mean 'k'"]),
        ({"keys": []}, ["at least one key"]),
        ({"expire": "1 hour"}, ["expire=", "on="]),
        ({"expire": "soon", "on": "ts"}, ["expire", "'soon'"]),
        ({"expire": 0, "on": "ts"}, ["expire=", "zero"]),
        ({"on": "v"}, ["'v'", "timestamp"]),
        ({"fn": 3}, ["not a function"]),
    ],
)
def test_a_keyed_process_that_cannot_work_is_refused(arguments: dict[str, Any], words: list[str]) -> None:
    good: dict[str, Any] = {"keys": ["k"], "fn": count, "out_schema": OUT}
    with pytest.raises(HeadgateError) as error:
        KeyedProcess(SCHEMA, **{**good, **arguments})
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("state", [None, 0, [], {}, {"n": None}, {"n": "text"}, {1: 0}, {"n": np.zeros(0)}])
def test_a_state_that_makes_no_arrays_is_refused(state: Any) -> None:
    with pytest.raises(PipelineError, match="numbers or numpy arrays"):
        KeyedPackets(SCHEMA, ["k"], count_packets, OUT, state)


def test_a_keyed_function_of_packets_gives_the_same_everywhere(engine: Any) -> None:
    rows = [{"k": f"k{i % 7}", "ts": None, "v": i} for i in range(3_000)]
    state = {"n": 0, "pair": np.zeros(2, dtype=np.int64)}
    found = testing.run(
        rows,
        lambda s: s.key_by("k").process(count_packets, schema=OUT, state=state, packets=True),
        engine=engine,
        schema=SCHEMA,
    )
    assert found == [{"k": f"k{i % 7}", "n": i // 7 + 1} for i in range(3_000)]
