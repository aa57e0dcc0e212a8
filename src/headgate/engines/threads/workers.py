"""Worker threads: each asks the core for a call, runs it, and sleeps when there is none."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, Protocol

from headgate.engines.clock import WallClock
from headgate.engines.threads.barrier import Meeting
from headgate.engines.worker_pool import Body, WorkerPool
from headgate.machine.host import current_core
from headgate.memory import use as memory
from headgate.runtime.boxes import NO_TICKET, Work
from headgate.runtime.core import Core
from headgate.runtime.instructions import Instruction, Park, RunCall
from headgate.runtime.stimuli import CallEnded, CallProgressed, Free, Seen, Stimulus


class Run(Protocol):
    """What workers need of their run."""

    lock: Any
    core: Core
    clock: WallClock
    memory: memory.Use
    stopping: bool
    closed: bool
    meeting: Meeting | None

    def guard(self, work: Body, worker: int, /) -> None: ...
    def tell(self, stimulus: Stimulus, now: float | None = None) -> list[Instruction]: ...
    def deliver(self, left: Sequence[Instruction]) -> None: ...
    def made_room(self, *, urgent: bool = False) -> None: ...
    def check_over(self) -> None: ...


class Workers(WorkerPool):
    """The threads of a run."""

    def __init__(self, run: Run, count: int, one_semaphore: bool) -> None:
        super().__init__(run.guard, self._loop, count, one_semaphore)
        self._run = run
        self.under_way: dict[int, Work] = {}
        """By worker, the call that it is in."""

    def _loop(self, worker: int) -> None:
        """Finish a call, begin the next, both in one visit to the core; then hand over, and work.

        Every moment is accounted for: what a worker does ends where the next thing begins.
        """
        run, driver = self._run, self._run.core.driver
        overhead = driver.overhead
        term, cores = -1, _cores()
        work: Work | None = None
        now = run.clock.now
        handing, idle = 0.0, 0.0
        asked = now()
        with run.lock:
            overhead.worker += asked - self.since[worker]  # a thread that is being started is no use yet
        while True:
            with run.lock:
                if run.closed:
                    return
                entered, decided = now(), overhead.scheduler
                waited = entered - asked
                overhead.storage += handing
                overhead.idle += idle
                overhead.worker += waited
                if work is not None:
                    apart = asked - work.begun - work.sending
                    overhead.worker += apart - sum([m.seconds for m in work.members.values()])
                self.asleep.discard(worker)
                if driver.policy.pins:  # to the group: the core may be any of it
                    run.tell(Seen(worker, current_core()), entered)
                left = self._finish(work, entered)
                if term != driver.term:
                    term = driver.term
                    self._place(worker, cores)
                stopping, meeting = run.stopping or self.leaves(worker), run.meeting
                work, parked = None, False
                if not stopping and meeting is None:
                    work, parked = self._next(worker, left)
                if parked:
                    self.asleep.add(worker)
                    self.semaphores += 1
                run.made_room(urgent=work is None)
                out = now()
                overhead.storage += out - entered - (overhead.scheduler - decided)
            run.deliver(left)
            if left or work is None:
                run.check_over()
            if stopping:
                return
            asked = now()
            handing, idle = asked - out, 0.0
            if meeting is not None:
                asked = self._meet(meeting, asked)
            elif work is not None:
                work.overhead, work.begun = waited, asked
                self.under_way[worker] = work
                self._execute(work)
                if run.closed:
                    return  # too late: the run has ended without it
                del self.under_way[worker]
                asked = now()
            elif parked:
                self.sleep(worker)
                idle = -asked + (asked := now())

    def _place(self, worker: int, anywhere: set[int]) -> None:
        """If the policy pins workers, stay on the cores of the worker's group (LAS, 4.1), on any of them."""
        catalog, pinned = self._run.core.catalog, self._run.core.driver.policy.pins
        topology, cores = catalog.topology, catalog.cores
        if not anywhere or topology is None or worker >= len(cores):
            return
        wanted = set(topology.groups[topology.group_of(cores[worker])]) if pinned else anywhere
        if wanted != _cores():
            os.sched_setaffinity(0, wanted)

    def _meet(self, meeting: Meeting, begin: float) -> float:
        """Take part in a scheduling task; all of that time is the scheduler's.  Returns when it was over."""
        run, overhead = self._run, self._run.core.driver.overhead
        spent = time.thread_time()
        meeting.join()
        spent = time.thread_time() - spent
        with run.lock:
            end = run.clock.now()
            overhead.scheduler += end - begin
            overhead.rescheduling += end - begin
            overhead.rescheduling_cpu += spent
        return end

    def _finish(self, work: Work | None, now: float) -> list[Instruction]:
        if work is None:
            return []
        work.overhead += now - work.ended
        self._run.core.driver.overhead.storage += work.sending
        return self._run.tell(CallEnded(work), now)

    def _next(self, worker: int, left: list[Instruction]) -> tuple[Work | None, bool]:
        """The next call, and whether the worker is parked; neither if nothing of its new plan can run."""
        found: Work | None = None
        parked = False
        for instruction in self._run.tell(Free(worker)):
            if isinstance(instruction, RunCall):
                found = instruction.work
            elif isinstance(instruction, Park):
                parked = True
            else:
                left.append(instruction)
        return found, parked

    def _execute(self, work: Work) -> None:
        """Run the operator and forward its results.  Does not hold the scheduler's lock."""
        run, calls = self._run, self._run.core.calls
        if work.ticket == NO_TICKET:
            self._consume(work)
        else:
            calls.execute(work)
        work.ended = run.clock.now()
        for member in work.members.values():
            if member.ticket != NO_TICKET and not run.closed:
                calls.send(member)
        if run.closed:
            return
        work.sending = run.clock.now() - work.ended
        run.memory.recollect()

    def _consume(self, work: Work) -> None:
        """A call on a box whose state is by bucket; others can join in, and results leave meanwhile."""
        run, calls = self._run, self._run.core.calls
        calls.split(work)
        self._progress(work)
        for _ in calls.consume(work):
            if run.closed:
                return
            if work.live.sent:
                self._progress(work)
            if run.stopping:
                work.limit = 0

    def _progress(self, work: Work) -> None:
        run, overhead = self._run, self._run.core.driver.overhead
        with run.lock:
            if run.closed:
                return
            decided = overhead.scheduler
            left = run.tell(CallProgressed(work.live, work.worker))
            run.made_room()
            # All of a call apart from its operators will be the worker's: deciding must not count twice.
            overhead.worker -= overhead.scheduler - decided
        run.deliver(left)


def _cores() -> set[int]:
    """The cores that this thread may run on; none if the system does not tell."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else set()
