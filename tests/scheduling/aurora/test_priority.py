"""The priority tuple by its formulas, and what it does for queries that compete."""

from __future__ import annotations

import math
from typing import Any

import pytest

import headgate as hg
from brain import Brain
from brain import chosen as boxes_of
from headgate import testing
from headgate.scheduling.aurora.bucketed import BucketedPriorityTuple
from headgate.scheduling.aurora.priority import OLDEST_EVERY, PriorityTuple
from headgate.scheduling.catalog import BoxEntry
from headgate.scheduling.events import Event, Finished, Idle, QueueState, Spawned, Started
from headgate.scheduling.interface import Run
from headgate.scheduling.trains import WHOLE_QUEUE, Share
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
        BoxEntry("shared", 1, (), (1, 2), ("tight", "loose"), 0.1, fed_by=(0,)),
        BoxEntry("tight", 1, (0,), (), ("tight",), 0.2),
        BoxEntry("loose", 1, (0,), (), ("loose",), 0.2),
    ]


def queued(place: int, arrival: float, tuples: int = 3) -> Spawned:
    return Spawned(0.0, place, QueueState(tuples, oldest=arrival, mean=arrival))


def chosen(policy: PriorityTuple, events: list[Event]) -> list[int]:
    return boxes_of(play(policy, boxes(), events, goals=GOALS))


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
    Brain(policy, boxes(), goals=GOALS).tell(queued(place, 0.0))
    assert policy.priority(place, now) == pytest.approx((gradient, -slack))


def test_falling_utility_goes_before_an_older_tuple_that_has_time(policy: PriorityTuple) -> None:
    assert chosen(policy, [queued(1, 9.5), queued(2, 8.0), Idle(10.0, 0)]) == [1]


def test_of_equal_gradients_the_smaller_slack_goes_first(policy: PriorityTuple) -> None:
    assert chosen(policy, [queued(1, 9.9), queued(2, 9.0), Idle(10.0, 0)]) == [1]


def test_a_query_that_has_lost_its_worth_goes_first_to_win_it_back(policy: PriorityTuple) -> None:
    """Not by the buckets, which are as the paper has them: there it has nothing to lose."""
    won_back = type(policy) is PriorityTuple
    assert chosen(policy, [queued(1, 0.0), queued(2, 9.0), Idle(10.0, 0)]) == [1 if won_back else 2]


def test_what_a_second_of_work_wins_back_decides_who_comes_back_first() -> None:
    """Tight's graph is whole up to 0.5 s and nothing from 2 s on; a tuple takes 0.2 s."""
    policy = PriorityTuple()
    brain = Brain(policy, boxes(), goals=GOALS)
    brain.tell(queued(1, 0.0, 10))
    policy._through = {}
    # 4.2 s old at its output; 3.7 s too old to be whole, so 3.7 / 4 of two seconds of work win back 1.
    assert policy.gain(1, 4.0) == pytest.approx(1 / (3.7 / 4.0 * 2.0))
    assert policy.gain(1, 0.2) == 0.0  # in time
    brain.tell(queued(2, 0.0, 10))
    assert policy.gain(2, 4.0) == 0.0  # loose is in time
    # Far behind, half as much is won by the same work as by one that is half as far behind.
    assert policy.gain(1, 7.2) < policy.gain(1, 4.0)


def test_a_box_runs_with_all_that_follows_it(policy: PriorityTuple) -> None:
    run = play(policy, boxes(), [queued(0, 0.0), Idle(0.0, 0)], goals=GOALS)[-1]
    assert isinstance(run, Run)
    assert [call.box for call in run.plan] == [0, 1, 2]


def test_no_box_starves(policy: PriorityTuple) -> None:
    """Loose is far past its last critical point, and behind too far to come back; tight has more to lose."""
    events: list[Event] = [queued(1, 9.5), queued(2, 0.0, 1_000), *[Idle(30.0, 0)] * (3 * OLDEST_EVERY)]
    events[0] = queued(1, 29.5)
    found = chosen(policy, events)
    assert [place for place, box in enumerate(found, 1) if box == 2] == [OLDEST_EVERY, 16, 24]


def test_a_long_old_queue_does_not_take_every_turn_of_those_that_starve(policy: PriorityTuple) -> None:
    """Both are past all utility; one has more old tuples than its turns will ever see."""
    entries = [BoxEntry(f"b{n}", 1, (), (), ("loose",), 0.2, fed_by=(0,)) for n in range(3)]
    brain = Brain(policy, entries, goals=GOALS)
    for place, arrival in enumerate((99.9, 1.0, 5.0)):
        brain.queue(place, 1_000_000, oldest=arrival)
    called = [brain.asked(0, 100.0) for _ in range(6 * OLDEST_EVERY)]
    if type(policy) is PriorityTuple:  # the one that is less behind can be won back sooner; the others wait
        assert called[OLDEST_EVERY - 1 :: OLDEST_EVERY] == [0, 1] * 3
        assert {*called[: OLDEST_EVERY - 1]} == {2}
    else:
        assert called[OLDEST_EVERY - 1 :: OLDEST_EVERY] == [1, 2, 1, 2, 1, 2]


# --- where a plan costs something to start ------------------------------------------------------------------


def step(events: list[Event], entries: list[BoxEntry] | None = None) -> dict[int, Any]:
    """The boxes of the one plan that these events lead to, and their trains."""
    runs = [d for d in play(PriorityTuple(), entries or boxes(), events, goals=GOALS) if isinstance(d, Run)]
    assert len(runs) == 1
    return {call.box: rounded(call.train) for call in runs[0].plan}


def close(share: float) -> float:
    return round(share, 9)


def rounded(train: Any) -> Any:
    return Share(close(train.share)) if isinstance(train, Share) else train


def test_those_that_cannot_wait_for_the_next_step_fill_it_alone() -> None:
    """Half of 0.5 s is a step: 0.1 s to start it, 0.15 s of work, and three tuples take 0.6 s."""
    assert step([queued(1, 9.9), queued(2, 8.0), Idle(10.0, 0, overhead=0.1)]) == {
        1: Share(close(0.15 / 0.6))
    }


def test_others_ride_as_far_as_the_step_has_time() -> None:
    events = [queued(1, 9.9, 1), queued(2, 8.0), Idle(10.0, 0, overhead=0.3)]
    assert step(events) == {1: WHOLE_QUEUE, 2: Share(close(0.1 / 0.6))}
    events = [queued(1, 9.9, 1), queued(2, 8.0, 1), Idle(10.0, 0, overhead=0.41)]
    assert step(events) == {1: WHOLE_QUEUE, 2: WHOLE_QUEUE}


def test_a_train_is_not_cut_to_save_what_a_call_takes_anyway() -> None:
    """Calls take a second whatever they are given; a train cut to a moment would take it again and again."""
    brain = Brain(PriorityTuple(), [BoxEntry("tight", 1, (), (), ("tight",), fed_by=(0,))], goals=GOALS)
    for tuples in (10, 20, 30, 40) * 5:
        brain.tell(Started(0.0, 0, 0, tuples, QueueState(0)))
        brain.tell(Finished(0.0, 0, 0, tuples, tuples, 1.0 + 0.1 * tuples, 0.0))
    assert brain.catalog.boxes[0].fixed == pytest.approx(1.0)
    [run] = brain.tell(queued(0, 9.9, 15), Idle(10.0, 0, overhead=0.1))
    assert isinstance(run, Run)
    assert [rounded(call.train) for call in run.plan] == [Share(close(1.0 / 1.5))]


def test_a_tight_query_that_still_has_a_moment_goes_before_a_loose_one_that_falls_already() -> None:
    """By its gradient now the loose one would go first; two steps later the tight one has lost more."""
    policy = PriorityTuple()
    events = [queued(1, 9.99), queued(2, 2.0), Idle(10.0, 0, overhead=0.1)]
    Brain(policy, boxes(), goals=GOALS).tell(*events[:2])
    assert policy.priority(2, 10.0) > policy.priority(1, 10.0)
    assert list(step(events)) == [1]


def test_a_loose_query_goes_first_when_no_tight_one_waits_or_it_is_past_saving() -> None:
    assert list(step([queued(2, 9.9), Idle(10.0, 0, overhead=0.1)])) == [2]
    assert list(step([queued(1, 1.0), queued(2, 2.0), Idle(10.0, 0, overhead=0.1)])) == [2]


def test_a_long_queue_whose_newest_tuples_can_be_saved_is_not_given_up() -> None:
    """The oldest are 10 s old, far past tight's last critical point, but tuples have come ever since."""
    lagging = Spawned(0.0, 1, QueueState(3, oldest=0.0, mean=5.0))
    assert list(step([lagging, queued(2, 9.0), Idle(10.0, 0, overhead=0.1)])) == [1]


def test_what_queries_share_runs_for_those_whose_turn_it_is_and_the_others_wait_behind_it() -> None:
    assert list(step([queued(0, 9.9), Idle(10.0, 0, overhead=0.3)])) == [0, 1]
    assert list(step([queued(0, 9.9), Idle(10.0, 0, overhead=3.0)])) == [0, 1, 2]


def test_a_query_without_a_goal_rides_along_last() -> None:
    entries = [*boxes(), BoxEntry("plain", 1, (), (), ("plain",), 0.2, fed_by=(0,))]
    events = [queued(3, 0.0), queued(2, 9.9), Idle(10.0, 0, overhead=0.7)]
    assert step(events, entries) == {2: WHOLE_QUEUE, 3: Share(close(0.1 / 0.6))}


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


def test_tight_queries_get_what_they_ask_for_where_round_robin_loses_it() -> None:
    by_turns, by_worth = contended("round_robin"), contended("qos")
    tight = [f"q{query}" for query in range(3, 20, 4)]
    assert sum(by_worth[q] for q in tight) / len(tight) > 0.95
    assert sum(by_turns[q] for q in tight) / len(tight) < 0.75
    assert min(by_worth.values()) > 0.9
