"""The catalog is the fold of the events: statistics, queues, and which boxes could run."""

from __future__ import annotations

import random

import pytest

from headgate.scheduling.catalog import SMOOTHING, BoxEntry, Catalog
from headgate.scheduling.events import Changed, Finished, Idle, QueueState, Spawned, Started, Timer
from headgate.scheduling.trains import WHOLE_QUEUE, Count, Share, Time


def chain(count: int, lanes: int = 1, cost: float | None = None) -> list[BoxEntry]:
    """Boxes in a row."""
    return [
        BoxEntry(
            f"box-{i}",
            lanes,
            (i - 1,) if i else (),
            (i + 1,) if i + 1 < count else (),
            ("q",),
            stated_cost=cost,
        )
        for i in range(count)
    ]


def call(box: int, tuples: int, out: int, seconds: float, overhead: float = 0.0) -> list[Started | Finished]:
    return [
        Started(0.0, 0, box, tuples, QueueState(0)),
        Finished(1.0, 0, box, tuples, out, seconds, overhead),
    ]


# --- statistics -----------------------------------------------------------------------------------------


def test_the_first_call_sets_the_averages_and_later_ones_move_them() -> None:
    catalog = Catalog(chain(1))
    for event in call(0, tuples=10, out=5, seconds=1.0, overhead=0.2):
        catalog.apply(event)
    box = catalog.boxes[0]
    assert (box.cost, box.selectivity, box.call_overhead) == (0.1, 0.5, 0.2)
    for event in call(0, tuples=10, out=20, seconds=3.0, overhead=0.0):
        catalog.apply(event)
    older = 1 - SMOOTHING
    assert box.cost == pytest.approx((older * 1.0 + 3.0) / (older * 10 + 10))
    assert box.selectivity == pytest.approx((older * 5 + 20) / (older * 10 + 10))
    assert box.call_overhead == pytest.approx(0.2 * (1 - SMOOTHING))
    assert (box.calls, box.tuples_in, box.tuples_out, box.busy) == (2, 20, 25, 4.0)


def test_a_call_of_few_tuples_counts_as_few() -> None:
    """Three tuples that close a large window do not make a box look dear."""
    catalog = Catalog(chain(1))
    for event in (*call(0, 30_000, 0, 0.003), *call(0, 3, 9_000, 0.003)):
        catalog.apply(event)
    assert catalog.boxes[0].cost < 1e-6
    assert catalog.boxes[0].selectivity < 1


def test_what_a_call_takes_whatever_it_is_given_is_not_a_tuples_cost() -> None:
    """Calls of 3 ms and 2 µs a tuple: short trains must not look dear."""
    catalog = Catalog(chain(1))
    for tuples in (10, 1000, 100, 500, 20):
        catalog.apply(Started(0.0, 0, 0, tuples, QueueState(0)))
        catalog.apply(Finished(1.0, 0, 0, tuples, tuples, 0.003 + 2e-6 * tuples, 0.0))
    box = catalog.boxes[0]
    assert box.cost == pytest.approx(2e-6)
    assert box.call_overhead == pytest.approx(0.003)


def test_a_plans_own_overhead_is_learned_from_idle_workers() -> None:
    catalog = Catalog(chain(1))
    catalog.apply(Idle(0.0, 0))
    assert catalog.plan_overhead == 0.0
    catalog.apply(Idle(1.0, 0, 0.1))
    catalog.apply(Idle(2.0, 0, 0.2))
    assert catalog.plan_overhead == pytest.approx(0.1 + SMOOTHING * 0.1)


def test_a_stated_cost_wins_over_the_measured_one() -> None:
    catalog = Catalog(chain(1, cost=7.0))
    for event in call(0, tuples=1, out=1, seconds=1.0):
        catalog.apply(event)
    assert catalog.boxes[0].cost == 7.0


def test_a_call_without_tuples_says_nothing_of_cost_and_selectivity() -> None:
    catalog = Catalog(chain(1))
    for event in (*call(0, 10, 5, 1.0), *call(0, 0, 3, 2.0)):
        catalog.apply(event)
    assert (catalog.boxes[0].cost, catalog.boxes[0].selectivity) == (0.1, 0.5)


def test_latency_of_what_is_queued() -> None:
    catalog = Catalog(chain(1))
    assert catalog.boxes[0].latency(10.0) == 0.0
    catalog.apply(Spawned(5.0, 0, QueueState(2, oldest=1.0, mean=3.0)))
    assert catalog.boxes[0].latency(10.0) == 7.0


# --- ready ----------------------------------------------------------------------------------------------


def test_a_box_is_ready_while_it_has_tuples_a_lane_and_room() -> None:
    catalog = Catalog(chain(3))
    assert catalog.ready == []
    catalog.apply(Spawned(0.0, 1, QueueState(5)))
    catalog.apply(Spawned(0.0, 0, QueueState(1)))
    assert catalog.ready == [0, 1]
    catalog.apply(Started(0.0, 0, 1, 2, QueueState(3)))
    assert catalog.ready == [0], "its one lane is taken"
    full = QueueState(9, full=frozenset({1}))
    catalog.apply(Finished(1.0, 0, 1, 2, 9, 0.1, 0.0, ((2, full),)))
    assert catalog.ready == [0, 2], "there is no room for what box 1 would make"
    catalog.apply(Started(1.0, 0, 2, 9, QueueState(0)))
    assert catalog.ready == [0, 1], "there is room again"


def test_a_full_queue_stops_only_those_who_find_no_room_in_it() -> None:
    boxes = [
        BoxEntry("left", 1, (), (2,), ("q",)),
        BoxEntry("right", 1, (), (2,), ("q",)),
        BoxEntry("union", 1, (0, 1), (), ("q",)),
    ]
    catalog = Catalog(boxes)
    for box in (0, 1):
        catalog.apply(Spawned(0.0, box, QueueState(1)))
    catalog.apply(Spawned(0.0, 2, QueueState(4, full=frozenset({0}))))
    assert catalog.ready == [1, 2]


def test_several_lanes_keep_a_box_ready() -> None:
    catalog = Catalog(chain(1, lanes=2))
    catalog.apply(Spawned(0.0, 0, QueueState(5)))
    catalog.apply(Started(0.0, 0, 0, 1, QueueState(4)))
    assert catalog.ready == [0]
    catalog.apply(Started(0.0, 1, 0, 1, QueueState(3)))
    assert catalog.ready == []


def test_a_box_that_was_removed_is_never_ready_again() -> None:
    catalog = Catalog(chain(1))
    catalog.apply(Spawned(0.0, 0, QueueState(5)))
    catalog.apply(Changed(0.0, 0, QueueState(0), removed=True))
    catalog.apply(Spawned(0.0, 0, QueueState(5)))
    assert catalog.ready == []


def test_ready_is_what_can_run_after_any_sequence_of_events() -> None:
    """The list is kept up to date step by step; this compares it with looking at every box."""
    draw = random.Random(1)
    boxes = [
        BoxEntry(
            f"b{i}",
            draw.randint(1, 2),
            tuple(range(max(0, i - 2), i)),
            tuple(range(i + 1, min(6, i + 3))),
            ("q",),
        )
        for i in range(6)
    ]
    catalog = Catalog(boxes)
    for _ in range(2000):
        box = draw.randrange(6)
        full = frozenset(up for up in boxes[box].upstream if draw.random() < 0.3)
        queue = QueueState(draw.randrange(3), full)
        kind = draw.randrange(4)
        if kind == 0:
            catalog.apply(Spawned(0.0, box, queue))
        elif kind == 1 and catalog.can_run(box):
            catalog.apply(Started(0.0, 0, box, 1, queue))
        elif kind == 2 and catalog.boxes[box].running:
            catalog.apply(Finished(0.0, 0, box, 1, 1, 0.1, 0.0, ((draw.randrange(6), queue),)))
        elif kind == 3:
            catalog.apply(draw.choice([Changed(0.0, box, queue), Idle(0.0, 0), Timer(0.0, "t")]))
        assert catalog.ready == [i for i in range(6) if catalog.can_run(i)]


def test_downstream_reaches_everything_once() -> None:
    boxes = [
        BoxEntry("a", 1, (), (1, 2), ("q",)),
        BoxEntry("b", 1, (0,), (3,), ("q",)),
        BoxEntry("c", 1, (0,), (3,), ("q",)),
        BoxEntry("d", 1, (1, 2), (), ("q",)),
    ]
    assert Catalog(boxes).downstream(0) == [1, 2, 3]
    assert Catalog(boxes).downstream(3) == []


# --- trains ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("train", "size"),
    [
        (WHOLE_QUEUE, 10),
        (Share(0.5), 5),
        (Share(0.01), 1),
        (Count(3), 3),
        (Count(99), 10),
        (Time(0.45), 4),
        (Time(100.0), 10),
        (Time(0.001), 1),
    ],
)
def test_a_train_is_evaluated_against_the_queue_as_it_stands(train: Share | Count | Time, size: int) -> None:
    [box] = chain(1, cost=0.1)
    box.queue = QueueState(10)
    assert train.size(box) == size


def test_a_time_train_of_a_box_without_known_cost_is_the_whole_queue() -> None:
    [box] = chain(1)
    box.queue = QueueState(10)
    assert Time(0.001).size(box) == 10
