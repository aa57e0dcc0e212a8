"""What runs in real time have in common: worker threads, and a calling thread that keeps time."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from headgate.engines.base import Progress
from headgate.engines.report import Report
from headgate.engines.scheduled import Scheduled
from headgate.scheduling.interface import Phase, Plan

PROGRESS_EVERY = 0.5


class Attended:
    """A run whose caller waits for its end, fires the policy's timers, and shows progress."""

    runtime: Scheduled
    workers: Crew

    def __init__(self, lock: Any, deadline: float | None, progress: Progress | None) -> None:
        self.lock = lock
        self.alarm = threading.Condition(lock)
        """Somebody waits for time, or for something to have happened."""
        self.deadline = deadline
        self.progress = progress
        self.stopping = False
        self.over = threading.Event()
        self.crash: BaseException | None = None
        self._timers: list[tuple[float, int, str]] = []
        self._timer_count = itertools.count()

    def now(self) -> float:
        """Seconds since the run began."""
        raise NotImplementedError

    def report(self, seconds: float) -> Report:
        """Lock held: what has happened so far."""
        raise NotImplementedError

    # --- what the runtime asks for, lock held -------------------------------------------------------

    def wake(self, worker: int) -> None:
        self.workers.wake(worker)

    def assign(self, worker: int, plan: Plan) -> None:
        self.workers.assign(worker, plan)

    def set_timer(self, at: float, name: str) -> None:
        heapq.heappush(self._timers, (at, next(self._timer_count), name))
        self.alarm.notify_all()

    def reschedule(self, phases: Sequence[Phase]) -> None:
        """Here and now; then everyone asks again."""
        self.runtime.run_phases(phases)
        self.runtime.rescheduled(self.now())
        self.workers.wake_sleepers()

    # --- the calling thread -------------------------------------------------------------------------

    def wait(self) -> None:
        """Until it is over: fire timers, show progress, keep the deadline."""
        shown = 0.0
        while not self.over.is_set():
            now = self.now()
            if self.deadline is not None and now >= self.deadline:
                return
            if self.progress is not None and now - shown >= PROGRESS_EVERY:
                shown = now
                with self.lock:
                    report = self.report(now)
                self.progress(report)
            with self.lock:
                while self._timers and self._timers[0][0] <= now:
                    self.runtime.timer(heapq.heappop(self._timers)[2], now)
                if self.over.is_set():
                    return
                soon = [now + PROGRESS_EVERY]
                soon += [at for at, _, _ in self._timers[:1]]
                soon += [self.deadline] if self.deadline is not None else []
                self.alarm.wait(max(min(soon) - self.now(), 0.0))

    def stop(self) -> None:
        """Let every thread come to its end."""
        with self.lock:
            self.stopping = True
            self.over.set()
            self.alarm.notify_all()
        self.workers.wake_all()

    def guard(self, work: Callable[..., None], *args: Any) -> None:
        """Run a thread's work; an error of our own ends the run and is raised from it."""
        try:
            work(*args)
        except BaseException as error:
            self.crash = self.crash or error
            self.stop()


class Crew:
    """Worker threads, their mailboxes for plans, and the semaphores on which they sleep."""

    def __init__(
        self, run: Attended, count: int, *, daemon: bool | None = None, one_semaphore: bool = False
    ) -> None:
        self._plans: list[Plan | None] = [None] * count
        self._beds = [threading.Semaphore(0) for _ in range(count)]
        self._passed: set[int] | None = None
        """With one semaphore for all, its value is the number of tasks: workers that it has let pass."""
        if one_semaphore:
            self._beds = self._beds[:1] * count
            self._passed = set()
        self.semaphores = 0
        """Operations on semaphores while the run was on."""
        self._asleep: set[int] = set()
        self._threads = [
            threading.Thread(
                target=run.guard, args=(self._loop, worker), name=f"headgate-worker-{worker}", daemon=daemon
            )
            for worker in range(count)
        ]

    def _loop(self, worker: int) -> None:
        """What a worker does until the run stops."""
        raise NotImplementedError

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def sleep(self, worker: int, timeout: float | None = None) -> None:
        """Until somebody wakes it, which is done under the lock, after it has parked: the permit waits."""
        woken = self._beds[worker].acquire(timeout=timeout)
        if woken and self._passed is not None:
            self._passed.add(worker)

    def wake(self, worker: int) -> None:
        """Lock held."""
        self.semaphores += 1
        self._asleep.discard(worker)
        self._beds[worker].release()

    def wake_sleepers(self) -> None:
        """Lock held."""
        for worker in sorted(self._asleep):
            self.wake(worker)

    def wake_all(self) -> None:
        for bed in self._beds:
            bed.release()

    def assign(self, worker: int, plan: Plan) -> None:
        """Lock held: leave a plan for a worker; it is awake and asking, or gets woken."""
        self._plans[worker] = plan
        if self._passed is not None:
            if worker not in self._passed:
                self.semaphores += 1
                self._beds[worker].acquire(blocking=False)
            self._passed.discard(worker)
