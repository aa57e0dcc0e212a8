"""Worker threads: each asks the policy for a plan, runs its calls, and sleeps when there is none."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from headgate.engines.realtime import Crew
from headgate.engines.threads.barrier import Meeting
from headgate.machine.host import current_core
from headgate.runtime.boxes import NO_TICKET, LiveOutput, Work
from headgate.scheduling.interface import Plan

if TYPE_CHECKING:
    from headgate.engines.threads.run import ThreadsRun

RETRY = 50e-6
"""Seconds until a result that found its place in the ring taken is tried again."""


class Workers(Crew):
    """The threads of a run."""

    def __init__(self, run: ThreadsRun, count: int, one_semaphore: bool) -> None:
        super().__init__(run, count, one_semaphore=one_semaphore)
        self._run = run
        self.under_way: dict[int, Work] = {}
        """By worker, the call that it is in."""

    def _loop(self, worker: int) -> None:
        """Finish a call, begin the next, both in one visit to the scheduler; then hand over, and work.

        Every moment is accounted for: what a worker does ends where the next thing begins.
        """
        run, overhead = self._run, self._run.runtime.overhead
        term, cores = -1, _cores()
        work: Work | None = None
        now = run.clock.now
        handing, idle = 0.0, 0.0
        asked = now()
        with run.lock:
            overhead.worker += asked - self._since[worker]  # a thread that is being started is no use yet
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
                    beside = asked - work.begun - work.sending
                    overhead.worker += beside - sum([m.seconds for m in work.members.values()])
                self._asleep.discard(worker)
                if run.runtime.policy.pins:  # to the group: the core may be any of it
                    run.runtime.seen(worker, current_core(), entered)
                outputs = self._finish(work, entered)
                if term != run.runtime.term:
                    term = run.runtime.term
                    self._place(worker, cores)
                stopping, meeting = run.stopping or self.leaves(worker), run.meeting
                work, parked = (None, False) if stopping or meeting else self._next(worker)
                if parked:
                    self._asleep.add(worker)
                    self.semaphores += 1
                run.made_room(urgent=work is None)
                left = now()
                overhead.storage += left - entered - (overhead.scheduler - decided)
            for output in outputs:
                run.drain(output)
            if outputs or work is None:
                run.check_over()
            if stopping:
                return
            asked = now()
            handing, idle = asked - left, 0.0
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
        """If the policy pins workers, stay on the cores of one's group (LAS, 4.1), on whichever of them."""
        runtime = self._run.runtime
        topology, cores = runtime.catalog.topology, runtime.catalog.cores
        if not anywhere or topology is None or worker >= len(cores):
            return
        pinned = runtime.policy.pins
        wanted = set(topology.groups[topology.group_of(cores[worker])]) if pinned else anywhere
        if wanted != _cores():
            os.sched_setaffinity(0, wanted)

    def _meet(self, meeting: Meeting, begin: float) -> float:
        """Take part in a scheduling task; all of that time is the scheduler's.  When it was over."""
        run, overhead = self._run, self._run.runtime.overhead
        spent = time.thread_time()
        meeting.join()
        spent = time.thread_time() - spent
        with run.lock:
            end = run.clock.now()
            overhead.scheduler += end - begin
            overhead.rescheduling += end - begin
            overhead.rescheduling_cpu += spent
        return end

    def _finish(self, work: Work | None, now: float) -> list[LiveOutput]:
        if work is None:
            return []
        work.overhead += now - work.ended
        self._run.runtime.overhead.storage += work.sending
        return self._run.runtime.finish(work, now)

    def _next(self, worker: int) -> tuple[Work | None, bool]:
        """The next call of the worker's plan that can run, or of a new plan; or that there is none."""
        run, runtime = self._run, self._run.runtime
        asked = False
        while True:
            plan = self._plans[worker]
            while plan:
                call, plan = plan[0], plan[1:]
                work = runtime.begin(worker, call, run.clock.now())
                if work is not None:
                    self._plans[worker] = self._fuse(work, plan)
                    return work, False
            self._plans[worker] = None
            if asked:
                return None, False
            runtime.idle(worker, run.clock.now())
            if self._plans[worker] is None:
                return None, True
            asked = True

    def _fuse(self, work: Work, plan: Plan) -> Plan:
        """Run as much of the plan as a superbox as can be; the rest follows call by call."""
        now = self._run.clock.now()
        return tuple([call for call in plan if not self._run.runtime.fuse(work, call, now)])

    def _execute(self, work: Work) -> None:
        """The call itself, and what came of it sent on: nothing of this is under the scheduler's lock."""
        run, runtime = self._run, self._run.runtime
        if work.ticket == NO_TICKET:
            self._consume(work)
        else:
            runtime.calls.execute(work)
        work.ended = run.clock.now()
        for member in work.members.values():
            while member.ticket != NO_TICKET and not run.closed and not runtime.calls.send(member):
                time.sleep(RETRY)
        if run.closed:
            return
        work.sending = run.clock.now() - work.ended
        run.memory.recollect()

    def _consume(self, work: Work) -> None:
        """A call on a box whose state is by bucket; others can join in, and results leave as they come."""
        run, runtime = self._run, self._run.runtime
        runtime.calls.split(work)
        self._settle(work)
        for _ in runtime.calls.consume(work):
            if run.closed:
                return
            if work.live.sent:
                self._settle(work)
            if run.stopping:
                work.limit = 0

    def _settle(self, work: Work) -> None:
        run, overhead = self._run, self._run.runtime.overhead
        with run.lock:
            if run.closed:
                return
            decided = overhead.scheduler
            outputs = run.runtime.settle(work.live, work.worker, run.clock.now())
            run.made_room()
            # All of a call beside its operators will be the worker's: what was deciding must not count twice.
            overhead.worker -= overhead.scheduler - decided
        for output in outputs:
            run.drain(output)


def _cores() -> set[int]:
    """The cores that this thread may be on; none where that cannot be said."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else set()
