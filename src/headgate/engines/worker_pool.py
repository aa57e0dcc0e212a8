"""Worker threads of a run in real time, and the semaphores on which they sleep."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

Body = Callable[[int], None]


LOOK = 1.0
"""Seconds between looks at signals while the main thread waits for others."""


def join(thread: threading.Thread, until: float | None = None) -> None:
    """Wait for a thread to end, until a moment of the monotonic clock.

    In short waits: a signal that comes just before Python blocks is handled only when it returns.
    """
    while thread.ident is not None and thread.is_alive():
        left = LOOK if until is None else until - time.monotonic()
        if left <= 0:
            return
        thread.join(min(left, LOOK))


class WorkerPool:
    """Threads by number.

    ``body(worker)`` is what a worker does until the run stops; ``guard`` runs it and sees to its errors.
    The threads die with the program: a call may hang, and a program that was told to end must end.
    """

    def __init__(
        self, guard: Callable[[Body, int], None], body: Body, count: int, one_semaphore: bool
    ) -> None:
        self._guard, self._body = guard, body
        self._beds: list[threading.Semaphore] = []
        self._shared = threading.Semaphore(0) if one_semaphore else None
        """One semaphore for all, whose value is the number of tasks."""
        self._passed: set[int] = set()
        """Workers that it has woken."""
        self.since: list[float] = []
        """When each was made."""
        self.semaphores = 0
        """Operations on semaphores while the run was on."""
        self.asleep: set[int] = set()
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
                self._beds.append(self._shared or threading.Semaphore(0))
                self.since.append(now)
            self.since[worker] = now
            self._gone.discard(worker)
        self.count = count
        for worker in new:
            thread = threading.Thread(
                target=self._guard,
                args=(self._body, worker),
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

    def share(self, one_semaphore: bool) -> None:
        """Lock held: whether all workers sleep on one semaphore."""
        if one_semaphore == (self._shared is not None):
            return
        # A worker that was woken may still sleep, because another took its permit on the shared semaphore;
        # and one that is about to sleep will use the new semaphore.  So both get a permit for each worker.
        self.wake_all()
        self._shared = threading.Semaphore(0) if one_semaphore else None
        self._beds = [self._shared or threading.Semaphore(0) for _ in self._beds]
        self._passed.clear()
        self.wake_all()

    def resize(self, count: int, now: float) -> None:
        """Lock held: so many workers from now on; the caller starts those that are new."""
        self._grow(count, now)

    def leaves(self, worker: int) -> bool:
        """Lock held: whether a worker is one too many, and goes."""
        if worker < self.count:
            return False
        self._gone.add(worker)
        self.asleep.discard(worker)
        if worker in self._passed:  # instead of one that stays
            self._passed.discard(worker)
            self._beds[worker].release()
        return True

    def start(self) -> None:
        for _, thread in self.take_recruits():
            thread.start()

    def join(self, until: float | None = None) -> bool:
        """Wait for the threads to end, until a moment of the monotonic clock; whether all have."""
        for thread in self._threads:
            join(thread, until)
        return not any(thread.is_alive() for thread in self._threads)

    def sleep(self, worker: int, timeout: float | None = None) -> None:
        """Until it is woken.  That happens under the lock, after it has parked: the permit waits for it."""
        woken = self._beds[worker].acquire(timeout=timeout)
        if woken and self._shared is not None:
            self._passed.add(worker)

    def wake(self, worker: int) -> None:
        """Lock held."""
        self.semaphores += 1
        self.asleep.discard(worker)
        self._beds[worker].release()

    def wake_sleepers(self) -> None:
        """Lock held."""
        for worker in sorted(self.asleep):
            self.wake(worker)

    def wake_all(self) -> None:
        for bed in self._beds:
            bed.release()

    def planned(self, worker: int) -> None:
        """Lock held: a worker has a plan; a semaphore that counts tasks counts one fewer."""
        if self._shared is not None:
            if worker not in self._passed:
                self.semaphores += 1
                self._beds[worker].acquire(blocking=False)
            self._passed.discard(worker)
