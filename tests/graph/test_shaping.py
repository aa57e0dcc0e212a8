"""explode, rename, drop, cast and drop_duplicates: what they give, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from window_streams import SCHEMA, cuts, packets_of, row_lists

import headgate as hg
from headgate import testing
from headgate.api import Stream
from headgate.errors import HeadgateError
from headgate.graph.operators.drop_duplicates import DropDuplicates

ORDERS = pa.schema(
    [
        ("id", pa.int64()),
        ("items", pa.list_(pa.string())),
        ("tags", pa.map_(pa.string(), pa.int64())),
        ("ts", pa.timestamp("us")),
    ]
)
ROWS: list[dict[str, Any]] = [
    {"id": 1, "items": ["a", None], "tags": {"x": 1}, "ts": datetime(2024, 1, 1)},
    {"id": 2, "items": [], "tags": None, "ts": datetime(2024, 1, 1, 0, 30)},
    {"id": 1, "items": None, "tags": {"y": 2, "z": 3}, "ts": datetime(2024, 1, 1, 2)},
]

CASES: dict[str, tuple[Callable[[Stream], Stream], list[tuple[Any, ...]]]] = {
    "elements": (lambda s: s.explode("items AS item").select("id", "item"), [(1, "a"), (1, None)]),
    "places": (
        lambda s: s.explode("items", outer=True, position="n").select("id", "n", "items"),
        [(1, 0, "a"), (1, 1, None), (2, None, None), (1, None, None)],
    ),
    "a map": (
        lambda s: s.explode("tags AS (tag, number)").drop("items", "tags", "ts"),
        [(1, "x", 1), (1, "y", 2), (1, "z", 3)],
    ),
    "rename, cast": (
        lambda s: s.select("id").rename(id="number").cast(number="STRING"),
        [("1",), ("2",), ("1",)],
    ),
    "first ever": (lambda s: s.drop_duplicates("id").select("id", "hour(ts)"), [(1, 0), (2, 0)]),
    "first of an hour": (
        lambda s: s.drop_duplicates("id", within="1 hour", on="ts").select("id", "hour(ts)"),
        [(1, 0), (2, 0), (1, 2)],
    ),
}


def test_rows_are_shaped_on_every_engine(engine: hg.Engine) -> None:
    app = hg.App("shaping")
    orders = app.source("orders", testing.from_rows(ROWS, ORDERS))
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in CASES}
    for name, (build, _) in CASES.items():
        build(orders).to(name, hg.to_list(found[name]))
    app.run(engine)
    assert {name: [tuple(row.values()) for row in rows] for name, rows in found.items()} == {
        name: expected for name, (_, expected) in CASES.items()
    }


@given(row_lists(keys=4), st.lists(st.integers(0, 60), max_size=8), st.none() | st.integers(1, 12))
def test_drop_duplicates_equals_going_row_by_row(
    rows: list[dict[str, Any]], at: list[int], within: int | None
) -> None:
    operator = DropDuplicates(SCHEMA, ["k"], within and within / 1e6, within and "ts")
    state = operator.open()
    passed: list[int] = []
    for packet in packets_of(rows, cuts(at, len(rows))):
        passed += operator.process([packet], state)[0].order.serials.tolist()
    now, since, expected = -(10**9), dict[Any, int](), []
    for place, row in enumerate(rows):
        now = now if row["ts"] is None else max(now, row["ts"])
        if row["k"] not in since or (within is not None and now > since[row["k"]] + within):
            since[row["k"]] = now
            expected.append(place * 10)
    assert passed == expected


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda s: s.explode("id AS one"), ["int64", "split"]),
        (lambda s: s.explode("items AS (a, b)"), ["two names"]),
        (lambda s: s.explode("items AS n", position="n"), ["'n'"]),
        (lambda s: s.drop("idd"), ["'idd'", "'id'"]),
        (lambda s: s.drop("id", "items", "tags", "ts"), ["no column"]),
        (lambda s: s.rename(id="ts"), ["'ts'", "two columns"]),
        (lambda s: s.cast(id="NUMBER9"), ["NUMBER9"]),
        (lambda s: s.drop_duplicates("items"), ["'items'", "key"]),
        (lambda s: s.drop_duplicates("id", within="1 hour"), ["within=", "on="]),
    ],
)
def test_mistakes_are_named(build: Callable[[Stream], Stream], words: list[str]) -> None:
    orders = hg.App("mistakes").source("orders", testing.from_rows(ROWS, ORDERS))
    with pytest.raises(HeadgateError) as raised:
        build(orders)
    for word in words:
        assert word in str(raised.value)


def test_keys_that_have_expired_leave_memory() -> None:
    rows = [{"k": n, "s": "a", "ts": n, "x": 1, "f": 0.0} for n in range(5000)]
    operator = DropDuplicates(SCHEMA, ["k"], timedelta(microseconds=10), "ts")
    state = operator.open()
    for packet in packets_of(rows, list(range(0, 5001, 500))):
        assert len(operator.process([packet], state)[0]) == 500
    assert len(state.keys) < 2500
    assert state.snapshot().num_rows == 11
