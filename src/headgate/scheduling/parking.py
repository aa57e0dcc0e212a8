"""Sleeping threads (Bobox, section 5.2): which workers may sleep and which are woken, by counting.

Every pool of workers (a node's) keeps the number of tasks for which it is responsible, waiting or being run,
and the number of its workers that are awake.  A worker about to sleep decreases the latter (the paper prints
"increase").  Whenever fewer are awake than there are tasks, one is woken.  So there are never more tasks than
workers awake while one sleeps, and while all are awake none is put to sleep or woken: no semaphore is
touched.  A worker counts from the first time that it asks: when another policy takes over, some are still
inside calls that the new one has not given them, and take nothing of what it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Parking:
    """The counts of every pool; ``pool_of`` says whose each worker is."""

    def __init__(self, pool_of: Sequence[int]) -> None:
        self.pool_of = tuple(pool_of)
        pools = max(self.pool_of, default=0) + 1
        self.size = [self.pool_of.count(pool) for pool in range(pools)]
        """Workers of each pool."""
        self.awake = [0] * pools
        """Workers that work or are about to ask for work."""
        self.tasks = [0] * pools
        """Tasks that wait or are being run."""
        self.asleep: list[dict[int, None]] = [{} for _ in range(pools)]
        self._is_awake = [False] * len(self.pool_of)

    @property
    def some_sleep(self) -> bool:
        return any(self.asleep)

    def sleep(self, worker: int) -> None:
        """A worker that asked has found nothing."""
        pool = self.pool_of[worker]
        self._is_awake[worker] = False
        self.awake[pool] -= 1
        self.asleep[pool][worker] = None

    def asks(self, worker: int) -> None:
        """A worker is awake."""
        pool = self.pool_of[worker]
        self.asleep[pool].pop(worker, None)
        self._count(worker, pool)

    def _count(self, worker: int, pool: int) -> None:
        if not self._is_awake[worker]:
            self._is_awake[worker] = True
            self.awake[pool] += 1

    def add(self, pool: int) -> None:
        """A pool has become responsible for a task."""
        self.tasks[pool] += 1

    def remove(self, pool: int) -> None:
        """A task is done, needless, or another pool's."""
        self.tasks[pool] -= 1

    def wake(self) -> list[int]:
        """Those to be woken now, of each pool the last that fell asleep first: its cache is the warmest."""
        woken = []
        for pool, asleep in enumerate(self.asleep):
            while asleep and self.awake[pool] < self.tasks[pool]:
                woken.append(asleep.popitem()[0])
                self._count(woken[-1], pool)
        return woken


def dense(numbers: Iterable[int]) -> list[int]:
    """The same numbers without gaps: nodes and groups that have no worker do not count."""
    numbers = list(numbers)
    known = {number: place for place, number in enumerate(sorted(set(numbers)))}
    return [known[number] for number in numbers]
