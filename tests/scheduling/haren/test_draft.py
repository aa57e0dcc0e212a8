"""A scheduling task decides again only what may have changed, and decides the same as if it did all of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_haren import everyone_to, period_over

import headgate as hg
from brain import Brain
from depth import examples
from headgate.errors import PipelineError
from headgate.scheduling import policies
from headgate.scheduling.catalog import BoxEntry
from headgate.scheduling.events import Changed, Finished, QueueState, Rescheduled, Started, Timer
from headgate.scheduling.haren import features
from headgate.scheduling.haren.policy import Haren
from headgate.scheduling.interface import Reschedule

Steps = Sequence[tuple[int, int, int, int]]
PRIORITIES: dict[str, Any] = {
    "fcfs": "fcfs",
    "queue_size": "queue_size",
    "highest_rate": "highest_rate",
    "chain": "chain",
    "age": "age",
    "composed": policies.by_class({1: policies.then("queue_size", "fcfs"), 0: policies.reverse("load")}),
}


def chains(count: int = 4, length: int = 3) -> list[BoxEntry]:
    """Boxes whose costs and selectivities are measured; of every other chain, query class 1."""
    made = []
    for number in range(count * length):
        place = number % length
        made.append(
            BoxEntry(
                f"b{number}",
                1,
                (number - 1,) if place else (),
                (number + 1,) if place + 1 < length else (),
                (f"q{number // length}",),
                fed_by=() if place else (number // length,),
                query_class=number // length % 2,
            )
        )
    return made


def go_through(brain: Brain, steps: Steps) -> list[Any]:
    """Calls of so many tuples and milliseconds leave so many waiting; the schedules of every period."""
    found = []
    for period, (box, tuples, milliseconds, left) in enumerate(steps):
        now = 0.1 * (period + 1)
        queue = QueueState(left, oldest=now - milliseconds / 100)
        if tuples:
            brain.tell(Started(now, 0, box, tuples, queue))
            brain.tell(Finished(now, 0, box, tuples, left, milliseconds / 1000, 0.0))
        else:
            brain.tell(Changed(now, box, queue))
        period_over(brain, now)
        assert not brain.policy.problems
        found.append(
            ([box.worker for box in brain.policy.table.boxes], brain.policy._order, brain.policy._rank)
        )
    return found


def steps() -> st.SearchStrategy[Steps]:
    return st.lists(
        st.tuples(st.integers(0, 11), st.integers(0, 9), st.integers(1, 40), st.integers(0, 30)), max_size=25
    )


@pytest.mark.parametrize("name", PRIORITIES)
@settings(max_examples=examples(25))
@given(steps(), st.integers(1, 3))
def test_what_is_decided_again_in_part_is_as_if_decided_anew(name: str, done: Steps, workers: int) -> None:
    """A function that is not known to be one of features is asked for every box in every task."""
    prioritize = PRIORITIES[name]
    known = policies.haren(prioritize=prioritize)
    anew = policies.haren(prioritize=lambda box: known.prioritize(box))
    assert go_through(Brain(known, chains(), workers), done) == go_through(
        Brain(anew, chains(), workers), done
    )


@pytest.mark.parametrize("assign", [policies.balanced, policies.together])
@settings(max_examples=examples(40))
@given(steps(), st.integers(1, 3))
def test_boxes_given_out_at_once_go_where_they_would_one_by_one(
    assign: Callable[..., Any], done: Steps, workers: int
) -> None:
    at_once = policies.haren(assign)
    singly = policies.haren(lambda box, workers: assign(box, workers))
    assert go_through(Brain(at_once, chains(), workers), done) == go_through(
        Brain(singly, chains(), workers), done
    )


def computed(prioritize: Any, touched: Sequence[int], twice: bool = False) -> int:
    """How many priorities of fifty a task computes."""
    brain = Brain(policies.haren(everyone_to(0), prioritize), 50)
    for turn in range(1 + twice):
        for box in touched:
            brain.queue(box, 5)
        reschedule = brain.policy.handle(Timer(0.1 * (turn + 1), "haren"))[0]
        assert isinstance(reschedule, Reschedule)
        dealt = [sum(piece() for piece in phase.slices) for phase in reschedule.phases]
        brain.policy.handle(Rescheduled(0.1 * (turn + 1)))
    return dealt[-1]


def test_priorities_made_of_features_are_computed_where_one_has_changed() -> None:
    own = policies.then("queue_size", policies.reverse("fcfs"))
    assert computed("queue_size", [0, 2, 4]) == computed(own, [0, 2, 4]) == 3
    assert computed("queue_size", [0, 2, 4], twice=True) == 0, "they were touched, and nothing has changed"
    assert computed("age", [0]) == 50, "time changes all of them"
    assert computed(lambda box: box.queue_length, [0, 2, 4]) == 50, "it may look at anything"
    assert computed(policies.then("queue_size", lambda box: box.number), [0]) == 50


# --- mistakes that come late ----------------------------------------------------------------------------


@pytest.fixture
def define(request: pytest.FixtureRequest) -> Callable[..., None]:
    def define(name: str, function: Callable[..., Any], **options: Any) -> None:
        request.addfinalizer(lambda: features._FEATURES.pop(name))
        hg.feature(name=name, **options)(function)

    return define


def test_a_circle_that_shows_while_it_runs_leaves_the_schedule_before_in_force(
    define: Callable[..., None],
) -> None:
    define("endless", lambda box, downstream: box.endless + 1, depends_on="downstream")
    policy = policies.haren(prioritize=lambda box: box.endless if box.queue_length > 9 else box.queue_length)
    brain = Brain(policy, 2)
    brain.queue(0, 1)
    brain.queue(1, 2)
    period_over(brain, 0.1)
    assert brain.asked() == 1
    for turn in range(2, 5):
        brain.queue(0, 50)
        period_over(brain, 0.1 * turn)
        assert brain.asked() == 1, "as decided before"
    [problem] = policy.problems
    assert "feature 'endless' depends on itself in a circle, on box 'b0'" in problem
    assert "stays in force" in problem
    brain.queue(0, 9)
    period_over(brain, 0.6)
    assert brain.asked() == 0


def test_a_feature_that_becomes_nan_is_a_wrong_priority_until_it_is_none_any_more(
    define: Callable[..., None],
) -> None:
    """Though its box is not touched again, and the priority of no other has to be computed."""
    define("odd", lambda box: math.nan if box.queue_length == 13 else float(box.queue_length))
    policy = policies.haren(everyone_to(0), "odd")
    brain = Brain(policy, 3)
    for box, tuples in enumerate((1, 2, 3)):
        brain.queue(box, tuples)
    period_over(brain, 0.1)
    assert brain.asked() == 2
    brain.queue(0, 13)
    brain.queue(1, 9)
    period_over(brain, 0.2)
    assert brain.asked() == 2, "as decided before"
    [problem] = policy.problems
    assert "(odd) gave box 'b0' the priority nan" in problem
    brain.queue(0, 1)
    period_over(brain, 0.3)
    assert brain.asked() == 1, "what was missed meanwhile is known now"


def test_half_a_schedule_does_not_come_into_force() -> None:
    """Worker 0's boxes have changed places, and one has moved, when the priority of worker 1's box fails."""
    broken: list[bool] = []

    def assign(box: Any, workers: Any) -> int:
        return int(box.number == 3 or (box.number == 2 and bool(broken)))

    def prioritize(box: Any) -> int:
        if box.number == 3 and broken:
            raise ValueError("broken")
        return int(box.queue_length)

    brain = Brain(policies.haren(assign, prioritize), 4, workers=2)
    for box in range(3):
        brain.queue(box, 3 - box)
    period_over(brain, 0.1)
    broken.append(True)
    brain.queue(0, 1)
    brain.queue(1, 9)
    period_over(brain, 0.2)
    assert len(brain.policy.problems) == 1
    assert [brain.call(0, 0.2, left=0) for _ in range(4)] == [0, 1, 2, None], "as decided before"
    assert brain.asked(1) is None
    broken.clear()
    brain.queue(0, 1)
    brain.queue(1, 9)
    period_over(brain, 0.3)
    assert brain.asked(0) == 1


def test_the_knobs_of_shipped_policies_are_set_by_name_too() -> None:
    policy = policies.get("fcfs", period=0.02, batch=5)
    assert isinstance(policy, Haren)
    assert (policy.name, policy.period, policy.batch) == ("fcfs", 0.02, 5)
    assert policies.get("multi_class", otherwise="chain", assign=policies.balanced).name == "multi_class"
    for option in ("prioritize", "trian"):
        with pytest.raises(PipelineError, match=f"has no option '{option}'; it takes assign, period, batch"):
            policies.get("fcfs", **{option: 1})
