"""Aurora's three traversals on the tree of its figure 4, with the orders that the paper prints."""

from __future__ import annotations

from headgate.scheduling.aurora.traversals import memory_freed, min_cost, min_latency, min_memory
from headgate.scheduling.catalog import BoxEntry
from headgate.scheduling.events import Idle, QueueState, Spawned
from headgate.scheduling.interface import Call, Run
from headgate.scheduling.trains import WHOLE_QUEUE
from headgate.testing import play

FEEDS = {"b2": "b1", "b6": "b1", "b4": "b2", "b3": "b2", "b5": "b3"}
NAMES = ["b4", "b5", "b3", "b2", "b6", "b1"]


def tree(
    costs: dict[str, float] | None = None, selectivities: dict[str, float] | None = None
) -> list[BoxEntry]:
    """Figure 4, each box with one tuple queued; boxes are numbered with those that feed them first."""
    boxes = []
    for name in NAMES:
        up = tuple(NAMES.index(n) for n in ("b2", "b6", "b4", "b3", "b5") if FEEDS[n] == name)
        down = (NAMES.index(FEEDS[name]),) if name in FEEDS else ()
        box = BoxEntry(name, 1, up, down, ("q",), (costs or {}).get(name, 1.0), queue=QueueState(1))
        if selectivities is not None:
            box._recent_in, box._recent_out = 1.0, selectivities[name]
        boxes.append(box)
    return boxes


def names(order: list[int]) -> str:
    return " ".join(NAMES[box] for box in order)


def test_min_cost_is_the_post_order() -> None:
    assert names(min_cost(tree(), range(6))) == "b4 b5 b3 b2 b6 b1"


def test_min_latency_begins_nearest_to_the_output() -> None:
    assert names(min_latency(tree(), range(6))) == "b1 b2 b1 b6 b1 b4 b2 b1 b3 b2 b1 b5 b3 b2 b1"


def test_min_memory_begins_where_most_memory_is_freed() -> None:
    costs = {"b1": 2.0, "b2": 2.0, "b3": 1.0, "b4": 2.0, "b5": 3.0, "b6": 1.0}
    selectivities = {"b1": 0.9, "b2": 0.4, "b3": 0.5, "b4": 1.0, "b5": 0.4, "b6": 0.6}
    boxes = tree(costs, selectivities)
    rates = {box.name: round(memory_freed(box, 1.0), 9) for box in boxes}
    assert rates == {"b1": 0.05, "b2": 0.3, "b3": 0.5, "b4": 0.0, "b5": 0.2, "b6": 0.4}
    assert names(min_memory(boxes, range(6))) == "b3 b6 b2 b5 b3 b2 b1 b4 b2 b1"


def test_a_selectivity_of_nothing_is_no_division_by_zero() -> None:
    boxes = tree(selectivities=dict.fromkeys(NAMES, 0.0))
    assert names(min_latency(boxes, range(6))).startswith("b1 ")
    assert set(min_memory(boxes, range(6))) == set(range(6))


def test_paths_that_part_and_meet_again_and_again_have_an_end() -> None:
    """A ladder of forty rungs, whose paths are a million million."""
    boxes = []
    for place in range(80):
        rung = place // 2
        up = (2 * rung - 2, 2 * rung - 1) if rung else ()
        down = (2 * rung + 2, 2 * rung + 3) if rung < 39 else ()
        boxes.append(BoxEntry(f"b{place}", 1, up, down, ("q",), 1.0 / (place + 1), queue=QueueState(1)))
    order = min_memory(boxes, range(80))
    assert len(order) <= 80 * 80 + 80
    assert sorted(min_cost(boxes, range(80))) == list(range(80))


def test_each_query_in_its_turn_and_a_shared_box_once_a_plan() -> None:
    """Box 0 feeds the queries left (1) and right (2)."""
    boxes = [
        BoxEntry("shared", 1, (), (1, 2), ("left", "right")),
        BoxEntry("left", 1, (0,), (), ("left",)),
        BoxEntry("right", 1, (0,), (), ("right",)),
    ]
    events = [Spawned(0.0, 0, QueueState(5)), *[Idle(0.0, 0)] * 3]
    plans = [d.plan for d in play("mc", boxes, events) if isinstance(d, Run)]
    assert plans == [tuple(Call(box, WHOLE_QUEUE) for box in plan) for plan in ((0, 1), (0, 2), (0, 1))]
