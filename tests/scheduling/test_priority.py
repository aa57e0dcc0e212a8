"""The priority tuple by its formulas, and what it does for queries that compete."""

from __future__ import annotations

import math
from typing import Any

import pytest

import headgate as hg
from headgate import testing
from headgate.scheduling.catalog import BoxEntry, Catalog
from headgate.scheduling.interface import Event, Idle, QueueState, Run, Spawned
from headgate.scheduling.policies.bucketed import BucketedPriorityTuple
from headgate.scheduling.policies.priority import OLDEST_EVERY, PriorityTuple
from headgate.testing import play

TIGHT = hg.QoS([(0, 1), (0.5, 1), (2, 0)])
LOOSE = hg.QoS([(0, 1), (5, 1), (20, 0)])
GOALS = {"tight": TIGHT, "loose": LOOSE}


@pytest.fixture(params=[PriorityTuple, BucketedPriorityTuple], ids=["qos", "qos_bucketed"])
def policy(request: pytest.FixtureRequest) -> PriorityTuple:
    """The exact one, and the one in buckets: for boxes that differ enough they decide alike."""
    made = request.param()
    assert isinstance(made, PriorityTuple)
    return made


def boxes() -> list[BoxEntry]:
    """A shared box of 0.1 s per tuple before one of each query, of 0.2 s."""
    return [
        BoxEntry("shared", 1, (), (1, 2), ("tight", "loose"), 0.1, sources=1),
        BoxEntry("tight", 1, (0,), (), ("tight",), 0.2),
        BoxEntry("loose", 1, (0,), (), ("loose",), 0.2),
    ]


def queued(place: int, arrival: float, tuples: int = 3) -> Spawned:
    return Spawned(0.0, place, QueueState(tuples, oldest=arrival, mean=arrival))


def chosen(policy: PriorityTuple, events: list[Event]) -> list[int]:
    decisions = play(policy, boxes(), events, goals=GOALS)
    return [d.plan[0].box for d in decisions if isinstance(d, Run)]


@pytest.mark.parametrize(
    ("place", "now", "gradient", "slack"),
    [
        (1, 0.1, 0.0, 0.2),  # 0.1 s old, 0.2 s to go: 0.3 s, and 0.5 is critical
        (1, 0.3, 1 / 1.5, 1.5),  # on the slope
        (1, 9.0, 0.0, math.inf),  # past it
        (2, 0.1, 0.0, 4.7),
        (0, 0.2, 1 / 1.5, 1.5),  # of both queries: 0.5 s is on tight's slope; its slack is the smaller
        (0, 4.7, 1 / 15, 15.0),  # tight has nothing to lose any more, loose has
    ],
)
def test_the_tuple_is_gradient_and_slack_at_the_expected_latency(
    policy: PriorityTuple, place: int, now: float, gradient: float, slack: float
) -> None:
    catalog = Catalog(boxes(), GOALS)
    policy.start(catalog, 1)
    catalog.apply(queued(place, 0.0))
    assert policy.priority(place, now) == pytest.approx((gradient, -slack))


def test_falling_utility_goes_before_an_older_tuple_that_has_time(policy: PriorityTuple) -> None:
    assert chosen(policy, [queued(1, 9.5), queued(2, 8.0), Idle(10.0, 0)]) == [1]


def test_of_equal_gradients_the_smaller_slack_goes_first(policy: PriorityTuple) -> None:
    assert chosen(policy, [queued(1, 9.9), queued(2, 9.0), Idle(10.0, 0)]) == [1]
    assert chosen(policy, [queued(1, 0.0), queued(2, 9.0), Idle(10.0, 0)]) == [2]


def test_a_box_runs_with_all_that_follows_it(policy: PriorityTuple) -> None:
    run = play(policy, boxes(), [queued(0, 0.0), Idle(0.0, 0)], goals=GOALS)[-1]
    assert isinstance(run, Run)
    assert [call.box for call in run.plan] == [0, 1, 2]


def test_no_box_starves(policy: PriorityTuple) -> None:
    """Loose is far past its last critical point; tight always has something to lose."""
    events: list[Event] = [queued(1, 9.5), queued(2, 0.0), *[Idle(30.0, 0)] * (3 * OLDEST_EVERY)]
    events[0] = queued(1, 29.5)
    found = chosen(policy, events)
    assert [place for place, box in enumerate(found, 1) if box == 2] == [OLDEST_EVERY, 16, 24]


def test_where_a_plan_costs_something_those_that_cannot_wait_go_alone(policy: PriorityTuple) -> None:
    events = [queued(1, 9.5), queued(2, 9.9), Idle(10.0, 0, overhead=0.1)]
    [run] = [d for d in play(policy, boxes(), events, goals=GOALS) if isinstance(d, Run)]
    assert [call.box for call in run.plan] == [1]
    events = [queued(1, 10.0), queued(2, 9.9), Idle(10.0, 0, overhead=0.7)]
    [run] = [d for d in play(policy, boxes(), events, goals=GOALS) if isinstance(d, Run)]
    assert [call.box for call in run.plan] == [1], "in 1.4 s it would be too late"
    events = [queued(1, 10.0, 1), queued(2, 9.9, 1), Idle(10.0, 0, overhead=0.14)]
    [run] = [d for d in play(policy, boxes(), events, goals=GOALS) if isinstance(d, Run)]
    assert [call.box for call in run.plan] == [1], "0.2 s of work is worth a plan of 0.14 s"


def contended(policy: str) -> dict[str, Any]:
    """Twenty queries at nine tenths of one worker's capacity in bursts, every other one tight."""
    app = hg.App("contended")
    bursts = [(second * 1.0, [{"a": second * 30 + i} for i in range(30)]) for second in range(40)]
    stream = app.source("bursts", testing.Timed(bursts))
    tight, loose = hg.QoS([(0, 1), (0.3, 1), (0.6, 0)]), hg.QoS([(0, 1), (4, 1), (8, 0)])
    for query in range(20):
        out = stream.universal(cost=0.0015, name=f"box-{query}")
        out.to(f"q{query}", hg.to_list([]), qos=tight if query % 4 == 3 else loose)
    report = app.run(hg.Simulated(workers=1), policy)
    return {name: query.qos for name, query in report.queries.items()}


@pytest.mark.parametrize("name", ["qos", "qos_bucketed"])
def test_tight_queries_get_what_they_ask_for_where_round_robin_loses_it(name: str) -> None:
    by_turns, by_worth = contended("round_robin"), contended(name)
    tight = [f"q{query}" for query in range(3, 20, 4)]
    assert sum(by_worth[q] for q in tight) / len(tight) > 0.95
    assert sum(by_turns[q] for q in tight) / len(tight) < 0.75
    assert min(by_worth.values()) > 0.9
