"""Running aggregates give, for every row, what its key's rows so far give."""

from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_reference import running, together
from window_streams import (
    SCHEMA,
    assert_same,
    batch_of,
    cuts,
    packets_of,
    partitioned,
    plain,
    revived,
    row_lists,
)

from depth import examples
from headgate.errors import BadRow, ExpressionError, PipelineError, UnknownColumn, UnsupportedFunction
from headgate.graph.operator import Kind
from headgate.graph.operators.running import Running
from headgate.graph.packet import Order, Packet

quick = settings(derandomize=True, deadline=None, max_examples=examples(60))

AGGREGATES = [
    "count(*) AS n",
    "count(x) AS known",
    "sum(x) AS total",
    "sum(x) FILTER (WHERE x > 0) AS positive",
    "avg(x) AS mean",
    "min(x) AS lowest",
    "max(f) AS highest",
    "min(f) AS least",
    "stddev(x) AS deviation",
    "first(s) AS fs",
    "last(s) AS ls",
    "first(x, true) AS fx",
    "last(s, true) AS lk",
    "min(s) AS word",
    "max(s) AS last_word",
    "count(DISTINCT s) AS words",
    "count(DISTINCT f) AS numbers",
    "lag(s) AS before",
    "lag(x, 1, 7) AS before_or_7",
]
FOLD = together(
    "rows", "count:x", "sum:x", "positive:x", "avg:x", "min:x", "max:f", "min:f", "stddev:x", "first:s",
    "last:s", "first_known:x", "last_known:s", "min:s", "max:s", "distinct:s", "distinct:f",
    "before:s", "before_or_7:x",
)  # fmt: skip
some_cuts = st.lists(st.integers(0, 60), max_size=6)


def outcome(
    operator: Running, packets: list[Packet], interrupt: int | None = None, split: int = 1
) -> list[Any]:
    state, rows = operator.open(), []
    for place, packet in enumerate(packets):
        if place == interrupt:
            state = revived(operator, state, split)
        (out,) = operator.process([packet], state)
        assert (out.order.serials == packet.order.serials).all()
        assert_same(out.batch.select(packet.schema.names).to_pylist(), packet.batch.to_pylist())
        rows += zip(*[plain(c) for c in out.batch.columns[len(packet.schema) :]], strict=True)
    return rows


@quick
@given(row_lists(), some_cuts, st.sampled_from([["k"], ["s", "k"], []]))
def test_equals_row_by_row(rows: Any, at: Any, keys: list[str]) -> None:
    operator = Running(SCHEMA, keys, AGGREGATES)
    assert_same(outcome(operator, packets_of(rows, cuts(at, len(rows)))), running(rows, keys, FOLD))
    assert operator.kind is (Kind.KEYED if keys else Kind.STATEFUL)


@quick
@given(row_lists(), some_cuts, st.integers(1, 12))
def test_keys_expire_tuple_by_tuple(rows: Any, at: Any, expire: int) -> None:
    operator = Running(SCHEMA, ["k"], AGGREGATES, expire=expire / 1e6, on="ts")
    assert_same(outcome(operator, packets_of(rows, cuts(at, len(rows)))), running(rows, ["k"], FOLD, expire))


@quick
@given(row_lists(), some_cuts, st.integers(0, 5), st.sampled_from([1, 3]), st.none() | st.integers(1, 12))
def test_snapshot_and_restore_change_nothing(
    rows: Any, at: Any, interrupt: int, split: int, expire: int | None
) -> None:
    on = None if expire is None else "ts"
    operator = Running(SCHEMA, ["k"], AGGREGATES, None if expire is None else expire / 1e6, on)
    found = outcome(operator, packets_of(rows, cuts(at, len(rows))), interrupt, split)
    assert_same(found, running(rows, ["k"], FOLD, expire))


@quick
@given(row_lists(), some_cuts, st.integers(1, 12))
def test_buckets_that_are_told_of_time_give_the_same(rows: Any, at: Any, expire: int) -> None:
    operator = Running(SCHEMA, ["k"], AGGREGATES, expire=expire / 1e6, on="ts")
    (found,) = partitioned(operator, packets_of(rows, cuts(at, len(rows))), 3)
    assert_same(
        [v[len(SCHEMA) :] for _, v in sorted(found, key=lambda r: r[0])], running(rows, ["k"], FOLD, expire)
    )


def test_long_segments_and_many_keys() -> None:
    """One hot key, many cold ones and more keys than 16 bits: every path of the scans."""
    random = np.random.default_rng(3)
    rows = 40_000
    keys = np.where(random.random(rows) < 0.3, 7, random.integers(0, 70_000, rows))
    values = random.normal(100, 1.0, rows)
    ints = random.integers(-100, 100, rows)
    schema = pa.schema([("k", pa.int64()), ("f", pa.float64()), ("x", pa.int64())])
    operator = Running(schema, ["k"], ["sum(f) AS s", "stddev(f) AS d", "max(x) AS m", "sum(x) AS t"])
    batch = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values), pa.array(ints)], schema=schema)
    state, parts = operator.open(), []
    for start, end in [(0, 25_000), (25_000, rows)]:
        packet = Packet(batch.slice(start, end - start), Order(start, 0.0, end - start))
        parts.append(operator.process([packet], state)[0].batch)
    frame = pa.concat_batches(parts).to_pandas()
    groups = frame.groupby("k")
    np.testing.assert_allclose(frame["s"], groups["f"].cumsum(), rtol=1e-9)
    assert (frame["m"] == groups["x"].cummax()).all()
    assert (frame["t"] == groups["x"].cumsum()).all()
    deviation = groups["f"].expanding().std().droplevel(0).sort_index()
    np.testing.assert_allclose(frame["d"].astype(float), deviation, rtol=1e-9, atol=1e-9)


def test_moments_survive_an_outlier() -> None:
    values = [1e9, *np.random.default_rng(0).normal(0, 1e-3, 200).tolist()]
    rows = [{"k": 1, "s": None, "ts": 0, "x": None, "f": v} for v in values[1:] + values[:1]]
    operator = Running(SCHEMA, ["k"], ["stddev(f) AS d"])
    found = outcome(operator, packets_of(rows, [0, len(rows)]))
    assert_same(found, running(rows, ["k"], together("stddev:f")))


def test_sums_are_exact_and_their_overflow_is_a_bad_row() -> None:
    big = 2**62
    rows = [
        {"k": k, "s": None, "ts": 0, "x": x, "f": None}
        for k, x in [(1, big), (2, -big), (1, big - 1), (2, -big)]
    ]
    operator = Running(SCHEMA, ["k"], ["sum(x) AS total"])
    found = outcome(operator, packets_of(rows, [0, 2, 4]))
    assert found == [(big,), (-big,), (2**63 - 1,), (-(2**63),)]
    state = operator.open()
    operator.process(packets_of(rows, [0, 4]), state)
    over = [*rows[:2], rows[0] | {"x": 1}]
    with pytest.raises(BadRow) as bad:
        operator.process(
            [Packet(batch_of([rows[0] | {"x": -5}, over[2] | {"x": 9}]), Order(0, 0.0, 2))], state
        )
    assert bad.value.index == 1
    after = operator.process([Packet(batch_of([rows[0] | {"x": -5}]), Order(0, 0.0, 1))], state)[0]
    assert after.batch.column("total").to_pylist() == [2**63 - 6], "a bad row changes nothing"


def test_decimals() -> None:
    schema = pa.schema([("k", pa.int64()), ("d", pa.decimal128(10, 2)), ("w", pa.decimal128(28, 2))])
    one, wide = decimal.Decimal("99999999.99"), decimal.Decimal("-99999999999999999999999999.99")
    rows = [{"k": 1, "d": one, "w": wide}, {"k": 1, "d": None, "w": None}, {"k": 1, "d": one, "w": wide}]
    operator = Running(schema, ["k"], ["sum(d) AS s", "sum(w) AS t", "max(d) AS m", "min(w) AS n"])
    found = outcome(operator, packets_of(rows, [0, 1, 3], schema))
    assert found == [
        (one, wide, one, wide),
        (one, wide, one, wide),
        (decimal.Decimal("199999999.98"), decimal.Decimal("-199999999999999999999999999.98"), one, wide),
    ]
    assert operator.outputs[0].field("s").type == pa.decimal128(20, 2)


def test_expired_keys_are_forgotten() -> None:
    operator = Running(SCHEMA, ["k"], ["count(DISTINCT x) AS n", "last(s) AS l"], expire="1 second", on="ts")
    state = operator.open()
    for start in range(0, 20_000, 1000):
        rows = [{"k": i, "s": "a", "ts": i * 100_000, "x": 1, "f": 1.0} for i in range(start, start + 1000)]
        operator.process(packets_of(rows, [0, 1000]), state)
    assert len(state.keys) < 5000
    assert state.snapshot().num_rows < 5000


def test_mistakes_are_named() -> None:
    with pytest.raises(UnknownColumn, match="'key'"):
        Running(SCHEMA, ["key"], ["count(*) AS n"])
    with pytest.raises(PipelineError, match="'x'"):
        Running(SCHEMA, ["k"], ["sum(x) AS x"])
    with pytest.raises(PipelineError, match="needs on="):
        Running(SCHEMA, ["k"], ["sum(x) AS t"], expire="1 hour")
    with pytest.raises(ExpressionError, match="gives the row before, so its second operand must be 1"):
        Running(SCHEMA, ["k"], ["lag(x, 2) AS before"])
    with pytest.raises(UnsupportedFunction, match="takes no FILTER"):
        Running(SCHEMA, ["k"], ["lag(x) FILTER (WHERE x > 0) AS before"])
    for text in ["collect_list(x) AS l", "approx_percentile(x, 0.5) AS p"]:
        with pytest.raises(UnsupportedFunction, match="use it in a window"):
            Running(SCHEMA, ["k"], [text])
