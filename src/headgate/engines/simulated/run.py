"""A run in virtual time: a heap of events; workers ask, run calls and send results, each at its time."""

from __future__ import annotations

import copy
import heapq
import itertools
import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headgate.connectors.source import Wait
from headgate.engines.base import (
    Progress,
    Until,
    deadline,
    packets,
    refitted,
    refuse_history,
)
from headgate.engines.clock import VirtualClock
from headgate.engines.simulated.doors import Doors
from headgate.engines.simulated.memory import Memory
from headgate.engines.simulated.workers import Cores, Meetings
from headgate.errors import PipelineError
from headgate.graph.network import Network, Output
from headgate.graph.operator import Operator
from headgate.graph.packet import Packet
from headgate.runtime.boxes import NO_TICKET, LiveOutput, Work
from headgate.runtime.change import Change, Line
from headgate.runtime.core import Runtime
from headgate.runtime.policy_driver import TimerKey
from headgate.runtime.report import Report
from headgate.scheduling.interface import ANYONE, Phase, Plan, Policy

if TYPE_CHECKING:
    from headgate.engines.simulated.engine import Simulated

PROGRESS_EVERY = 5000
"""Events between two looks of a progress display."""


class SimulatedRun:
    """One run: a heap of events, each an action at a time.

    Of equal times arrivals come first, so that a policy that decides then knows of all of them; all else in
    the order of its making.
    """

    def __init__(
        self,
        engine: Simulated,
        network: Network,
        policy: Policy,
        workers: int | None = None,
        until: Until = "drained",
        progress: Progress | None = None,
        seed: int = 0,
    ) -> None:
        unknown = set(engine.costs.by_box) - {box.name for box in network.boxes}
        if unknown:
            raise PipelineError(
                f"Simulated(costs=…): there is no box '{sorted(unknown)[0]}' in this application."
            )
        self.engine = engine
        self.deadline = deadline(until)
        self.progress = progress
        self.clock = VirtualClock()
        self._events: list[tuple[float, bool, int, Callable[[], None]]] = []
        self._counter = itertools.count()
        self._feeding = False
        self._halted = False
        self._handled = 0
        self._refused: list[Callable[[], None]] = []
        """Workers whose results found their places taken."""
        refuse_history(network, "simulated")
        machine = engine.topology
        cores = workers or engine.workers or (machine.workers if machine else os.cpu_count()) or 1
        self._seats = threads = policy.workers(len(network.boxes), cores)
        self._plans: dict[int, Plan] = {}
        self._woken: set[int] = set()
        """Workers that are about to ask."""
        self._gone: set[int] = set()
        """Workers that were too many and have gone."""
        self._mail: deque[Callable[[], None]] = deque()
        """What other threads want done."""
        self._closed = False
        self.cores = Cores(self, cores, threads, engine.quantum, engine.switch_cost)
        policy, packet_rows = packets(policy, engine.packet_rows)
        self.meetings = Meetings(self)
        self.meetings.asleep.update({worker: partial(self._ask, worker) for worker in range(threads)})
        self.runtime = Runtime(
            network,
            policy,
            self,
            workers=threads,
            packet_rows=packet_rows,
            drain=until == "drained",
            seed=engine.seed or seed,
            reorder=engine.reorder,
            partitioning=engine.partitioning,
            buckets=engine.buckets,
            split=engine.split,
            topology=machine,
            prepare=_without_spinning,
        )
        self.memory: Memory | None = None
        if machine is not None and engine.memory is not None:
            self.memory = Memory(engine.memory, machine, self.runtime.catalog.cores, self.runtime.boxes)
            self.runtime.live.memory = self.memory
        self.runtime.requested = cores
        self.doors = Doors(self, engine.send_cost, engine.reorder)

    def at(self, when: float, action: Callable[[], None], *, arrival: bool = False) -> None:
        heapq.heappush(self._events, (when, not arrival, next(self._counter), action))

    # --- what the runtime asks for ------------------------------------------------------------------

    def wake(self, worker: int) -> None:
        if worker == ANYONE:
            sleeper = next((one for one in self.meetings.asleep if one not in self._woken), None)
            if sleeper is None:
                return  # whoever asks next finds the task
            worker = sleeper
        if worker not in self._woken:
            self._woken.add(worker)
            self.at(self.clock.now(), lambda: self._wake_up(worker))

    def _wake_up(self, worker: int) -> None:
        self._woken.discard(worker)
        if worker in self.meetings.asleep:  # else it is at a meeting by now, or was not asleep
            self._ask(worker)

    def assign(self, worker: int, plan: Plan) -> None:
        self._plans[worker] = plan

    def set_timer(self, at: float, key: TimerKey) -> None:
        self.at(at, lambda: self.runtime.timer(key, self.clock.now()))

    def reschedule(self, phases: Sequence[Phase]) -> None:
        self.meetings.call(phases)

    def new_term(self, workers: int) -> None:
        self.meetings.abandon()
        asleep, seats = self.meetings.asleep, range(workers)
        self._gone |= {worker for worker in asleep if worker not in seats}
        for worker in self._gone.difference(seats):
            asleep.pop(worker, None)
        for worker in [*self._gone.intersection(seats), *range(self._seats, workers)]:
            self._gone.discard(worker)
            asleep[worker] = partial(self._ask, worker)
        self._seats = max(self._seats, workers)
        self.cores.resize(self.runtime.requested, workers)
        if self.memory is not None:
            self.memory.fit(self.runtime.catalog.cores, self.runtime.boxes)
        for worker in sorted(asleep):
            self.wake(worker)

    # --- changes ------------------------------------------------------------------------------------

    succeeded = False

    def change(self, change: Change, outputs: Sequence[Output] = ()) -> None:
        """Carry a change out between two events, from another thread; raise if it cannot be."""
        self._ask_for(lambda: self._change(change, outputs))

    def _change(self, change: Change, outputs: Sequence[Output]) -> None:
        runtime, now = self.runtime, self.clock.now()
        runtime.check(change)
        if outputs:
            runtime.add_queries(outputs, now)
            self.doors.make()
        for name in change.remove:
            runtime.close_sink(runtime.remove_query(name, now))
        runtime.change(change, self._fit, now)

    def _fit(self, policy: Policy) -> Policy:
        return refitted(policy, self.engine.packet_rows, self.runtime.admission.packet_rows)

    def snapshot(self) -> Report:
        found = self._ask_for(self.report)
        assert isinstance(found, Report)
        return found

    def halt(self) -> None:
        def stop() -> None:
            self._halted = True

        self._ask_for(stop)

    def _ask_for(self, what: Callable[[], object]) -> object:
        """Have something done between two events, and wait for it."""
        done: Future[object] = Future()

        def work() -> None:
            try:
                done.set_result(what())
            except BaseException as error:
                done.set_exception(error)

        self._mail.append(work)
        while self._closed and self._mail:  # nobody else will come for it
            self._mail.popleft()()
        return done.result()

    # --- the run ------------------------------------------------------------------------------------

    def run(self, line: Line | None = None) -> Report:
        line = line or Line()
        for change in line.planned:
            carry_out = partial(self._change, change, line.outputs(change))
            self.at(change.at, partial(self.runtime.planned, change, carry_out))
        self.open()
        line.attach(self)
        try:
            self.advance(math.inf if self.deadline is None else self.deadline)
        except KeyboardInterrupt:
            pass  # a run that is stopped by hand still reports what it did
        finally:
            line.detach()
            self.close()
        return self.report()

    def open(self) -> None:
        """Make everything ready at time zero."""
        self.runtime.open_sinks()
        self._feed_soon(0.0)
        for worker in range(self.runtime.workers):
            self.wake(worker)

    def advance(self, until: float) -> None:
        """Let everything happen that happens up to that time."""
        runtime, events = self.runtime, self._events
        while not runtime.done and not self._halted and events and events[0][0] <= until:
            when, _, _, action = heapq.heappop(events)
            self.clock.advance(when)
            action()
            while self._mail:
                self._mail.popleft()()
            self._handled += 1
            if self.progress is not None and self._handled % PROGRESS_EVERY == 0:
                self.progress(self.report())
        if runtime.done or self._halted:
            return
        if until < math.inf:
            self.clock.advance(until)
        elif not events:
            raise AssertionError("the simulation has come to a stop with work left")

    def close(self) -> None:
        self._closed = True
        while self._mail:
            self._mail.popleft()()
        self.runtime.close()

    def report(self) -> Report:
        report = self.runtime.report("simulated", self.clock.now())
        report.overhead.idle = max(
            0.0, self.cores.count * report.seconds - report.busy - report.overhead.total
        )
        if self.memory is not None:
            report.traffic = copy.deepcopy(self.memory.traffic)
        return report

    def _feed_soon(self, when: float) -> None:
        if not self._feeding:
            self._feeding = True
            self.at(when, self._feed, arrival=True)

    def _feed(self) -> None:
        self._feeding = False
        runtime, now = self.runtime, self.clock.now()
        held = None if runtime.sources_ended else runtime.admission.held(runtime.live.room)
        if held is None:
            return
        found = runtime.admission.poll(now, held=held)
        if isinstance(found, Wait):
            self._feed_soon(max(now, found.until if found.until is not None else now + 0.01))
            return
        self.drain(runtime.admit(found, now))
        if self.memory is not None:
            self.memory.admitted(found)
        self._feed_soon(now)

    def _ask(self, worker: int) -> None:
        if worker >= self.runtime.workers:
            self.meetings.asleep.pop(worker, None)
            self._gone.add(worker)
            return
        if self.meetings.joined(worker, partial(self._ask, worker)):
            return
        self.runtime.idle(worker, self.clock.now())
        plan, term = self._plans.pop(worker, None), self.runtime.term
        if plan is None:
            self.meetings.asleep[worker] = partial(self._ask, worker)
            return
        cost = self.engine.decision_cost
        seconds = cost(self.runtime.policy) if callable(cost) else cost
        if seconds:
            self.runtime.overhead.scheduler += seconds
            self.cores.run(worker, seconds, partial(self._proceed, worker, plan, 0, term))
        else:
            self._proceed(worker, plan, 0, term)

    def _proceed(self, worker: int, plan: Plan, place: int, term: int) -> None:
        """Start the plan's next call that can run; after the last, or if the plan is void, ask again."""
        if term != self.runtime.term:
            self._ask(worker)
            return
        if self.meetings.joined(worker, partial(self._proceed, worker, plan, place, term)):
            return
        for following in range(place + 1, len(plan) + 1):
            work = self.runtime.begin(worker, plan[following - 1], self.clock.now())
            if work is not None:
                self._feed_soon(self.clock.now())
                self._start(work, partial(self._proceed, worker, plan, following, term))
                return
        self._ask(worker)

    def _start(self, work: Work, then: Callable[[], None]) -> None:
        if work.ticket == NO_TICKET:
            self._consume(work, then)
            return
        runtime, overhead, costs = self.runtime, self.engine.call_overhead, self.engine.costs
        serials = _serials(work)
        packets, keys = len(work.rounds), costs.keys(work)
        runtime.calls.execute(work)
        results = sum([len(made[0]) for made in work.results])
        work.seconds = costs.seconds(work.live, packets, work.tuples, results, keys)
        if self.memory is not None:
            work.seconds = self.memory.call(work, work.seconds, self.clock.now())
        plain = self.memory is None and costs.calibration is None
        cost = costs.per_tuple(work.live) if plain else work.seconds / max(work.tuples, 1)
        work.overhead = overhead
        runtime.overhead.worker += overhead

        def complete() -> None:
            end = work.ended = self.clock.now()
            if cost:
                work.leaves = lambda packet: _leave_times(packet, serials, end, cost)
            self._send(work, then)

        self.cores.run(work.worker, overhead + work.seconds, complete)

    def _send(self, work: Work, then: Callable[[], None]) -> None:
        """What came of a call leaves; a worker whose result is too early tries again after others' calls."""
        if not self.runtime.calls.send(work):
            self._refused.append(partial(self._send, work, then))
            return
        self.doors.pass_on(work, partial(self._over, work, then))

    def _over(self, work: Work, then: Callable[[], None]) -> None:
        now = self.clock.now()
        if self.engine.send_cost:
            work.overhead += now - work.ended
        refused, self._refused = self._refused, []
        self.drain(self.runtime.finish(work, now))
        self._feed_soon(now)
        then()
        for again in refused:
            again()

    def _consume(self, work: Work, then: Callable[[], None]) -> None:
        """A call on a box whose state is by bucket: time passes after each bucket's rows."""
        runtime, overhead, costs = self.runtime, self.engine.call_overhead, self.engine.costs
        runtime.calls.split(work)
        parts = runtime.calls.consume(work)
        parts_done = results = 0
        carrying = 0.0

        def step() -> None:
            if self.memory is not None:
                self.memory.worker = work.worker  # what leaves now is what its parts have become
            rows = next(parts, None)
            if self.memory is not None:
                self.memory.worker = None
            work.ended = self.clock.now()
            self.drain(runtime.settle(work.live, work.worker, work.ended))
            self.doors.pass_on(work, partial(go_on, rows))

        def go_on(rows: int | None) -> None:
            nonlocal parts_done, results, carrying
            if rows is None:
                work.seconds = costs.seconds(work.live, parts_done, work.tuples, results) + carrying
                self._over(work, then)
                return
            work.overhead += self.clock.now() - work.ended
            work.overhead += overhead
            runtime.overhead.worker += overhead
            seconds = costs.seconds(work.live, 1, rows, work.tuples_out - results)
            parts_done, results = parts_done + 1, work.tuples_out
            if self.memory is not None:
                computing, seconds = seconds, self.memory.part(work, seconds, self.clock.now())
                carrying += seconds - computing
            self.cores.run(work.worker, overhead + seconds, step)

        step()

    def drain(self, outputs: list[LiveOutput]) -> None:
        for output in outputs:
            for packet, times in output.take():
                try:
                    output.hand_over(packet, times, self.clock.now)
                except Exception as error:
                    self.runtime.fail_output(output, error, self.clock.now())


def _without_spinning(operator: Operator) -> Operator:
    """The papers' synthetic boxes keep a core busy in real time; here their cost is virtual."""
    if hasattr(operator, "spin"):
        operator = copy.copy(operator)
        operator.spin = False
    return operator


def _serials(work: Work) -> npt.NDArray[np.int64]:
    parts = [packet.order.serials for round_ in work.rounds for packet in round_ if len(packet)]
    if not parts:
        return np.empty(0, dtype=np.int64)
    return np.sort(np.concatenate(parts), kind="stable")


def _leave_times(
    packet: Packet, serials: npt.NDArray[np.int64], end: float, cost: float
) -> npt.NDArray[np.float64]:
    """When each result leaves: its cause, the k-th tuple of the call, is done k costs into it."""
    done = np.searchsorted(serials, packet.order.serials, side="right")
    return (end - (len(serials) - done) * cost).astype(np.float64)
