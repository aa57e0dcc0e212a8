"""Worker threads: each asks the policy for a plan, runs its calls, and sleeps when there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.engines.attended import Crew
from headgate.engines.live import LiveOutput, Work
from headgate.scheduling.interface import Plan

if TYPE_CHECKING:
    from headgate.engines.threads.engine import _Run


class Workers(Crew):
    """The threads of a run."""

    def __init__(self, run: _Run, count: int) -> None:
        super().__init__(run, count)
        self._run = run
        self._scheduler = 0.0

    def _loop(self, worker: int) -> None:
        """Finish a call, begin the next, both in one visit to the scheduler; then hand over, and work."""
        run = self._run
        work: Work | None = None
        while True:
            asked = run.clock.now()
            with run.lock:
                entered = run.clock.now()
                outputs = self._finish(work, entered)
                stopping = run.stopping
                work, parked = (None, False) if stopping else self._next(worker)
                run.made_room()
                self._account(asked, entered, run.clock.now())
            for output in outputs:
                run.drain(output)
            if stopping:
                return
            if outputs or work is None:
                run.check_over()
            if work is not None:
                work.overhead = entered - asked
                self._execute(work)
            elif parked:
                # Whoever wakes this worker does so under the lock, after it has parked: the permit waits.
                self._beds[worker].acquire()

    def _finish(self, work: Work | None, now: float) -> list[LiveOutput]:
        if work is None:
            return []
        work.overhead += now - work.ended
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
        self._run.runtime.execute(work)
        work.ended = self._run.clock.now()

    def _account(self, asked: float, entered: float, left: float) -> None:
        """Lock held: whose time a visit took; the scheduler's own is counted where it is spent."""
        overhead = self._run.runtime.overhead
        overhead.worker += entered - asked
        overhead.storage += left - entered - (overhead.scheduler - self._scheduler)
        self._scheduler = overhead.scheduler
