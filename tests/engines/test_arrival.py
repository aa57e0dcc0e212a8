"""``union(order="arrival")``: what every engine promises of it."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

import headgate as hg
from headgate import testing
from headgate.errors import PipelineError

TUPLES = 400


def _source(app: hg.App, name: str, start: int) -> hg.Stream:
    numbers = range(start, start + TUPLES)
    batch = pa.record_batch({"source": [name] * TUPLES, "n": pa.array(numbers, pa.int64())})
    return app.source(name, hg.from_batches([batch]))


@pytest.mark.parametrize("policy", ["lp", "ml"])
def test_each_input_keeps_its_order_and_answers_are_those_of_one_interleaving(
    engine: hg.Engine, policy: str
) -> None:
    """What follows the union has a state, runs in parallel, meets other streams in serial order, and ends."""
    app = hg.App("arrival")
    a, b, c = (_source(app, name, start) for name, start in (("a", 0), ("b", 0), ("c", 0)))
    slow = a.universal(cost=1e-5, selectivity=0.5, name="slow")
    united = slow.union(b, order="arrival")
    sums = united.with_columns("1 AS one").key_by("one").running("sum(n) AS total", name="sum")
    rows: list[dict[str, object]] = []
    sums.to("sums", hg.to_list(rows))
    again: list[dict[str, object]] = []
    united.filter("n % 2 = 0").union(united.filter("n % 2 = 1")).to("again", hg.to_list(again))
    nested: list[dict[str, object]] = []
    united.union(c).to("nested", hg.to_list(nested))
    joined: list[dict[str, object]] = []
    keyed = united.with_columns("timestamp_seconds(n) AS ts").key_by("n")
    others = c.select("n", "n * 2 AS twice", "timestamp_seconds(n) AS ts").key_by("n")
    keyed.join(others, within="1 hour", on="ts").to("joined", hg.to_list(joined))
    app.run(engine, policy=policy, until="drained")

    half = [row["n"] for row in rows if row["source"] == "a"]
    assert 0 < len(half) < TUPLES
    for found in (rows, nested):
        assert [row["n"] for row in found if row["source"] == "a"] == half
        assert [row["n"] for row in found if row["source"] == "b"] == list(range(TUPLES))
    assert [row["n"] for row in nested if row["source"] == "c"] == list(range(TUPLES))
    total = 0
    for row in rows:
        total += row["n"]
        assert row["total"] == total
    for odd in (0, 1):
        assert [r["n"] for r in again if r["source"] == "a" and r["n"] % 2 == odd] == [
            n for n in half if n % 2 == odd
        ]
    assert Counter(row["n"] for row in again) == Counter(row["n"] for row in rows)
    assert Counter(row["twice"] for row in joined) == Counter(2 * row["n"] for row in rows)


def test_an_arriving_row_waits_for_no_other_stream() -> None:
    """By default the row of the second source waits for the slow box of the first."""
    for order, first in (("serial", "slow"), ("arrival", "quick")):
        app = hg.App("arrival")
        slow = app.source("slow", testing.Timed([(0.0, [{"name": "slow"}])]))
        quick = app.source("quick", testing.Timed([(0.0, [{"name": "quick"}])]))
        rows: list[dict[str, object]] = []
        slow.universal(cost=1.0).union(quick, order=order).to("q", hg.to_list(rows))  # type: ignore[arg-type]
        app.run("simulated")
        assert rows[0]["name"] == first


def test_an_order_that_is_none_is_refused() -> None:
    app = hg.App("arrival")
    a, b = _source(app, "a", 0), _source(app, "b", 0)
    with pytest.raises(PipelineError, match="order='time': use 'serial' or 'arrival'"):
        a.union(b, order="time")  # type: ignore[arg-type]
