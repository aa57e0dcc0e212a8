"""Superboxes on trees run in one visit to the core, and change nothing but what that costs."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import pyarrow as pa
import pytest

import headgate as hg
from headgate.runtime.boxes import NO_TICKET, Work
from headgate.runtime.finishing import Finishing
from headgate.runtime.superbox import Superboxes
from headgate.scheduling.interface import Call
from serial import serial

TUPLES = 900


def tree(
    order: Literal["serial", "arrival"], queries: int, depth: int = 3
) -> tuple[hg.App, dict[str, list[Any]]]:
    """Trees of fan-out 2.  The root numbers its rows, so that another order gives other answers."""
    app = hg.App("trees")
    results: dict[str, list[Any]] = {}

    def grow(name: str, levels: int) -> hg.Stream:
        if levels == 1:
            batch = pa.record_batch({"leaf": [name] * TUPLES, "n": pa.array(range(TUPLES), pa.int64())})
            return app.source(f"at {name}", hg.from_batches([batch])).filter("n % 3 > 0", name=name)
        left, right = grow(f"{name}0", levels - 1), grow(f"{name}1", levels - 1)
        return left.union(right, order=order).filter("n % 7 > 0", name=name)

    for query in range(queries):
        rows = grow(f"q{query}.", depth).with_columns("1 AS all")
        results[f"q{query}"] = []
        rows.key_by("all").running("count(*) AS place").to(f"q{query}", hg.to_list(results[f"q{query}"]))
    return app, results


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many calls each visit ends."""
    found: list[int] = []
    finish = Finishing.finish

    def counted(self: Finishing, work: Work, now: float) -> None:
        found.append(len(work.members))
        finish(self, work, now)

    monkeypatch.setattr(Finishing, "finish", counted)
    return found


@cache
def answers() -> dict[str, list[Any]]:
    """What serial execution of three trees gives."""
    return serial(tree("serial", 3)[0].network)


@pytest.mark.parametrize("order", ["serial", "arrival"])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("policy", ["mc", "ml", "auto_traversal", "qos", "top_k"])
def test_answers_stay_the_same(order: Literal["serial", "arrival"], workers: int, policy: str) -> None:
    app, results = tree(order, 3)
    app.run(hg.Threads(workers, packet_rows=64), policy)
    for query, rows in answers().items():
        found = results[query]
        assert [row["place"] for row in found] == list(range(1, len(rows) + 1))
        for leaf in {row["leaf"] for row in rows}:
            assert [r["n"] for r in found if r["leaf"] == leaf] == [r["n"] for r in rows if r["leaf"] == leaf]
        if order == "serial":
            assert found == rows


@pytest.mark.parametrize("order", ["serial", "arrival"])
def test_a_whole_tree_is_one_visit(order: Literal["serial", "arrival"], sizes: list[int]) -> None:
    """Seven filters and two boxes above the root; the visits at the end only close boxes."""
    app, _ = tree(order, 1)
    app.run(hg.Threads(1), "mc")
    assert max(sizes) == 9
    assert sum(size for size in sizes if size == 1) < sum(size for size in sizes if size > 1)


def test_with_more_workers_than_queries_branches_are_worked_on_side_by_side(sizes: list[int]) -> None:
    app, results = tree("serial", 1)
    app.run(hg.Threads(2), "mc")
    assert max(sizes) < 9
    assert results["q0"] == serial(app.network)["q0"]


def test_a_call_on_a_split_box_takes_no_other_call_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """It works on parts of units, and what it took along would never run: its rows would be lost."""
    asked: list[int] = []
    take_along = Superboxes._take_along

    def recorded(self: Superboxes, work: Work, call: Call, now: float) -> bool:
        asked.append(work.ticket)
        return take_along(self, work, call, now)

    monkeypatch.setattr(Superboxes, "_take_along", recorded)
    app, found = hg.App("split"), list[dict[str, Any]]()
    numbers = app.source("numbers", hg.from_batches([pa.record_batch({"n": list(range(600))})]))
    keyed = numbers.with_columns("n % 5 AS k").key_by("k").running("count(*) AS c").select("n", "c")
    both = keyed.filter("n % 2 = 0").union(keyed.filter("n % 3 = 0"))
    both.process(lambda row, state: row, schema=both.schema).to("q", hg.to_list(found))
    for query in range(2):  # as many queries as workers, so that plans take branches along
        keyed.filter(f"n % 7 = {query}").to(f"q{query}", hg.to_list([]))
    expected = serial(app.network)["q"]
    app.run(hg.Threads(2, packet_rows=16, buckets=2, split=True), "mc")
    assert found == expected
    assert asked
    assert NO_TICKET not in asked
