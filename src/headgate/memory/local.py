"""A thread's own pool (section 5.1): a sub-allocator per size class, and no lock.

Only the owner touches a pool, except for its bins.  A block's finaliser may run on any thread, and on the
owner's in the middle of anything, so it does no more than put the block into a bin, the owner's own included.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from headgate.memory.classes import CLASSES, SIZES
from headgate.memory.recollection import Bins
from headgate.memory.superblocks import Superblock, SuperblockAllocator

Array = npt.NDArray[Any]


class Handle(weakref.ref[Array]):
    """Knows which block an array is in, and puts it into a bin when the array is gone."""

    __slots__ = ("index", "pool", "superblock")
    pool: Pool
    superblock: Superblock
    index: int


def _gone(handle: Any) -> None:
    """Runs on any thread, at any point."""
    pool = handle.pool
    if pool.closed:
        handle.superblock.handles.pop(handle.index, None)
    else:
        pool.bins.give(threading.get_ident(), handle)


class SubAllocator:
    """Blocks of one size, from superblocks: the fullest that has a free block first."""

    __slots__ = ("_available", "_source", "_superblocks", "allocations", "size")

    def __init__(self, size: int, source: SuperblockAllocator) -> None:
        self.size = size
        self.allocations = 0
        self._source = source
        self._superblocks: set[Superblock] = set()
        """All of them: a full one and its blocks' handles would be a cycle without a reference otherwise."""
        self._available: list[Superblock] = []
        """Those with a free block."""

    def take(self) -> Superblock:
        """The superblock from which the next block comes: the fullest, so that others may become empty."""
        available = self._available
        if not available:
            superblock = self._source.take()
            superblock.cut(self.size)
            self._superblocks.add(superblock)
            available.append(superblock)
            return superblock
        if len(available) == 1:
            return available[0]
        return min(available, key=lambda superblock: len(superblock.free))

    def taken(self, superblock: Superblock) -> None:
        """A block of it was taken."""
        self.allocations += 1
        if not superblock.free:
            self._available.remove(superblock)

    def free(self, superblock: Superblock, index: int) -> None:
        """A block is free.  Of superblocks that are empty one is kept, since the next block comes soon."""
        if not superblock.free:
            self._available.append(superblock)
        superblock.free.append(index)
        if superblock.empty and sum([other.empty for other in self._available]) > 1:
            self._available.remove(superblock)
            self._superblocks.remove(superblock)
            self._source.give(superblock)

    def holds_free(self) -> bool:
        return bool(self._available)


class Pool:
    """What one thread allocates from."""

    def __init__(self, source: SuperblockAllocator, owner: int) -> None:
        self.owner = owner
        self.bins: Bins[Handle] = Bins((owner,))
        self.closed = False
        self.recollected = 0
        """Blocks that other threads have freed."""
        self.freed = 0
        """Blocks that have come back."""
        self.requested = 0
        """Bytes that were asked for, and how many of the blocks' bytes that took."""
        self.given = 0
        self.passed = self.passed_bytes = 0
        """What was too small or too large for the classes."""
        self._busy = False
        self._subs: list[SubAllocator | None] = [None] * CLASSES
        self._source = source

    def allocate(self, which: int, count: int, dtype: np.dtype[Any]) -> Array | None:
        """An array in a block of that class; None if the thread is in here already.

        Garbage collection may run any code at any point of this method, also code that allocates.
        """
        if self._busy:
            return None
        self._busy = True
        try:
            self._reclaim(self.owner)
            sub = self._subs[which]
            if sub is None:
                sub = self._subs[which] = SubAllocator(SIZES[which], self._source)
            if not sub.holds_free():
                self._recollect()
            superblock = sub.take()
            index = superblock.free.pop()
            array: Array = np.ndarray((count,), dtype, superblock.memory, index * sub.size)
            handle = superblock.handles[index] = Handle(array, _gone)
            handle.pool, handle.superblock, handle.index = self, superblock, index
            sub.taken(superblock)
            self.requested += array.nbytes
            self.given += sub.size
            return array
        finally:
            self._busy = False

    def recollect(self) -> None:
        """For the owner, every once in a while: free what others have put into the bins."""
        if not self._busy:
            self._busy = True
            try:
                self._recollect()
            finally:
                self._busy = False

    def _recollect(self) -> None:
        for giver in self.bins.givers():
            self._reclaim(giver)

    def _reclaim(self, giver: int) -> None:
        for handle in self.bins.collect(giver):
            superblock, index = handle.superblock, handle.index
            if superblock.handles.pop(index, None) is not handle:
                raise AssertionError("a block was freed that is not in use")
            sub = self._subs[_CLASS_OF_SIZE[superblock.size]]
            assert sub is not None
            sub.free(superblock, index)
            self.freed += 1
            if giver != self.owner:
                self.recollected += 1

    @property
    def allocations(self) -> int:
        return sum([sub.allocations for sub in self._subs if sub is not None])

    def by_class(self) -> dict[int, int]:
        """Allocations by size of the block."""
        return {sub.size: sub.allocations for sub in self._subs if sub is not None and sub.allocations}

    def close(self) -> None:
        """When the owner has ended: blocks that are still in use keep their memory until they are not."""
        self._recollect()
        self.closed = True
        self._recollect()  # what came between
        self._subs = [None] * CLASSES


_CLASS_OF_SIZE = {size: which for which, size in enumerate(SIZES)}
