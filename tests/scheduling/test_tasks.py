"""Whatever happens, a box that can run has its task, and nobody sleeps while one has nobody to take it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brain import TinyEngine, entry
from depth import examples
from headgate.machine.topology import Cache, Node, Topology, flat
from headgate.scheduling import policies
from headgate.scheduling.bobox.policy import Bobox
from headgate.scheduling.catalog import BoxEntry
from headgate.scheduling.events import Changed, Idle, QueueState
from headgate.scheduling.interface import Run
from headgate.scheduling.las.policy import Las
from headgate.scheduling.tasks import CountedTasks, TaskPolicy

NAMES = ["bobox", "bobox_baseline", "las", "nls"]

MACHINES: dict[str, Callable[[int], Topology]] = {
    "flat": flat,
    "pairs": lambda count: Topology(
        "pairs",
        (Node(0, tuple(range(count))),),
        tuple(Cache(2, 1, tuple(range(c, min(c + 2, count)))) for c in range(0, count, 2)),
    ),
    "nodes": lambda count: Topology("nodes", tuple(Node(c, (c,)) for c in range(count))),
    "pairs of nodes": lambda count: Topology(
        "pairs-of-nodes",
        tuple(Node(c, tuple(range(c, min(c + 2, count)))) for c in range(0, count, 2)),
        tuple(Cache(3, 1, tuple(range(c, min(c + 2, count)))) for c in range(0, count, 2)),
    ),
}


@dataclass(frozen=True)
class Net:
    """A loop-free graph of boxes, each fed by earlier ones or by a source."""

    fed: tuple[tuple[int, ...], ...]
    requests: tuple[int, ...]
    lanes: tuple[int, ...]

    def entries(self) -> list[BoxEntry]:
        upstream = [tuple(sorted({up % place for up in ups if place})) for place, ups in enumerate(self.fed)]
        return [
            entry(
                self.requests[place],
                ups,
                [down for down, others in enumerate(upstream) if place in others],
                lanes=self.lanes[place],
                fed_by=() if ups else (0,),
            )
            for place, ups in enumerate(upstream)
        ]


@st.composite
def nets(draw: st.DrawFn) -> Net:
    count = draw(st.integers(1, 7))
    fed = st.lists(st.integers(0, 6), max_size=2).map(tuple)
    return Net(
        tuple(draw(st.lists(fed, min_size=count, max_size=count))),
        tuple(draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))),
        tuple(draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))),
    )


def check(table: TinyEngine) -> None:
    """After every event."""
    policy, catalog = table.policy, table.catalog
    assert isinstance(policy, TaskPolicy)
    inside = {box for box, _ in table.working.values()}
    can_run = {b for b in range(len(catalog.boxes)) if b not in inside and catalog.can_run(b)}
    tasks = [task for task in policy.waiting if task is not None]
    assert {task.box for task in tasks} == can_run, "a box that can run has its task, and no other has one"
    for task in tasks:
        assert task in task.queue
    if isinstance(policy, CountedTasks):
        parking = policy.parking
        for pool in range(len(parking.size)):
            members = {w for w, at in enumerate(parking.pool_of) if at == pool}
            working = members & (table.working.keys() - table.before)
            assert parking.tasks[pool] == len(working) + sum(task.pool == pool for task in tasks)
            free = members & (working | table.awake.keys())
            assert parking.awake[pool] <= len(free)
            if members & table.asleep.keys():
                assert parking.awake[pool] >= parking.tasks[pool], "a task more, and somebody sleeps"
    elif isinstance(policy, Las):
        for task in tasks:
            for sleeper in table.asleep:
                if reaches(policy, sleeper, task.box):
                    assert any(task in policy._counts_on[worker] for worker in table.awake), (
                        f"worker {sleeper} sleeps, box {task.box} waits, and nobody is on the way"
                    )
    else:
        assert not tasks or table.awake or not table.asleep, "somebody sleeps, and nobody is on the way"


def reaches(policy: Las, worker: int, box: int) -> bool:
    """Whether the rules give a worker the task of a box when it is the last one."""
    task = policy.waiting[box]
    assert task is not None
    core = policy._core(worker)
    near = [core, *policy.mates[core], *policy._strangers[policy.group_of[worker]]]
    return not task.immediate or any(task in policy._immediate[other] for other in near)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), net=nets(), workers=st.integers(1, 5), machine=st.sampled_from(sorted(MACHINES)))
def test_nothing_is_lost_whatever_happens(
    name: str, data: st.DataObject, net: Net, workers: int, machine: str
) -> None:
    """Packets come, calls end, queues fill up and are emptied, timers ring, workers become more and fewer.

    At the end all is worked off.
    """
    entries = net.entries()
    table = TinyEngine(
        policies.get(name), entries, workers, MACHINES[machine](workers), packet_rows=2, room=3
    )
    sources = [place for place, box in enumerate(entries) if box.fed_by]
    for _ in range(data.draw(st.integers(5, 40))):
        choices: list[tuple[str, int]] = [("ask", worker) for worker in table.awake]
        choices += [("end", worker) for worker in table.working]
        choices += [("come", box) for box in sources if table.queued[box] < table.room]
        choices += [("empty", box) for box in range(len(entries)) if table.queued[box]][:1]
        choices += [("ring", 0)] if table.timers else []
        choices += [("change", count) for count in range(1, 6)]
        kind, at = data.draw(st.sampled_from(choices))
        if kind == "change":
            table.take_over(policies.get(name), at, MACHINES[machine](at))
        else:
            step(table, kind, at, data.draw(st.integers(0, 3)))
        check(table)
    while table.awake or table.working:
        kind, worker = ("ask", next(iter(table.awake))) if table.awake else ("end", next(iter(table.working)))
        step(table, kind, worker, 1)
        check(table)
    assert not any(table.queued), "tuples wait, and everybody sleeps"


def step(table: TinyEngine, kind: str, at: int, makes: int) -> None:
    if kind == "ask":
        table.ask(at)
    elif kind == "end":
        box, _ = table.working[at]
        table.finish(at, *table.catalog.boxes[box].downstream[:makes])
    elif kind == "come":
        table.arrive(at)
    elif kind == "empty":
        table.queued[at] = 0
        table.tell(Changed(0.0, at, QueueState(0)))
    else:
        table.ring()


@pytest.mark.parametrize("name", NAMES)
def test_what_a_worker_leaves_that_was_one_too_many_is_taken_by_another(name: str) -> None:
    """Its last call has ended, and what came for the box meanwhile is told only then."""
    table = TinyEngine(policies.get(name), [entry(fed_by=(0,))], 2)
    table.arrive(0)
    assert table.ask(1) == 0
    table.take_over(policies.get(name), 1, flat(1))
    table.queued[0] += 1
    table.finish(1)
    assert table.serve(0) == 0


@pytest.mark.parametrize("name", NAMES)
def test_who_is_still_inside_a_call_of_the_policy_before_keeps_nobody_asleep(name: str) -> None:
    table = TinyEngine(policies.get(name), [entry(fed_by=(0,)), entry(fed_by=(0,))], 2)
    table.arrive(0)
    assert table.ask(1) == 0
    table.take_over(policies.get(name), 2, flat(2))
    assert table.ask(0) is None
    table.arrive(1)
    assert table.woken == [0]
    assert table.ask(0) == 1


def test_on_spark_a_plan_takes_along_what_its_results_reach_and_the_next_tasks() -> None:
    """In the order of the rules, until there is as much to do as a plan costs to start."""
    boxes = [entry(0, (), (1,)), entry(0, (0,)), entry(1), entry(2)]
    for place, box in enumerate(boxes):
        box.stated_cost = 0.1 * (place + 1)
    table = TinyEngine(Bobox(), boxes, 2)
    table.catalog.plan_overhead = 0.5
    table.arrive(3, 2, 0)
    plan = plan_of(table)
    assert plan == [0, 1, 2], "0.1 + 0.2 of the oldest request, and 0.3 of the next"
    table.arrive(1)
    assert table.policy.waiting[1] is None, "it is already given"  # type: ignore[attr-defined]


def plan_of(table: TinyEngine) -> list[int]:
    [run] = table.policy.handle(Idle(0.0, 0))
    assert isinstance(run, Run)
    return [call.box for call in run.plan]
