"""The one harness for policies: a policy with its catalog, told by hand what happens.

``Brain`` is told events and says what was decided.  ``TinyEngine`` adds the few lines of an engine: queues,
and workers that ask, run and sleep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headgate.graph.qos import QoS
from headgate.machine.topology import Topology
from headgate.scheduling.catalog import BoxEntry, Catalog
from headgate.scheduling.events import (
    Changed,
    Event,
    Finished,
    Idle,
    QueueState,
    Rescheduled,
    Spawned,
    Started,
    Timer,
)
from headgate.scheduling.interface import ANYONE, Decision, Phase, Policy, Reschedule, Run, SetTimer, Wake


def entry(
    request: int = 0,
    upstream: Sequence[int] = (),
    downstream: Sequence[int] = (),
    *,
    lanes: int = 1,
    fed_by: tuple[int, ...] = (),
    tuple_bytes: float = 1.0,
) -> BoxEntry:
    made = BoxEntry("box", lanes, tuple(upstream), tuple(downstream), (f"q{request}",))
    made.request, made.fed_by, made.tuple_bytes = request, fed_by, tuple_bytes
    return made


def chosen(decisions: Iterable[Decision]) -> list[int]:
    """The first box of every plan."""
    return [decision.plan[0].box for decision in decisions if isinstance(decision, Run)]


class Brain:
    """A policy and its catalog.  Scheduling tasks are carried out at once, as an engine would."""

    def __init__(
        self,
        policy: Policy,
        boxes: Sequence[BoxEntry] | int,
        workers: int = 1,
        topology: Topology | None = None,
        *,
        goals: Mapping[str, QoS] | None = None,
        packet_rows: int = 0,
        seed: int = 0,
    ) -> None:
        if isinstance(boxes, int):
            boxes = [BoxEntry(f"b{i}", 1, (), (), ("q",), stated_cost=1e-3) for i in range(boxes)]
        self.policy = policy
        self.catalog = Catalog(boxes, goals)
        self.catalog.packet_rows = packet_rows
        if topology is not None:
            self.catalog.topology, self.catalog.cores = topology, topology.placed(workers)
        self.workers = workers
        self.decisions: list[Decision] = []
        """All so far."""
        self.phases: tuple[Phase, ...] = ()
        """Those of the last scheduling task."""
        self.start(seed)

    def start(self, seed: int = 0) -> None:
        for decision in self.policy.start(self.catalog, self.workers, seed):
            self._carry_out(decision, 0.0)

    def tell(self, *events: Event) -> list[Decision]:
        """What is decided on these events, and on the ends of the scheduling tasks that they lead to."""
        before = len(self.decisions)
        for event in events:
            self.catalog.apply(event)
            for decision in self.policy.handle(event):
                self._carry_out(decision, event.time)
        return self.decisions[before:]

    def _carry_out(self, decision: Decision, now: float) -> None:
        self.decisions.append(decision)
        if isinstance(decision, Reschedule):
            self.phases = decision.phases
            for phase in decision.phases:
                for piece in phase.slices:
                    piece()
            self.tell(Rescheduled(now))

    # --- what happens ------------------------------------------------------------------------------------

    def queue(self, box: int, tuples: int, time: float = 0.0, oldest: float = 0.0) -> None:
        """So many tuples wait for a box."""
        self.tell(Spawned(time, box, QueueState(tuples, oldest=oldest, mean=oldest)))

    def asked(self, worker: int = 0, time: float = 0.0) -> int | None:
        """Which box an idle worker gets."""
        boxes = chosen(self.tell(Idle(time, worker)))
        return boxes[0] if boxes else None

    def call(self, worker: int, time: float, seconds: float = 0.0, left: int = 9) -> int | None:
        """A worker asks, and runs one tuple of what it gets; so many are left."""
        box = self.asked(worker, time)
        if box is not None:
            self.tell(Started(time, worker, box, 1, QueueState(left)))
            self.tell(Finished(time + seconds, worker, box, 1, 1, seconds, 0.0))
        return box


class TinyEngine(Brain):
    """Boxes are known by their numbers.  A queue is full with ``room`` tuples."""

    def __init__(
        self,
        policy: Policy,
        boxes: Sequence[BoxEntry],
        workers: int,
        topology: Topology | None = None,
        *,
        packet_rows: int = 0,
        room: int = 1 << 30,
        seed: int = 0,
    ) -> None:
        self.room = room
        self.queued = [0] * len(boxes)
        self.working: dict[int, tuple[int, int]] = {}
        """By worker, its box and the tuples that it took."""
        self.before: set[int] = set()
        """Workers in calls that began before the policy took over."""
        self.awake: dict[int, None] = dict.fromkeys(range(workers))
        """Workers that are going to ask."""
        self.asleep: dict[int, None] = {}
        self.woken: list[int] = []
        self.timers: list[tuple[float, str]] = []
        super().__init__(policy, boxes, workers, topology, packet_rows=packet_rows, seed=seed)

    def queue_of(self, box: int) -> QueueState:
        full = self.catalog.boxes[box].upstream if self.queued[box] >= self.room else ()
        return QueueState(self.queued[box], frozenset(full))

    def _carry_out(self, decision: Decision, now: float) -> None:
        super()._carry_out(decision, now)
        if isinstance(decision, Wake):
            for worker in decision.workers:
                self._wake(worker)
        elif isinstance(decision, SetTimer):
            self.timers.append((decision.at, decision.name))

    def _wake(self, worker: int) -> None:
        if worker == ANYONE:
            if not self.asleep:
                return
            worker = next(iter(self.asleep))
        assert worker in self.asleep, f"worker {worker} is woken and does not sleep"
        del self.asleep[worker]
        self.awake[worker] = None
        self.woken.append(worker)

    def take_over(self, policy: Policy, workers: int, topology: Topology) -> None:
        """A policy takes over while calls are under way, with more or fewer workers; all of them ask."""
        self.policy, self.workers = policy, workers
        self.catalog.topology, self.catalog.cores = topology, topology.placed(workers)
        self.before = set(self.working)
        self.awake = {worker: None for worker in range(workers) if worker not in self.working}
        self.asleep.clear()
        self.timers.clear()
        self.start()
        inside = [box for box, _ in self.working.values()]
        for box, tuples in enumerate(self.queued):
            if tuples and box not in inside:
                self.tell(Spawned(0.0, box, self.queue_of(box), False))

    # --- what happens --------------------------------------------------------------------------------

    def arrive(self, *boxes: int, worker: int | None = None, tuples: int = 1) -> None:
        """Packets come, sent by a worker or by a source."""
        for box in boxes:
            self.queued[box] += tuples
            self.tell(Spawned(0.0, box, self.queue_of(box), worker is not None, worker))

    def ask(self, worker: int) -> int | None:
        """The box that a worker is given, in which it begins at once; None: it sleeps."""
        self.awake.pop(worker, None)
        self.asleep.pop(worker, None)
        self.asleep[worker] = None
        runs = [decision for decision in self.tell(Idle(0.0, worker)) if isinstance(decision, Run)]
        if not runs:
            return None
        [run] = runs
        assert run.worker == worker
        del self.asleep[worker]
        can_run = [call for call in run.plan if self.catalog.can_run(call.box)]
        assert can_run, "an idle worker gets a plan with a box that can run"
        call = can_run[0]
        taken = max(1, call.train.size(self.catalog.boxes[call.box]))
        self.queued[call.box] -= taken
        self.working[worker] = call.box, taken
        self.tell(Started(0.0, worker, call.box, taken, self.queue_of(call.box)))
        return call.box

    def finish(self, worker: int, *to: int) -> None:
        """A call is over, and has sent a tuple to each of these boxes; as the runtime tells it."""
        box, taken = self.working.pop(worker)
        self.before.discard(worker)
        if worker < self.workers:
            self.awake[worker] = None
        for place in to:
            self.queued[place] += 1
        queues = tuple((place, self.queue_of(place)) for place in to)
        self.tell(Finished(0.0, worker, box, taken, len(to), 0.1, 0.0, queues))
        inside = [other for other, _ in self.working.values()]
        for place, queue in queues:
            if queue.tuples == 1 and place not in inside:  # of others it has heard already
                self.tell(Spawned(0.0, place, queue, True, worker))
        if self.queued[box]:
            self.tell(Spawned(0.0, box, self.queue_of(box), False, worker))

    def serve(self, worker: int) -> int | None:
        """What a worker is given, and it does that at once."""
        box = self.ask(worker)
        if box is not None:
            self.finish(worker)
        return box

    def serve_all(self, worker: int) -> list[int]:
        """All that a worker is given until there is nothing for it."""
        found: list[int] = []
        while (box := self.serve(worker)) is not None:
            found.append(box)
        return found

    def cleared(self, box: int) -> None:
        self.queued[box] = 0
        self.tell(Changed(0.0, box, self.queue_of(box)))

    def ring(self) -> None:
        """The next timer is due."""
        at, name = self.timers.pop(0)
        self.tell(Timer(at, name))
