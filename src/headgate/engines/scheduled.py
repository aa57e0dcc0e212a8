"""A policy at work: events in, and what it decides passed to the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from headgate.engines.report import BoxReport, Overhead, Trace
from headgate.scheduling.catalog import Catalog
from headgate.scheduling.interface import (
    Decision,
    Event,
    Idle,
    Phase,
    Plan,
    Policy,
    Reschedule,
    Rescheduled,
    Run,
    SetPacketRows,
    Shed,
    Timer,
    Wake,
)


class Host(Protocol):
    """What a runtime asks of its engine."""

    def wake(self, worker: int) -> None: ...
    def assign(self, worker: int, plan: Plan) -> None: ...
    def set_timer(self, at: float, name: str) -> None: ...
    def reschedule(self, phases: Sequence[Phase]) -> None: ...


class Scheduled:
    """The part of a runtime that talks to the policy; it keeps the catalog, which the policy reads."""

    catalog: Catalog

    def __init__(self, policy: Policy, host: Host, timer: Callable[[], float]) -> None:
        self.policy = policy
        self.host = host
        self.overhead = Overhead()
        self.trace = Trace()
        self._timer = timer
        self._telling = False

    def start_policy(self, workers: int, seed: int) -> None:
        for decision in self.policy.start(self.catalog, workers, seed):
            self._carry_out(decision)
        self.measure_for(self.policy.needs)

    def measure_for(self, needs: frozenset[str]) -> None:
        """Take the measurements that the policy needs."""
        raise NotImplementedError

    def tell(self, event: Event) -> None:
        """Let the catalog and the policy know, and carry out what the policy decides."""
        outer, self._telling = self._telling, True
        begin = self._timer()
        self.catalog.apply(event)
        for decision in self.policy.handle(event):
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
            self.host.set_timer(decision.at, decision.name)

    def shed(self, decision: Shed) -> None:
        """From now on drop a share of what comes to a box."""
        raise NotImplementedError

    def set_packet_rows(self, rows: int) -> None:
        """For a runtime that cuts its input into packets."""

    def idle(self, worker: int, now: float, overhead: float = 0.0) -> None:
        self.tell(Idle(now, worker, overhead))

    def timer(self, name: str, now: float) -> None:
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
