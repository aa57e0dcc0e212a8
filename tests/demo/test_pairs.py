"""Pairs of items in lists, against the obvious loop."""

from __future__ import annotations

import datetime
import itertools

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.demo.tpcx_bb.pairs import PAIRS, pairs

lists = st.lists(st.lists(st.one_of(st.none(), st.integers(-3, 5)), max_size=6) | st.none(), max_size=6)


@settings(deadline=None)
@given(lists, st.integers(0, 3))
def test_pairs_are_those_of_the_obvious_loop(items: list[list[int | None] | None], skip: int) -> None:
    at = [datetime.datetime(2024, 1, 1, second=i, tzinfo=datetime.UTC) for i in range(len(items))]
    batch = pa.record_batch(
        [pa.array(items, pa.list_(pa.int64())), pa.array(at, pa.timestamp("us", "UTC"))], ["items", "at"]
    ).slice(skip)
    expected = [
        (row, a, b, at[row + skip])
        for row, some in enumerate(items[skip:])
        for a, b in itertools.combinations(sorted({i for i in some or () if i is not None}), 2)
    ]
    found, causes = pairs(batch)
    assert found.schema.equals(PAIRS)
    columns = [causes.tolist(), *(found.column(name).to_pylist() for name in PAIRS.names)]
    assert list(zip(*columns, strict=True)) == expected


@pytest.mark.parametrize("rows", [0, 3])
def test_no_items_no_pairs(rows: int) -> None:
    batch = pa.record_batch(
        [pa.array([[]] * rows, pa.list_(pa.int64())), pa.array([None] * rows, pa.timestamp("us", "UTC"))],
        ["items", "at"],
    )
    assert pairs(batch)[0].num_rows == 0
