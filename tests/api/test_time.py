"""Event time through the public surface: idle sources, late rows, early results."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate import testing

START = datetime(2024, 1, 1, tzinfo=UTC)
ROWS = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("us", tz="UTC"))])


def row(seconds: float, k: int = 1) -> dict[str, Any]:
    return {"k": k, "ts": START + timedelta(seconds=seconds)}


@pytest.mark.parametrize(("idle_after", "pairs"), [(None, 1), ("5 seconds", 0)])
def test_an_idle_source_does_not_hold_a_joins_time_back(idle_after: str | None, pairs: int) -> None:
    """The left source says nothing for 20 s while the right one's time goes on by 100 s.

    While the left holds time back, the right row of 45 s waits for a left partner; once the left is known
    to be idle, time moves on and the row is forgotten.
    """
    app, found = hg.App("idle"), []
    left = app.source("left", testing.Timed([(0, [row(0)]), (20, [row(50)])], ROWS), idle_after=idle_after)
    right = app.source("right", testing.Timed([(1, [row(45)]), (10, [row(100)])], ROWS))
    left.key_by("k").join(right.key_by("k"), within="10 seconds", on="ts").to("q", hg.to_list(found))
    app.run("simulated")
    assert len(found) == pairs


def test_late_rows_are_counted_and_can_leave(engine: hg.Engine) -> None:
    app, counts, late = hg.App("late"), [], []
    rows = [row(1), row(2), row(70), row(3), row(71)]
    windows = (
        app.source("rows", testing.from_rows(rows, ROWS)).key_by("k").window(hg.tumbling("1 minute", on="ts"))
    )
    windows.agg("count(*) AS n").to("counts", hg.to_list(counts))
    windows.late().to("late", hg.to_list(late))
    report = app.run(engine)
    assert [c["n"] for c in counts] == [2, 2]
    assert late == [row(3)]
    assert report.queries["counts"].late == 1


def test_early_results_leave_while_the_window_is_open(engine: hg.Engine) -> None:
    app, found = hg.App("early"), []
    rows = [row(1), row(2), row(11), row(25), row(61)]
    stream = app.source("rows", testing.from_rows(rows, ROWS))
    stream.key_by("k").window(hg.tumbling("1 minute", on="ts")).agg("count(*) AS n", early="10 seconds").to(
        "counts", hg.to_list(found)
    )
    app.run(engine)
    assert [(r["n"], r["early"]) for r in found] == [(3, True), (4, True), (4, False), (1, True), (1, False)]
