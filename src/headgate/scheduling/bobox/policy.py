"""Bobox's task scheduler (sections 3 to 5), and the simple one that it was measured against (section 6)."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence

from headgate.scheduling.events import Left, Timer
from headgate.scheduling.interface import ANYONE, Decision, SetPacketRows, SetTimer, Wake
from headgate.scheduling.parking import dense
from headgate.scheduling.tasks import (
    CountedTasks,
    TaskPolicy,
    Tasks,
    WaitingTask,
    newest,
    oldest,
    oldest_of,
    put,
)

BALANCING = 0.1
"""Seconds between looks at the load of the nodes, while a worker sleeps."""
_TIMER = "load balancing"


class _Request:
    """A request's deferred tasks, and the nodes that evaluate it."""

    def __init__(self) -> None:
        self.deferred: Tasks = deque()
        self.nodes: list[int] = []
        self._turn = 0

    def responsible(self) -> int:
        """The node responsible for a new deferred task: each that shares the request in its turn."""
        self._turn = (self._turn + 1) % len(self.nodes)
        return self.nodes[self._turn]


class Bobox(CountedTasks):
    """A request at a time on its memory node, what was just sent first: caches stay warm, memory near.

    A worker takes, in this order (section 5.1): its own newest immediate task; the oldest deferred one of the
    request that it served last; the oldest of the oldest request on its node; the oldest immediate one of
    another worker of the node.  If there is none it sleeps.  A new request goes to the node with the most
    free memory and idle workers.  While a worker sleeps, every 100 ms the newest request of an overloaded
    node is moved to an idle one, or the only one shared with it (section 5.2).
    """

    name = "bobox"
    pins = True

    def begin(self, workers: int) -> Sequence[Decision]:
        numbers = [self.topology.node_of(core) for core in self.cores]
        self.node_of = dense(numbers)
        """By worker, its node; nodes without workers do not count."""
        self.count(self.node_of)
        nodes = len(self.parking.size)
        self.needs = frozenset({"bytes"}) if nodes > 1 else frozenset()
        self._memory = [self.topology.nodes[number].memory for number in sorted(set(numbers))]
        self._workers = [[w for w, node in enumerate(self.node_of) if node == n] for n in range(nodes)]
        self._immediate: list[Tasks] = [deque() for _ in range(workers)]
        self.requests: dict[int, _Request] = {}
        self._evaluated: list[list[int]] = [[] for _ in range(nodes)]
        """By node, its requests, the oldest first."""
        self._last: list[int | None] = [None] * workers
        """By worker, the request that it served last."""
        self._timer_is_set = False
        self.rules = (self._own, self._of_last_request, self._of_oldest_request, self._of_others)
        return ()

    # --- tasks ---------------------------------------------------------------------------------------

    def place(self, task: WaitingTask, worker: int | None) -> None:
        request = self._request(task.request, worker)
        if task.immediate and worker is not None:
            task.pool = self.node_of[worker]
            put(task, self._immediate[worker])
        else:
            task.pool = request.responsible()
            put(task, request.deferred)
        super().place(task, worker)

    def given(self, task: WaitingTask, worker: int) -> None:
        super().given(task, worker)
        self._last[worker] = task.request

    def left(self, event: Left) -> None:
        request = self.requests.pop(event.request, None)
        for node in () if request is None else request.nodes:
            self._evaluated[node].remove(event.request)
        self._last = [None if last == event.request else last for last in self._last]

    def _request(self, number: int, worker: int | None) -> _Request:
        """A new one begins where its data is, or where there is most room for it."""
        request = self.requests.get(number)
        if request is None:
            request = self.requests[number] = _Request()
            self._assign(number, self.freest() if worker is None else self.node_of[worker])
        return request

    def _assign(self, number: int, node: int) -> None:
        self.requests[number].nodes.append(node)
        insort(self._evaluated[node], number)

    def _withdraw(self, number: int, node: int) -> None:
        self.requests[number].nodes.remove(node)
        self._evaluated[node].remove(number)

    def freest(self) -> int:
        """The node with the most free memory and idle workers, each as a share of what it has."""
        used = [0.0] * len(self._memory)
        for box in self.catalog.boxes:
            request = self.requests.get(box.request)
            if request is not None and request.nodes:
                for node in request.nodes:
                    used[node] += box.queue.tuples * box.tuple_bytes / len(request.nodes)

        def free(node: int) -> float:
            size, memory = self.parking.size[node], self._memory[node]
            idle = max(size - self.parking.tasks[node], 0) / size
            return idle + (max(memory - used[node], 0.0) / memory if memory else 0.0)

        return max(range(len(used)), key=lambda node: (free(node), -len(self._evaluated[node]), -node))

    # --- the rules (section 5.1) ---------------------------------------------------------------------

    def _own(self, worker: int) -> WaitingTask | None:
        return newest(self._immediate[worker])

    def _of_last_request(self, worker: int) -> WaitingTask | None:
        last = self._last[worker]
        if last is None or self.node_of[worker] not in self.requests[last].nodes:
            return None
        return oldest(self.requests[last].deferred)

    def _of_oldest_request(self, worker: int) -> WaitingTask | None:
        return oldest_of(self.requests[number].deferred for number in self._evaluated[self.node_of[worker]])

    def _of_others(self, worker: int) -> WaitingTask | None:
        workers = self._workers[self.node_of[worker]]
        at = workers.index(worker)
        return oldest_of(self._immediate[other] for other in (*workers[at + 1 :], *workers[:at]))

    # --- load balancing (section 5.2) ------------------------------------------------------------------

    def sleeps(self, worker: int, now: float) -> Sequence[Decision]:
        super().sleeps(worker, now)
        if len(self._memory) == 1 or self._timer_is_set:
            return ()
        self._timer_is_set = True
        return (SetTimer(now + BALANCING, _TIMER),)

    def timer(self, event: Timer) -> Sequence[Decision]:
        if event.name != _TIMER:
            return ()
        self._timer_is_set = self.parking.some_sleep
        if not self._timer_is_set:
            return ()
        self.balance()
        return (SetTimer(event.time + BALANCING, _TIMER),)

    def balance(self) -> None:
        """Move the newest request of the most loaded node to the idlest; share it if it is the only one."""
        parking, nodes = self.parking, range(len(self._memory))
        loaded = max(nodes, key=lambda node: (parking.tasks[node] - parking.size[node], -node))
        idle = max(nodes, key=lambda node: (len(parking.asleep[node]), -node))
        if parking.tasks[loaded] <= parking.size[loaded] or not parking.asleep[idle] or loaded == idle:
            return
        active = self._active(loaded)
        movable = [number for number in active if idle not in self.requests[number].nodes]
        if not movable:
            return
        number = max(movable)
        self._assign(number, idle)
        if len(active) > 1:
            self._withdraw(number, loaded)
            for task in self.requests[number].deferred:
                if task.pool == loaded:
                    task.pool = idle
                    parking.remove(loaded)
                    parking.add(idle)

    def _active(self, node: int) -> list[int]:
        """The requests of a node that have something waiting or being done there."""
        found = set()
        for box, (task, worker) in enumerate(zip(self.waiting, self.inside, strict=True)):
            at = task.pool if task is not None else None if worker is None else self.node_of[worker]
            if at == node:
                found.add(self.catalog.boxes[box].request)
        return [number for number in self._evaluated[node] if number in found]


class BoboxBaseline(TaskPolicy):
    """Every worker's own list, then another's in turn, oldest first: what Bobox is measured against.

    It tells no immediate from deferred tasks and no request from another, wakes by one semaphore for all, and
    cuts packets of a constant size if one is given (section 6).
    """

    name = "bobox_baseline"
    one_semaphore = True

    def __init__(self, packet_rows: int | None = None) -> None:
        self.packet_rows = packet_rows

    def begin(self, workers: int) -> Sequence[Decision]:
        self._lists: list[Tasks] = [deque() for _ in range(workers)]
        self._turn = 0
        self._victim = list(range(workers))
        """By worker, the list that it stole from last."""
        self._new = 0
        self.rules = (self._own, self._of_others)
        return (SetPacketRows(self.packet_rows),) if self.packet_rows else ()

    def place(self, task: WaitingTask, worker: int | None) -> None:
        if worker is None:
            worker = self._turn = (self._turn + 1) % len(self._lists)
        put(task, self._lists[worker])
        self._new += 1

    def _own(self, worker: int) -> WaitingTask | None:
        return oldest(self._lists[worker])

    def _of_others(self, worker: int) -> WaitingTask | None:
        count = len(self._lists)
        for step in range(1, count + 1):
            victim = (self._victim[worker] + step) % count
            if self._lists[victim]:
                self._victim[worker] = victim
                return oldest(self._lists[victim])
        return None

    def wake(self) -> Sequence[Decision]:
        new, self._new = self._new, 0
        return (Wake((ANYONE,) * new),) if new else ()
