"""Windows give what going tuple by tuple gives, however the stream is cut, split or interrupted."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_reference import key_order, sessions, together, windows
from window_streams import SCHEMA, assert_same, cuts, packets_of, partitioned, row_lists, run

from depth import examples
from headgate.errors import PipelineError, TypeMismatch, UnknownColumn
from headgate.graph.operator import Kind
from headgate.graph.operators.window import WindowAggregate
from headgate.graph.windows import Window, session, sliding, tumbling

quick = settings(derandomize=True, deadline=None, max_examples=examples(60))

SIMPLE = ["count(*) AS n", "sum(x) AS total", "max(x) AS most", "first(s) AS f", "last(x, true) AS l"]
SIMPLE_FOLD = together("rows", "sum:x", "max:x", "first:s", "last_known:x")
EVERY = [
    *SIMPLE,
    "collect_list(s) AS words",
    "count(DISTINCT s) AS different",
    "sum(x) FILTER (WHERE x > 0) AS positive",
    "avg(x) AS mean",
    "stddev(x) AS deviation",
    "min(f) AS lowest",
    "max(f) AS highest",
    "min(s) AS early_word",
    "max(s) AS late_word",
    "count(DISTINCT f) AS numbers",
    "approx_percentile(x, 0.5) AS median",
    "count(x) AS known",
    "first(f) AS ff",
    "last(s) AS ls",
]
EVERY_FOLD = together(
    "rows", "sum:x", "max:x", "first:s", "last_known:x", "list:s", "distinct:s", "positive:x", "avg:x",
    "stddev:x", "min:f", "max:f", "min:s", "max:s", "distinct:f", "median:x", "count:x", "first:f", "last:s",
)  # fmt: skip


def micros(kind: str, size: int, every: int, lateness: int) -> Window:
    return Window(kind, size, every, "ts", lateness)


def expected(rows: list[Any], window: Window, keys: list[str], fold: Any, early: int | None = None) -> Any:
    if window.kind == "session":
        return sessions(rows, keys, window.size, window.lateness, fold, early)
    return windows(rows, keys, window.size, window.every, window.lateness, fold, early)


def check(
    rows: list[Any],
    at: list[int],
    window: Window,
    keys: list[str],
    aggregates: list[str],
    fold: Any,
    early: int | None = None,
    interrupt: int | None = None,
    split: int = 1,
) -> None:
    operator = WindowAggregate(SCHEMA, keys, window, aggregates, None if early is None else early / 1e6)
    results, late = run(operator, packets_of(rows, cuts(at, len(rows))), interrupt, split)
    right, late_right = expected(rows, window, keys, fold, early)
    assert_same(results, right)
    assert [cause for cause, _ in late] == late_right


lateness = st.integers(0, 8)
any_window = st.one_of(
    st.builds(lambda size, late: micros("tumbling", size, size, late), st.integers(1, 12), lateness),
    st.builds(
        lambda size, every, late: micros("sliding", size, min(every, size), late),
        st.integers(1, 12),
        st.integers(1, 12),
        lateness,
    ),
    st.builds(lambda gap, late: micros("session", gap, gap, late), st.integers(1, 8), lateness),
)
some_cuts = st.lists(st.integers(0, 60), max_size=6)


@quick
@given(row_lists(), some_cuts, st.integers(1, 12), st.integers(0, 8))
def test_tumbling_equals_tuple_by_tuple(rows: Any, at: Any, size: int, lateness: int) -> None:
    check(rows, at, micros("tumbling", size, size, lateness), ["k"], SIMPLE, SIMPLE_FOLD)


@quick
@given(row_lists(), some_cuts, st.integers(1, 12), st.integers(1, 12), st.integers(0, 8))
def test_sliding_equals_tuple_by_tuple(rows: Any, at: Any, size: int, every: int, lateness: int) -> None:
    check(rows, at, micros("sliding", size, min(every, size), lateness), ["k"], SIMPLE, SIMPLE_FOLD)


@settings(quick, max_examples=examples(200))
@given(row_lists(keys=2), some_cuts, st.integers(1, 8), st.integers(0, 8))
def test_sessions_equal_tuple_by_tuple(rows: Any, at: Any, gap: int, lateness: int) -> None:
    check(rows, at, micros("session", gap, gap, lateness), ["k"], SIMPLE, SIMPLE_FOLD)


@settings(quick, max_examples=examples(150))
@given(row_lists(keys=2), st.lists(st.integers(0, 60), max_size=2), st.integers(3, 12), st.integers(0, 2))
def test_sessions_that_a_row_misses_by_coming_too_late(rows: Any, at: Any, gap: int, late: int) -> None:
    check(rows, at, micros("session", gap, gap, late), ["k"], SIMPLE, SIMPLE_FOLD)


@quick
@given(row_lists(), some_cuts, any_window)
def test_every_aggregate_function_in_every_window(rows: Any, at: Any, window: Window) -> None:
    check(rows, at, window, ["k"], EVERY, EVERY_FOLD)


@quick
@given(row_lists(), some_cuts, any_window, st.sampled_from([[], ["s"], ["s", "k"], ["f"], ["k", "s", "f"]]))
def test_keys_of_any_number_and_type(rows: Any, at: Any, window: Window, keys: list[str]) -> None:
    rows = [row | {"f": row["f"] + 0.0 if row["f"] is not None else None} for row in rows]
    operator = WindowAggregate(SCHEMA, keys, window, ["count(*) AS n", "sum(x) AS total"])
    results, late = run(operator, packets_of(rows, cuts(at, len(rows))))
    unified = [row | {k: _canonical(row[k]) for k in keys} for row in rows]
    right, late_right = expected(unified, window, keys, together("rows", "sum:x"))
    assert_same(results, right)
    assert [cause for cause, _ in late] == late_right
    assert operator.kind is (Kind.KEYED if keys else Kind.STATEFUL)


NAN = float("nan")


def _canonical(value: Any) -> Any:
    return NAN if isinstance(value, float) and value != value else value


@quick
@given(row_lists(), some_cuts, any_window, st.integers(1, 10))
def test_early_results_are_those_of_going_tuple_by_tuple(
    rows: Any, at: Any, window: Window, early: int
) -> None:
    check(rows, at, window, ["k"], SIMPLE, SIMPLE_FOLD, early)


@quick
@given(
    row_lists(),
    some_cuts,
    any_window,
    st.integers(0, 5),
    st.sampled_from([1, 3]),
    st.none() | st.integers(1, 9),
)
def test_snapshot_and_restore_change_nothing(
    rows: Any, at: Any, window: Window, interrupt: int, split: int, early: int | None
) -> None:
    check(rows, at, window, ["k"], EVERY, EVERY_FOLD, early, interrupt, split)


@quick
@given(row_lists(), some_cuts, any_window, st.none() | st.integers(1, 9))
def test_buckets_that_are_told_of_time_give_the_same(
    rows: Any, at: Any, window: Window, early: int | None
) -> None:
    operator = WindowAggregate(SCHEMA, ["k"], window, SIMPLE, None if early is None else early / 1e6)
    results, late = partitioned(operator, packets_of(rows, cuts(at, len(rows))), 3)
    right, late_right = expected(rows, window, ["k"], SIMPLE_FOLD, early)

    def order(result: Any) -> Any:
        cause, values = result
        return (10**9 if cause is None else cause, values[2], key_order(values[:1]), values[1])

    assert_same(sorted(results, key=order), sorted(right, key=order))
    assert sorted(cause for cause, _ in late) == late_right


def test_results_of_one_tuple_leave_by_window_end_and_key() -> None:
    rows = [
        {"k": k, "s": None, "ts": t, "x": 1, "f": None}
        for k, t in [(2, 1), (1, 1), (None, 1), (1, 11), (0, 99)]
    ]
    operator = WindowAggregate(SCHEMA, ["k"], micros("tumbling", 10, 10, 0), ["count(*) AS n"])
    results, _ = run(operator, packets_of(rows, [0, 5]))
    assert [(cause, values[0], values[2]) for cause, values in results] == [
        (3, None, 10), (3, 1, 10), (3, 2, 10), (4, 1, 20), (None, 0, 100),
    ]  # fmt: skip


def test_a_row_without_time_is_late() -> None:
    rows = [{"k": 1, "s": None, "ts": None, "x": 1, "f": None}]
    operator = WindowAggregate(SCHEMA, ["k"], tumbling("1 second", on="ts"), ["count(*) AS n"])
    state = operator.open()
    main, late = operator.process(packets_of(rows, [0, 1]), state)
    assert (len(main), len(late), state.late) == (0, 1, 1)


def test_forgotten_keys_and_groups_leave_no_trace() -> None:
    operator = WindowAggregate(SCHEMA, ["k"], session("1 second", on="ts"), ["count(*) AS n"])
    state = operator.open()
    total = 0
    for start in range(0, 20_000, 1000):
        rows = [{"k": i, "s": None, "ts": i * 100_000, "x": 1, "f": 1.0} for i in range(start, start + 1000)]
        total += len(operator.process(packets_of(rows, [0, 1000]), state)[0])
    assert len(state.keys) < 5000
    assert state.groups.count < 5000
    assert total >= 19_980


@pytest.mark.parametrize("kind", ["tumbling", "sliding", "session"])
def test_dates_are_times(kind: str) -> None:
    schema = pa.schema([("k", pa.int64()), ("ts", pa.date32())])
    day = 86_400_000_000
    window = micros(kind, 2 * day, 2 * day if kind != "sliding" else day, 0)
    operator = WindowAggregate(schema, ["k"], window, ["count(*) AS n"])
    results, _ = run(operator, packets_of([{"k": 1, "ts": d} for d in [0, 1, 5]], [0, 3], schema))
    assert operator.outputs[0].field("window_start").type == pa.timestamp("us")
    assert (
        results[-1][1]
        == {
            "tumbling": (1, 4 * day, 6 * day, 1),
            "sliding": (1, 5 * day, 7 * day, 1),
            "session": (1, 5 * day, 7 * day, 1),
        }[kind]
    )


def test_mistakes_are_named() -> None:
    window = tumbling("1 minute", on="ts")
    with pytest.raises(UnknownColumn, match="'kk'"):
        WindowAggregate(SCHEMA, ["kk"], window, ["count(*) AS n"])
    with pytest.raises(UnknownColumn, match="Did you mean 'ts'"):
        WindowAggregate(SCHEMA, ["k"], sliding("2 s", every="1 s", on="tss"), ["count(*) AS n"])
    with pytest.raises(TypeMismatch, match=r"timestamp_seconds\(x\)"):
        WindowAggregate(SCHEMA, ["k"], tumbling("1 minute", on="x"), ["count(*) AS n"])
    with pytest.raises(TypeMismatch, match=r"CAST\(s AS TIMESTAMP\)"):
        WindowAggregate(SCHEMA, ["k"], tumbling("1 minute", on="s"), ["count(*) AS n"])
    with pytest.raises(PipelineError, match="'k'"):
        WindowAggregate(SCHEMA, ["k"], window, ["count(*) AS k"])
    with pytest.raises(PipelineError, match="at least one aggregate"):
        WindowAggregate(SCHEMA, ["k"], window, [])
