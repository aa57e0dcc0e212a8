"""A thread's own pool (section 5.1): blocks of 63 sizes from superblocks of its own, and no lock.

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
KEPT = 1.5
"""A pool keeps so many times the bytes that it had in use of late; the system gets the rest back."""
FADES = 0.9
"""What was in use counts so much less at every recollection."""


class Handle(weakref.ref[Array]):
    """Knows which block an array is in, and puts it into a bin when the array is gone."""

    __slots__ = ("begin", "bytes", "pool", "superblock", "which")
    pool: Pool
    superblock: Superblock
    begin: int
    which: int
    bytes: int


def _gone(handle: Any) -> None:
    """Runs on any thread, at any point."""
    pool = handle.pool
    if pool.closed:
        handle.superblock.handles.pop(handle.begin, None)
    else:
        pool.bins.give(threading.get_ident(), handle)


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
        self.live = 0
        """Bytes of those asked for that have not come back."""
        self.allocations = [0] * CLASSES
        self.superblocks: list[Superblock] = []
        self._recent = 0.0
        self._busy = False
        self._source = source

    @property
    def used(self) -> int:
        """Bytes of the blocks in use."""
        return sum([superblock.used for superblock in self.superblocks])

    @property
    def claimed(self) -> int:
        """Bytes that it has from the operating system."""
        return sum([self._source.size - superblock.away for superblock in self.superblocks])

    def allocate(self, which: int, count: int, dtype: np.dtype[Any]) -> Array | None:
        """An array in a block of that class; None if the thread is in here already.

        Garbage collection may run any code at any point of this method, also code that allocates.
        """
        if self._busy:
            return None
        self._busy = True
        try:
            self._reclaim(self.owner)
            size = SIZES[which]
            superblock, begin = self._taken(size) or self._cut(size)
            array: Array = np.ndarray((count,), dtype, superblock.memory, begin)
            handle = superblock.handles[begin] = Handle(array, _gone)
            handle.pool, handle.superblock, handle.begin, handle.which = self, superblock, begin, which
            handle.bytes = array.nbytes
            self.allocations[which] += 1
            self.live += handle.bytes
            self.requested += handle.bytes
            self.given += size
            return array
        finally:
            self._busy = False

    def _taken(self, size: int) -> tuple[Superblock, int] | None:
        """A waiting block of the fullest superblock that has one, so that others may become empty."""
        found: Superblock | None = None
        for superblock in self.superblocks:
            if superblock.free.get(size) and (found is None or superblock.used > found.used):
                found = superblock
        if found is None:
            return None
        begin = found.take(size)
        assert begin is not None
        return found, begin

    def _cut(self, size: int) -> tuple[Superblock, int]:
        """A new block: of the fullest superblock that has room, or of one from the memory node."""
        self._recollect()
        if (found := self._taken(size) or self._room(size)) is not None:
            return found
        if 2 * sum([superblock.idle for superblock in self.superblocks]) > self.used:
            for superblock in self.superblocks:
                superblock.join()
            if (found := self._room(size)) is not None:
                return found
        self.superblocks.append(self._source.take())
        found = self._room(size)
        assert found is not None
        return found

    def _room(self, size: int) -> tuple[Superblock, int] | None:
        for superblock in sorted(self.superblocks, key=lambda superblock: -superblock.used):
            begin = superblock.cut(size)
            if begin is not None:
                return superblock, begin
        return None

    def recollect(self) -> None:
        """For the owner, between two tasks: free what others have put into the bins; let spare memory go."""
        if not self._busy:
            self._busy = True
            try:
                self._recollect()
                self._trim()
            finally:
                self._busy = False

    def _trim(self) -> None:
        """Let memory go that was not needed of late, first that of the emptiest superblocks; one may stay."""
        self._recent = max(self.used, FADES * self._recent)
        size = self._source.size
        if (claimed := self.claimed) <= max(KEPT * self._recent, size):
            return
        for superblock in sorted(self.superblocks, key=lambda superblock: superblock.used):
            if superblock.used:
                superblock.release()
            elif claimed - size >= max(self._recent, size):
                self.superblocks.remove(superblock)
                self._source.give(superblock)
            if (claimed := self.claimed) <= max(KEPT * self._recent, size):
                break
        self._source.trim()

    def _recollect(self) -> None:
        for giver in self.bins.givers():
            self._reclaim(giver)

    def _reclaim(self, giver: int) -> None:
        for handle in self.bins.collect(giver):
            superblock = handle.superblock
            if superblock.handles.pop(handle.begin, None) is not handle:
                raise AssertionError("a block was freed that is not in use")
            superblock.put(handle.begin, SIZES[handle.which])
            self.live -= handle.bytes
            self.freed += 1
            if giver != self.owner:
                self.recollected += 1

    def close(self) -> None:
        """When the owner has ended: blocks that are still in use keep their memory until they are not."""
        self._recollect()
        self.closed = True
        self._recollect()  # what came between
        self.superblocks = []
