"""Several workers on one keyed box (ordered processing, section 4): rows of one bucket one after the other.

``add`` queues an item for its bucket; one thread adds at a time.  ``consume`` gives a worker items, each of
which is its own until it asks for the next; no two workers ever hold items of one bucket, and those of one
bucket are given out in the order in which they were added.  A worker says by ``enough`` that its time is up,
and goes on asking until it is given no more: one that stops before keeps its bucket for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from headgate.atomics import Cell, Counter, Flag, Lock, Queue

T = TypeVar("T")


class Hybrid(Generic[T]):
    """A queue per bucket, and a master queue that says whose turn it is (figure 7).

    A worker that comes to a bucket which another holds leaves its item to that one and takes the next, so
    no worker waits, and items are worked on almost in the order of their arrival.  A worker
    finishes the items that were left to it even if its time is up.
    """

    def __init__(self, buckets: int, workers: int) -> None:
        self._master: Queue[int] = Queue()
        self._queues: list[Queue[T]] = [Queue() for _ in range(buckets)]
        self._counts = [Counter() for _ in range(buckets)]
        """By bucket, items still queued for its current owner."""

    def add(self, bucket: int, item: T) -> None:
        self._queues[bucket].enqueue(item)
        self._master.enqueue(bucket)

    def waiting(self) -> int:
        """Items that a worker could take now."""
        return len(self._master)

    def consume(self, enough: Callable[[], bool]) -> Iterator[tuple[int, T]]:
        while not enough() and (bucket := self._master.try_dequeue()) is not None:
            if self._counts[bucket].fetch_add(1) == 0:
                more = True
                while more:
                    item = self._queues[bucket].try_dequeue()
                    assert item is not None, "a bucket's turn came before its item"
                    yield bucket, item
                    more = self._counts[bucket].fetch_add(-1) > 1


class Partitioned(Generic[T]):
    """A queue per worker, each for a share of the buckets; the worker that takes a queue empties it."""

    def __init__(self, buckets: int, workers: int) -> None:
        self._queues: list[Queue[tuple[int, T]]] = [Queue() for _ in range(min(workers, buckets))]
        self._taken = [Flag() for _ in self._queues]
        self._first = Cell(0)
        self._of_bucket = [bucket * len(self._queues) // buckets for bucket in range(buckets)]

    def add(self, bucket: int, item: T) -> None:
        self._queues[self._of_bucket[bucket]].enqueue((bucket, item))

    def waiting(self) -> int:
        """Items that a worker could take now."""
        return sum(
            [len(queue) for queue, taken in zip(self._queues, self._taken, strict=True) if not taken.is_set()]
        )

    def consume(self, enough: Callable[[], bool]) -> Iterator[tuple[int, T]]:
        first = self._first.load()
        self._first.store(
            first + 1
        )  # where to look first; that two workers look at the same place is no harm
        for turn in range(len(self._queues)):
            place = (first + turn) % len(self._queues)
            if enough() or not len(self._queues[place]) or self._taken[place].test_and_set():
                continue
            while not enough() and (found := self._queues[place].try_dequeue()) is not None:
                yield found
            self._taken[place].clear()


class Shared(Generic[T]):
    """One queue for all, and a lock per bucket.

    Taking an item and its bucket's lock must be one step, or two workers could take two items of a bucket
    and lock it in the wrong order: so a worker that waits for a bucket makes all others wait too.
    """

    def __init__(self, buckets: int, workers: int) -> None:
        self._queue: Queue[tuple[int, T]] = Queue()
        self._taking = Lock()
        self._buckets = [Lock() for _ in range(buckets)]

    def add(self, bucket: int, item: T) -> None:
        self._queue.enqueue((bucket, item))

    def waiting(self) -> int:
        """Items that a worker could take now, or wait for."""
        return len(self._queue)

    def consume(self, enough: Callable[[], bool]) -> Iterator[tuple[int, T]]:
        while not enough():
            self._taking.acquire()
            found = self._queue.try_dequeue()
            if found is not None:
                self._buckets[found[0]].acquire()
            self._taking.release()
            if found is None:
                return
            yield found
            self._buckets[found[0]].release()


class SharedInTurns(Generic[T]):
    """``Shared`` for workers that take turns on one thread and cannot wait there, as in a simulation.

    It yields None where a worker would wait: the worker asks again when another one has gone on.
    """

    def __init__(self, buckets: int, workers: int) -> None:
        self._queue: Queue[tuple[int, T]] = Queue()
        self._taking = Flag()
        self._buckets = [Flag() for _ in range(buckets)]

    def add(self, bucket: int, item: T) -> None:
        self._queue.enqueue((bucket, item))

    def waiting(self) -> int:
        """Items that a worker could take now, or wait for."""
        return len(self._queue)

    def consume(self, enough: Callable[[], bool]) -> Iterator[tuple[int, T] | None]:
        while not enough():
            while self._taking.test_and_set():
                yield None
            found = self._queue.try_dequeue()
            while found is not None and self._buckets[found[0]].test_and_set():
                yield None
            self._taking.clear()
            if found is None:
                return
            yield found
            self._buckets[found[0]].clear()


IN_TURNS = "shared in turns"
"""What "shared" is in a simulation."""
Partitioning = Hybrid[T] | Partitioned[T] | Shared[T] | SharedInTurns[T]
SCHEMES: dict[str, Callable[[int, int], Partitioning[T]]] = {
    "hybrid": Hybrid,
    "partitioned": Partitioned,
    "shared": Shared,
}
