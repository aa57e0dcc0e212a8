"""``qos`` on Spark: tight queries are in every step, loose ones wait and ride in longer trains."""

from __future__ import annotations

from typing import Any

import pytest

import headgate as hg
from headgate.engines.report import Report

pytestmark = pytest.mark.xdist_group("spark")
ROWS, RATE = 4_000, 2_000
TIGHT = hg.QoS([(0, 1), (0.2, 1), (60, 0)])
LOOSE = hg.QoS([(0, 1), (600, 1), (900, 0)])


def contended(policy: str, shared: bool) -> tuple[Report, dict[str, list[dict[str, Any]]]]:
    """Two tight and four loose queries with more work than two cores can do while their input arrives."""
    app = hg.App("contended")
    found: dict[str, list[dict[str, Any]]] = {}
    numbers = app.source("numbers", hg.from_rate(RATE, limit=ROWS, burst=100))
    keyed = numbers.select("value", "value % 7 AS k")
    for query in range(6):
        name = f"{'loose' if query % 3 else 'tight'}-{query}"
        found[name] = []
        rows = keyed if shared else numbers.select("value", "value % 7 AS k")
        worked = rows.universal(cost=0.0004, name=f"work-{query}")
        sums = worked.key_by("k").running("count(*) AS n", name=name)
        sums.to(name, hg.to_list(found[name]), qos=LOOSE if query % 3 else TIGHT)
    return app.run(hg.Spark(master="local[2]"), policy, workers=2), found


def calls(report: Report, kind: str) -> list[int]:
    return [box.calls for name, box in report.boxes.items() if name.startswith(kind)]


@pytest.mark.parametrize("shared", [False, True])
def test_tight_queries_are_in_more_steps_than_loose_ones(shared: bool) -> None:
    report, found = contended("qos", shared)
    assert min(calls(report, "tight")) > 1.5 * max(calls(report, "loose"))
    for rows in found.values():
        assert [(row["value"], row["n"]) for row in rows] == [(i, i // 7 + 1) for i in range(ROWS)]


def test_application_at_a_time_makes_no_difference_between_them() -> None:
    report, _ = contended("mc", shared=False)
    assert min(calls(report, "tight")) < 1.5 * max(calls(report, "loose"))
