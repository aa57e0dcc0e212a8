"""Parking and the four states of an operator under all interleavings: no wake-up is lost.

Real policies at a desk that one visits at a time; workers that sleep on semaphores; a feeder that brings
packets meanwhile.  Every mutant has to be found, the paper's own slip among them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from desk import Desk, State

from choice_points import Monitor, Setup, Violation, Worker
from headgate.machine.topology import Node, Topology
from headgate.scheduling import policies, states
from headgate.scheduling.bobox.policy import Bobox
from headgate.scheduling.events import Event, Finished
from headgate.scheduling.las.policy import Las
from headgate.scheduling.parking import Parking
from headgate.scheduling.tasks import TaskPolicy, WaitingTask
from instrumented import Cell, Counter, Lock, Semaphore, load
from interleavings import explore

# --- parking ------------------------------------------------------------------------------------------


def _forget(value: int) -> tuple[int, None]:
    return 0, None


class Bed(Semaphore):
    def forget(self) -> None:
        self._do(_forget)


BOXES: Sequence[tuple[int, tuple[int, ...]]] = [(0, (1,)), (0, ()), (1, ())]
"""Requests, and where results go: a pipeline of two boxes, and a box alone."""
PACKETS = (0, 2, 0)
CALLS = 5
TWO_NODES = Topology("two-nodes", (Node(0, (0,)), Node(1, (1,))))


def parking(
    make: Callable[[], TaskPolicy],
    workers: int,
    *,
    forgets: bool = False,
    packets: Sequence[int] = PACKETS,
    calls: int = CALLS,
    machine: Topology | None = None,
) -> Setup:
    """Workers visit the desk, and sleep when they are given nothing; a feeder brings packets.

    ``forgets``: a worker drops what has come for it just before it sleeps.
    """

    def setup() -> Sequence[Worker]:
        policy = make()
        one = policy.one_semaphore
        state = State(policy, BOXES, workers, calls, machine)
        desk = Desk(lambda: state, workers, checked=machine is None and not one)
        lock = Lock()
        beds = [Bed()] * workers if one else [Bed() for _ in range(workers)]

        def wake(woken: tuple[int, ...]) -> None:
            at = 0
            while at < len(woken):
                beds[woken[at]].release()
                at += 1

        def feeder() -> None:
            at = 0
            while at < len(packets):
                lock.acquire()
                wake(desk.arrive(packets[at]))
                lock.release()
                at += 1

        def worker(number: int) -> Worker:
            def work() -> None:
                passed = False
                while True:
                    lock.acquire()
                    over, box, woken = desk.visit(number)
                    wake(woken)
                    if one and box is not None:
                        if not passed:
                            beds[number].acquire(blocking=False)
                        passed = False
                    lock.release()
                    if over:
                        return
                    if box is None:
                        if forgets:
                            beds[number].forget()
                        beds[number].acquire()
                        passed = True

            return work

        return [feeder, *[worker(number) for number in range(workers)]]

    return setup


@pytest.mark.parametrize("name", ["bobox", "las", "nls", "bobox_baseline"])
@pytest.mark.parametrize("workers", [1, 2])
def test_nobody_sleeps_for_ever_nor_while_a_task_has_nobody(name: str, workers: int) -> None:
    found = explore(parking(lambda: _task_policy(name), workers))
    print(f"\n{name}, {workers} workers: {found}")
    assert found.waiting > 0
    assert found.states > 50


def test_of_three_workers_nobody_sleeps_for_ever() -> None:
    """The counts at work: of three, none sleeps while a task has nobody."""
    found = explore(parking(Bobox, 3, packets=(0, 2), calls=3))
    print(f"\nbobox, 3 workers: {found}")


@pytest.mark.parametrize("name", ["bobox", "las"])
def test_on_two_nodes_nobody_sleeps_for_ever(name: str) -> None:
    """Whoever is responsible is woken: nothing is left to a node that sleeps."""
    found = explore(parking(lambda: _task_policy(name), 2, machine=TWO_NODES, packets=(0, 2), calls=3))
    print(f"\n{name}, 2 nodes: {found}")


def _task_policy(name: str) -> TaskPolicy:
    policy = policies.get(name)
    assert isinstance(policy, TaskPolicy)
    return policy


class Slip(Parking):
    def sleep(self, worker: int) -> None:
        """As the paper prints it: the number of running threads is increased before one sleeps."""
        super().sleep(worker)
        self.awake[self.pool_of[worker]] += 2


class OneTooFew(Parking):
    def wake(self) -> list[int]:
        self.tasks = [tasks - 1 for tasks in self.tasks]
        woken = super().wake()
        self.tasks = [tasks + 1 for tasks in self.tasks]
        return woken


def parked_with(made: type[Parking]) -> Callable[[], TaskPolicy]:
    class Mutant(Bobox):
        def count(self, pool_of: Sequence[int]) -> None:
            super().count(pool_of)
            self.parking = made(pool_of)

    return Mutant


class ForgetsWhatRuns(Bobox):
    """A packet that comes while its box runs makes no task when the call is over."""

    def handle(self, event: Event) -> Any:
        if isinstance(event, Finished):
            self._finished(event.box, event.worker)
            for place, _ in event.queues:
                self._check(place, event.worker, immediate=True)
            return self.wake()
        return super().handle(event)


class LetsTwoIn(Bobox):
    """Running is not told from nothing."""

    def _check(self, box: int, worker: int | None, immediate: bool = False) -> None:
        self.inside[box] = None
        entry = self.catalog.boxes[box]
        running, entry.running = entry.running, 0
        super()._check(box, worker, immediate)
        entry.running = running


class WakesForNothing(Las):
    """Who does not take what it has spawned leaves it to chance."""

    def given(self, task: WaitingTask, worker: int) -> None:
        self._counts_on[worker].clear()
        super().given(task, worker)


MUTANTS: dict[str, tuple[Setup, str]] = {
    "the paper's slip": (parking(parked_with(Slip), 2), "sleeper"),
    "one is woken too few": (parking(parked_with(OneTooFew), 2), "sleeper"),
    "an arrival during a call is forgotten": (parking(ForgetsWhatRuns, 2), "deadlock"),
    "running is not told from nothing": (parking(LetsTwoIn, 2), "exclusion"),
    "nobody is woken for what the spawner leaves": (parking(WakesForNothing, 2), "sleeper"),
    "a permit is dropped before sleeping": (parking(Bobox, 2, forgets=True), "deadlock"),
    "a permit of the one semaphore is dropped": (
        parking(lambda: _task_policy("bobox_baseline"), 2, forgets=True),
        "deadlock",
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS.keys())
def test_mutants_of_parking_are_found(mutant: tuple[Setup, str]) -> None:
    is_found(*mutant)


def is_found(setup: Setup, kind: str) -> None:
    with pytest.raises(Violation) as found:
        explore(setup, looking_for=kind)
    print(f"\n{found.value}")
    assert found.value.kind == kind


# --- the four states ----------------------------------------------------------------------------------


def alone_and_all(packets: int) -> Monitor:
    """Told who enters and leaves a box: one at a time, and at the end every packet has been worked on."""

    def step(value: tuple[bool, int], event: str) -> tuple[bool, int]:
        inside, done = value
        if event == "leave":
            return False, done + 1
        if inside:
            raise Violation("exclusion", "two workers are inside")
        return True, done

    def end(value: tuple[bool, int]) -> None:
        if value != (False, packets):
            raise Violation("lost", f"everybody has returned, and {packets - value[1]} packets wait")

    return Monitor((False, 0), step, end)


def _cell(name: str) -> property:
    def get(self: Any) -> Any:
        return self.cells[name].load()

    def put(self: Any, value: Any) -> None:
        self.cells[name].store(value)

    return property(get, put)


def operator(
    workers: int, feeders: int, each: int, replaced: Mapping[str, str] | None = None, *, locked: bool = True
) -> Setup:
    """Feeders queue packets and say so; workers that know of a task enter, take one packet, and leave.

    The queue itself needs no lock, as in the engine: a packet is there before anybody is told of it.
    """
    module = load(states, replaced)

    class Task(module.Task):  # type: ignore[misc, name-defined]
        running, scheduled, _told = _cell("running"), _cell("scheduled"), _cell("told")

        def __init__(self) -> None:
            self.cells: dict[str, Cell[Any]] = {
                "running": Cell(0),
                "scheduled": Cell(False),
                "told": Cell(False),
            }
            super().__init__(1)

    def setup() -> Sequence[Worker]:
        task, lock = Task(), Lock()
        queued, known, ended = Counter(), Counter(), Counter()
        box = alone_and_all(feeders * each)

        def feeder() -> None:
            left = each
            while left:
                queued.fetch_add(1)
                if locked:
                    lock.acquire()
                born = False
                if queued.load():  # unless somebody who was told of another has taken it
                    born = task.arrive()
                if born:
                    known.fetch_add(1)
                if locked:
                    lock.release()
                left -= 1
            ended.fetch_add(1)

        def worker() -> None:
            while True:
                last = ended.load() == feeders
                if locked:
                    lock.acquire()
                found = known.load() > 0
                if found:
                    known.fetch_add(-1)
                    more = queued.fetch_add(-1) > 1
                    born = task.begin(more)
                    if born:
                        known.fetch_add(1)
                if locked:
                    lock.release()
                if found:
                    box.tell("enter")
                    box.tell("leave")
                    if locked:
                        lock.acquire()
                    more = queued.load() > 0
                    born = task.finish(more)
                    if born:
                        known.fetch_add(1)
                    if locked:
                        lock.release()
                elif last:
                    return

        return [*[worker] * workers, *[feeder] * feeders]

    return setup


@pytest.mark.parametrize(("workers", "feeders", "each"), [(1, 1, 3), (2, 1, 3), (2, 2, 1)])
def test_an_operator_is_never_on_two_workers_and_loses_no_packet(
    workers: int, feeders: int, each: int
) -> None:
    found = explore(operator(workers, feeders, each))
    print(f"\n{workers} workers, {feeders} feeders of {each} packets: {found}")
    assert found.states > 100


FINISH = "        self.scheduled = self.scheduled or more\n        return self._born()\n"
BEGIN = "        self.scheduled, self._told = more, False\n"
ARRIVE = "        self.scheduled = True\n"
BORN = "        if not self.scheduled or self._told or self.running >= self.lanes:\n"

STATE_MUTANTS: dict[str, tuple[Setup, str]] = {
    "what came during the call is not told": (
        operator(2, 1, 3, {FINISH: FINISH.replace("self._born()", "False")}),
        "lost",
    ),
    "running and scheduled is forgotten": (
        operator(
            2,
            1,
            3,
            {
                ARRIVE: "        self.scheduled = not self.running\n",
                FINISH: "        self.scheduled = self.scheduled and more\n        return self._born()\n",
            },
        ),
        "lost",
    ),
    "the word is not used up": (operator(2, 1, 3, {BEGIN: "        self.scheduled = more\n"}), "lost"),
    "a task is born while the box runs": (
        operator(2, 1, 3, {BORN: "        if not self.scheduled or self._told:\n"}),
        "error",
    ),
    "nobody holds a lock": (operator(2, 1, 2, locked=False), "lost"),
}


@pytest.mark.parametrize("mutant", STATE_MUTANTS.values(), ids=STATE_MUTANTS.keys())
def test_mutants_of_the_states_are_found(mutant: tuple[Setup, str]) -> None:
    is_found(*mutant)
