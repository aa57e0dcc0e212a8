"""Accumulators: what the windows' own tests do not reach."""

from __future__ import annotations

import decimal
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import examples
from headgate.errors import BadRow, OperatorError
from headgate.graph.aggregates import Accumulators, evaluate
from headgate.sql import compile_aggregate

SCHEMA = pa.schema(
    [
        ("g", pa.int64()),
        ("x", pa.int64()),
        ("d", pa.decimal128(10, 2)),
        ("w", pa.decimal128(28, 2)),
        ("s", pa.string()),
        ("f", pa.float32()),
    ]
)
quick = settings(derandomize=True, deadline=None, max_examples=examples(50))


class Groups:
    """Accumulators with groups for a handful of rows."""

    def __init__(self, *texts: str) -> None:
        self.aggregates = [compile_aggregate(text, SCHEMA) for text in texts]
        self.state = Accumulators(self.aggregates)
        self.seen = 0

    def add(self, rows: list[dict[str, Any]]) -> Groups:
        full = [dict.fromkeys(SCHEMA.names) | row for row in rows]
        batch = pa.RecordBatch.from_pylist(full, schema=SCHEMA)
        self.state.grow(8)
        groups = np.array([row["g"] for row in full], dtype=np.int64)
        sequence = np.arange(self.seen, self.seen + len(rows))
        self.state.update(groups, evaluate(self.aggregates, batch), sequence)
        self.seen += len(rows)
        return self

    def results(self, *groups: int) -> list[list[Any]]:
        arrays = self.state.results(np.array(groups, dtype=np.int64))
        for array, aggregate in zip(arrays, self.aggregates, strict=True):
            assert array.type == aggregate.type
        return [array.to_pylist() for array in arrays]


BIG = 2**63 - 1
numbers = st.lists(
    st.tuples(st.integers(0, 3), st.one_of(st.integers(-(2**63), BIG), st.integers(-5, 5))), max_size=20
)


@quick
@given(numbers, numbers)
def test_sums_of_integers_are_exact_or_an_error(first: Any, second: Any) -> None:
    groups = Groups("sum(x) AS s").add([{"g": g, "x": x} for g, x in first])
    groups.add([{"g": g, "x": x} for g, x in second])
    # Through a snapshot, a merge of 1 into 0, and a compaction.
    columns = groups.state.snapshot(np.arange(4))
    again = Accumulators(groups.aggregates)
    again.grow(4)
    again.restore(np.arange(4), columns)
    again.merge(np.array([0]), again, np.array([1]))
    again = again.take(np.array([0, 2, 3]))
    for place, members in enumerate([{0, 1}, {2}, {3}]):
        values = [x for g, x in first + second if g in members]
        if -(2**63) <= sum(values) <= BIG:
            right = sum(values) if values else None
            assert again.results(np.array([place]))[0].to_pylist() == [right]
        else:
            with pytest.raises(OperatorError, match="overflowed BIGINT"):
                again.results(np.array([place]))


def test_decimals_are_exact() -> None:
    small, wide = decimal.Decimal("99999999.99"), decimal.Decimal("99999999999999999999999999.99")
    groups = Groups("sum(d) AS a", "sum(w) AS b", "avg(d) AS c", "min(w) AS e", "max(d) AS f")
    rows = [{"g": 0, "d": small, "w": wide}] * 3 + [{"g": 1, "d": -small, "w": -wide}, {"g": 1}, {"g": 2}]
    assert groups.add(rows).results(0, 1, 2) == [
        [decimal.Decimal("299999999.97"), -small, None],
        [decimal.Decimal("299999999999999999999999999.97"), -wide, None],
        [decimal.Decimal("99999999.990000"), decimal.Decimal("-99999999.990000"), None],
        [wide, -wide, None],
        [small, -small, None],
    ]


def test_average_of_decimals_rounds_half_up() -> None:
    groups = Groups("avg(d) AS a")
    cents = decimal.Decimal("0.01")
    groups.add([{"g": 0, "d": cents}] + [{"g": 0, "d": 0 * cents}] * 2 + [{"g": 1, "d": -2 * cents}])
    groups.add([{"g": 1, "d": 0 * cents}] * 2)
    assert groups.results(0, 1) == [[decimal.Decimal("0.003333"), decimal.Decimal("-0.006667")]]


def test_floats() -> None:
    groups = Groups(
        "sum(f) AS a", "avg(f) AS b", "min(f) AS c", "max(f) AS d", "stddev_pop(f) AS e", "variance(f) AS h"
    )
    groups.add(
        [{"g": 0, "f": 1.5}, {"g": 0, "f": 2.5}, {"g": 1, "f": math.nan}, {"g": 1, "f": 9.0}, {"g": 2}]
    )
    a, b, c, d, e, h = groups.results(0, 1, 2, 3)
    assert (a[0], b[0], c[:2], d[0], e[0], h[0]) == (4.0, 2.0, [1.5, 9.0], 2.5, 0.5, 0.5)
    assert math.isnan(a[1])
    assert math.isnan(d[1])
    assert [column[2:] for column in (a, b, c, d, e, h)] == [[None, None]] * 6


def test_deviation_of_one_value_is_null_for_a_sample_only() -> None:
    groups = Groups("stddev(x) AS a", "stddev_pop(x) AS b").add([{"g": 0, "x": 5}])
    assert groups.results(0) == [[None], [0.0]]


@quick
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.01, 0.5, 0.9, 1.0]), st.integers(1, 5))
def test_percentiles_are_within_their_accuracy(seed: int, share: float, accuracy: int) -> None:
    """Far beyond what is kept exactly, over several packets and merges."""
    groups = Groups(f"approx_percentile(x, {share}, {accuracy}) AS p")
    values = np.random.default_rng(seed).permutation(3000)
    for part in np.split(values, 6):
        groups.add([{"g": int(v) % 3, "x": int(v)} for v in part])
    kept = sum(len(run.groups) for run in groups.state.parts[0].log._runs)  # type: ignore[attr-defined]
    assert kept <= 3 * 2 * 64 * accuracy + 500
    groups.state.merge(np.array([0, 0]), groups.state, np.array([1, 2]))
    ((found,),) = groups.results(0)
    assert abs(found + 1 - share * 3000) <= 3000 / accuracy + 1


def test_percentiles_are_exact_while_values_are_few() -> None:
    groups = Groups("approx_percentile(x, array(0.0, 0.5, 1.0)) AS p", "approx_percentile(x, 0.25) AS q")
    groups.add([{"g": 0, "x": x} for x in [4, 1, 3, 2]] + [{"g": 1}])
    assert groups.results(0, 1) == [[[1, 2, 4], None], [1, None]]


def test_collect_list_keeps_the_order_of_arrival_over_merges() -> None:
    groups = Groups("collect_list(s) AS l", "first(s) AS f", "last(s) AS z", "min(s) AS a", "max(s) AS b")
    groups.add([{"g": 1, "s": "b"}, {"g": 0, "s": "a"}, {"g": 1}]).add(
        [{"g": 1, "s": "d"}, {"g": 0, "s": "c"}]
    )
    groups.state.merge(np.array([0]), groups.state, np.array([1]))
    assert groups.results(0, 2) == [
        [["b", "a", "d", "c"], []],
        ["b", None],
        ["c", None],
        ["a", None],
        ["d", None],
    ]


def test_a_filter_protects_rows_and_a_bad_one_is_named_by_its_place() -> None:
    groups = Groups("sum(10 div x) FILTER (WHERE x >= 0) AS s")
    groups.add([{"g": 0, "x": -1}, {"g": 0, "x": 5}])
    with pytest.raises(BadRow) as bad:
        groups.add([{"g": 0, "x": -1}, {"g": 0, "x": 5}, {"g": 0, "x": 0}])
    assert bad.value.index == 2
    assert groups.results(0) == [[2]]
