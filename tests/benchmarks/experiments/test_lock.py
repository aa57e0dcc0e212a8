"""The benchmark of the scheduler's lock: what it counts, and what it makes of that for other machines."""

from __future__ import annotations

import pytest

import headgate as hg
from benchmarks.experiments import lock
from headgate import testing


def test_cores_gain_until_the_lock_is_always_held() -> None:
    found = {cores: lock.passes([9.0], [1.0], cores, 20_000) for cores in (1, 2, 10, 16)}
    one = found[1]
    assert one == pytest.approx(0.1, rel=0.01)
    assert found[2] / one == pytest.approx(2, rel=0.01)
    assert found[10] / one == pytest.approx(10, rel=0.01)
    assert found[16] / one == pytest.approx(10, rel=0.01), "one visit a second is all that there is time for"
    assert lock.passes([9.0], [0.0], 16, 20_000) / one == pytest.approx(160 / 9, rel=0.01)


def test_visits_of_workers_are_counted_and_answers_stay_the_same() -> None:
    found: list[dict[str, int]] = []
    app = hg.App("watched")
    rows = app.source("rows", testing.from_rows([{"a": i} for i in range(200)]))
    rows.filter("a % 2 = 0").select("a").to("q", hg.to_list(found))
    with lock.watching() as visits:
        report = app.run(hg.Threads(2, packet_rows=10), "las")
    assert found == [{"a": i} for i in range(0, 200, 2)]
    assert report.queries["q"].error is None
    assert len(visits.waited) == len(visits.away) >= len(visits.held) > 0
    assert min(visits.held) >= 0
