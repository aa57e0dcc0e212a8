"""Top gives the best rows of each window, best first, ties in order of arrival."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_reference import key_order, top
from window_streams import SCHEMA, assert_same, batch_of, cuts, packets_of, plain, row_lists, run

import headgate as hg
from depth import examples
from headgate import testing
from headgate.errors import PipelineError, TypeMismatch, UnknownColumn
from headgate.graph.operator import Kind
from headgate.graph.operators.top import Top
from headgate.graph.operators.top_per_key import TopPerKey
from headgate.graph.packet import Order, Packet

quick = settings(derandomize=True, deadline=None, max_examples=examples(60))
some_cuts = st.lists(st.integers(0, 60), max_size=6)


def by_x_descending(row: dict[str, Any]) -> Any:
    """x DESC: nulls last."""
    return (row["x"] is None, -(row["x"] or 0))


def by_word_and_number(row: dict[str, Any]) -> Any:
    """s ASC (nulls first), f DESC NULLS FIRST."""
    f = row["f"]
    number = (0, 0.0) if f is None else (1, -np.inf) if f != f else (2, -f)
    return (key_order((row["s"],)), number)


ORDERINGS = {"x DESC": by_x_descending, "s, f DESC NULLS FIRST": by_word_and_number}


@quick
@given(
    row_lists(), some_cuts, st.integers(1, 4), st.sampled_from(sorted(ORDERINGS)), st.integers(1, 12),
    st.integers(0, 6), st.none() | st.integers(0, 5),
)  # fmt: skip
def test_equals_tuple_by_tuple(
    rows: Any, at: Any, n: int, by: str, every: int, lateness: int, interrupt: int | None
) -> None:
    operator = Top(SCHEMA, n, by, every / 1e6, "ts", lateness / 1e6)
    results, late = run(operator, packets_of(rows, cuts(at, len(rows))), interrupt)
    right, late_right = top(rows, n, ORDERINGS[by], every, lateness)
    columns = [plain(c) for c in batch_of(rows).columns]
    assert_same(results, [(cause, tuple(c[i] for c in columns)) for cause, i in right])
    assert [cause for cause, _ in late] == late_right


@quick
@given(row_lists(keys=4), some_cuts, st.integers(1, 4), st.sampled_from(sorted(ORDERINGS)))
def test_a_row_passes_if_it_is_among_the_best_of_its_key(rows: Any, at: Any, n: int, by: str) -> None:
    operator = TopPerKey(SCHEMA, ["k"], n, by, "place")
    state = operator.open()
    found = []
    for packet in packets_of(rows, cuts(at, len(rows))):
        [out] = operator.process([packet], state)
        found += list(zip(out.order.serials.tolist(), out.batch.column("place").to_pylist(), strict=True))
    expected = []
    for place, row in enumerate(rows):
        rank = 1 + sum(
            other["k"] == row["k"] and ORDERINGS[by](other) <= ORDERINGS[by](row) for other in rows[:place]
        )
        if rank <= n:
            expected.append((place * 10, rank))
    assert found == expected


def test_the_best_of_every_key_on_every_engine(engine: hg.Engine) -> None:
    app = hg.App("best")
    bids = [{"item": f"i{n % 3}", "price": n * 7 % 10, "ts": datetime(2024, 1, 1, 0, n)} for n in range(12)]
    stream = app.source("bids", testing.from_rows(bids))
    found: dict[str, list[dict[str, Any]]] = {"now": [], "period": [], "end": [], "sorted": [], "first": []}
    keyed = stream.key_by("item")
    keyed.top(2, by="price DESC", rank="place").to("now", hg.to_list(found["now"]))
    keyed.top(1, by="price DESC", every="6 minutes", on="ts").to("period", hg.to_list(found["period"]))
    keyed.top(1, by="price DESC", every="end").to("end", hg.to_list(found["end"]))
    stream.sort("price DESC, item", limit=3).to("sorted", hg.to_list(found["sorted"]))
    stream.limit(2).to("first", hg.to_list(found["first"]))
    app.run(engine)
    shown = {name: [tuple(row.values()) for row in rows] for name, rows in found.items()}
    # Prices by item, as they come: i0: 0 1 2 3, i1: 7 8 9 0, i2: 4 5 6 7.
    assert [(row[0], row[1], row[3]) for row in shown["now"]] == [
        ("i0", 0, 1), ("i1", 7, 1), ("i2", 4, 1), ("i0", 1, 1), ("i1", 8, 1), ("i2", 5, 1),
        ("i0", 2, 1), ("i1", 9, 1), ("i2", 6, 1), ("i0", 3, 1), ("i2", 7, 1),
    ]  # fmt: skip
    best = [("i0", 1), ("i1", 8), ("i2", 5), ("i0", 3), ("i1", 9), ("i2", 7)]
    assert [row[:2] for row in shown["period"]] == best
    assert [row[:2] for row in shown["end"]] == best[3:]
    assert [row[:2] for row in shown["sorted"]] == [("i1", 9), ("i1", 8), ("i1", 7)]
    assert [row[:2] for row in shown["first"]] == [("i0", 0), ("i1", 7)]


def test_keeps_few_rows() -> None:
    operator = Top(SCHEMA, 10, "x DESC", "1 hour", "ts")
    state = operator.open()
    random = np.random.default_rng(0)
    for place in range(5):
        values = random.integers(0, 10**6, 1000).tolist()
        rows = [{"k": 1, "s": None, "ts": place, "x": x, "f": None} for x in values]
        operator.process([Packet(batch_of(rows), Order(place * 1000, 0.0, 1000))], state)
        assert state.chosen.num_rows + state.more <= 20
    assert operator.kind is Kind.STATEFUL


def test_mistakes_are_named() -> None:
    with pytest.raises(PipelineError, match="at least 1"):
        Top(SCHEMA, 0, "x DESC", "1 hour", "ts")
    with pytest.raises(UnknownColumn, match="'y'"):
        Top(SCHEMA, 3, "y DESC", "1 hour", "ts")
    with pytest.raises(TypeMismatch, match="not a timestamp"):
        Top(SCHEMA, 3, "x DESC", "1 hour", "x")
    assert Top(SCHEMA, 3, "x DESC", "1 hour", "ts").outputs == (SCHEMA, pa.schema(SCHEMA))
