"""``qos`` on Spark: tight queries are in every step, loose ones wait and ride in longer trains."""

from __future__ import annotations

from typing import Any

import pytest

import headgate as hg
from headgate.runtime.report import Report

pytestmark = pytest.mark.xdist_group("spark")
ROWS, RATE = 2_000, 20_000
TIGHT = hg.QoS([(0, 1), (0.2, 1), (60, 0)])
LOOSE = hg.QoS([(0, 1), (600, 1), (900, 0)])


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session may be another test's, on all cores: with many of them nothing would be contended."""
    monkeypatch.setattr("headgate.engines.spark.session.parallelism", lambda session: 2)


def contended(policy: str, shared: bool) -> tuple[Report, dict[str, list[dict[str, Any]]]]:
    """Two tight and four loose queries whose input arrives within a tenth of a second and takes five."""
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
    return app.run(hg.Spark(master="local[2]"), policy, workers=1), found


def until_tight_were_done(report: Report) -> tuple[list[int], list[int], float]:
    """Calls of tight and of loose queries up to the last tight one, and what share of loose was done."""
    calls = [c for c in report.trace if c.box.startswith(("tight", "loose"))]
    last = max(place for place, call in enumerate(calls) if call.box.startswith("tight"))
    count: dict[str, int] = dict.fromkeys([call.box for call in calls], 0)
    done = 0
    for call in calls[: last + 1]:
        count[call.box] += 1
        done += call.tuples if call.box.startswith("loose") else 0
    tight = [n for box, n in count.items() if box.startswith("tight")]
    return tight, [n for box, n in count.items() if box.startswith("loose")], done / (4 * ROWS)


def right(found: dict[str, list[dict[str, Any]]]) -> bool:
    wanted = [(i, i // 7 + 1) for i in range(ROWS)]
    return all([(row["value"], row["n"]) for row in rows] == wanted for rows in found.values())


def test_tight_queries_are_in_more_steps_and_loose_ones_wait() -> None:
    report, found = contended("qos", shared=False)
    tight, loose, done = until_tight_were_done(report)
    assert min(tight) > 2 * max(loose)
    assert done < 0.5
    assert right(found)


def test_application_at_a_time_makes_no_difference_between_them() -> None:
    tight, loose, done = until_tight_were_done(contended("mc", shared=False)[0])
    assert min(tight) <= 2 * max(loose)
    assert done > 0.5


def test_a_box_that_tight_and_loose_queries_share_may_run_for_some_of_them() -> None:
    report, found = contended("qos", shared=True)
    assert right(found)
    boxes = report.boxes
    assert all(boxes[name].calls < report.steps for name in found), "nobody is in every step"
