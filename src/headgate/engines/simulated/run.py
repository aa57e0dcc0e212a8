"""A run in virtual time: the core, its workers as processes, and a feeder, all on one kernel."""

from __future__ import annotations

import copy
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from headgate.connectors.source import Wait
from headgate.control.line import Line
from headgate.engines.base import Progress, Until, deadline, packets, refitted, refuse_history
from headgate.engines.delivery import Delivery, make_change
from headgate.engines.simulated.barrier import Barrier
from headgate.engines.simulated.cores import Cores
from headgate.engines.simulated.doors import Doors
from headgate.engines.simulated.interpreter import FEEDER, Interpreter
from headgate.engines.simulated.kernel import Kernel
from headgate.engines.simulated.memory import Memory
from headgate.engines.simulated.settings import Settings
from headgate.engines.simulated.workers import Workers
from headgate.engines.spool import Spool
from headgate.errors import PipelineError
from headgate.graph.network import Network, Output, Request
from headgate.graph.packet import Packet
from headgate.runtime.boxes import LiveBox, LiveOutput
from headgate.runtime.change import Change
from headgate.runtime.core import Core
from headgate.runtime.instructions import CloseSink, Deliver, Instruction, Meet, NewTerm, SetTimer, Wake
from headgate.runtime.observing import Observation, observe
from headgate.runtime.report import Report
from headgate.runtime.stimuli import (
    Admitted,
    Asked,
    CallProgressed,
    RequestCancelled,
    RequestOver,
    Rescheduled,
    SinkFailed,
    TimerDue,
)
from headgate.scheduling.interface import Policy

PROGRESS_EVERY = 5000
"""Actions between two looks of a progress display."""


class SimulatedRun:
    """One run."""

    def __init__(
        self,
        settings: Settings,
        network: Network,
        policy: Policy,
        workers: int | None = None,
        until: Until = "drained",
        progress: Progress | None = None,
        seed: int = 0,
    ) -> None:
        unknown = set(settings.costs.by_box) - {box.name for box in network.boxes}
        if unknown:
            raise PipelineError(
                f"Simulated(costs=…): there is no box '{sorted(unknown)[0]}' in this application."
            )
        refuse_history(network, "simulated")
        self._settings = settings
        self._deadline = deadline(until)
        self._progress = progress
        self._kernel = Kernel()
        self.clock = self._kernel.clock
        self._feeding = False
        self._feeds = 0
        self._halted = False
        self._handled = 0
        self._mail: deque[Callable[[], None]] = deque()
        """What other threads ask for."""
        self._asked = threading.Event()
        self._closed = False
        machine = settings.topology
        asked = workers or settings.workers or (machine.workers if machine else os.cpu_count()) or 1
        threads = policy.workers(len(network.boxes), asked)
        policy, packet_rows = packets(policy, settings.packet_rows, network, machine)
        self._usual_rows = packet_rows
        # A model of memory follows packets where they are.
        spools = settings.spool and settings.memory is None
        self.core = core = Core(
            network,
            policy,
            workers=threads,
            requested=asked,
            packet_rows=packet_rows,
            drain=until == "drained",
            fuse=settings.costs.threads,
            at_once=not settings.decision_cost,
            seed=settings.seed or seed,
            reorder=settings.reorder,
            ring=settings.ring,
            partitioning=settings.partitioning,
            buckets=settings.buckets,
            split=settings.split,
            spool=Spool(settings.spool, in_memory=True) if spools else None,
            topology=machine,
            prepare=lambda operator: operator.in_simulation(),
        )
        kernel, overhead = self._kernel, core.driver.overhead
        self._cores = Cores(
            kernel, overhead, *self._shared(asked, threads), settings.quantum, settings.switch_cost
        )
        self._interpreter = Interpreter(self._cores)
        self._barrier = Barrier(kernel, overhead, settings.reschedule_cost, self._rescheduled)
        self._doors = Doors(
            core.live, self._cores, overhead, settings.send_cost, settings.reorder, self._sent
        )
        self._memory: Memory | None = None
        self._delivery = Delivery(core, self.clock.now, self._sink_failed)
        starting = core.start()
        if machine is not None and settings.memory is not None:
            self._memory = Memory(settings.memory, machine, core.catalog.cores, core.live.boxes)
            core.live.memory = self._memory
        self._workers = Workers(
            kernel,
            core,
            settings,
            self._cores,
            self._interpreter,
            self._barrier,
            self._doors,
            self._memory,
            self._obey,
            lambda: self._feed_soon(self.clock.now()),
        )
        self._obey(starting)

    # --- instructions -------------------------------------------------------------------------------

    def _obey(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Wake):
                self._workers.wake(instruction.worker)
            elif isinstance(instruction, Deliver):
                output = instruction.output
                self._delivery.hand_over(output, output.take())
            elif isinstance(instruction, SetTimer):
                self._kernel.at(instruction.at, partial(self._timer_due, instruction))
            elif isinstance(instruction, Meet):
                self._barrier.call(instruction.phases)
            elif isinstance(instruction, NewTerm):
                self._new_term(instruction.workers)
            elif isinstance(instruction, CloseSink):
                self._delivery.close(instruction.output)

    def _timer_due(self, timer: SetTimer) -> None:
        self._obey(self.core.handle(TimerDue(timer.key), self.clock.now()))

    def _rescheduled(self) -> None:
        self._obey(self.core.handle(Rescheduled(), self.clock.now()))

    def _sink_failed(self, output: LiveOutput, error: BaseException) -> None:
        self._obey(self.core.handle(SinkFailed(output, error), self.clock.now()))

    def _sent(self, live: LiveBox, worker: int) -> None:
        self._obey(self.core.handle(CallProgressed(live, worker), self.clock.now()))

    def _new_term(self, workers: int) -> None:
        self._barrier.abandon()
        self._workers.grow(workers)
        asked = self.core.driver.requested
        self._cores.resize(*self._shared(asked, workers))
        self._fit_boxes()
        self._workers.wake_all()

    def _shared(self, asked: int, workers: int) -> tuple[int, int]:
        """Cores, and the threads that share them."""
        cores = self._settings.cores
        if self._settings.costs.threads:  # the feeder is one too
            return cores or asked + 1, workers + 1
        return min(asked, cores or asked), workers

    # --- changes ------------------------------------------------------------------------------------

    succeeded = False

    def change(self, change: Change, outputs: Sequence[Output] = ()) -> None:
        """Carry a change out between two actions, from another thread; raise if it cannot be."""
        self._ask_for(lambda: self._change(change, outputs))

    def _change(self, change: Change, outputs: Sequence[Output]) -> None:
        instructions = make_change(self.core, Asked(change, outputs, fit=self._fit), self.clock.now())
        self._fit_boxes()
        self._obey(instructions)
        self._feed_now()

    def _fit_boxes(self) -> None:
        """There are other boxes, or another box has a number."""
        self._doors.make()
        if self._memory is not None:
            self._memory.fit(self.core.catalog.cores, self.core.live.boxes)

    def cancel(self, request: Request) -> None:
        """End a request now, from another thread."""
        self._ask_for(lambda: self._cancel(request))

    def _cancel(self, request: Request) -> None:
        self._obey(self.core.handle(RequestCancelled(request), self.clock.now()))
        self._feed_now()

    def _end_requests(self) -> None:
        for group in self.core.requests_over():
            for output in [output for output in self.core.live.outputs if output.group is group]:
                self._delivery.close(output)
            self._obey(self.core.handle(RequestOver(group), self.clock.now()))
            self._fit_boxes()

    def _planned(self, change: Change, outputs: Sequence[Output]) -> None:
        self.core.expected -= change.request is not None
        self.core.driver.planned(change, lambda: self._change(change, outputs))

    def _fit(self, policy: Policy) -> Policy:
        given, now = self._settings.packet_rows, self.core.admission.packet_rows
        return refitted(policy, given, self._usual_rows, now)

    def snapshot(self) -> Report:
        found = self._ask_for(self.report)
        assert isinstance(found, Report)
        return found

    def observe(self, calls_seen: int) -> Observation:
        found = self._ask_for(lambda: observe(self.core, "simulated", self.clock.now(), calls_seen))
        assert isinstance(found, Observation)
        return found

    def halt(self) -> None:
        def stop() -> None:
            self._halted = True

        self._ask_for(stop)

    def _ask_for(self, what: Callable[[], object]) -> object:
        """Have something done between two actions, and wait for it."""
        done: Future[object] = Future()

        def work() -> None:
            try:
                done.set_result(what())
            except BaseException as error:
                done.set_exception(error)

        self._mail.append(work)
        self._asked.set()
        while self._closed and self._mail:  # the run will not come for it
            self._mail.popleft()()
        return done.result()

    # --- the run ------------------------------------------------------------------------------------

    def run(self, line: Line | None = None) -> Report:
        line = line or Line()
        line.begin(self.core)
        self.core.expected = line.requests
        for change in line.planned:
            self._kernel.at(change.at, partial(self._planned, change, line.outputs(change)))
        self.open()
        line.attach(self)
        try:
            self.advance(math.inf if self._deadline is None else self._deadline)
        except KeyboardInterrupt:
            pass  # a run that is stopped by hand still reports what it did
        finally:
            line.detach()
            self.close()
        return self.report()

    def open(self) -> None:
        """Make everything ready at time zero."""
        self._delivery.open_all()
        self._feed_soon(0.0)
        self._workers.wake_all()

    def advance(self, until: float) -> None:
        """Let everything happen that happens up to that time."""
        core, kernel = self.core, self._kernel
        while not core.done and not self._halted:
            due = kernel.next_time()
            if due is None and until == math.inf and core.serves:
                self._asked.wait()  # for a request
            elif due is None or due > until:
                break
            else:
                kernel.step()
            self._asked.clear()
            while self._mail:
                self._mail.popleft()()
            if len(core.admission.groups) > 1:
                self._end_requests()
            self._handled += 1
            if self._progress is not None and self._handled % PROGRESS_EVERY == 0:
                self._progress(self.report())
        if core.done or self._halted:
            return
        if until < math.inf:
            self.clock.advance(until)
        elif kernel.next_time() is None:
            raise AssertionError("the simulation has come to a stop with work left")

    def close(self) -> None:
        self._closed = True
        while self._mail:
            self._mail.popleft()()
        self.core.admission.close()
        self._delivery.close_all()

    def report(self) -> Report:
        report = self.core.report("simulated", self.clock.now())
        report.overhead.idle = max(
            0.0,
            min(self._cores.count, self.core.driver.workers) * report.seconds
            - report.busy
            - report.overhead.total,
        )
        if self._memory is not None:
            report.traffic = copy.deepcopy(self._memory.traffic)
        return report

    # --- feeding ------------------------------------------------------------------------------------

    def _feed_soon(self, when: float) -> None:
        if not self._feeding:
            self._feeding = True
            self._feeds += 1
            self._kernel.at(when, partial(self._feed, self._feeds), arrival=True)

    def _feed_now(self) -> None:
        """Sources have come or are not wanted any more: do not wait until the others have something."""
        self._feeding = False
        self._feed_soon(self.clock.now())

    def _feed(self, number: int) -> None:
        if number != self._feeds:  # another one has come in its place
            return
        self._feeding = False
        core, now = self.core, self.clock.now()
        core.admission.catch_up()
        ended = core.admission.ended and not core.admission.news
        held = None if ended else core.admission.held(core.live.room)
        if held is None:
            return
        found = core.admission.poll(now, held=held)
        if isinstance(found, Wait):
            due = now + 0.01 if found.until is None else found.until + self._settings.costs.rest
            self._feed_soon(max(now, due))
            return
        costs, version = self._settings.costs, core.admission.version
        seconds = costs.admitting(sum([len(packet) for _, packet in found])) * costs.slower(now)
        if seconds:
            self._feeding = True
            core.driver.overhead.feeder += seconds
            self._interpreter.run(FEEDER, seconds, partial(self._admit, found, version))
        else:
            self._admit(found, version)

    def _admit(self, found: list[tuple[int, Packet]], version: int) -> None:
        core, now = self.core, self.clock.now()
        self._feeding = False
        found = [(place, core.live.spooled(core.live.source_targets[place], p)) for place, p in found]
        self._obey(core.handle(Admitted(found, version), now))
        if self._memory is not None:
            self._memory.admitted(found)
        self._feed_soon(now)
