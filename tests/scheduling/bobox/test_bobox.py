"""Bobox: every rule of selection, placing, balancing and sleeping, and the baseline; no engine needed."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from brain import TinyEngine, entry
from headgate.errors import PipelineError
from headgate.machine.topology import GIB, Cache, Node, Topology, flat
from headgate.scheduling import policies
from headgate.scheduling.bobox.policy import Bobox, BoboxBaseline
from headgate.scheduling.events import QueueState, Spawned
from headgate.scheduling.interface import ANYONE, SetPacketRows, Wake
from headgate.testing import play

TWO_NODES = Topology(
    "two-nodes",
    (Node(0, (0, 1), GIB), Node(1, (2, 3), GIB)),
    (Cache(3, 1 << 20, (0, 1)), Cache(3, 1 << 20, (2, 3))),
)


def brain(requests: str, workers: int = 4, topology: Topology | None = TWO_NODES, **given: Any) -> TinyEngine:
    """A box for every digit, of the request that it says."""
    return TinyEngine(Bobox(), [entry(int(request)) for request in requests], workers, topology, **given)


# --- selection (B3) -----------------------------------------------------------------------------------

REQUESTS = "111100002211"
OWN, LAST, OLDEST, OTHERS, ELSEWHERE, FIRST, STRANGER = (0, 1), (2, 3), (4, 5), (6, 7), (8, 9), 10, 11


def laid_out() -> TinyEngine:
    """Tasks for every rule, and some that no rule gives to worker 0; the box with a lower number is older."""
    table = brain(REQUESTS)
    table.arrive(FIRST, worker=0)
    assert table.serve(0) == FIRST  # so request 1 is of node 0, and the last that worker 0 has served
    table.arrive(*OTHERS, worker=1)  # and request 0 is of node 0
    table.arrive(*OLDEST)
    table.arrive(STRANGER, worker=2)
    table.arrive(ELSEWHERE[0], worker=3)
    assert table.serve(3) == ELSEWHERE[0]  # request 2 is of node 1
    table.arrive(*ELSEWHERE)
    table.arrive(*LAST)
    table.arrive(*OWN, worker=0)
    return table


EXPECTED = [OWN[1], OWN[0], *LAST, *OLDEST, *OTHERS]


def test_the_rules_in_their_order() -> None:
    """Own newest immediate; oldest deferred of the request served last; of the oldest; others' oldest."""
    table = laid_out()
    assert table.serve_all(0) == EXPECTED
    assert 0 in table.asleep, "then it sleeps, though there are tasks on the other node"
    assert table.serve_all(2) == [STRANGER, *ELSEWHERE]


@pytest.mark.parametrize("order", [order for n in (3, 4) for order in permutations(range(4), n)])
def test_no_rule_can_be_left_out_or_moved(order: tuple[int, ...]) -> None:
    table = laid_out()
    assert isinstance(table.policy, Bobox)
    table.policy.rules = tuple(table.policy.rules[place] for place in order)
    assert (table.serve_all(0) == EXPECTED) == (order == (0, 1, 2, 3))


def test_the_request_served_last_is_left_when_it_has_moved_to_another_node() -> None:
    table = laid_out()
    assert isinstance(table.policy, Bobox)
    table.policy._withdraw(1, 0)
    table.policy._assign(1, 1)
    assert table.serve_all(0) == [OWN[1], OWN[0], *OLDEST, *OTHERS]


def test_the_oldest_request_is_the_one_with_tasks() -> None:
    table = brain("0123", 1, flat(1))
    table.arrive(3, 2)
    assert table.serve_all(0) == [2, 3]


# --- placing (B4) -------------------------------------------------------------------------------------


def nodes_of(table: TinyEngine) -> dict[int, list[int]]:
    assert isinstance(table.policy, Bobox)
    return {number: request.nodes for number, request in table.policy.requests.items()}


def test_new_requests_go_to_the_node_with_idle_workers() -> None:
    table = brain("0012")
    table.arrive(0)
    table.arrive(1)
    table.arrive(2)
    assert nodes_of(table) == {0: [0], 1: [1]}, "two tasks wait for the two workers of node 0"


def test_idle_workers_count_where_memory_does_not_tell_nodes_apart_and_requests_speak_against() -> None:
    """Node 0 has one request and both workers busy; node 1 has two requests with nothing to do."""
    machine = Topology("no-memory", (Node(0, (0, 1)), Node(1, (2, 3))))
    table = brain("00123", topology=machine)
    table.arrive(0, 1, worker=0)
    table.arrive(2, 3, worker=2)
    assert table.serve_all(2) == [3, 2]
    table.arrive(4)
    assert nodes_of(table) == {0: [0], 1: [1], 2: [1], 3: [1]}


def test_a_node_with_more_free_memory_is_preferred() -> None:
    """As many workers are idle on either; what waits in the queues makes the difference."""
    small = Topology("small", (Node(0, (0, 1), 1000), Node(1, (2, 3), 1000)))
    for wide, chosen in ((0, 1), (1, 0)):
        sizes = [8.0 if box == wide else 1.0 for box in (0, 1)]
        table = TinyEngine(Bobox(), [entry(r, tuple_bytes=s) for r, s in enumerate([*sizes, 1.0])], 4, small)
        table.arrive(0, 1, tuples=50)
        table.arrive(2)
        assert nodes_of(table) == {0: [0], 1: [1], 2: [chosen]}


def test_a_request_whose_first_packet_was_sent_by_a_worker_begins_there() -> None:
    table = brain("01")
    table.arrive(0, worker=3)
    table.arrive(1, worker=2)
    assert nodes_of(table) == {0: [1], 1: [1]}


def test_a_node_without_workers_gets_nothing() -> None:
    machine = Topology("three", (Node(0, (0,)), Node(1, (1,)), Node(2, (2,))))
    table = brain("0123", workers=2, topology=machine)
    table.arrive(0, 1, 2, 3)
    assert sorted([*table.serve_all(0), *table.serve_all(1)]) == [0, 1, 2, 3]


# --- load balancing (B5) ------------------------------------------------------------------------------


def test_a_timer_runs_only_while_somebody_sleeps() -> None:
    table = brain("00000")
    table.arrive(0, worker=0)
    assert table.ask(0) == 0
    assert table.timers == []
    table.ask(1)
    assert table.timers == [(0.1, "load balancing")]
    table.ask(2)
    assert len(table.timers) == 1
    table.ring()
    assert table.timers == [(0.2, "load balancing")]
    table.arrive(1, 2, worker=1)
    table.arrive(3, 4, worker=2)
    assert not table.asleep
    table.ring()
    assert table.timers == []


def test_with_one_node_there_is_nothing_to_balance() -> None:
    table = brain("0", 2, flat(2))
    table.ask(0)
    assert table.timers == []


def test_the_newest_request_moves_from_an_overloaded_node_to_an_idle_one() -> None:
    table = brain("00112233")
    table.arrive(0, 2, 4, 6, worker=0)
    table.arrive(1, 3, 5, 7)  # deferred, of requests on node 0
    table.ask(2), table.ask(3)
    table.ask(0), table.ask(1)
    table.woken.clear()
    table.ring()
    assert nodes_of(table) == {0: [0], 1: [0], 2: [0], 3: [1]}
    assert table.woken == [3], "its deferred task is now node 1's, which wakes a worker"
    assert table.serve_all(3) == [7], "the immediate tasks stay where their packets are"


def test_the_only_request_is_shared_and_new_deferred_tasks_are_each_nodes_in_turn() -> None:
    table = brain("0" * 10)
    table.arrive(*range(4), worker=0)
    table.ask(2), table.ask(3)
    table.ask(0), table.ask(1)
    table.arrive(4)
    table.ring()
    assert nodes_of(table) == {0: [0, 1]}
    table.woken.clear()
    table.arrive(5)
    assert table.woken == [3], "every other is node 1's"
    table.arrive(6)
    assert table.woken == [3]
    table.arrive(7)
    assert table.woken == [3, 2]
    assert table.serve_all(3) == [4, 5, 6, 7], "and both nodes take from the request's one list"


def test_nothing_moves_without_an_overloaded_and_an_idle_node() -> None:
    table = brain("01")
    table.arrive(0, 1, worker=0)
    table.ask(2)
    table.ask(0), table.ask(1)
    table.ring()
    assert nodes_of(table) == {0: [0], 1: [0]}


# --- sleeping (B6) ------------------------------------------------------------------------------------


def test_nobody_is_woken_while_all_are_awake() -> None:
    table = brain("0" * 6, 2, flat(2))
    table.arrive(*range(6))
    assert table.woken == []


def test_one_is_woken_for_every_task_more_than_there_are_workers_awake() -> None:
    table = brain("0" * 6, 3, flat(3))
    for worker in range(3):
        assert table.ask(worker) is None
    table.arrive(0)
    assert table.woken == [2], "the last that fell asleep"
    table.arrive(1)
    assert table.woken == [2, 1]
    assert table.ask(2) == 0
    assert table.ask(1) == 1
    assert table.woken == [2, 1]
    table.finish(2, 3)
    assert table.woken == [2, 1], "who has sent a packet takes the task itself"
    assert table.ask(2) == 3
    table.finish(1, 4, 5)
    assert table.woken == [2, 1, 0], "and wakes for what it cannot take"


def test_a_task_that_becomes_needless_is_not_counted() -> None:
    table = brain("000", 2, flat(2))
    table.arrive(0, 1)
    assert table.ask(0) == 0
    table.cleared(1)
    assert table.ask(1) is None
    table.arrive(2)
    assert table.woken == [1]


def test_a_node_wakes_another_when_a_worker_takes_what_the_other_node_is_responsible_for() -> None:
    """The request is shared: tasks on one list, each counted by a node of its own."""
    table = brain("0" * 12)
    table.arrive(*range(4), worker=0)
    table.ask(2), table.ask(3)
    table.ask(0), table.ask(1)
    table.arrive(4)  # node 0's
    table.ring()
    table.arrive(5)  # node 1's
    assert table.woken == [3]
    assert table.ask(3) == 4, "the oldest, which was node 0's"
    assert table.woken == [3, 2], "its own node is still responsible for the other"


# --- one lane per box ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bobox", "bobox_baseline", "las", "nls"])
def test_no_second_worker_enters_a_box_whatever_its_lanes(name: str) -> None:
    table = TinyEngine(policies.get(name), [entry(lanes=4)], 2, packet_rows=1)
    table.arrive(0, tuples=3)
    assert table.ask(0) == 0
    table.tell(Spawned(0.0, 0, table.queue_of(0), False, 0))  # a lane is free, says the engine
    assert table.ask(1) is None
    table.finish(0)
    assert table.ask(0) == 0


@pytest.mark.parametrize("name", ["bobox", "bobox_baseline", "las", "nls"])
def test_a_box_without_room_loses_its_task_and_gets_it_back_with_room(name: str) -> None:
    table = TinyEngine(policies.get(name), [entry(0, (), (1,)), entry(0, (0,))], 1, packet_rows=1, room=2)
    table.arrive(0, tuples=9)
    table.arrive(1, tuples=2)
    assert table.policy.waiting[0] is None  # type: ignore[attr-defined]
    assert table.serve(0) == 1
    assert table.policy.waiting[0] is not None  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["bobox", "bobox_baseline", "las", "nls"])
def test_they_cannot_be_elastic(name: str) -> None:
    with pytest.raises(PipelineError, match=f"elastic.'{name}'.: .* gives boxes to workers itself"):
        policies.elastic(name)


# --- the baseline (B8) --------------------------------------------------------------------------------


def baseline(boxes: int, workers: int) -> TinyEngine:
    return TinyEngine(BoboxBaseline(), [entry() for _ in range(boxes)], workers)


def test_the_baseline_takes_its_own_list_first_in_first_out_and_then_others_in_turn() -> None:
    table = baseline(8, 3)
    table.arrive(0, 1, worker=0)
    table.arrive(2, 3, worker=1)
    table.arrive(4, 5, worker=2)
    assert table.serve_all(0) == [0, 1, 2, 4, 3, 5]


def test_the_baseline_deals_new_tasks_out_to_all_workers() -> None:
    table = baseline(4, 2)
    table.arrive(0, 1, 2, 3)
    assert [table.serve(0), table.serve(0)] == [1, 3]


def test_the_baseline_raises_its_semaphore_for_every_task_even_if_nobody_sleeps() -> None:
    boxes = [entry() for _ in range(2)]
    events = [Spawned(0.0, box, QueueState(1)) for box in range(2)]
    assert play("bobox_baseline", boxes, events, workers=2) == [Wake((ANYONE,)), Wake((ANYONE,))]


def test_the_baseline_has_packets_of_a_constant_size_if_one_is_given() -> None:
    assert play(BoboxBaseline(packet_rows=512), [entry()], []) == [SetPacketRows(512)]
