"""Worker threads: each asks the policy for a plan, runs its calls, and sleeps when there is none."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from headgate.scheduling.interface import Call, Plan

if TYPE_CHECKING:
    from headgate.engines.threads.engine import _Run


class Workers:
    """The threads, their mailboxes for plans, and the semaphores on which they sleep."""

    def __init__(self, run: _Run, count: int) -> None:
        self._run = run
        self._plans: list[Plan | None] = [None] * count
        self._beds = [threading.Semaphore(0) for _ in range(count)]
        self._threads = [
            threading.Thread(target=run._guard, args=(self._loop, worker), name=f"headgate-worker-{worker}")
            for worker in range(count)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def wake(self, worker: int) -> None:
        self._beds[worker].release()

    def wake_all(self) -> None:
        for bed in self._beds:
            bed.release()

    def assign(self, worker: int, plan: Plan) -> None:
        """Lock held: leave a plan for a worker; it is awake and asking, or gets woken."""
        self._plans[worker] = plan

    def _loop(self, worker: int) -> None:
        run = self._run
        while True:
            with run.lock:
                if run.stopping:
                    return
                if self._plans[worker] is None:
                    run.runtime.idle(worker, run.clock.now())
                plan, self._plans[worker] = self._plans[worker], None
            if plan is None:
                # Whoever wakes this worker does so under the lock, after it has parked: the permit waits.
                self._beds[worker].acquire()
                continue
            for call in plan:
                self._call(worker, call)
                if run.stopping:
                    return

    def _call(self, worker: int, call: Call) -> None:
        run, runtime = self._run, self._run.runtime
        now = run.clock.now
        asked = now()
        with run.lock:
            scheduler = runtime.overhead.scheduler
            start = now()
            work = runtime.begin(worker, call, start)
            if work is None:
                return
            run.made_room()
            began = now()
            runtime.overhead.storage += began - start - (runtime.overhead.scheduler - scheduler)
        runtime.execute(work)
        ended = now()
        work.seconds = ended - began
        with run.lock:
            scheduler = runtime.overhead.scheduler
            entered = now()
            work.overhead = (began - asked) + (entered - ended)
            outputs = runtime.finish(work, entered)
            left = now()
            runtime.overhead.storage += left - entered - (runtime.overhead.scheduler - scheduler)
            runtime.overhead.worker += (start - asked) + (entered - ended)
        for output in outputs:
            run.drain(output)
        if runtime.sources_ended or outputs:
            with run.lock:
                run.check_over()
