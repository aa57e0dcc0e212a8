"""What runs in real time have in common: worker threads, and a calling thread that keeps time."""

from __future__ import annotations

import heapq
import itertools
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from headgate.control.socket import Control, ControlError, Handler
from headgate.engines.base import Progress
from headgate.errors import PipelineError
from headgate.graph.network import Output
from headgate.runtime.change import SUCCEEDED, Change, Line, RunOver
from headgate.runtime.policy_driver import Scheduled, TimerKey
from headgate.runtime.report import Report
from headgate.scheduling.interface import Phase, Plan, Policy

PROGRESS_EVERY = 0.5


class Attended:
    """A run whose caller waits for its end, fires the policy's timers, and shows progress."""

    runtime: Scheduled
    workers: Crew
    line: Line | None = None

    def __init__(self, lock: Any, deadline: float | None, progress: Progress | None) -> None:
        self.lock = lock
        self.alarm = threading.Condition(lock)
        """Somebody waits for time, or for something to have happened."""
        self.deadline = deadline
        self.progress = progress
        self.stopping = False
        self.halted = False
        """It was stopped before it was done: by hand, by its time, or by an error of our own."""
        self.closed = False
        """The end: a thread that comes back only now touches nothing any more."""
        self.over = threading.Event()
        self.crash: BaseException | None = None
        self._actions: list[tuple[float, int, Callable[[float], None]]] = []
        self._action_count = itertools.count()
        self._in_force: tuple[Policy, int]
        """The policy and the number of workers asked for, before the last change."""

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

    def set_timer(self, at: float, key: TimerKey) -> None:
        # A policy may set one before there is a runtime.
        self._at(at, lambda now: self.runtime.timer(key, now))

    def _at(self, at: float, action: Callable[[float], None]) -> None:
        """Lock held: have something done at a time, lock held too."""
        heapq.heappush(self._actions, (at, next(self._action_count), action))
        self.alarm.notify_all()

    def new_term(self, workers: int) -> None:
        self.workers.new_term(workers, self.runtime.policy.one_semaphore)

    def reschedule(self, phases: Sequence[Phase]) -> None:
        """Here and now; then everyone asks again."""
        self.runtime.run_phases(phases)
        self.runtime.rescheduled(self.now())
        self.workers.wake_sleepers()

    # --- changes ------------------------------------------------------------------------------------

    @contextmanager
    def on(self, line: Line | None) -> Iterator[None]:
        """The run goes on, and can be reached; what is planned for it comes when it is time."""
        if line is None:
            yield
            return
        self.line = line
        with self.lock:
            for change in line.planned:
                self._at(change.at, partial(self._planned, change, line))
        line.attach(self)
        try:
            yield
        finally:
            line.detach(for_good=not self.succeeded)

    @property
    def succeeded(self) -> bool:
        """Whether another run goes on where this one stops."""
        return False

    def _planned(self, change: Change, line: Line, now: float) -> None:
        line.planned.remove(change)
        self.runtime.planned(change, lambda: self._change(change, line.outputs(change)))

    def change(self, change: Change, outputs: Sequence[Output] = ()) -> None:
        """Carry a change out, from any thread; raise if it cannot be."""
        with self.lock:
            if self.stopping or self.over.is_set():
                raise PipelineError(SUCCEEDED) if self.succeeded else RunOver
            self._change(change, outputs)
            recruits = self.workers.take_recruits()
            self.alarm.notify_all()
        self._start_workers(recruits)

    def _change(self, change: Change, outputs: Sequence[Output]) -> None:
        """Lock held."""
        self._in_force = (self.runtime.policy, self.runtime.requested)
        self.runtime.check(change)
        self.change_queries(change, outputs)
        self.runtime.change(change, self.fit, self.now())

    def _start_workers(self, recruits: Sequence[tuple[int, threading.Thread]]) -> None:
        """No lock: start the threads that a change has called for.

        Under the lock, everyone would wait until the last of a thousand has started.  If the machine gives no
        more of them, the policy and the number of workers before that change come back.
        """
        for place, (_, thread) in enumerate(recruits):
            try:
                thread.start()
            except RuntimeError as error:
                with self.lock:
                    self.workers.dismiss([worker for worker, _ in recruits[place:]])
                    policy, requested = self._in_force
                    self.runtime.take_over(policy, requested, self.now())
                raise PipelineError(
                    f"The machine starts no more threads ({error}): policy '{policy.name}' with {requested} "
                    "workers stays as it was."
                ) from error

    def change_queries(self, change: Change, outputs: Sequence[Output]) -> None:
        """Lock held: add and remove queries."""
        raise NotImplementedError

    def aside(self) -> None:
        """No lock: what the calling thread has to see to meanwhile."""

    def fit(self, policy: Policy) -> Policy:
        """A policy as this run has it."""
        return policy

    def snapshot(self) -> Report:
        with self.lock:
            return self.report(self.now())

    def halt(self) -> None:
        with self.lock:
            self.halted = True
            self.over.set()
            self.alarm.notify_all()

    @contextmanager
    def control(self, name: str, handlers: Mapping[str, Handler]) -> Iterator[None]:
        """The socket for commands; a second run of that name goes without."""
        control = Control(name, handlers)
        try:
            control.open()
        except ControlError as error:
            warnings.warn(f"No commands to this run: {error}", stacklevel=2)
        try:
            yield
        finally:
            control.close()

    # --- the calling thread -------------------------------------------------------------------------

    def wait(self) -> None:
        """Until it is over: fire timers, show progress, keep the deadline."""
        shown = 0.0
        while not self.over.is_set():
            now = self.now()
            if self.deadline is not None and now >= self.deadline:
                self.halted = True
                return
            if self.progress is not None and now - shown >= PROGRESS_EVERY:
                shown = now
                with self.lock:
                    report = self.report(now)
                self.progress(report)
            with self.lock:
                while self._actions and self._actions[0][0] <= now:
                    heapq.heappop(self._actions)[2](now)
                if self.over.is_set():
                    return
                soon = [now + PROGRESS_EVERY]
                soon += [at for at, _, _ in self._actions[:1]]
                soon += [self.deadline] if self.deadline is not None else []
                recruits = self.workers.take_recruits()
                if not recruits:
                    self.alarm.wait(max(min(soon) - self.now(), 0.0))
            try:
                self._start_workers(recruits)
            except PipelineError as error:  # a change that was planned: nobody waits for the answer
                with self.lock:
                    self.runtime.problems.append(str(error))
            self.aside()

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
            self.halted = True
            self.stop()


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM end a run as Ctrl-C does, unless the program has a handler of its own for it.

    By default it ends the process at once, and what sinks have written stays unfinished.
    """
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Crew:
    """Worker threads, their mailboxes for plans, and the semaphores on which they sleep.

    They die with the program: a call may hang, and a program that was told to end must end.
    """

    def __init__(self, run: Attended, count: int, *, one_semaphore: bool = False) -> None:
        self._attended = run
        self._plans: list[Plan | None] = []
        self._beds: list[threading.Semaphore] = []
        self._shared: threading.Semaphore | None = None
        """One semaphore for all, whose value is the number of tasks."""
        self._passed: set[int] = set()
        """Workers that it has let pass."""
        self._since: list[float] = []
        """When each was made."""
        self.semaphores = 0
        """Operations on semaphores while the run was on."""
        self._make_beds(one_semaphore)
        self._asleep: set[int] = set()
        self._gone: set[int] = set()
        """Workers that were too many and have gone."""
        self._threads: list[threading.Thread] = []
        self._recruits: list[tuple[int, threading.Thread]] = []
        """Workers that are new, with their threads, which have not been started."""
        self.count = 0
        self._grow(count)

    def _grow(self, count: int, now: float = 0.0) -> None:
        """As many places as there are workers; those that are new, or come back, wait to be started."""
        new = sorted({worker for worker in self._gone if worker < count} | {*range(len(self._beds), count)})
        for worker in new:
            if worker == len(self._beds):
                self._plans.append(None)
                self._beds.append(self._shared or threading.Semaphore(0))
                self._since.append(now)
            self._since[worker] = now
            self._gone.discard(worker)
        self.count = count
        for worker in new:
            thread = threading.Thread(
                target=self._attended.guard,
                args=(self._loop, worker),
                name=f"headgate-worker-{worker}",
                daemon=True,
            )
            self._threads.append(thread)
            self._recruits.append((worker, thread))

    def take_recruits(self) -> list[tuple[int, threading.Thread]]:
        """Lock held: the workers whose threads have not been started, for the caller to start."""
        recruits, self._recruits = self._recruits, []
        return recruits

    def dismiss(self, workers: Sequence[int]) -> None:
        """Lock held: these could not be started."""
        self._gone.update(workers)

    def _make_beds(self, one_semaphore: bool) -> None:
        self._shared = threading.Semaphore(0) if one_semaphore else None
        self._beds = [self._shared or threading.Semaphore(0) for _ in self._beds]
        self._passed.clear()

    def new_term(self, count: int, one_semaphore: bool) -> None:
        """Lock held: so many workers from now on, without the plans that they have; all ask."""
        self._plans = [None] * len(self._plans)
        if one_semaphore != (self._shared is not None):
            # A worker that was woken may still lie there, for on one semaphore another may have passed
            # instead; and who was only about to lie down finds the new bed.  So there is a permit for each.
            self.wake_all()
            self._make_beds(one_semaphore)
            self.wake_all()
        self._grow(count, self._attended.now())
        self.wake_sleepers()

    def leaves(self, worker: int) -> bool:
        """Lock held: whether a worker is one too many, and goes."""
        if worker < self.count:
            return False
        self._gone.add(worker)
        self._asleep.discard(worker)
        if worker in self._passed:  # instead of one that stays
            self._passed.discard(worker)
            self._beds[worker].release()
        return True

    def _loop(self, worker: int) -> None:
        """What a worker does until the run stops."""
        raise NotImplementedError

    def start(self) -> None:
        for _, thread in self.take_recruits():
            thread.start()

    def join(self, until: float | None = None) -> bool:
        """Wait for the threads to end, until a moment of the monotonic clock; whether all have."""
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(None if until is None else max(until - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in self._threads)

    def sleep(self, worker: int, timeout: float | None = None) -> None:
        """Until somebody wakes it, which is done under the lock, after it has parked: the permit waits."""
        woken = self._beds[worker].acquire(timeout=timeout)
        if woken and self._shared is not None:
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
        if self._shared is not None:
            if worker not in self._passed:
                self.semaphores += 1
                self._beds[worker].acquire(blocking=False)
            self._passed.discard(worker)
