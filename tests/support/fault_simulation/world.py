"""Processes, threads and time that a seed moves: one greenlet runs at a time, and changes only at points.

Whatever touches the world outside a process (a file, a message, a sink) passes ``World.point`` first.  There
the process may die, all of them may lose power, the call may fail, or another thread may go on.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import Any

import greenlet  # type: ignore[import-untyped]

LONGEST = 150_000
"""Points after which a run counts as one that never ends."""


class Died(BaseException):
    """Raised in a thread whose process is no more.  What the thread still does as it unwinds is refused."""


class Wrong(Exception):
    """What must not happen."""


class Process:
    """A driver, or a Python worker of Spark's."""

    def __init__(self, world: World, name: str, pid: int) -> None:
        self.world, self.name, self.pid = world, name, pid
        self.alive = True
        self.paused = False
        self.threads: list[Thread] = []
        self.clock = 0.0
        """How far its wall clock is off."""
        self.memory: dict[tuple[str, str], Any] = {}
        """Global variables of Headgate's modules, which every process has for itself."""
        self.files: list[Any] = []
        """What it has open: locks go with it."""

    def die(self) -> None:
        if not self.alive:
            return
        self.alive = False
        self.world.note(f"{self.name} dies")
        for file in self.files:
            file.give_back()
        self.world.dying.append(self)


class Thread:
    """A thread of a process."""

    def __init__(self, process: Process, work: Callable[[], None], name: str) -> None:
        self.process, self.name = process, name
        self.ready = True
        self.until: float | None = None
        """When it goes on by itself."""
        self.done = False
        self._work = work
        self.run = greenlet.greenlet(self._run, process.world.hub)
        process.threads.append(self)
        process.world.threads.append(self)

    def _run(self, *_: Any) -> None:
        try:
            self._work()
        except Died:
            pass
        finally:
            self.done = True


class World:
    """Everything that a seed decides."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now = 1_700_000_000.0
        self.cpu = 0.0
        self.threads: list[Thread] = []
        self.dying: list[Process] = []
        self.current: Thread | None = None
        self.points = 0
        self.faults: dict[int, Callable[[str], None]] = {}
        """By number of the point, what strikes there."""
        self.struck: list[str] = []
        self.history: list[str] | None = None
        """What has happened, if somebody wants to read it."""
        self.wrong = ""
        """What has gone wrong where an error would be taken for the program's own."""
        self.trace = 0
        """A hash of it."""
        self.install: Callable[[Process], None] = lambda process: None
        self.hub = greenlet.getcurrent()
        self._installed: Process | None = None
        self._pids = 100
        self.spread = self.random.choice((0.02, 0.1, 0.3))
        """How often another thread goes on at a point."""
        self._left = 1

    # --- what threads do -----------------------------------------------------------------------------

    def process(self, name: str) -> Process:
        self._pids += 1
        return Process(self, f"{name}-{self._pids}", self._pids)

    def note(self, text: str) -> None:
        self.trace = zlib.crc32(text.encode(), self.trace)
        if self.history is not None:
            self.history.append(f"{self.points:6} {self.now - 1.7e9:9.4f} {self.me}: {text}")

    @property
    def me(self) -> str:
        return "-" if self.current is None else f"{self.current.process.name}/{self.current.name}"

    def point(self, what: str) -> None:
        """A call that leaves the process."""
        thread = self.current
        if thread is None:
            return
        if not thread.process.alive:
            raise Died
        self.points += 1
        self.note(what)
        fault = self.faults.pop(self.points, None)
        if fault is not None:
            fault(what)
            if not thread.process.alive:
                raise Died
        self._left -= 1
        if self._left <= 0:
            self._left = 1 + int(self.random.expovariate(self.spread))
            self.give_way()
        elif thread.process.paused:
            self.give_way()

    def give_way(self) -> None:
        """Others may go on first."""
        thread = self.current
        assert thread is not None
        self.hub.switch()
        if not thread.process.alive:
            raise Died

    def block(self, until: float | None = None) -> None:
        """Wait until another thread says so, or until a time."""
        thread = self.current
        assert thread is not None, "the setup would have to wait"
        if not thread.process.alive:
            raise Died
        thread.ready, thread.until = False, until
        self.hub.switch()
        if not thread.process.alive:
            raise Died

    @staticmethod
    def unblock(thread: Thread) -> None:
        thread.ready, thread.until = True, None

    # --- who goes on ---------------------------------------------------------------------------------

    def run(self, over: Callable[[], bool]) -> None:
        """Until it is over."""
        while True:
            self._bury()
            if self.wrong:
                raise Wrong(self.wrong)
            if over():
                return
            if self.points > LONGEST:
                raise Wrong("it does not end")
            able = [t for t in self.threads if t.ready and not t.process.paused]
            if not able:
                self._wait()
                continue
            thread = able[0] if len(able) == 1 else self.random.choice(able)
            self._go_on(thread)

    def _go_on(self, thread: Thread, *error: Any) -> None:
        if thread.process is not self._installed:
            self._installed = thread.process
            self.install(thread.process)
        self.current = thread
        try:
            if error and thread.run:
                thread.run.throw(*error)
            else:  # one that has not begun finds out at its first point that its process has died
                thread.run.switch()
        finally:
            self.current = None
            if thread.done or thread.run.dead:
                thread.done = True
                self.threads.remove(thread)
                thread.process.threads.remove(thread)

    def _wait(self) -> None:
        """Nothing can go on now: the time of the first that sleeps comes, or what was stopped goes on."""
        sleepers = [t for t in self.threads if t.until is not None and not t.process.paused]
        paused = [t.process for t in self.threads if t.process.paused]
        if paused and (not sleepers or self.random.random() < 0.05):
            self.note(f"{paused[0].name} goes on")
            paused[0].paused = False
            return
        if not sleepers:
            waiting = ", ".join(f"{thread.process.name}/{thread.name}" for thread in self.threads)
            raise Wrong(f"all wait for each other: {waiting}")
        first = min(sleepers, key=lambda t: t.until)
        self.now = max(self.now, first.until)
        first.until, first.ready = None, True

    def _bury(self) -> None:
        while self.dying:
            process = self.dying.pop()
            for thread in list(process.threads):
                while not thread.done:
                    self._go_on(thread, Died)

    def end(self) -> None:
        """Everything stops where it is."""
        for thread in self.threads:
            thread.process.die()
        self._bury()


_now: list[World] = []


def world() -> World:
    """The one in which the caller runs."""
    return _now[-1]


def enter(made: World) -> None:
    _now.append(made)


def leave() -> None:
    _now.pop()
