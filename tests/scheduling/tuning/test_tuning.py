"""Trains that are tuned while running follow a load that changes its shape."""

from __future__ import annotations

from statistics import median

import pyarrow as pa
import pytest

import headgate as hg
from headgate.errors import PipelineError
from headgate.scheduling.tuning.climbing import Climber

CALM, STORM = 60.0, 120.0


def drop(query: str, batch: pa.RecordBatch) -> None:
    pass


def weather() -> hg.App:
    """A burst every second, beside a trickle that has to wait for it: first of 300 tuples, then of 700."""
    app = hg.App("weather")
    calm = app.source("calm", hg.from_rate(300, limit=300 * 60, burst=300))
    storm = app.source("storm", hg.from_rate(700, limit=700 * 60, burst=700, first=CALM))
    calm.union(storm).universal(cost=0.001).to("heavy", hg.to_function(drop))
    app.source("trickle", hg.from_rate(10, limit=10 * 120)).universal(cost=0.001).to(
        "light", hg.to_function(drop)
    )
    return app


def mean_latency(policy: object) -> float:
    report = weather().run(hg.Simulated(workers=1, call_overhead=0.002), policy)  # type: ignore[arg-type]
    return sum(query.latency.mean for query in report.queries.values()) / 2


def test_trains_follow_the_load() -> None:
    """Short ones let the trickle through while calls are affordable; in the storm their overhead is not."""
    tuned = hg.policies.tuned("mc", period=2.0)
    found = mean_latency(tuned)
    calm = [train for time, train in tuned.history if CALM / 2 < time <= CALM]
    storm = [train for time, train in tuned.history if time > (CALM + STORM) / 2]
    assert median(calm) == 16
    assert median(storm) == 64
    assert found < 0.8 * mean_latency("mc")


def test_where_nothing_is_to_be_tuned_latency_stays_and_trials_become_rare() -> None:
    """Calls of one tuple would overload the worker.  A failed trial must not look like another load."""

    def run(policy: object) -> float:
        app = hg.App("steady")
        source = app.source("steady", hg.from_rate(300, limit=300 * 100, burst=15))
        source.universal(cost=0.001).to("q", hg.to_function(drop))
        report = app.run(hg.Simulated(workers=1, call_overhead=0.004), policy)  # type: ignore[arg-type]
        return report.queries["q"].latency.mean

    tuned = hg.policies.tuned("mc")
    assert run(tuned) < 1.3 * run("mc")
    assert len(tuned.history) < 20


def test_what_is_tuned_must_have_trains_to_tune() -> None:
    with pytest.raises(PipelineError, match="'lp'"):
        hg.policies.tuned("lp")
    with pytest.raises(PipelineError, match="period"):
        hg.policies.tuned("mc", period=0)


def climbed(rates: dict[int, float], start: int, periods: int, highest: int = 10) -> list[int]:
    climber = Climber(0, highest, start, up=1.05, down=1.05)
    return [climber.reconsider(rates[climber.value]) for _ in range(periods)]


def test_a_climber_finds_the_top_and_looks_around_ever_less() -> None:
    rates = {value: 100.0 - 10 * abs(value - 4) for value in range(11)}
    values = climbed(rates, 9, 60)
    assert values[-1] == 4
    assert values[12:24].count(4) < values[24:36].count(4) <= values[48:].count(4)


def test_a_climber_stays_where_nothing_pays() -> None:
    values = climbed(dict.fromkeys(range(11), 50.0), 5, 40)
    assert values.count(5) > 25
    assert set(values) == {4, 5, 6}


def test_a_climber_s_upper_end_can_come_down() -> None:
    climber = Climber(0, 10, 9, up=1.05, down=1.05)
    climber.bound(3)
    assert climber.value == 3
    assert climber.reconsider(1.0) == 2
