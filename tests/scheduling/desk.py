"""A scheduler's desk as a shared object: a real policy with its catalog, and the few lines of an engine.

One visit is one operation, as under the engine's lock.  The value is a copy of everything, so that states can
be compared and gone back to.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import choice_points
from brain import Brain
from choice_points import Shared, Violation
from headgate.machine.topology import Topology
from headgate.scheduling.catalog import BoxEntry
from headgate.scheduling.events import Changed, Finished, QueueState, Spawned, Started
from headgate.scheduling.interface import Wake
from headgate.scheduling.tasks import TaskPolicy

choice_points.HIDDEN.add(__name__)
Visit = tuple[bool, int | None, tuple[int, ...]]
"""Whether all is done, the box that the worker was given, and who is woken."""


class State(Brain):
    """What an engine knows: how much waits, who works in which box, who sleeps.

    Decisions are those since the visit began: two states that differ only in what was decided are one.
    """

    def __init__(
        self,
        policy: TaskPolicy,
        boxes: Sequence[tuple[int, tuple[int, ...]]],
        workers: int,
        total: int,
        machine: Topology | None,
    ) -> None:
        entries = [
            BoxEntry(f"box-{place}", 1, tuple(u for u, (_, d) in enumerate(boxes) if place in d), down, ())
            for place, (_, down) in enumerate(boxes)
        ]
        for made, (request, _) in zip(entries, boxes, strict=True):
            made.request = request
        super().__init__(policy, entries, workers, machine, packet_rows=1)
        self.tasks = policy
        self.queued = [0] * len(boxes)
        self.working: dict[int, int] = {}
        self.asleep: set[int] = set()
        self.left = total
        """Calls that are still to be made."""
        self.decisions.clear()

    def woken(self) -> tuple[int, ...]:
        return tuple(worker for d in self.decisions if isinstance(d, Wake) for worker in d.workers)

    def arrive(self, box: int) -> None:
        self.queued[box] += 1
        if self.queued[box] == 1 and box not in self.working.values():
            self.tell(Spawned(0.0, box, QueueState(1), False))
        else:
            self.tell(Changed(0.0, box, QueueState(self.queued[box])))

    def finish(self, worker: int) -> None:
        box = self.working.pop(worker)
        self.left -= 1
        down = self.catalog.boxes[box].downstream
        for place in down:
            self.queued[place] += 1
        queues = tuple((place, QueueState(self.queued[place])) for place in down)
        self.tell(Finished(0.0, worker, box, 1, len(down), 0.0, 0.0, queues))

    def ask(self, worker: int) -> int | None:
        self.asleep.add(worker)
        box = self.asked(worker)
        if box is None:
            return None
        if box in self.working.values():
            raise Violation("exclusion", f"box {box} is given to worker {worker} while another is inside")
        self.asleep.discard(worker)
        self.queued[box] -= 1
        self.working[worker] = box
        self.tell(Started(0.0, worker, box, 1, QueueState(self.queued[box])))
        return box

    def check(self, workers: int) -> None:
        """Never more tasks than workers that are awake and on their way, while one sleeps."""
        waiting = sum(task is not None for task in self.tasks.waiting)
        coming = workers - len(self.working) - len(self.asleep)
        if self.asleep and waiting > coming:
            raise Violation("sleeper", f"{waiting} tasks wait, {coming} workers come, {self.asleep} sleep")


class Value:
    """A state as a value: two that are spelled alike behave alike."""

    __slots__ = ("_hash", "spelled", "state")

    def __init__(self, state: State) -> None:
        self.state = state
        self.spelled = _spell(state, {})
        self._hash = hash(self.spelled)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and self.spelled == other.spelled


def _spell(value: Any, seen: dict[int, int]) -> Any:
    if value is None or isinstance(value, bool | int | float | str | type):
        return value
    if isinstance(value, MethodType):
        return value.__func__.__name__
    if id(value) in seen:
        return "again", seen[id(value)]
    seen[id(value)] = len(seen)
    if isinstance(value, dict):
        return "dict", tuple([(_spell(k, seen), _spell(v, seen)) for k, v in value.items()])
    if isinstance(value, set | frozenset):
        return "set", tuple(sorted(value))
    if isinstance(value, list | tuple | deque):
        return type(value).__name__, tuple([_spell(part, seen) for part in value])
    if isinstance(value, BoxEntry):
        return value.name, value.running, value.queue.tuples
    if isinstance(value, Topology):
        return value.name
    names = getattr(type(value), "__slots__", None) or sorted(vars(value))
    return type(value).__name__, tuple([(name, _spell(getattr(value, name), seen)) for name in names])


class Desk(Shared):
    """``visit`` and ``arrive`` return who has to be woken, for whoever holds the lock to do it."""

    def __init__(self, make: Callable[[], State], workers: int, *, checked: bool = True) -> None:
        super().__init__(Value(make()))
        self._workers = workers
        self._checked = checked

    def visit(self, worker: int) -> Visit:
        """A worker ends its call, if it has one, and asks for the next."""
        return self._do(self._visit, worker)  # type: ignore[no-any-return]

    def arrive(self, box: int) -> tuple[int, ...]:
        return self._do(self._arrive, box)  # type: ignore[no-any-return]

    def _visit(self, value: Value, worker: int) -> tuple[Value, Visit]:
        state = copy.deepcopy(value.state)
        state.asleep.discard(worker)
        if worker in state.working:
            state.finish(worker)
        box = None
        if state.left:
            box = state.ask(worker)
        else:
            state.decisions, state.asleep = [Wake(tuple(sorted(state.asleep)))], set()
        return self._leave(state, (not state.left, box))

    def _arrive(self, value: Value, box: int) -> tuple[Value, tuple[int, ...]]:
        state = copy.deepcopy(value.state)
        state.arrive(box)
        after, (_, _, woken) = self._leave(state, (False, None))
        return after, woken

    def _leave(self, state: State, result: tuple[bool, int | None]) -> tuple[Value, Visit]:
        woken = state.woken()
        state.decisions.clear()
        state.asleep.difference_update(woken)
        if self._checked and state.left:
            state.check(self._workers)
        return Value(state), (*result, woken)
