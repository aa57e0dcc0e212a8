"""A run in real time: the calling thread waits for the end, fires timers, and shows progress."""

from __future__ import annotations

import heapq
import itertools
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from headgate.control.line import SUCCEEDED, Line, RunOver
from headgate.control.socket import Control, ControlError, Handler
from headgate.engines.base import Progress
from headgate.engines.worker_pool import WorkerPool
from headgate.errors import PipelineError
from headgate.graph.network import Output, Request
from headgate.runtime.change import Change
from headgate.runtime.instructions import Instruction, Meet, NewTerm, Planned, SetTimer, Wake
from headgate.runtime.observing import Observation
from headgate.runtime.policy_driver import PolicyDriver
from headgate.runtime.report import Report
from headgate.runtime.stimuli import Rescheduled, Stimulus, TakeOver, TimerDue
from headgate.scheduling.interface import Policy

PROGRESS_EVERY = 0.5


class AnyCore(Protocol):
    """The core of a run, whatever its engine."""

    driver: PolicyDriver
    expected: int
    """Requests that are planned and have not come yet."""

    def handle(self, stimulus: Stimulus, now: float) -> list[Instruction]: ...


class RealtimeRun:
    """What runs on threads and on Spark share: one lock, timers, live change, the end.

    Everything that happens goes through ``tell``: the core decides, ``obey`` carries instructions out.
    """

    core: AnyCore
    workers: WorkerPool
    line: Line | None = None

    def __init__(self, lock: Any, deadline: float | None, progress: Progress | None) -> None:
        self.lock = lock
        self.alarm = threading.Condition(lock)
        """Threads that wait for a time, or for something to have happened."""
        self.deadline = deadline
        self.progress = progress
        self.stopping = False
        self.halted = False
        """It was stopped before it was done: by hand, by its time, or by an error of our own."""
        self.closed = False
        """The run is over: a thread that comes back only now must touch nothing."""
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

    # --- stimuli and instructions, lock held --------------------------------------------------------

    def tell(self, stimulus: Stimulus, now: float | None = None) -> list[Instruction]:
        """Tell the core what happened, and carry out what there is to do about it.

        Returns what is left for the caller: calls, parking, and what must not be done under the lock.
        """
        return self.obey(self.core.handle(stimulus, self.now() if now is None else now))

    def obey(self, instructions: Sequence[Instruction]) -> list[Instruction]:
        """Carry instructions out; those that are for the caller are returned."""
        left: list[Instruction] = []
        for instruction in instructions:
            if isinstance(instruction, Wake):
                self.workers.wake(instruction.worker)
            elif isinstance(instruction, Planned):
                self.workers.planned(instruction.worker)
            elif isinstance(instruction, SetTimer):
                self._at(instruction.at, partial(self._timer_due, instruction))
            elif isinstance(instruction, Meet):
                self.meet(instruction)
            elif isinstance(instruction, NewTerm):
                self.new_term(instruction.workers)
            else:
                left.append(instruction)
        return left

    def _timer_due(self, timer: SetTimer, now: float) -> None:
        self.leave(self.tell(TimerDue(timer.key), now))

    def leave(self, left: Sequence[Instruction]) -> None:
        """Lock held: have the calling thread carry out what is left, on no worker's time."""

    def _at(self, at: float, action: Callable[[float], None]) -> None:
        """Call ``action`` at a time, with the lock held."""
        heapq.heappush(self._actions, (at, next(self._action_count), action))
        self.alarm.notify_all()

    def new_term(self, workers: int) -> None:
        """So many workers from now on; all ask."""
        self.workers.share(self.core.driver.policy.one_semaphore)
        self.workers.resize(workers, self.now())
        self.workers.wake_sleepers()

    def meet(self, task: Meet) -> None:
        """Carry a scheduling task out here and now; then all workers ask again."""
        self.core.driver.run_phases(task.phases)
        self.leave(self.tell(Rescheduled()))
        self.workers.wake_sleepers()

    # --- changes ------------------------------------------------------------------------------------

    @contextmanager
    def on(self, line: Line | None) -> Iterator[None]:
        """Let other threads reach the run by the line while it goes on, and plan the changes of the line."""
        if line is None:
            yield
            return
        self.line = line
        with self.lock:
            self.core.expected = line.requests
            for change in line.planned:
                self._at(change.at, partial(self._planned, change, line))
        line.attach(self)
        line.watch.start()
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
        self.core.expected -= change.request is not None
        self.core.driver.planned(change, lambda: self._carry_out(change, line.outputs(change)))

    def change(self, change: Change, outputs: Sequence[Output] = ()) -> None:
        """Carry a change out, from any thread; raise if it cannot be."""
        if self.line is not None and self.line.gate is not None and outputs:
            self.line.gate(self, outputs)
        with self.lock:
            if self.stopping or self.over.is_set():
                raise PipelineError(SUCCEEDED) if self.succeeded else RunOver
            self._carry_out(change, outputs)
            recruits = self.workers.take_recruits()
            self.alarm.notify_all()
        self._start_workers(recruits)

    def _carry_out(self, change: Change, outputs: Sequence[Output]) -> None:
        """Lock held."""
        self._in_force = (self.core.driver.policy, self.core.driver.requested)
        self.carry_out(change, outputs)

    def _start_workers(self, recruits: Sequence[tuple[int, threading.Thread]]) -> None:
        """No lock: start the threads that a change has called for.

        Under the lock, all workers would wait until the last of a thousand has started.  If the machine
        starts no more, the policy and the number of workers before that change come back.
        """
        for place, (_, thread) in enumerate(recruits):
            try:
                thread.start()
            except RuntimeError as error:
                policy, requested = self._in_force
                with self.lock:
                    self.workers.dismiss([worker for worker, _ in recruits[place:]])
                    self.leave(self.tell(TakeOver(policy, requested)))
                raise PipelineError(
                    f"The machine starts no more threads ({error}): policy '{policy.name}' with {requested} "
                    "workers stays as it was."
                ) from error

    def carry_out(self, change: Change, outputs: Sequence[Output]) -> None:
        """Lock held: make a change."""
        raise NotImplementedError

    def cancel(self, request: Request) -> None:
        """End a request now, from any thread."""
        raise NotImplementedError

    def aside(self) -> None:
        """No lock: what the calling thread has to see to meanwhile."""

    def snapshot(self) -> Report:
        with self.lock:
            return self.report(self.now())

    def observe(self, calls_seen: int) -> Observation:
        """What can be seen at this moment, with the box calls after so many."""
        raise NotImplementedError

    def halt(self) -> None:
        with self.lock:
            self.halted = True
            self.over.set()
            self.alarm.notify_all()

    @contextmanager
    def control(self, name: str, handlers: Mapping[str, Handler]) -> Iterator[None]:
        """The socket for commands; a second run of that name goes without."""
        control = Control(name, handlers)
        if self.line is not None:
            self.line.handlers = handlers
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
            except PipelineError as error:  # a change that was planned: no caller waits for the answer
                with self.lock:
                    self.core.driver.problems.append(str(error))
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
