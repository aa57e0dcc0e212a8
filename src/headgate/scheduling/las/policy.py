"""The locality-aware scheduler (LAS, sections 4.1 to 4.3), and the one that it is compared with."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from headgate.scheduling.events import Left
from headgate.scheduling.interface import Decision
from headgate.scheduling.parking import dense
from headgate.scheduling.tasks import (
    CountedTasks,
    RequestQueue,
    TaskPolicy,
    Tasks,
    WaitingTask,
    newest,
    oldest,
    oldest_of,
    put,
    waked,
)


class Las(TaskPolicy):
    """Tasks near the cache and memory node that hold their data; others steal what costs least to move.

    A worker takes, in this order (section 4.2): its core's youngest immediate task; the oldest immediate one
    of its group, by cache distance; the youngest deferred one of its group's oldest request; of the nearest
    other group that has any, the oldest deferred one of the second oldest request, or of the only one; the
    oldest immediate one of other groups on its node, each in turn.  For a new task a sleeping worker is woken
    in the same group, or else in the nearest that has one; for an immediate task only on the node.
    """

    name = "las"
    pins = True

    def begin(self, workers: int) -> Sequence[Decision]:
        topology, cores = self.topology, self.cores
        self.group_of = dense(topology.group_of(core) for core in cores)
        """By worker, its group; groups without workers do not count."""
        count = max(self.group_of) + 1
        first = [self.group_of.index(group) for group in range(count)]
        distances = [[topology.numa_distance(cores[g], cores[h]) for h in first] for g in first]
        order = [sorted(range(count), key=lambda h: (distances[g][h], (h - g) % count)) for g in range(count)]
        self.other_groups = [[h for h in order[g] if h != g] for g in range(count)]
        """By group, the others, nearest first."""
        self._same_node = [[h for h in self.other_groups[g] if distances[g][h] == 0] for g in range(count)]
        members = [topology.groups[topology.group_of(cores[worker])] for worker in first]
        self._immediate: dict[int, Tasks] = {core: deque() for group in members for core in group}
        """By core, as workers may be on any of their group."""
        self.mates = {
            core: sorted(
                (other for other in group if other != core),
                key=lambda c: (topology.cache_distance(core, c), (group.index(c) - place) % len(group)),
            )
            for group in members
            for place, core in enumerate(group)
        }
        """By core, the others of its group, by cache distance."""
        self._strangers = [
            [core for h in sorted(self._same_node[g]) for core in members[h]] for g in range(count)
        ]
        """By group, the cores of other groups on its node."""
        self._strangers_turn = [0] * workers
        self._deferred = [RequestQueue() for _ in range(count)]
        self._group_of_box: dict[int, int] = {}
        """By box, the group that ran it last."""
        self._asleep: list[dict[int, None]] = [{} for _ in range(count)]
        self._free = [False] * workers
        """By worker, whether it is awake and about to ask, as far as is known."""
        self._counts_on: list[dict[WaitingTask, int]] = [{} for _ in range(workers)]
        """By worker that is about to ask, the tasks for which no other worker was woken, and their groups."""
        self._alarms: list[tuple[WaitingTask, int]] = []
        """Tasks that still need a worker to be woken, with the groups that they were born in."""
        self.rules = (
            self._own,
            self._of_mates,
            self._of_oldest_request,
            self._of_other_groups,
            self._of_strangers,
        )
        return ()

    # --- tasks ---------------------------------------------------------------------------------------

    def place(self, task: WaitingTask, worker: int | None) -> None:
        if worker is None:
            group = self._group_of_box.get(task.box, task.request % len(self._deferred))
        else:
            group = self.group_of[worker]
        if task.immediate and worker is not None:
            put(task, self._immediate[self._core(worker)])
        else:
            self._deferred[group].put(task)
        # A worker that has just sent a packet is free: others are woken only for what it does not take.
        if worker is not None and self._free[worker]:
            self._counts_on[worker][task] = group
        else:
            self._alarms.append((task, group))

    def left(self, event: Left) -> None:
        for tasks in self._deferred:
            tasks.forget(event.request)
        for box in event.boxes:
            self._group_of_box.pop(box, None)

    def _core(self, worker: int) -> int:
        """Where it is now: its pool is pinned to the group, not to a core."""
        return self.catalog.cores[worker] if self.catalog.cores else self.cores[worker]

    # --- the rules (section 4.2) ---------------------------------------------------------------------

    def _own(self, worker: int) -> WaitingTask | None:
        return newest(self._immediate[self._core(worker)])

    def _of_mates(self, worker: int) -> WaitingTask | None:
        return oldest_of(self._immediate[mate] for mate in self.mates[self._core(worker)])

    def _of_oldest_request(self, worker: int) -> WaitingTask | None:
        for tasks in self._deferred[self.group_of[worker]].requests():
            return newest(tasks)
        return None

    def _of_other_groups(self, worker: int) -> WaitingTask | None:
        for group in self.other_groups[self.group_of[worker]]:
            requests = self._deferred[group].requests()
            first = next(requests, None)
            if first is not None:
                return oldest(next(requests, first))
        return None

    def _of_strangers(self, worker: int) -> WaitingTask | None:
        strangers, turn = self._strangers[self.group_of[worker]], self._strangers_turn[worker]
        for step in range(len(strangers)):
            at = (turn + step) % len(strangers)
            if self._immediate[strangers[at]]:
                self._strangers_turn[worker] = at + 1
                return oldest(self._immediate[strangers[at]])
        return None

    # --- suspending and resuming (section 4.3) ---------------------------------------------------------

    def given(self, task: WaitingTask, worker: int) -> None:
        self._free[worker] = False
        self._group_of_box[task.box] = self.group_of[worker]
        self._alarms += self._counts_on[worker].items()
        self._counts_on[worker].clear()

    def free(self, worker: int) -> None:
        self._free[worker] = True

    def asks(self, worker: int) -> None:
        self._free[worker] = True
        self._asleep[self.group_of[worker]].pop(worker, None)

    def sleeps(self, worker: int, now: float) -> Sequence[Decision]:
        self._free[worker] = False
        self._asleep[self.group_of[worker]][worker] = None
        self._counts_on[worker].clear()
        return ()

    def wake(self) -> Sequence[Decision]:
        if not self._alarms:
            return ()
        alarms, self._alarms = self._alarms, []
        woken = []
        for task, group in alarms:
            if self.waiting[task.box] is task:
                worker = self._resume(group, task.immediate)
                if worker is not None:
                    self._free[worker] = True
                    self._counts_on[worker][task] = group
                    woken.append(worker)
        return waked(woken)

    def _resume(self, group: int, immediate: bool) -> int | None:
        """A sleeping worker of the group, or of the nearest; the last that fell asleep is the warmest."""
        others = self._same_node[group] if immediate else self.other_groups[group]
        for at in (group, *others):
            if self._asleep[at]:
                return self._asleep[at].popitem()[0]
        return None


class Nls(CountedTasks):
    """Own youngest immediate task, else the oldest deferred of all: LAS without regard to where things are.

    At last another worker's oldest immediate task (section 6.1).
    """

    name = "nls"

    def begin(self, workers: int) -> Sequence[Decision]:
        self._immediate: list[Tasks] = [deque() for _ in range(workers)]
        self._deferred: Tasks = deque()
        self.count([0] * workers)
        self.rules = (self._own, self._shared, self._of_others)
        return ()

    def place(self, task: WaitingTask, worker: int | None) -> None:
        put(task, self._immediate[worker] if task.immediate and worker is not None else self._deferred)
        super().place(task, worker)

    def _own(self, worker: int) -> WaitingTask | None:
        return newest(self._immediate[worker])

    def _shared(self, worker: int) -> WaitingTask | None:
        return oldest(self._deferred)

    def _of_others(self, worker: int) -> WaitingTask | None:
        count = len(self._immediate)
        return oldest_of(self._immediate[(worker + step) % count] for step in range(1, count))
