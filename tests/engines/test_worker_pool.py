"""Worker threads under random interleavings while terms change: nobody is left behind, nor is a task.

The crew is the engines' own, on semaphores and threads that are shared objects.  Around it are the few lines
of an engine: workers that take tasks, a feeder that brings them, and someone who changes the number of
workers, and whether one semaphore is for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from choice_points import Setup, Violation, Worker
from headgate.engines import worker_pool
from headgate.engines.worker_pool import WorkerPool
from headgate.scheduling.interface import ANYONE
from instrumented import Lock, Semaphore
from random_interleavings import search

MOST_THREADS = 8
STEPS = 100_000
TASKS = 4
Term = tuple[int, bool]
"""How many workers, and whether they sleep on one semaphore."""
TERMS: dict[str, Sequence[Term]] = {
    "one semaphore, then each its own": [(2, True), (2, True), (2, False)],
    "each its own, then one semaphore": [(2, False), (2, True), (2, True)],
    "fewer on one semaphore": [(3, True), (3, True), (1, True)],
    "fewer, then more": [(3, True), (1, False), (3, False), (1, True)],
}


class _Threads:
    """Stands in for ``threading``: workers that wait to be somebody's thread."""

    def __init__(self) -> None:
        # Shared objects are made before workers run, so there are more than anyone needs.
        self._semaphores = [Semaphore() for _ in range(2 * MOST_THREADS)]
        self._starts = [Semaphore() for _ in range(MOST_THREADS)]
        self._work: list[Callable[[], None]] = []

    def Semaphore(self, value: int) -> Semaphore:  # noqa: N802
        assert value == 0
        return self._semaphores.pop()

    def Thread(self, *, target: Any, args: Any, name: str, daemon: bool | None) -> Any:  # noqa: N802
        def start() -> None:
            self._work.append(lambda: target(*args))
            self._starts[len(self._work) - 1].release()

        return SimpleNamespace(start=start, ident=1)

    def no_more(self) -> None:
        for start in self._starts:
            start.release()

    def threads(self) -> list[Worker]:
        def thread(number: int) -> Worker:
            def work() -> None:
                self._starts[number].acquire()
                if number < len(self._work):
                    self._work[number]()

            return work

        return [thread(number) for number in range(MOST_THREADS)]


class _Run:
    """An engine: its lock, the tasks that wait, and whether all is done."""

    def __init__(self, threads: _Threads) -> None:
        self.lock, self.threads = Lock(), threads
        self.workers: WorkerPool
        self.tasks, self.left, self.stopping = 0, TASKS, False

    def now(self) -> float:
        return 0.0

    def guard(self, work: Callable[..., None], *args: Any) -> None:
        work(*args)

    def feed(self) -> None:
        for _ in range(TASKS):
            self.lock.acquire()
            self.tasks += 1
            crew = self.workers
            if crew._shared is not None:
                crew.wake(ANYONE)
            elif crew.asleep:
                crew.wake(min(crew.asleep))
            self.lock.release()

    def stop(self) -> None:
        self.lock.acquire()
        self.stopping = True
        self.lock.release()
        self.workers.wake_all()
        self.threads.no_more()


class _Pool(WorkerPool):
    def __init__(self, run: Any, count: int, one_semaphore: bool) -> None:
        self._run = run
        super().__init__(run.guard, self._loop, count, one_semaphore)

    def new_term(self, count: int, one_semaphore: bool) -> None:
        """As a run in real time does it."""
        self.share(one_semaphore)
        self.resize(count, 0.0)
        self.wake_sleepers()
        self.start()

    def _loop(self, worker: int) -> None:
        run = self._run
        while True:
            run.lock.acquire()
            self.asleep.discard(worker)
            goes = run.stopping or self.leaves(worker)
            works = not goes and run.tasks > 0
            if works:
                run.tasks -= 1
                self.planned(worker)
                run.left -= 1
            elif not goes:
                self.asleep.add(worker)
            last = works and run.left == 0
            run.lock.release()
            if goes:
                return
            if last:
                run.stop()
            elif not works:
                self.sleep(worker)


def changing(terms: Sequence[Term], monkeypatch: pytest.MonkeyPatch, made: type[_Pool] = _Pool) -> Setup:
    def setup() -> Sequence[Worker]:
        threads = _Threads()
        monkeypatch.setattr(worker_pool, "threading", threads)
        run: Any = _Run(threads)
        count, one_semaphore = terms[0]
        crew = run.workers = made(run, count, one_semaphore)
        crew.start()

        def change() -> None:
            for count, one_semaphore in terms[1:]:
                run.lock.acquire()
                if not run.stopping:
                    crew.new_term(count, one_semaphore)
                run.lock.release()

        return [run.feed, change, *threads.threads()]

    return setup


@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS.keys())
def test_nobody_is_left_behind_when_terms_change(
    terms: Sequence[Term], monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"\n{search(changing(terms, monkeypatch), seed=1, steps=STEPS)}")


class OnlyKnownSleepers(_Pool):
    """Lets out of the old beds whom it believes to be asleep."""

    def wake_all(self) -> None:
        if self._run.stopping:
            super().wake_all()
        else:
            for worker in sorted(self.asleep):
                self._beds[worker].release()


class ChangesBedsSilently(_Pool):
    """Forgets who lies in an old bed, or is about to lie down in a new one."""

    def share(self, one_semaphore: bool) -> None:
        if one_semaphore != (self._shared is not None):
            self._shared = worker_pool.threading.Semaphore(0) if one_semaphore else None
            self._beds = [self._shared or worker_pool.threading.Semaphore(0) for _ in self._beds]
            self._passed.clear()

    def wake_sleepers(self) -> None:
        pass


class TakesItsPermitAway(_Pool):
    """Who is one too many goes with the permit that was for a task."""

    def leaves(self, worker: int) -> bool:
        self._passed.discard(worker)
        return super().leaves(worker)


MUTANTS: dict[type[_Pool], str] = {
    OnlyKnownSleepers: "one semaphore, then each its own",
    ChangesBedsSilently: "each its own, then one semaphore",
    TakesItsPermitAway: "fewer on one semaphore",
}


@pytest.mark.parametrize(
    ("mutant", "terms"), MUTANTS.items(), ids=lambda value: getattr(value, "__name__", "")
)
def test_mutants_of_the_crew_are_found(
    mutant: type[_Pool], terms: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Violation) as found:
        search(changing(TERMS[terms], monkeypatch, mutant), seed=1, steps=STEPS)
    assert found.value.kind == "deadlock"
