"""Buckets choose as the exact priority does, up to their width, whatever happens and whenever one looks."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headgate as hg
from brain import Brain, chosen
from depth import examples
from headgate.errors import PipelineError
from headgate.scheduling.aurora.bucketed import BucketedPriorityTuple
from headgate.scheduling.aurora.priority import OLDEST_EVERY
from headgate.scheduling.aurora.utility_space import UtilitySpace, pieces
from headgate.scheduling.catalog import BoxEntry, Catalog
from headgate.scheduling.events import Changed, Event, Finished, Idle, QueueState, Spawned, Started
from headgate.scheduling.interface import Run
from headgate.testing import play

EXACT = 64.0
"""Times in parts of this add up without rounding, so that a critical point is hit exactly."""


def seconds(most: int) -> st.SearchStrategy[float]:
    return st.integers(0, most).map(lambda parts: parts / EXACT)


@st.composite
def graphs(draw: st.DrawFn) -> hg.QoS:
    latencies = sorted(draw(st.sets(seconds(640), min_size=1, max_size=5)))
    utilities = sorted(draw(st.lists(st.floats(0, 1), min_size=5, max_size=5)), reverse=True)
    return hg.QoS(zip(latencies, utilities, strict=False))


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[BoxEntry], dict[str, hg.QoS]]:
    """Boxes in a line of which any may lead to an output; so the first ones serve several queries."""
    count = draw(st.integers(1, 5))
    goals = {f"q{k}": draw(graphs()) for k in range(draw(st.integers(1, 3)))}
    last = {query: draw(st.integers(0, count - 1)) for query in goals}
    boxes = [
        BoxEntry(
            f"box-{place}",
            draw(st.integers(1, 2)),
            (place - 1,) if place else (),
            (place + 1,) if place + 1 < count else (),
            tuple(query for query in goals if last[query] >= place),
            draw(seconds(32)),
        )
        for place in range(count)
    ]
    return boxes, goals


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "start", "finish", "wait", "fill", "remove"]),
        st.integers(0, 4),
        seconds(300),
        seconds(300),
    ),
    max_size=60,
)


def event_of(catalog: Catalog, kind: str, place: int, now: float, age: float) -> Event | None:
    """What an engine could say of a box."""
    place %= len(catalog.boxes)
    box = catalog.boxes[place]
    queue = QueueState(3, oldest=now - 2 * age, mean=now - age)
    if kind == "arrive":
        return Spawned(now, place, queue)
    if kind == "start" and catalog.can_run(place):
        return Started(now, 0, place, 1, queue if age > 1 else QueueState(0))
    if kind == "finish" and box.running:
        return Finished(now, 0, place, 1, 1, 0.0, 0.0, tuple((down, queue) for down in box.downstream))
    if kind == "fill":
        return Changed(now, place, QueueState(3, frozenset(box.upstream), now - 2 * age, now - age))
    return Changed(now, place, QueueState(0), removed=True) if kind == "remove" and age < 0.2 else None


@settings(max_examples=examples(150))
@given(networks(), STEPS, st.integers(1, 6), st.integers(1, 6))
def test_the_choice_is_the_best_by_looking_at_every_box_at_every_decision(
    network: tuple[list[BoxEntry], dict[str, hg.QoS]],
    steps: list[tuple[str, int, float, float]],
    gradients: int,
    slacks: int,
) -> None:
    boxes, goals = network
    brain = Brain(BucketedPriorityTuple(gradients, slacks), boxes, goals=goals)
    now, decisions = 0.0, 0
    called = [0] * len(boxes)
    for kind, place, passed, age in steps:
        now += passed
        event = event_of(brain.catalog, kind, place, now, age)
        if event is not None:
            brain.tell(event)
        decisions += ask(brain, now, decisions + 1, called)


def ask(brain: Brain, now: float, decision: int, called: list[int]) -> bool:
    """Whether it decides; what it chooses is the best of all that can run, or has waited longest."""
    policy, catalog = brain.policy, brain.catalog
    assert isinstance(policy, BucketedPriorityTuple)
    decided = brain.tell(Idle(now, 0))
    places = [place for place in range(len(catalog.boxes)) if catalog.can_run(place)]
    assert bool(decided) == bool(places)
    if not decided:
        return False
    [run] = decided
    assert isinstance(run, Run)
    first = run.plan[0].box
    before = list(called)
    for call in run.plan:
        called[call.box] = decision
    if decision % OLDEST_EVERY == 0:
        assert before[first] == min(before[place] for place in places), "longest without a call"
        return True
    exact = {place: policy.priority(place, now) for place in places}
    belongs = {place: policy.space.bucket(gradient, -slack) for place, (gradient, slack) in exact.items()}
    assert policy.assigned[first] == belongs[first] == max(belongs.values())
    best = max(gradient for gradient, _ in exact.values())
    between = [edge for edge in policy.space.gradient_edges if exact[first][0] < edge <= best]
    assert not between, "its gradient is in the best one's range"
    return True


@settings(max_examples=examples(150))
@given(
    st.lists(st.tuples(graphs(), seconds(640)), min_size=2, max_size=5),
    st.lists(seconds(64), max_size=40),
    st.integers(1, 6),
    st.integers(1, 6),
)
def test_boxes_are_found_where_time_alone_has_brought_them(
    applications: list[tuple[hg.QoS, float]], waits: list[float], gradients: int, slacks: int
) -> None:
    """Nothing happens to any queue; they only get older."""
    goals = {f"q{place}": goal for place, (goal, _) in enumerate(applications)}
    boxes = [BoxEntry(q, 1, (), (), (q,), 0.0) for q in goals]
    brain = Brain(BucketedPriorityTuple(gradients, slacks), boxes, goals=goals)
    for place, (_, age) in enumerate(applications):
        brain.queue(place, 1, oldest=-age)
    now, called = 0.0, [0] * len(boxes)
    for decision, wait in enumerate(waits, 1):
        now += wait
        assert ask(brain, now, decision, called)


# --- the buckets ----------------------------------------------------------------------------------------


@given(st.lists(graphs(), min_size=1, max_size=4), st.integers(1, 8), st.integers(1, 8), st.floats(0, 12))
def test_the_table_of_latencies_says_the_bucket_at_every_latency(
    goals: list[hg.QoS], gradients: int, slacks: int, latency: float
) -> None:
    graph = pieces([(goal, 0.0) for goal in goals])
    space = UtilitySpace([graph], gradients, slacks)
    ends, buckets, _ = space.ranges(graph)
    at = next(at for at, end in enumerate(ends) if latency < end)
    gradient = sum(goal.gradient(latency) for goal in goals)
    slack = min(goal.slack(latency) for goal in goals)
    if all(abs(latency - end) > 1e-9 for end in ends):
        assert buckets[at] == space.bucket(gradient, slack)
    assert all(0 <= bucket < gradients * slacks for bucket in buckets)
    assert ends == sorted(set(ends))


def test_few_slopes_get_a_range_each_and_many_share_them_in_equal_ratios() -> None:
    tight, loose = pieces([(hg.QoS([(1, 1), (2, 0)]), 0.0)]), pieces([(hg.QoS([(1, 1), (11, 0)]), 0.0)])
    space = UtilitySpace([tight, loose], 3, 2)
    assert [space.bucket(slope, math.inf) // 2 for slope in (0.0, 0.1, 1.0)] == [0, 1, 2]
    many = [pieces([(hg.QoS([(1, 1), (1 + 2.0**k, 0)]), 0.0)]) for k in range(8)]
    space = UtilitySpace(many, 5, 2)
    assert [space.bucket(2.0**-k, math.inf) // 2 for k in range(8)] == [4, 4, 3, 3, 2, 2, 1, 1]
    assert space.bucket(0.0, math.inf) == 0


# --- taking turns ---------------------------------------------------------------------------------------


def side_by_side(count: int) -> list[BoxEntry]:
    return [BoxEntry(f"box-{k}", 1, (), (), (f"q{k}",), 0.001) for k in range(count)]


def test_one_bucket_is_round_robin() -> None:
    count, rounds = 7, 40
    goals = {f"q{k}": hg.QoS([(0, 1), (1 + k, 0)]) for k in range(count)}
    ages = [3.0, 1.0, 4.0, 1.5, 9.0, 2.0, 6.0]
    events: list[Event] = [
        Spawned(10.0, k, QueueState(1, oldest=10 - a, mean=10 - a)) for k, a in enumerate(ages)
    ]
    events += [Idle(10.0 + k, 0) for k in range(rounds)]
    decisions = play(BucketedPriorityTuple(1, 1), side_by_side(count), events, goals=goals)
    in_turn = play("round_robin", side_by_side(count), events, goals=goals)
    assert chosen(decisions) == chosen(in_turn)


@pytest.mark.parametrize("partitions", [1, 20])
def test_a_box_that_is_ready_runs_after_at_most_eight_times_as_many_decisions_as_there_are(
    partitions: int,
) -> None:
    """Tight ones always have something to lose, as fresh tuples come as soon as they have run."""
    count = 12
    goals = {f"q{k}": hg.QoS([(0, 1), (0.5, 0)] if k % 3 else [(0, 1), (50, 0.9)]) for k in range(count)}
    brain = Brain(BucketedPriorityTuple(partitions, partitions), side_by_side(count), goals=goals)
    now, last = 0.0, dict.fromkeys(range(count), 0)
    for place in range(count):
        brain.queue(place, 5)
    for decision in range(1, 40 * count):
        box = brain.asked(0, now)
        assert box is not None
        assert decision - last[box] <= OLDEST_EVERY * count
        last[box] = decision
        brain.tell(Started(now, 0, box, 5, QueueState(5, oldest=now, mean=now)))
        now += 0.01
        brain.tell(Finished(now, 0, box, 5, 5, 0.01, 0.0))
    assert min(last.values()) > 39 * count - OLDEST_EVERY * count


def test_equally_old_boxes_take_turns() -> None:
    """All came with one packet, and short trains leave some of it; only the first is worth anything."""
    goals = {"q0": hg.QoS([(0, 1), (1000, 0)])}
    events: list[Event] = [Spawned(0.0, k, QueueState(1000)) for k in range(4)]
    events += [Idle(1.0, 0)] * (4 * OLDEST_EVERY)
    decisions = play("qos_bucketed", side_by_side(4), events, goals=goals)
    assert chosen(decisions)[OLDEST_EVERY - 1 :: OLDEST_EVERY] == [1, 2, 3, 1]


# --- what is measured -----------------------------------------------------------------------------------


def test_a_measured_cost_downstream_brings_the_critical_point_nearer() -> None:
    """Two lines of two boxes, equal but for what the second box turns out to cost."""
    boxes = [
        BoxEntry("a", 1, (), (1,), ("slow",)),
        BoxEntry("b", 1, (0,), (), ("slow",)),
        BoxEntry("c", 1, (), (3,), ("quick",)),
        BoxEntry("d", 1, (2,), (), ("quick",)),
    ]
    goals = dict.fromkeys(["slow", "quick"], hg.QoS([(0, 1), (5, 1), (10, 0)]))
    learn: list[Event] = []
    for place, cost in ((1, 4.5), (3, 0.001)):
        learn += [
            Started(0.0, 0, place, 1, QueueState(0)),
            Finished(0.0, 0, place, 1, 1, cost, 0.0),
        ]
    ask: list[Event] = [Spawned(0.0, place, QueueState(1)) for place in (2, 0)] + [Idle(1.0, 0)]

    def first(events: list[Event]) -> int:
        [box] = chosen(play("qos_bucketed", boxes_copy(), events, goals=goals))
        return box

    def boxes_copy() -> list[BoxEntry]:
        return [BoxEntry(b.name, b.lanes, b.upstream, b.downstream, b.queries) for b in boxes]

    assert first(ask) == 2
    assert first(learn + ask) == 0
    assert first(ask[:2] + learn + ask[2:]) == 0


def test_at_least_one_range_of_each() -> None:
    wrong: list[Callable[[], object]] = [
        lambda: BucketedPriorityTuple(0, 3),
        lambda: BucketedPriorityTuple(slacks=0),
    ]
    for make in wrong:
        with pytest.raises(PipelineError, match="at least 1 of each"):
            make()


def _urgent(policy: BucketedPriorityTuple, boxes: int, workers: int) -> Brain:
    """Boxes of one query each, the later the more urgent, all with three tuples."""
    names = [f"q{place}" for place in range(boxes)]
    entries = [BoxEntry(name, 1, (), (), (name,), 1.0) for name in names]
    goals = {name: hg.QoS([(0, 1), (100 / (place + 1), 0)]) for place, name in enumerate(names)}
    brain = Brain(policy, entries, workers, goals=goals)
    for place in range(boxes):
        brain.tell(Spawned(0.0, place, QueueState(3)))
    return brain


def test_workers_take_plans_from_a_queue_that_is_filled_from_the_buckets_in_order() -> None:
    """Three workers, a queue of six: it is filled when one plan is left, not for every plan."""
    policy = BucketedPriorityTuple(gradients=60, queue=6)
    brain = _urgent(policy, 20, workers=3)
    planned: list[int] = []
    for turn in range(10):
        planned += chosen(brain.tell(Idle(0.0, turn % 3)))
        brain.tell(Started(0.0, turn % 3, planned[-1], 3, QueueState(0)))
    fair = planned.index(0)  # the eighth decision goes to the box that is longest without a call
    assert planned[:fair] + planned[fair + 1 :] == [19, 18, 17, 16, 15, 14, 13, 12, 11]
    assert policy.refills == 2


def test_a_plan_in_the_queue_whose_box_cannot_run_any_more_is_passed_over() -> None:
    brain = _urgent(BucketedPriorityTuple(queue=4), 4, workers=2)
    assert chosen(brain.tell(Idle(0.0, 0))) == [3]
    brain.tell(Started(0.0, 0, 3, 3, QueueState(0)))
    brain.tell(Changed(0.0, 2, QueueState(0)))
    assert chosen(brain.tell(Idle(0.0, 1))) == [1]


def test_where_plans_cost_something_a_step_takes_boxes_from_the_buckets_in_order() -> None:
    brain = _urgent(BucketedPriorityTuple(), 6, workers=1)
    brain.catalog.plan_overhead = 7.0  # as long as the work of three boxes
    (run,) = [decision for decision in brain.tell(Idle(0.0, 0)) if isinstance(decision, Run)]
    assert [call.box for call in run.plan] == [5, 4, 3]
