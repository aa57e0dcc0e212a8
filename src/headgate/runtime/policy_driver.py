"""A policy at work: events in, and what it decides passed to the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from headgate.errors import HeadgateError, PipelineError
from headgate.runtime.change import Change
from headgate.runtime.report import BoxReport, Overhead, Trace
from headgate.scheduling.catalog import Catalog
from headgate.scheduling.events import Event, Idle, QueueState, Rescheduled, Timer
from headgate.scheduling.interface import (
    Decision,
    Phase,
    Plan,
    Policy,
    Reschedule,
    Run,
    SetPacketRows,
    Shed,
    Wake,
)

TimerKey = tuple[int, str]
"""The term of the policy that set a timer, and its name."""


class Host(Protocol):
    """What a runtime asks of its engine."""

    def wake(self, worker: int) -> None: ...
    def assign(self, worker: int, plan: Plan) -> None: ...
    def set_timer(self, at: float, key: TimerKey) -> None: ...
    def reschedule(self, phases: Sequence[Phase]) -> None: ...

    def new_term(self, workers: int) -> None:
        """Another policy decides: plans and scheduling tasks of the one before are void, all ask again."""


class Scheduled:
    """The part of a runtime that talks to the policy; it keeps the catalog, which the policy reads."""

    catalog: Catalog
    workers: int

    def __init__(self, policy: Policy, host: Host, timer: Callable[[], float]) -> None:
        self.policy = policy
        self.host = host
        self.overhead = Overhead()
        self.trace = Trace()
        self._timer = timer
        self._telling = False
        self.term = 0
        """How often another policy has taken over, or the same one began anew."""
        self.requested = 0
        """Workers as they were asked for; the policy may want another number of them."""
        self.problems: list[str] = []
        """What went wrong with policies that are no longer in force."""
        self._seed = 0
        self._before: Policy | None = None
        """The policy before this one, until this one has made a first plan."""

    def start_policy(self, workers: int, seed: int) -> None:
        self._seed = seed
        for decision in self.policy.start(self.catalog, workers, seed):
            self._carry_out(decision)
        self.measure_for(self.policy.needs)

    # --- another policy -----------------------------------------------------------------------------

    def take_over(self, policy: Policy, requested: int, now: float) -> None:
        """Let a policy decide from now on, or the same one anew with other workers or boxes.

        It sees the catalog with all queues as they are, and hears of the end of calls that are under way.
        If it fails at once the one before stays, and the error is raised; if it fails before it has made its
        first plan, the one before comes back.
        """
        before, workers_before = self.policy, self.workers
        wanted = policy.workers(len(self.catalog.boxes), requested)
        self.make_lanes(wanted)
        try:
            decisions = self._begin(policy, wanted, now)
        except Exception as error:
            self.make_lanes(workers_before)
            if policy is before:  # it has been touched
                self._install(before, self._begin(before, workers_before, now), workers_before, now)
            raise _cannot(policy, error) from error
        if policy is not before:
            self.problems += before.problems
            self._before = before
        self.requested = requested
        self._install(policy, decisions, wanted, now)
        if self.policy is not policy:
            raise PipelineError(self.problems.pop())

    def _begin(self, policy: Policy, workers: int, now: float) -> Sequence[Decision]:
        self.catalog.look_again(now, self.measure_all())
        decisions = policy.start(self.catalog, workers, self._seed)
        if policy.problems:
            raise PipelineError(policy.problems[0])
        return decisions

    def _install(self, policy: Policy, decisions: Sequence[Decision], workers: int, now: float) -> None:
        self.policy, self.workers = policy, workers
        self.term += 1
        self.open_gates()
        self.measure_for(policy.needs)
        self.host.new_term(workers)
        for decision in decisions:
            self._carry_out(decision)
        self.spawn_all(now)

    def _fall_back(self, error: Exception, event: Event) -> Sequence[Decision]:
        """The policy that took over could not decide: the one before goes on, and it decides."""
        failed, before = self.policy, self._before
        assert before is not None
        self._before = None
        self.problems.append(str(_cannot(failed, error)))
        workers = before.workers(len(self.catalog.boxes), self.requested)
        self.make_lanes(workers)
        self._install(before, self._begin(before, workers, event.time), workers, event.time)
        worker = getattr(event, "worker", None)
        return before.handle(event) if not isinstance(worker, int) or worker < workers else ()

    def check(self, change: Change) -> None:
        """Whether the policy that will be in force has what is to be set."""
        change.check(change.chosen or self.policy)

    def planned(self, change: Change, carry_out: Callable[[], None]) -> None:
        """A change whose time has come; nobody is there to hear why it cannot be."""
        try:
            carry_out()
        except HeadgateError as error:
            self.problems.append(f"Change at {change.at:g} s: {error}")

    def change(self, change: Change, fit: Callable[[Policy], Policy], now: float) -> None:
        """Another policy, settings of it, another number of workers: whatever is given."""
        chosen, workers = change.chosen, change.workers or self.requested
        if change.add:  # whatever follows, the policy that is in force knows its boxes
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

    def measure_all(self) -> list[QueueState]:
        """Every queue, with all that any policy could need."""
        raise NotImplementedError

    def make_lanes(self, workers: int) -> None:
        """So many workers may be inside a box that holds any number."""
        raise NotImplementedError

    def open_gates(self) -> None:
        """Whatever a policy had dropped is dropped no longer."""
        raise NotImplementedError

    def spawn_all(self, now: float) -> None:
        """Tell of every task that there is."""
        raise NotImplementedError

    # --- events and decisions -----------------------------------------------------------------------

    def measure_for(self, needs: frozenset[str]) -> None:
        """Take the measurements that the policy needs."""
        raise NotImplementedError

    def tell(self, event: Event) -> None:
        """Let the catalog and the policy know, and carry out what the policy decides."""
        outer, self._telling = self._telling, True
        begin = self._timer()
        self.catalog.apply(event)
        try:
            decisions = self.policy.handle(event)
        except Exception as error:
            if self._before is None:
                raise
            decisions = self._fall_back(error, event)
        if self._before is not None and isinstance(event, Idle) and decisions:
            self._before = None
        for decision in decisions:
            self._carry_out(decision)
        self._telling = outer
        if not outer:  # what is told on account of a decision is part of that time
            self.overhead.scheduler += self._timer() - begin

    def _carry_out(self, decision: Decision) -> None:
        if isinstance(decision, Run):
            self.host.assign(decision.worker, decision.plan)
        elif isinstance(decision, Wake):
            for worker in decision.workers:
                self.host.wake(worker)
        elif isinstance(decision, Shed):
            self.shed(decision)
        elif isinstance(decision, SetPacketRows):
            self.set_packet_rows(decision.rows)
        elif isinstance(decision, Reschedule):
            self.host.reschedule(decision.phases)
        else:
            self.host.set_timer(decision.at, (self.term, decision.name))

    def shed(self, decision: Shed) -> None:
        """From now on drop a share of what comes to a box."""
        raise NotImplementedError

    def set_packet_rows(self, rows: int) -> None:
        """For a runtime that cuts its input into packets."""

    def idle(self, worker: int, now: float, overhead: float = 0.0) -> None:
        self.tell(Idle(now, worker, overhead))

    def timer(self, key: TimerKey, now: float) -> None:
        term, name = key
        if term != self.term:
            return
        begin, decided = self._timer(), self.overhead.scheduler
        self.tell(Timer(now, name))
        self.beside(begin, decided)

    def beside(self, begin: float, decided: float) -> None:
        """What has been going on since was no worker's time."""
        self.overhead.feeder += self._timer() - begin
        self.overhead.scheduler = decided

    def rescheduled(self, now: float) -> None:
        """A scheduling task is over."""
        outer, self._telling = self._telling, True  # the task's time is counted by whoever took part
        self.tell(Rescheduled(now))
        self._telling = outer
        self.measure_for(self.policy.needs)

    def run_phases(self, phases: Sequence[Phase]) -> None:
        """A scheduling task by whoever calls, where it would gain nothing from several workers."""
        begin = self._timer()
        for phase in phases:
            for piece in phase.slices:
                piece()
        self.overhead.rescheduling += self._timer() - begin

    def box_reports(self) -> dict[str, BoxReport]:
        """What the catalog learned of every box."""
        return {
            e.name: BoxReport(
                e.name, e.calls, e.tuples_in, e.tuples_out, e.cost, e.selectivity, e.call_overhead, e.busy
            )
            for e in self.catalog.boxes
        }


def _cannot(policy: Policy, error: Exception) -> PipelineError:
    why = str(error) if isinstance(error, HeadgateError) else f"{type(error).__name__}: {error}"
    return PipelineError(f"Policy '{policy.name}' cannot take over, the one before stays in force: {why}")
