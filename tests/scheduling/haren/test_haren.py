"""Haren's two tasks: who runs what next, and how that is decided anew; without any engine."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headgate as hg
from brain import Brain
from depth import examples
from headgate.errors import PipelineError
from headgate.scheduling import policies
from headgate.scheduling.catalog import BoxEntry
from headgate.scheduling.events import Finished, Idle, QueueState, Spawned, Started, Timer
from headgate.scheduling.haren.policy import FAVOUR, Haren
from headgate.scheduling.interface import Call, Reschedule, Run, SetTimer, Wake
from headgate.scheduling.trains import FIRST, Count, Time


def period_over(brain: Brain, time: float) -> None:
    brain.tell(Timer(time, "haren"))


def by(priorities: Sequence[Any]) -> Callable[[Any], Any]:
    def priority(box: Any) -> Any:
        return priorities[box.number]

    return priority


def everyone_to(worker: int) -> Callable[[Any, Any], int]:
    return lambda box, workers: worker


# --- the execution task ---------------------------------------------------------------------------------


def test_a_worker_runs_its_first_box_that_can_run() -> None:
    brain = Brain(policies.haren(prioritize=by([1, 3, 2])), 3)
    brain.queue(0, 5)
    brain.queue(2, 5)
    assert brain.asked() == 2
    brain.queue(1, 5)
    assert brain.asked() == 1


def test_a_box_whose_results_find_no_room_is_passed_over() -> None:
    boxes = [BoxEntry("a", 1, (), (1,), ("q",)), BoxEntry("b", 1, (0,), (), ("q",))]
    brain = Brain(policies.haren(prioritize=by([2, 1])), boxes)
    brain.queue(0, 5)
    brain.tell(Spawned(0.0, 1, QueueState(9, full=frozenset({0}))))
    assert brain.asked() == 1


def test_priorities_are_numbers_or_tuples_compared_in_order() -> None:
    brain = Brain(policies.haren(prioritize=by([(1, 5), (2, 0), (1, 6), 1.5])), 4)
    for box in range(4):
        brain.queue(box, 1)
    order = []
    for _ in range(4):
        order.append(brain.call(0, 0.0, left=0))
    assert order == [1, 3, 2, 0]


@pytest.mark.parametrize(("batch", "train"), [(7, Count(7)), (Time(0.5), Time(0.5))])
def test_a_call_takes_at_most_a_batch(batch: Any, train: Any) -> None:
    brain = Brain(policies.haren(batch=batch), 1)
    brain.queue(0, 100)
    brain.tell(Idle(0.0, 0))
    assert brain.decisions[-1] == Run(0, (Call(0, train),))


def test_without_a_batch_a_call_is_short_in_time_once_its_cost_is_known() -> None:
    brain = Brain(policies.haren(), [BoxEntry("a", 1, (), (), ("q",))])
    brain.queue(0, 5000)
    brain.tell(Idle(0.0, 0))
    assert brain.decisions[-1] == Run(0, (Call(0, Time(0.01)),))
    assert Time(0.01).size(brain.catalog.boxes[0]) == FIRST
    brain.tell(Started(0.0, 0, 0, 16, QueueState(4984)), Finished(0.016, 0, 0, 16, 0, 0.016, 0.0))
    assert Time(0.01).size(brain.catalog.boxes[0]) == 10


def test_workers_run_the_boxes_that_they_were_given() -> None:
    brain = Brain(policies.haren(assign=lambda box, workers: box.number % 2), 4, workers=2)
    for box in range(4):
        brain.queue(box, 1)
    assert {brain.asked(1), brain.asked(1)} == {1, 3}
    assert {brain.asked(0), brain.asked(0)} == {0, 2}


def test_a_worker_with_nothing_to_run_is_parked_and_its_own_box_wakes_it() -> None:
    brain = Brain(policies.haren(assign=lambda box, workers: box.number % 2), 2, workers=2)
    assert brain.asked(0) is None
    assert brain.asked(1) is None
    brain.queue(1, 1)
    assert brain.decisions[1:] == [Wake((1,))]


# --- fairness -------------------------------------------------------------------------------------------


def test_equal_priorities_take_turns() -> None:
    brain = Brain(policies.haren(prioritize=by([1, 1, 0, 1])), 4)
    for box in range(4):
        brain.queue(box, 9)
    assert [brain.call(0, 0.0) for _ in range(7)] == [0, 1, 3, 0, 1, 3, 0]


def test_turns_go_on_over_scheduling_tasks() -> None:
    brain = Brain(policies.haren(prioritize=by([1, 1, 1])), 3)
    for box in range(3):
        brain.queue(box, 9)
    found = [brain.call(0, 0.0)]
    period_over(brain, 0.1)
    found += [brain.call(0, 0.1), brain.call(0, 0.1)]
    assert found == [0, 1, 2]


@settings(max_examples=examples(60))
@given(st.integers(2, 6), st.integers(1, 40), st.integers(0, 1000), st.sampled_from([0.05, 0.5, 2.0]))
def test_no_box_starves(count: int, milliseconds: int, seed: int, patience: float) -> None:
    """All can always run, and priorities never change: each still runs within the bound."""
    seconds = milliseconds / 1000
    policy = Haren(prioritize=by([(box * 7 + seed) % 11 for box in range(count)]), patience=patience)
    brain = Brain(policy, count)
    for box in range(count):
        brain.queue(box, 9)
    bound = patience + count * seconds * (1 / FAVOUR + 2)
    now, ran, period = 0.0, [0.0] * count, 0.1
    while now < 3 * bound:
        box = brain.call(0, now, seconds)
        assert box is not None
        now += seconds
        ran[box] = now
        if now > period:
            period_over(brain, now)
            period = now + 0.1
        assert now - min(ran) <= bound + seconds


def test_overdue_boxes_take_a_small_share_of_the_time() -> None:
    policy = Haren(prioritize=by([1, 0, 0, 0]), patience=0.5)
    brain = Brain(policy, 4)
    for box in range(4):
        brain.queue(box, 9)
    calls: Counter[int | None] = Counter()
    for turn in range(20_000):
        calls[brain.call(0, turn * 0.01, 0.01)] += 1
    low = calls[1] + calls[2] + calls[3]
    assert 3 <= low <= FAVOUR * 20_000 + 3
    assert max(calls[1], calls[2], calls[3]) - min(calls[1], calls[2], calls[3]) <= 1


def test_a_call_for_an_overdue_box_that_could_not_begin_is_made_up_for() -> None:
    brain = Brain(Haren(prioritize=by([1, 0]), patience=0.5), 2)
    brain.queue(0, 9)
    brain.queue(1, 9)
    assert brain.call(0, 0.1) == 0
    assert brain.asked(0, 10.0) == 1
    assert brain.asked(0, 10.1) == 1, "the engine has skipped it, and it has still not run"


# --- the scheduling task --------------------------------------------------------------------------------


def test_a_task_has_the_papers_phases() -> None:
    """Own features, priorities: by all; dependent features and assignment: by one."""
    brain = Brain(policies.haren(), 4, workers=3)
    brain.queue(0, 1)
    period_over(brain, 0.1)
    assert [(phase.name, len(phase.slices)) for phase in brain.phases] == [
        ("own features", 3),
        ("dependent features", 1),
        ("assignment", 1),
        ("priorities", 3),
    ]


def test_it_is_due_every_period_while_something_happens() -> None:
    brain = Brain(policies.haren(period=0.25), 1)
    brain.queue(0, 1)
    period_over(brain, 0.25)
    timers = [d for d in brain.decisions if isinstance(d, SetTimer)]
    assert timers == [SetTimer(0.25, "haren"), SetTimer(0.5, "haren")]
    period_over(brain, 0.5)
    assert sum(isinstance(d, Reschedule) for d in brain.decisions) == 1, "nothing has happened since"
    brain.queue(0, 2, time=7.0)
    assert brain.decisions[-1] == SetTimer(7.25, "haren")


def test_a_new_period_counts_from_the_next_task_on() -> None:
    policy = policies.haren(period=0.25)
    brain = Brain(policy, 1)
    policy.period, policy.batch = 2.0, 3
    brain.queue(0, 1)
    period_over(brain, 0.25)
    assert brain.decisions[-1] == SetTimer(2.25, "haren")
    brain.tell(Idle(0.25, 0))
    assert brain.decisions[-1] == Run(0, (Call(0, Count(3)),))


def test_priorities_follow_the_features_at_the_next_task() -> None:
    brain = Brain(policies.haren(prioritize="queue_size"), 2)
    brain.queue(0, 5)
    brain.queue(1, 6)
    period_over(brain, 0.1)
    assert brain.asked() == 1
    brain.queue(0, 7)
    assert brain.asked() == 1, "not before the period is over"
    period_over(brain, 0.2)
    assert brain.asked() == 0


def test_only_what_was_touched_is_looked_at_again() -> None:
    for assign, looked_at in (
        (lambda box, workers: box.number % 2, [3, 0]),
        (lambda box, workers: int(box.age) + box.number % 2, [25, 25]),
    ):
        brain = Brain(policies.haren(assign, "queue_size"), 50, workers=2)
        for box in (0, 2, 4):
            brain.queue(box, 5)
        period_over(brain, 0.1)
        # The age of every box changes with time.
        assert [own() for own in brain.phases[0].slices] == looked_at


def test_workers_share_the_load_and_boxes_stay_where_they_are() -> None:
    brain = Brain(policies.haren(), 4, workers=2)
    for box, tuples in enumerate((100, 10, 100, 90)):
        brain.queue(box, tuples)
    period_over(brain, 0.1)
    owners = [box.worker for box in brain.policy.table.boxes]
    loads = [sum(t for t, w in zip((100, 10, 100, 90), owners, strict=True) if w == n) for n in range(2)]
    assert max(loads) < 200, "where they began, worker 0 would have 200 of 300"
    for _ in range(3):
        brain.queue(0, 100)
        period_over(brain, 0.2)
        assert [box.worker for box in brain.policy.table.boxes] == owners


def test_it_needs_only_what_its_functions_ask_for() -> None:
    for prioritize, needs in (
        ("queue_size", set()),
        ("fcfs", {"head"}),
        (lambda box: box.queued_bytes, {"bytes"}),
        ("chain", {"head", "bytes"}),
    ):
        policy = policies.haren(everyone_to(0), prioritize)
        Brain(policy, 2)
        assert policy.needs == needs, prioritize


# --- composition ----------------------------------------------------------------------------------------


def classes(*numbers: int) -> list[BoxEntry]:
    return [
        BoxEntry(f"b{i}", 1, (), (), ("q",), stated_cost=1e-3, query_class=n) for i, n in enumerate(numbers)
    ]


def order(prioritize: Any, boxes: list[BoxEntry], queues: Sequence[tuple[int, float]]) -> list[int | None]:
    """In which order boxes with these queues (tuples, oldest arrival) get a call each."""
    brain = Brain(policies.haren(prioritize=prioritize), boxes)
    for box, (tuples, oldest) in enumerate(queues):
        brain.queue(box, tuples, oldest=oldest)
    period_over(brain, 0.1)
    return [brain.call(0, 0.1, left=0) for _ in queues]


def test_functions_are_put_together() -> None:
    queues = [(5, 3.0), (5, 1.0), (9, 9.0), (1, 0.0)]
    boxes = classes(0, 0, 0, 0)
    assert order("queue_size", boxes, queues) == [2, 0, 1, 3]
    assert order(hg.policies.then("queue_size", "fcfs"), boxes, queues) == [2, 1, 0, 3]
    assert order(hg.policies.reverse("queue_size"), boxes, queues) == [3, 0, 1, 2]
    assert order(hg.policies.reverse(hg.policies.then("queue_size", "fcfs")), boxes, queues) == [3, 0, 1, 2]
    assert order("head_arrival", boxes, queues) == [2, 0, 1, 3], "a feature's name is a priority too"


def test_classes_come_first_and_each_has_its_own_function() -> None:
    queues = [(5, 3.0), (9, 4.0), (5, 1.0), (1, 0.0)]
    boxes = classes(0, 0, 2, 2)
    assert order(hg.policies.by_class("queue_size"), boxes, queues) == [2, 3, 1, 0]
    assert order(hg.policies.by_class({2: "fcfs", 0: "queue_size"}), boxes, queues) == [3, 2, 1, 0]


def test_multi_class_serves_the_highest_for_its_oldest_tuple_and_others_for_their_rate() -> None:
    boxes = classes(0, 0, 1, 1)
    boxes[1].stated_cost = 1e-4
    brain = Brain(policies.MultiClass(), boxes)
    for box, oldest in enumerate((0.0, 5.0, 3.0, 2.0)):
        brain.queue(box, 10, oldest=oldest)
    period_over(brain, 0.1)
    assert [brain.call(0, 0.1, left=0) for _ in range(4)] == [3, 2, 1, 0]


def test_random_draws_anew_every_period_and_by_the_seed() -> None:
    def orders(seed: int) -> list[list[int | None]]:
        brain = Brain(policies.Random(), 8, seed=seed)
        found = []
        for period in range(1, 4):
            for box in range(8):
                brain.queue(box, 1)
            period_over(brain, 0.1 * period)
            found.append([brain.call(0, 0.1, left=0) for _ in range(8)])
        return found

    assert orders(1) == orders(1)
    assert len({tuple(o) for o in [*orders(1), *orders(2)]}) > 4


# --- mistakes -------------------------------------------------------------------------------------------


def sometimes(given: list[Any], usual: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does what the list says first, if it has something."""

    def function(*arguments: Any) -> Any:
        if not given:
            return usual(*arguments)
        if isinstance(given[0], BaseException):
            raise given[0]
        return given[0]

    function.__name__ = "mine"
    return function


@pytest.mark.parametrize(
    ("what", "gives", "message"),
    [
        ("prioritize", ZeroDivisionError("by nothing"), "mine.*failed on box 'b0': ZeroDivisionError: by no"),
        ("prioritize", math.nan, "mine.*gave box 'b0' the priority nan"),
        ("prioritize", (1, math.nan), r"mine.*gave box 'b0' the priority \(1, nan\)"),
        ("prioritize", "high", "mine.*gave box 'b0' the priority 'high'"),
        ("prioritize", None, "mine.*gave box 'b0' the priority None"),
        ("assign", 2, "mine.*gave box 'b0' to worker 2; there are 0 to 1"),
        ("assign", -1, "mine.*gave box 'b0' to worker -1"),
        ("assign", 0.5, "mine.*gave box 'b0' to worker 0.5"),
        ("assign", KeyError("x"), "mine.*failed on box 'b0': KeyError: 'x'"),
    ],
)
def test_a_function_that_fails_leaves_the_schedule_before_in_force(
    what: str, gives: Any, message: str
) -> None:
    wrong: list[Any] = []
    functions = {"assign": lambda box, workers: 0, "prioritize": lambda box: box.queue_length}
    functions[what] = sometimes(wrong, functions[what])
    policy = policies.haren(**functions)
    brain = Brain(policy, 2, workers=2)
    brain.queue(0, 5)
    brain.queue(1, 6)
    period_over(brain, 0.1)
    assert brain.asked(0) == 1
    wrong.append(gives)
    for period in range(2, 6):
        brain.queue(0, 50)
        period_over(brain, 0.1 * period)
        assert brain.asked(0) == 1, "as decided before"
        assert brain.asked(1) is None
    [problem] = policy.problems
    assert re.search(message, problem), problem
    assert "stays in force" in problem
    wrong.clear()
    period_over(brain, 0.6)
    assert brain.asked(0) == 0, "all that was missed meanwhile is known now"


def test_priorities_that_cannot_be_compared_are_told() -> None:
    policy = policies.haren(prioritize=by([(1, "a"), (1, 2)]))
    brain = Brain(policy, 2)
    brain.queue(0, 1)
    period_over(brain, 0.1)
    [problem] = policy.problems
    assert "gave box 'b0' the priority (1, 'a')" in problem


def test_a_feature_that_fails_is_named(request: pytest.FixtureRequest) -> None:
    from headgate.scheduling.haren import features

    request.addfinalizer(lambda: features._FEATURES.pop("brittle"))
    hg.feature(name="brittle")(lambda box: 1 / (10 - box.queue_length))
    policy = policies.haren(prioritize="brittle")
    brain = Brain(policy, 2)
    brain.queue(1, 10)
    period_over(brain, 0.1)
    assert policy.problems == [
        "Policy 'haren': feature 'brittle' failed on box 'b1': ZeroDivisionError: division by zero "
        "The schedule before stays in force."
    ]


def test_a_feature_that_is_not_there_is_told_when_the_run_starts() -> None:
    with pytest.raises(PipelineError, match=r"no feature 'qeue_length'. Did you mean 'queue_length'\?"):
        Brain(policies.haren(prioritize=lambda box: box.qeue_length), 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"period": 0}, "period=0"),
        ({"batch": 0}, "batch=0"),
        ({"assign": 3}, "give a function of a box and the workers"),
        ({"prioritize": "fcsf"}, "no priority 'fcsf'. Did you mean 'fcfs'"),
    ],
)
def test_a_policy_that_cannot_work_is_refused_when_it_is_made(options: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        policies.haren(**options)


def test_compositions_of_nothing_known_are_refused() -> None:
    with pytest.raises(PipelineError, match="then: there is no priority 'nothing'"):
        hg.policies.then("nothing")
    with pytest.raises(PipelineError, match="at least one"):
        hg.policies.then()


def test_a_policy_that_gives_boxes_to_workers_cannot_send_some_to_sleep() -> None:
    with pytest.raises(PipelineError, match="gives boxes to workers itself"):
        policies.elastic("fcfs")


def test_boxes_that_follow_each_other_stay_together() -> None:
    """Four chains of two: each on one worker, and the workers have about the same to do."""
    boxes = []
    for chain in range(4):
        first = 2 * chain
        boxes.append(BoxEntry(f"a{chain}", 1, (), (first + 1,), ("q",), 1e-3, 1))
        boxes.append(BoxEntry(f"b{chain}", 1, (first,), (), ("q",), 1e-3))
    brain = Brain(policies.haren(policies.together), boxes, workers=2)
    for box in range(8):
        brain.queue(box, 10)
    period_over(brain, 0.1)
    brain.queue(0, 10)
    period_over(brain, 0.2)
    owners = [box.worker for box in brain.policy.table.boxes]
    assert owners[::2] == owners[1::2]
    assert sorted(owners) == [0] * 4 + [1] * 4
