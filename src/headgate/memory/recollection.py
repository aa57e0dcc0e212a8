"""Recollection bins (section 5.1): blocks on their way back to the pool that they came from.

A block is freed only by the thread that owns it.  Any other puts it into the bin that it has with the owner,
and the owner looks there every once in a while.  The paper has a spin lock for each pair of threads; here a
bin takes and gives whole items without any lock, which also lets a finaliser use it: that may run on any
thread and at any point, even while the owner is in the middle of collecting.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from headgate.atomics import Queue

T = TypeVar("T")


class Bins(Generic[T]):
    """The bins of one owner, by the thread that frees."""

    def __init__(self, givers: Iterable[int] = ()) -> None:
        self._bins: dict[int, Queue[T]] = {giver: Queue() for giver in givers}

    def give(self, giver: int, block: T) -> None:
        """For any thread: a block is free."""
        bin_ = self._bins.get(giver)
        if bin_ is None:
            bin_ = self._bins.setdefault(giver, Queue())
        bin_.enqueue(block)

    def collect(self, giver: int) -> list[T]:
        """For the owner: what one thread has freed so far, in the order in which it did."""
        found: list[T] = []
        bin_ = self._bins.get(giver)
        if bin_ is None:
            return found
        while (block := bin_.try_dequeue()) is not None:
            found.append(block)
        return found

    def givers(self) -> list[int]:
        """Who has freed something, now or earlier."""
        return list(self._bins.copy())
