"""LAS: every rule of selection and of resuming, and NLS; no engine needed."""

from __future__ import annotations

from itertools import permutations

import pytest

from brain import TinyEngine, entry
from headgate.machine.topology import Cache, Node, Topology
from headgate.scheduling.events import Changed, Moved, QueueState, Spawned
from headgate.scheduling.las.policy import Las, Nls

MACHINE = Topology(
    "three-nodes",
    (Node(0, (0, 1, 2, 3, 4, 5)), Node(1, (6, 7)), Node(2, (8, 9))),
    (
        *[Cache(2, 1 << 20, cores) for cores in ((0, 3), (1, 2))],
        *[Cache(3, 1 << 23, cores) for cores in ((0, 1, 2, 3), (4, 5), (6, 7), (8, 9))],
    ),
    hops=((0, 2, 1), (2, 0, 1), (1, 1, 0)),
)
"""Workers 0 to 3 are a group of two pairs, 0 with 3 and 1 with 2; 4 and 5 are one beside it; 8 and 9
are nearer to them than 6 and 7."""
WORKERS = 10


# --- selection (L3) -----------------------------------------------------------------------------------

EXPECTED = [
    ("own", 1),
    ("own", 0),
    ("of 3, which shares L2", 0),
    ("of 3, which shares L2", 1),
    ("of 2, which shares L3", 0),
    ("own group, request 3", 1),
    ("own group, request 3", 0),
    ("own group, request 5", 0),
    ("group of 4, request 4", 0),
    ("group of 4, request 4", 1),
    ("group of 4, request 6", 0),
    ("group of 4, request 2", 0),
    ("group of 4, request 2", 1),
    ("group of 8, request 1", 0),
    ("group of 6, request 1", 0),
    ("of 4, another group", 0),
    ("of 5, another group", 0),
    ("of 4, another group", 1),
    ("of 5, another group", 1),
]
"""What worker 0 is given, told by the queue and the age there: 0 is the older."""

LAID_OUT: list[tuple[str, int, bool, int, int]] = [
    ("of another node", 6, True, 0, 1),
    ("of 5, another group", 5, True, 0, 2),
    ("of 4, another group", 4, True, 0, 2),
    ("group of 6, request 1", 6, False, 1, 1),
    ("group of 8, request 1", 8, False, 1, 1),
    ("group of 4, request 6", 4, False, 6, 1),
    ("group of 4, request 2", 5, False, 2, 2),
    ("group of 4, request 4", 4, False, 4, 2),
    ("own group, request 5", 0, False, 5, 1),
    ("own group, request 3", 1, False, 3, 2),
    ("of 2, which shares L3", 2, True, 0, 1),
    ("of 3, which shares L2", 3, True, 0, 2),
    ("own", 0, True, 7, 2),
]
"""In the order in which they are born: queue, by which worker, immediate, request, how many."""


def laid_out() -> tuple[TinyEngine, list[tuple[str, int]]]:
    """Tasks for every rule, and one that no rule gives to worker 0; and what each box stands for."""
    names = [(name, age) for name, _, _, _, count in LAID_OUT for age in range(count)]
    requests = [request for _, _, _, request, count in LAID_OUT for _ in range(count)]
    table = TinyEngine(Las(), [entry(request) for request in requests], WORKERS, MACHINE)
    box = 0
    for _, worker, immediate, _, count in LAID_OUT:
        for _ in range(count):
            if immediate:
                table.arrive(box, worker=worker)
            else:
                deferred(table, box, worker)
            box += 1
    return table, names


def deferred(table: TinyEngine, box: int, worker: int) -> None:
    """A task that a worker of that group leaves behind: the box has more to do than a call took."""
    table.queued[box] += 1
    table.tell(Spawned(0.0, box, QueueState(table.queued[box]), False, worker))


def served(order: tuple[int, ...] = (0, 1, 2, 3, 4)) -> list[tuple[str, int]]:
    table, names = laid_out()
    assert isinstance(table.policy, Las)
    table.policy.rules = tuple(table.policy.rules[place] for place in order)
    return [names[box] for box in table.serve_all(0)]


def test_the_five_rules_in_their_order() -> None:
    assert served() == EXPECTED
    table, names = laid_out()
    table.serve_all(0)
    assert [names[box] for box in table.serve_all(6)] == [("of another node", 0)]


@pytest.mark.parametrize("order", [order for n in (4, 5) for order in permutations(range(5), n)])
def test_no_rule_can_be_left_out_or_moved(order: tuple[int, ...]) -> None:
    assert (served(order) == EXPECTED) == (order == (0, 1, 2, 3, 4))


def test_the_scan_of_other_groups_goes_on_after_the_queue_found_last() -> None:
    """Also when something else was done in between."""
    table = TinyEngine(Las(), [entry() for _ in range(5)], WORKERS, MACHINE)
    table.arrive(0, 1, worker=4)
    table.arrive(2, worker=5)
    assert table.serve(0) == 0
    table.arrive(3, worker=0)
    assert table.serve(0) == 3
    assert table.serve(0) == 2, "worker 5's turn, though worker 4 has more"
    assert table.serve(0) == 1


def test_immediate_tasks_are_a_cores_wherever_its_worker_goes() -> None:
    """Pools are pinned to groups: the operating system moves worker 0 to core 3, beside worker 3."""
    table = TinyEngine(Las(), [entry() for _ in range(6)], WORKERS, MACHINE)
    table.arrive(0, worker=0)
    table.tell(Moved(0.0, 0, 3))
    table.arrive(1, 2, worker=0)
    table.arrive(3, worker=1)
    assert table.serve(3) == 2, "core 3's youngest, which worker 0 has left there"
    assert table.serve(0) == 1, "worker 0 is on core 3"
    assert table.serve(0) == 0, "then the oldest of the core that shares L2 with it, which nobody is on"
    assert table.serve(0) == 3, "then of those that share L3"
    table.arrive(4, worker=0)
    table.tell(Moved(0.0, 0, 0))
    assert table.serve(1) == 4, "another core of the group has it"


def test_a_new_request_begins_in_a_group_of_its_own_and_stays_with_its_box() -> None:
    table = TinyEngine(Las(), [entry(request) for request in range(4)], WORKERS, MACHINE)
    table.arrive(0, 1, 2, 3)
    assert [table.serve(worker) for worker in (0, 4, 6, 8)] == [0, 1, 2, 3]
    table.arrive(0, 1, 2, 3)
    assert [table.serve(worker) for worker in (8, 6, 4, 0)] == [3, 2, 1, 0]
    table.arrive(1)
    assert table.serve(9) == 1, "stolen"
    table.arrive(1)
    table.arrive(2)
    assert table.serve(9) == 1, "what comes from the source follows"


# --- resuming (L4) ------------------------------------------------------------------------------------


def all_asleep(*but: int) -> TinyEngine:
    """Worker 0, 4, 6 … of ``but`` run a box each, all others sleep, the lowest numbers the longest."""
    table = TinyEngine(Las(), [entry() for _ in range(30)], WORKERS, MACHINE)
    for box, worker in enumerate(but, start=20):
        table.arrive(box, worker=worker)
        assert table.ask(worker) == box
    for worker in range(WORKERS):
        if worker not in but:
            assert table.ask(worker) is None
    table.woken.clear()
    return table


def test_a_deferred_task_wakes_in_the_same_group_first_and_then_by_numa_distance() -> None:
    table = all_asleep(0)
    for box in range(10):
        deferred(table, box, 0)
    assert table.woken == [3, 2, 1, 5, 4, 9, 8, 7, 6]


def test_an_immediate_task_wakes_nobody_beyond_the_node() -> None:
    table = all_asleep(0)
    table.arrive(*range(10), worker=0)
    assert table.woken == [3, 2, 1, 5, 4]


def test_who_has_sent_a_packet_takes_it_itself_and_wakes_for_the_rest() -> None:
    table = all_asleep(0)
    table.finish(0, 0)
    assert table.ask(0) == 0
    assert table.woken == []
    table.finish(0, 1, 2, 3)
    assert table.ask(0) == 3
    assert table.woken == [3, 2]


def test_who_was_woken_and_took_something_else_wakes_another() -> None:
    """An older task that only its own group may take does not cost the new one its worker."""
    table = all_asleep(0, 1, 2, 3, 4, 5)
    table.arrive(0, worker=4)
    assert table.woken == [], "nobody on the node sleeps"
    table.finish(4)
    deferred(table, 1, 4)
    assert table.ask(4) == 0
    assert table.woken == [9], "worker 4 was to take the deferred task, and has taken the other"


def test_a_task_that_has_become_needless_wakes_nobody() -> None:
    table = all_asleep(0)
    table.finish(0, 0, 1)
    table.queued[0] = 0
    table.tell(Changed(0.0, 0, QueueState(0)))
    assert table.ask(0) == 1
    assert table.woken == []


# --- NLS (L5) -----------------------------------------------------------------------------------------


def nls() -> TinyEngine:
    table = TinyEngine(Nls(), [entry(request) for request in (0, 0, 5, 1, 0, 0)], 3)
    table.arrive(0, 1, worker=0)
    table.arrive(2, 3)
    table.arrive(4, 5, worker=2)
    return table


def test_nls_own_latest_immediate_then_oldest_deferred_of_all_then_anothers_oldest() -> None:
    assert nls().serve_all(0) == [1, 0, 2, 3, 4, 5]


@pytest.mark.parametrize("order", [order for n in (2, 3) for order in permutations(range(3), n)])
def test_no_rule_of_nls_can_be_left_out_or_moved(order: tuple[int, ...]) -> None:
    table = nls()
    assert isinstance(table.policy, Nls)
    table.policy.rules = tuple(table.policy.rules[place] for place in order)
    assert (table.serve_all(0) == [1, 0, 2, 3, 4, 5]) == (order == (0, 1, 2))
