"""Key indices agree with a dict; buckets are stable and the same for equal keys."""

from __future__ import annotations

import datetime
import decimal
import math
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import examples
from headgate.graph.columns import sort_keys
from headgate.graph.keys import KeyIndex
from headgate.graph.numbering import Numbering, distinct
from headgate.graph.partition import buckets, range_buckets

quick = settings(derandomize=True, deadline=None, max_examples=examples(100))

TYPES: dict[pa.DataType, Any] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3),
    pa.int32(): st.integers(-3, 3),
    pa.string(): st.sampled_from(["", "a", "ab", "é", "a longer word than eight bytes"]),
    pa.binary(): st.binary(max_size=2),
    pa.date32(): st.dates(datetime.date(1969, 12, 30), datetime.date(1970, 1, 3)),
    pa.timestamp("us"): st.sampled_from(
        [datetime.datetime(1960, 1, 1), datetime.datetime(2020, 1, 1, 1, 1, 1, 1)]
    ),
    pa.bool_(): st.booleans(),
    pa.float64(): st.sampled_from([0.0, -0.0, math.nan, -math.nan, 1.5, math.inf, -1.5]),
    pa.decimal128(10, 2): st.decimals(-5, 5, places=2, allow_nan=False),
    pa.decimal128(30, 2): st.sampled_from(
        [decimal.Decimal("1.00"), decimal.Decimal("-123456789012345678901.25")]
    ),
}


def same_key(value: Any) -> Any:
    if isinstance(value, float):
        return struct.pack("d", math.nan if math.isnan(value) else value + 0.0)
    return value


@st.composite
def batches(draw: Any) -> tuple[list[pa.DataType], list[list[list[Any]]]]:
    kinds = draw(st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=3))
    rows = st.lists(st.tuples(*[st.none() | TYPES[k] for k in kinds]), max_size=20)
    return kinds, draw(st.lists(rows, max_size=4))


def columns(kinds: list[pa.DataType], rows: Any) -> list[pa.Array]:
    # An offset, as slices have.
    return [pa.array([None, *(row[i] for row in rows)], type=kind).slice(1) for i, kind in enumerate(kinds)]


@pytest.mark.parametrize("step", [1, 1 << 20, 1 << 44, (1 << 32) + 1])
@pytest.mark.parametrize("rows", [7, 1500, 20_000])
def test_numbers_are_given_in_the_order_of_first_occurrence(step: int, rows: int) -> None:
    values = np.random.default_rng(rows).integers(-9_000, 9_000, 40_000) * step
    numbering, known = Numbering(), dict[int, int]()
    for at in range(0, len(values), rows):
        packet = values[at : at + rows]
        expected = [known.setdefault(value, len(known)) for value in packet.tolist()]
        assert numbering.number(packet).tolist() == expected
    assert numbering.values[: numbering.count].tolist() == list(known)
    assert Numbering.of(np.array(list(known))).find(values).tolist() == [known[v] for v in values.tolist()]
    assert numbering.find(np.array([9_000 * step])).tolist() == [-1]


@pytest.mark.parametrize("rows", [0, 1, 50, 5_000])
def test_distinct_groups_stand_in_the_order_in_which_they_come(rows: int) -> None:
    groups = np.random.default_rng(rows).integers(0, 300, rows)
    fresh, places = distinct(groups)
    assert fresh.tolist() == list(dict.fromkeys(groups.tolist()))
    assert fresh[places].tolist() == groups.tolist()


@quick
@given(batches())
def test_an_index_agrees_with_a_dict(given_: Any) -> None:
    kinds, packets = given_
    index = KeyIndex(kinds)
    slot_of: dict[Any, int] = {}
    for rows in packets:
        slots = index.slots(columns(kinds, rows), len(rows))
        for row, slot in zip(rows, slots.tolist(), strict=True):
            assert slot_of.setdefault(tuple(map(same_key, row)), slot) == slot
        keys = [c.to_pylist() for c in index.keys(slots)]
        assert [tuple(map(same_key, k)) for k in zip(*keys, strict=True)] == [
            tuple(map(same_key, r)) for r in rows
        ]
    assert len(set(slot_of.values())) == len(slot_of)
    assert max(slot_of.values(), default=-1) < len(index)


@quick
@given(batches())
def test_retaining_keeps_only_what_is_asked_for(given_: Any) -> None:
    kinds, packets = given_
    index = KeyIndex(kinds)
    slots = [index.slots(columns(kinds, rows), len(rows)) for rows in packets]
    kept = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *slots]))[::2]
    smaller, moved = index.retain(kept)
    assert len(smaller) <= len(kept) + 1
    assert len(set(moved.tolist())) == len(kept)
    for old, new in zip(index.keys(kept), smaller.keys(moved), strict=True):
        assert [same_key(v) for v in old.to_pylist()] == [same_key(v) for v in new.to_pylist()]
    again = [smaller.slots(columns(kinds, rows), len(rows)) for rows in packets]
    one_to_one = set(
        zip(np.concatenate([*slots, kept]).tolist(), np.concatenate([*again, moved]).tolist(), strict=True)
    )
    assert len(one_to_one) == len({old for old, _ in one_to_one}) == len({new for _, new in one_to_one})


@pytest.mark.parametrize("odd", [(None, 1), (-1, 1), (1, 1 << 31), (1 << 62, None)])
def test_two_numbers_share_one_word_until_one_does_not_fit(odd: tuple[Any, Any]) -> None:
    """Slots that were given stay when a key comes that needs the columns numbered by themselves."""
    kinds = [pa.int64(), pa.int64()]
    fitting = [(5, 7), (7, 5), (0, 0), ((1 << 31) - 1, (1 << 31) - 1)]
    index = KeyIndex(kinds)
    slots = index.slots(columns(kinds, fitting), 4).tolist()
    assert slots == [0, 1, 2, 3]
    assert index.find(columns(kinds, [(7, 5), odd, (5, 5)])).tolist() == [1, -1, -1]
    assert index.slots(columns(kinds, [odd, (7, 5)]), 2).tolist() == [4, 1]
    assert index.slots(columns(kinds, fitting), 4).tolist() == slots
    keys = [key.to_pylist() for key in index.keys(np.arange(5))]
    assert list(zip(*keys, strict=True)) == [*fitting, odd]


def test_without_columns_there_is_one_slot() -> None:
    assert KeyIndex([]).slots([], 3).tolist() == [0, 0, 0]


@quick
@given(batches(), st.integers(1, 100))
def test_equal_keys_share_a_bucket(given_: Any, count: int) -> None:
    kinds, packets = given_
    bucket_of: dict[Any, int] = {}
    names = [f"c{i}" for i in range(len(kinds))]
    for rows in packets:
        batch = pa.RecordBatch.from_arrays(columns(kinds, rows), names=names)
        for row, bucket in zip(rows, buckets(batch, names, count).tolist(), strict=True):
            assert 0 <= bucket < count
            assert bucket_of.setdefault(tuple(map(same_key, row)), bucket) == bucket


def test_buckets_never_change() -> None:
    """Written down once: another answer would put keys of stored state into other buckets."""
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([0, 1, -1, 2**62, None]),
            pa.array(["", "a", "a longer word", "é", None]),
            pa.array([0.0, 1.5, math.nan, -1.0, None]),
        ],
        names=["i", "s", "f"],
    )
    assert buckets(batch, ["i"], 1000).tolist() == STABLE["i"]
    assert buckets(batch, ["s"], 1000).tolist() == STABLE["s"]
    assert buckets(batch, ["f"], 1000).tolist() == STABLE["f"]
    assert buckets(batch, ["i", "s", "f"], 1000).tolist() == STABLE["all"]


STABLE: dict[str, list[int]] = {
    "i": [535, 465, 936, 75, 5],
    "s": [535, 102, 367, 7, 5],
    "f": [535, 770, 918, 98, 5],
    "all": [932, 857, 393, 94, 635],
}


def test_width_does_not_matter() -> None:
    values = [0, 5, -7, None]
    for narrow, wide in [(pa.int32(), pa.int64()), (pa.decimal128(9, 0), pa.decimal128(38, 0))]:
        one = pa.RecordBatch.from_arrays([pa.array(values, type=narrow)], names=["k"])
        other = pa.RecordBatch.from_arrays([pa.array(values, type=wide)], names=["k"])
        assert buckets(one, ["k"], 997).tolist() == buckets(other, ["k"], 997).tolist()


def test_buckets_are_even() -> None:
    for keys in [pa.array(np.arange(20_000)), pa.array([f"user-{i}" for i in range(20_000)])]:
        sizes = np.bincount(
            buckets(pa.RecordBatch.from_arrays([keys], names=["k"]), ["k"], 100), minlength=100
        )
        assert sizes.min() > 120
        assert sizes.max() < 280


@pytest.mark.parametrize(
    ("values", "boundaries", "ranges"),
    [
        ([1, 5, 10, None, 99], [5, 10], [0, 1, 2, 0, 2]),
        (["a", "m", "z", None], ["m"], [0, 1, 1, 0]),
        ([-1.0, 0.0, math.nan], [0.0], [0, 1, 1]),
    ],
)
def test_ranges(values: list[Any], boundaries: list[Any], ranges: list[int]) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(values, from_pandas=False)], names=["k"])
    assert range_buckets(batch, "k", boundaries).tolist() == ranges


@quick
@given(batches())
def test_sort_keys_sort_as_sql(given_: Any) -> None:
    kinds, packets = given_
    rows = [row for packet in packets for row in packet]
    parts = [part for column in columns(kinds, rows) for part in sort_keys(column)]
    order = np.lexsort(tuple(reversed(parts))) if parts else np.arange(len(rows))
    found = [tuple(map(_rank, rows[i])) for i in order]
    assert found == sorted(found)


def _rank(value: Any) -> Any:
    if value is None:
        return (0, 0, 0)
    if isinstance(value, float) and math.isnan(value):
        return (1, 1, 0)
    return (1, 0, value.encode() if isinstance(value, str) else value)
