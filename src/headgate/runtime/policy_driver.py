"""Tells the policy of events, and carries its decisions out or passes them to the engine."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from headgate.errors import HeadgateError, PipelineError
from headgate.runtime import instructions
from headgate.runtime.change import Change
from headgate.runtime.instructions import Instruction, Meet, NewTerm, Planned, TimerKey
from headgate.runtime.report import BoxReport, Overhead, QueryReport, Report, Trace
from headgate.scheduling.catalog import Catalog
from headgate.scheduling.events import (
    Event,
    Finished,
    Idle,
    Joined,
    Left,
    Moved,
    QueueState,
    Rescheduled,
    Spawned,
    Started,
    Timer,
)
from headgate.scheduling.interface import (
    Decision,
    Phase,
    Plan,
    Policy,
    Reschedule,
    Run,
    SetPacketRows,
    SetTimer,
    Shed,
    Wake,
)


class Scheduled(Protocol):
    """What a policy schedules: boxes with queues, as the driver needs them."""

    def measure_for(self, needs: frozenset[str]) -> None:
        """From now on take the measurements that the policy needs."""

    def measure_all(self) -> list[QueueState]:
        """Every queue, with all that any policy could need."""
        ...

    def make_lanes(self, workers: int) -> None:
        """Give stateless boxes this many lanes."""

    def open_gates(self) -> None:
        """Stop dropping tuples."""

    def tasks(self, now: float) -> Iterable[Spawned]:
        """Every task that there is, for a policy that takes over."""
        ...

    def shed(self, decision: Shed) -> None:
        """From now on drop a share of what comes to a box."""

    def set_packet_rows(self, rows: int) -> None:
        """Cut what comes from now on into packets of so many rows, if packets are cut here."""


class PolicyDriver:
    """Keeps the catalog and the policies' terms, and gives workers their plans."""

    def __init__(
        self,
        policy: Policy,
        catalog: Catalog,
        scheduled: Scheduled,
        out: list[Instruction],
        timer: Callable[[], float],
        seed: int,
    ) -> None:
        self.policy, self.catalog = policy, catalog
        self._scheduled, self._out = scheduled, out
        self._timer, self._seed = timer, seed
        self.overhead = Overhead()
        self.trace = Trace()
        self.workers = 0
        self.requested = 0
        """Workers as they were asked for; the policy may want another number of them."""
        self.term = 0
        """How often another policy has taken over, or the same one began anew."""
        self.plans: dict[int, Plan] = {}
        """What each worker still has to do."""
        self.problems: list[str] = []
        """What went wrong with policies that are no longer in force."""
        self._before: Policy | None = None
        """The policy before this one, until this one has made a first plan."""

    def start(self, workers: int, requested: int) -> None:
        """Let the policy begin."""
        self.workers, self.requested = workers, requested
        for decision in self.policy.start(self.catalog, workers, self._seed):
            self._carry_out(decision)
        self._scheduled.measure_for(self.policy.needs)

    # --- events and decisions -----------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        """Tell the catalog and the policy of an event, and carry out what the policy decides."""
        begin = self._timer()
        self.catalog.apply(event)
        try:
            decisions = self.policy.handle(event)
        except Exception as error:
            if self._before is None:
                raise
            self._fall_back(error, event)
            return
        if self._before is not None and isinstance(event, Idle) and decisions:
            self._before = None
        for decision in decisions:
            self._carry_out(decision)
        self.overhead.scheduler += self._timer() - begin

    def _carry_out(self, decision: Decision) -> None:
        if isinstance(decision, Run):
            self.plans[decision.worker] = decision.plan
            self._out.append(Planned(decision.worker))
        elif isinstance(decision, Wake):
            self._out += [instructions.Wake(worker) for worker in decision.workers]
        elif isinstance(decision, SetTimer):
            self._out.append(instructions.SetTimer(decision.at, (self.term, decision.name)))
        elif isinstance(decision, Reschedule):
            self._out.append(Meet(decision.phases))
        elif isinstance(decision, Shed):
            self._scheduled.shed(decision)
        else:
            assert isinstance(decision, SetPacketRows)
            self._scheduled.set_packet_rows(decision.rows)

    def spawn(
        self, box: int, queue: QueueState, now: float, worker: int | None, *, immediate: bool = True
    ) -> None:
        """Tell of a task; it is immediate only if a worker sent the packet, which may be in its cache."""
        immediate = immediate and worker is not None
        self.tell(Spawned(now, box, queue, immediate, worker, self.catalog.boxes[box].request))

    def idle(self, worker: int, now: float, overhead: float = 0.0) -> None:
        """A worker has nothing to do; the policy may make a plan for it."""
        self.tell(Idle(now, worker, overhead))

    def timer(self, key: TimerKey, now: float) -> None:
        """A timer is due; one of a policy that is no longer in force is void."""
        term, name = key
        if term == self.term:
            with self.apart():
                self.tell(Timer(now, name))

    def rescheduled(self, now: float) -> None:
        """A scheduling task is over.  Its time was counted by the workers that took part."""
        decided = self.overhead.scheduler
        self.tell(Rescheduled(now))
        self.overhead.scheduler = decided
        self._scheduled.measure_for(self.policy.needs)

    def apart(self) -> _Apart:
        """A block of work that is done on no worker's time."""
        return _Apart(self.overhead, self._timer)

    def run_phases(self, phases: Sequence[Phase]) -> None:
        """Carry a scheduling task out here and now, where several workers would gain nothing."""
        begin = self._timer()
        for phase in phases:
            for piece in phase.slices:
                piece()
        self.overhead.rescheduling += self._timer() - begin

    # --- another policy -----------------------------------------------------------------------------

    def take_over(self, policy: Policy, requested: int, now: float) -> None:
        """Let a policy decide from now on, or the same one anew with other workers or boxes.

        It sees the catalog with all queues as they are, and hears of the end of calls that are under way.
        If it fails at once the one before stays, and the error is raised; if it fails before it has made its
        first plan, the one before comes back.
        """
        before, workers_before = self.policy, self.workers
        wanted = policy.workers(len(self.catalog.boxes), requested)
        self._scheduled.make_lanes(wanted)
        try:
            decisions = self._begin(policy, wanted, now)
        except Exception as error:
            self._scheduled.make_lanes(workers_before)
            if policy is before:  # its own start has changed it
                self._install(before, self._begin(before, workers_before, now), workers_before, now)
                for task in self._scheduled.tasks(now):
                    self.tell(task)
            raise _cannot(policy, error) from error
        if policy is not before:
            self.problems += before.problems
            self._before = before
        self.requested = requested
        self._install(policy, decisions, wanted, now)
        for task in self._scheduled.tasks(now):
            self.tell(task)
        if self.policy is not policy:
            raise PipelineError(self.problems.pop())

    def _begin(self, policy: Policy, workers: int, now: float) -> Sequence[Decision]:
        self.catalog.look_again(now, self._scheduled.measure_all())
        decisions = policy.start(self.catalog, workers, self._seed)
        if policy.problems:
            raise PipelineError(policy.problems[0])
        return decisions

    def _install(self, policy: Policy, decisions: Sequence[Decision], workers: int, now: float) -> None:
        self.policy, self.workers = policy, workers
        self.term += 1
        self.plans.clear()
        self._scheduled.open_gates()
        self._scheduled.measure_for(policy.needs)
        self._out.append(NewTerm(workers))
        for decision in decisions:
            self._carry_out(decision)

    def _fall_back(self, error: Exception, event: Event) -> None:
        """The policy that took over could not decide: the one before goes on, and it decides."""
        failed, before = self.policy, self._before
        assert before is not None
        self._before = None
        self.problems.append(str(_cannot(failed, error)))
        workers = before.workers(len(self.catalog.boxes), self.requested)
        self._scheduled.make_lanes(workers)
        self._install(before, self._begin(before, workers, event.time), workers, event.time)
        worker = event.worker if isinstance(event, Spawned | Started | Finished | Idle | Moved) else None
        if worker is None or worker < workers:
            for decision in before.handle(event):
                self._carry_out(decision)
        for task in self._scheduled.tasks(event.time):
            self.tell(task)

    def change(self, change: Change, fit: Callable[[Policy], Policy], now: float) -> None:
        """Make a change: another policy, its settings, another number of workers."""
        chosen, workers = change.chosen, change.workers or self.requested
        if change.qos:  # first, so that the policy in force knows them if the rest fails
            self.take_over(self.policy, self.requested, now)
        if chosen is not None:
            for name, value in change.settings.items():
                chosen.set(name, value, now)
            self.take_over(fit(chosen), workers, now)
            return
        if workers != self.requested:
            self.take_over(self.policy, workers, now)
        for name, value in change.settings.items():
            for decision in self.policy.set(name, value, now):
                self._carry_out(decision)

    def joined(self, boxes: Sequence[int], now: float) -> None:
        """Boxes have joined: the policy takes them in, or begins anew."""
        if self.policy.grows:
            self.tell(Joined(now, tuple(boxes)))
        else:
            self.take_over(self.policy, self.requested, now)

    def left(self, boxes: Sequence[int], now: float) -> None:
        """A request has ended, and other boxes may get the numbers of its own."""
        if self.policy.grows and boxes:
            self.tell(Left(now, tuple(boxes), self.catalog.boxes[boxes[0]].request))

    def planned(self, change: Change, carry_out: Callable[[], None]) -> None:
        """A change whose time has come; no caller is there to hear why it cannot be made."""
        try:
            carry_out()
        except HeadgateError as error:
            self.problems.append(f"Change at {change.at:g} s: {error}")

    def report(self, engine: str, seconds: float, tuples: int, queries: dict[str, QueryReport]) -> Report:
        """What has happened so far; an engine adds its own figures."""
        return Report(
            engine=engine,
            policy=self.policy.name,
            workers=self.workers,
            seconds=seconds,
            tuples=tuples,
            queries=queries,
            boxes=self.box_reports(),
            overhead=copy.copy(self.overhead),
            trace=self.trace,
            problems=[*self.problems, *self.policy.problems],
        )

    def box_reports(self) -> dict[str, BoxReport]:
        """What the catalog learned of every box."""
        return {
            e.name: BoxReport(
                e.name, e.calls, e.tuples_in, e.tuples_out, e.cost, e.selectivity, e.call_overhead, e.busy
            )
            for e in self.catalog.boxes
            if e.queries or not e.removed  # else it was a request's
        }


class _Apart:
    """Counts a block of work as the feeder's, including what the policy decides in it."""

    def __init__(self, overhead: Overhead, timer: Callable[[], float]) -> None:
        self._overhead, self._timer = overhead, timer

    def __enter__(self) -> None:
        self._begin, self._decided = self._timer(), self._overhead.scheduler

    def __exit__(self, *given: object) -> None:
        self._overhead.feeder += self._timer() - self._begin
        self._overhead.scheduler = self._decided


def _cannot(policy: Policy, error: Exception) -> PipelineError:
    why = str(error) if isinstance(error, HeadgateError) else f"{type(error).__name__}: {error}"
    return PipelineError(f"Policy '{policy.name}' cannot take over, the one before stays in force: {why}")
