"""Tasks (Bobox, section 3.1): what policies that queue them have in common.

A task says that a box can run: it has input, room for its results, and no worker is inside.  It is
*immediate* if it was born by a packet that a worker has just sent, and *deferred* otherwise: the box has more
to do than its last call took, it has got room again, or its request is new.  A box has one task at most, and
one worker: the four states are *nothing*, *scheduled* (its task waits), *running* (its task was given to a
worker), and *running and scheduled* (it runs and has input), which becomes *scheduled* when the call is over.

A task that becomes needless is taken out of its queue at once, and one that could run is there as soon as the
catalog knows it.  So queues hold exactly what can run.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from headgate.machine.topology import Topology, flat
from headgate.scheduling.catalog import Catalog
from headgate.scheduling.events import Changed, Event, Finished, Idle, Joined, Left, Spawned, Started, Timer
from headgate.scheduling.interface import Call, Decision, Plan, Run, Wake
from headgate.scheduling.parking import Parking
from headgate.scheduling.pull import Chooser
from headgate.scheduling.steps import Step
from headgate.scheduling.trains import WHOLE_QUEUE, Count, Train


@dataclass(eq=False, slots=True)
class WaitingTask:
    """A box that can run and waits for a worker."""

    box: int
    request: int
    immediate: bool
    pool: int = 0
    """The pool that is responsible for it, for policies that count."""
    queue: deque[WaitingTask] = field(default_factory=deque)
    """Where it waits."""


Tasks = deque[WaitingTask]
"""Oldest first."""
Rule = Callable[[int], WaitingTask | None]
"""Takes a task for a worker out of its queue, if the rule has one."""


def oldest(tasks: Tasks) -> WaitingTask | None:
    return tasks.popleft() if tasks else None


def newest(tasks: Tasks) -> WaitingTask | None:
    return tasks.pop() if tasks else None


def oldest_of(queues: Iterable[Tasks]) -> WaitingTask | None:
    """The oldest of the first queue that has any."""
    for tasks in queues:
        if tasks:
            return oldest(tasks)
    return None


def put(task: WaitingTask, queue: Tasks) -> None:
    task.queue = queue
    queue.append(task)


class RequestQueue:
    """A priority queue by request, the oldest first, of double-ended queues (LAS, section 4.1)."""

    def __init__(self) -> None:
        self._requests: list[int] = []
        self._tasks: dict[int, Tasks] = {}

    def put(self, task: WaitingTask) -> None:
        if task.request not in self._tasks:
            self._tasks[task.request] = deque()
            insort(self._requests, task.request)
        put(task, self._tasks[task.request])

    def forget(self, request: int) -> None:
        """A request has ended."""
        if self._tasks.pop(request, None) is not None:
            self._requests.remove(request)

    def requests(self) -> Iterator[Tasks]:
        """The tasks of each request that has any, the oldest request's first."""
        return (self._tasks[request] for request in self._requests if self._tasks[request])


class TaskPolicy(Chooser):
    """Base of policies with queues of tasks: when tasks are born, given to workers, and become needless.

    A call takes a packet, so that what it sends is still in the cache when the next box works on it.  A step
    takes the next tasks along, in the order of the rules, until it is full, each with its whole queue and the
    tasks that its results are going to make.
    """

    one_lane = True
    assigns = True
    grows = True
    rules: Sequence[Rule]
    """How a task is found for a worker: the first rule that has one decides.  Set by ``begin``."""

    def start(self, catalog: Catalog, workers: int, seed: int = 0) -> Sequence[Decision]:
        self.catalog = catalog
        self.topology: Topology = catalog.topology or flat(workers)
        self.cores = catalog.cores or self.topology.placed(workers)
        """By worker, the core that it is on."""
        self.waiting: list[WaitingTask | None] = [None] * len(catalog.boxes)
        """By box, its task."""
        self.inside: list[int | None] = [None] * len(catalog.boxes)
        """By box, the worker that it was given to."""
        self._given: list[dict[int, None]] = [{} for _ in range(workers)]
        """By worker, the boxes that it was given and has not finished."""
        self._train: Train = WHOLE_QUEUE
        return self.begin(workers)

    # --- what a policy says --------------------------------------------------------------------------

    def begin(self, workers: int) -> Sequence[Decision]:
        """Set up the queues and the rules."""
        raise NotImplementedError

    def place(self, task: WaitingTask, worker: int | None) -> None:
        """Queue a task that was born by a call of a worker, or by none."""
        raise NotImplementedError

    def dropped(self, task: WaitingTask) -> None:
        """A task has become needless, or goes along with another; it is in no queue any more."""

    def given(self, task: WaitingTask, worker: int) -> None:
        """A worker was given the task that was found for it."""

    def free(self, worker: int) -> None:
        """A worker has done what it was given, and is going to ask."""

    def asks(self, worker: int) -> None:
        """A worker asks for work."""

    def sleeps(self, worker: int, now: float) -> Sequence[Decision]:
        """A worker has found nothing."""
        return ()

    def wake(self) -> Sequence[Decision]:
        """Called last, for every event: which workers to wake."""
        return ()

    def timer(self, event: Timer) -> Sequence[Decision]:
        return ()

    def left(self, event: Left) -> None:
        """A request has ended; it has no tasks any more."""

    # --- events --------------------------------------------------------------------------------------

    def handle(self, event: Event) -> Sequence[Decision]:
        decisions: Sequence[Decision] = ()
        boxes = self.catalog.boxes
        if isinstance(event, Finished):
            worker = self._still_there(event.worker)
            if worker is not None:
                self._finished(event.box, worker)
            for place, _ in event.queues:
                self._check(place, worker, immediate=True)
            self._check(event.box, worker)
            for place, _ in event.queues:
                self._check_upstream(place, worker)
        elif isinstance(event, Started):
            self._check(event.box, event.worker)
            self._check_upstream(event.box, event.worker)
        elif isinstance(event, Idle):
            decisions = self._idle(event.worker, event.time)
        elif isinstance(event, Spawned):
            worker = self._still_there(event.worker)
            self._check(event.box, worker, event.immediate)
            self._check_upstream(event.box, worker)
        elif isinstance(event, Changed):
            self._check(event.box, None)
            for up in boxes[event.box].upstream:
                self._check(up, None)
        elif isinstance(event, Timer):
            decisions = self.timer(event)
        elif isinstance(event, Joined):
            more = [None] * (len(boxes) - len(self.waiting))
            self.waiting += more
            self.inside += more
        elif isinstance(event, Left):
            self.left(event)
        woken = self.wake()
        return [*decisions, *woken] if woken else decisions

    def _still_there(self, worker: int | None) -> int | None:
        """The worker, or None if it was removed and has ended its last call: it takes no further task."""
        return worker if worker is not None and worker < len(self._given) else None

    def _check_upstream(self, box: int, worker: int | None) -> None:
        for up in self.catalog.boxes[box].upstream:
            self._check(up, worker)

    def _check(self, box: int, worker: int | None, immediate: bool = False) -> None:
        """Make the task of a box that can run and has none; drop that of one that cannot."""
        entry, task = self.catalog.boxes[box], self.waiting[box]
        can_run = self.inside[box] is None and not entry.running and self.catalog.can_run(box)
        if can_run and task is None:
            task = WaitingTask(box, entry.request, immediate and worker is not None)
            self.waiting[box] = task
            self.place(task, worker)
        elif task is not None and not can_run:
            self._drop(task)

    def _drop(self, task: WaitingTask) -> None:
        task.queue.remove(task)
        self.waiting[task.box] = None
        self.dropped(task)

    def _finished(self, box: int, worker: int) -> None:
        given = self._given[worker]
        if box in given:
            del given[box]
            self.inside[box] = None
            if not given:
                self.free(worker)

    # --- a worker asks -------------------------------------------------------------------------------

    def _idle(self, worker: int, now: float) -> Sequence[Decision]:
        left = list(self._given[worker])
        for box in left:  # calls that were skipped
            self._finished(box, worker)
        for box in left:
            self._check(box, worker)
        self.asks(worker)
        plan = self.next_plan(worker, now)
        return (Run(worker, plan),) if plan else self.sleeps(worker, now)

    def choose(self, worker: int, now: float) -> Plan | None:
        task = self._next(worker)
        return None if task is None else (Call(task.box, self._packet()),)

    def step(self, worker: int, now: float) -> Plan | None:
        step = Step(self.catalog)
        while not step.full and (task := self._next(worker)) is not None:
            step.work(task.box)
            step.add([Call(task.box, WHOLE_QUEUE)])
            self._follow(task.box, worker, step)
        return step.plan or None

    def _next(self, worker: int) -> WaitingTask | None:
        """Give a worker its next task."""
        task = self.find(worker)
        if task is not None:
            self._give(task, worker)
        return task

    def _follow(self, box: int, worker: int, step: Step) -> None:
        """Take along the boxes that a box's results reach: their tasks would be the worker's next ones."""
        for down in self.catalog.downstream(box):
            if self.inside[down] is not None or self.catalog.boxes[down].running:
                continue
            task = self.waiting[down]
            if task is not None:
                self._drop(task)
            self.inside[down] = worker
            self._given[worker][down] = None
            step.add([Call(down, WHOLE_QUEUE)])

    def _give(self, task: WaitingTask, worker: int) -> None:
        self.waiting[task.box] = None
        self.inside[task.box] = worker
        self._given[worker][task.box] = None
        self.given(task, worker)

    def find(self, worker: int) -> WaitingTask | None:
        """Take the task that the rules give to a worker out of its queue; None if there is none."""
        for rule in self.rules:
            task = rule(worker)
            if task is not None:
                return task
        return None

    def _packet(self) -> Train:
        rows = self.catalog.packet_rows
        if not rows:
            return WHOLE_QUEUE
        if not isinstance(self._train, Count) or self._train.tuples != rows:
            self._train = Count(rows)
        return self._train


def waked(workers: Sequence[int]) -> Sequence[Decision]:
    return (Wake(tuple(workers)),) if workers else ()


class CountedTasks(TaskPolicy):
    """Base of policies that know by counting who may sleep: see ``parking``."""

    parking: Parking

    def count(self, pool_of: Sequence[int]) -> None:
        """Begin to count; ``pool_of`` says whose each worker is."""
        self.parking = Parking(pool_of)
        self._counted = [False] * len(pool_of)
        """By worker, whether what it does is counted."""

    def place(self, task: WaitingTask, worker: int | None) -> None:
        """To be called when the task's pool is known."""
        self.parking.add(task.pool)

    def dropped(self, task: WaitingTask) -> None:
        self.parking.remove(task.pool)

    def given(self, task: WaitingTask, worker: int) -> None:
        self.parking.remove(task.pool)
        if not self._counted[worker]:  # what a worker does is one task, of its own pool
            self._counted[worker] = True
            self.parking.add(self.parking.pool_of[worker])

    def free(self, worker: int) -> None:
        self._counted[worker] = False
        self.parking.remove(self.parking.pool_of[worker])

    def asks(self, worker: int) -> None:
        self.parking.asks(worker)

    def sleeps(self, worker: int, now: float) -> Sequence[Decision]:
        self.parking.sleep(worker)
        return ()

    def wake(self) -> Sequence[Decision]:
        return waked(self.parking.wake())
