"""A policy with its catalog and a few lines of engine, told by hand what happens."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.machine.topology import Topology
from headgate.scheduling.catalog import BoxEntry, Catalog
from headgate.scheduling.events import Changed, Event, Finished, Idle, QueueState, Spawned, Started, Timer
from headgate.scheduling.interface import ANYONE, Decision, Policy, Run, SetTimer, Wake


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


class Brain:
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
    ) -> None:
        self.policy = policy
        self.catalog = Catalog(boxes)
        self.catalog.packet_rows = packet_rows
        if topology is not None:
            self.catalog.topology, self.catalog.cores = topology, topology.placed(workers)
        self.room = room
        self.queued = [0] * len(boxes)
        self.workers = workers
        self.working: dict[int, tuple[int, int]] = {}
        """By worker, its box and the tuples that it took."""
        self.before: set[int] = set()
        """Workers in calls that began before the policy took over."""
        self.awake: dict[int, None] = dict.fromkeys(range(workers))
        """Workers that are going to ask."""
        self.asleep: dict[int, None] = {}
        self.woken: list[int] = []
        self.timers: list[tuple[float, str]] = []
        self._given: dict[int, Run] = {}
        self._carry_out(policy.start(self.catalog, workers))

    def queue(self, box: int) -> QueueState:
        full = self.catalog.boxes[box].upstream if self.queued[box] >= self.room else ()
        return QueueState(self.queued[box], frozenset(full))

    def tell(self, event: Event) -> Sequence[Decision]:
        self.catalog.apply(event)
        decisions = self.policy.handle(event)
        self._carry_out(decisions)
        return decisions

    def _carry_out(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Wake):
                for worker in decision.workers:
                    self._wake(worker)
            elif isinstance(decision, Run):
                self._given[decision.worker] = decision
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
        self._carry_out(policy.start(self.catalog, workers))
        inside = [box for box, _ in self.working.values()]
        for box, tuples in enumerate(self.queued):
            if tuples and box not in inside:
                self.tell(Spawned(0.0, box, self.queue(box), False))

    # --- what happens --------------------------------------------------------------------------------

    def arrive(self, *boxes: int, worker: int | None = None, tuples: int = 1) -> None:
        """Packets come, sent by a worker or by a source."""
        for box in boxes:
            self.queued[box] += tuples
            self.tell(Spawned(0.0, box, self.queue(box), worker is not None, worker))

    def ask(self, worker: int) -> int | None:
        """The box that a worker is given, in which it begins at once; None: it sleeps."""
        self.awake.pop(worker, None)
        self.asleep.pop(worker, None)
        self.asleep[worker] = None
        self.tell(Idle(0.0, worker))
        run = self._given.pop(worker, None)
        if run is None:
            return None
        del self.asleep[worker]
        call = run.plan[0]
        assert run.worker == worker
        assert self.catalog.can_run(call.box), "a plan begins with a box that can run"
        taken = max(1, call.train.size(self.catalog.boxes[call.box]))
        self.queued[call.box] -= taken
        self.working[worker] = call.box, taken
        self.tell(Started(0.0, worker, call.box, taken, self.queue(call.box)))
        return call.box

    def finish(self, worker: int, *to: int) -> None:
        """A call is over, and has sent a tuple to each of these boxes; as the runtime tells it."""
        box, taken = self.working.pop(worker)
        self.before.discard(worker)
        if worker < self.workers:
            self.awake[worker] = None
        for place in to:
            self.queued[place] += 1
        queues = tuple((place, self.queue(place)) for place in to)
        self.tell(Finished(0.0, worker, box, taken, len(to), 0.1, 0.0, queues))
        inside = [other for other, _ in self.working.values()]
        for place, queue in queues:
            if queue.tuples == 1 and place not in inside:  # of others it has heard already
                self.tell(Spawned(0.0, place, queue, True, worker))
        if self.queued[box]:
            self.tell(Spawned(0.0, box, self.queue(box), False, worker))

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
        self.tell(Changed(0.0, box, self.queue(box)))

    def ring(self) -> None:
        """The next timer is due."""
        at, name = self.timers.pop(0)
        self.tell(Timer(at, name))
