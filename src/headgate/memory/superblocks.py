"""Superblocks: 10 MB at a time from the operating system, by memory node (section 5.2).

A superblock is touched by the thread that asks for it, so that its pages come from that thread's node (first
touch).  One that is given back waits on a stack, and the last given back is the first to be used again: its
pages are there, and may be in a cache.

The paper cuts a superblock into blocks of one size.  Then one live block per size class holds 63 superblocks:
630 MB for 8 MB.  Here all sizes share a superblock.  A free block waits for the next of its size, as in the
paper, and joins its free neighbours only when memory is short.
"""

from __future__ import annotations

import mmap
import threading
from bisect import bisect_left

import numpy as np

SUPERBLOCK = 10 * 1024 * 1024
PAGE = mmap.PAGESIZE
WAITING = 4
"""One superblock may wait on the stack for so many in use.  The oldest others go back to the system."""


class Superblock:
    """Memory that blocks of every size are cut from."""

    __slots__ = ("_away", "_gaps", "away", "free", "handles", "idle", "memory", "used")

    def __init__(self, memory: mmap.mmap) -> None:
        self.memory = memory
        self.used = 0
        """Bytes of the blocks in use."""
        self.idle = 0
        """Bytes of the free blocks that wait for the next of their size."""
        self.away = 0
        """Bytes of the pages that the operating system has back."""
        self.free: dict[int, list[int]] = {}
        """Where the waiting blocks begin, by size; the last freed is the next to be used."""
        self.handles: dict[int, object] = {}
        """By place, the weak reference that tells when a block is free again; kept here so that it lives."""
        self._gaps: list[tuple[int, int]] = [(0, len(memory))]
        """What belongs to no block: begin and end, in order."""
        self._away = np.zeros(len(memory) // PAGE, bool)

    def take(self, size: int) -> int | None:
        """Where a waiting block of that size begins."""
        waiting = self.free.get(size)
        if not waiting:
            return None
        self.idle -= size
        self.used += size
        return waiting.pop()

    def cut(self, size: int) -> int | None:
        """Cut a new block from the smallest gap that holds it."""
        fitting = [(end - begin, begin) for begin, end in self._gaps if end - begin >= size]
        if not fitting:
            return None
        length, begin = min(fitting)
        at = bisect_left(self._gaps, (begin, 0))
        self._gaps[at : at + 1] = [(begin + size, begin + length)] if length > size else []
        self.used += size
        if self.away:
            pages = self._away[begin // PAGE : -(-(begin + size) // PAGE)]
            self.away -= int(pages.sum()) * PAGE
            pages[:] = False
        return begin

    def put(self, begin: int, size: int) -> None:
        """A block is free, and waits for the next of its size."""
        self.free.setdefault(size, []).append(begin)
        self.idle += size
        self.used -= size

    def join(self) -> None:
        """Waiting blocks become gaps, and neighbours one gap."""
        waiting = [(begin, begin + size) for size, begins in self.free.items() for begin in begins]
        self.free.clear()
        self.idle = 0
        joined: list[tuple[int, int]] = []
        for begin, end in sorted(self._gaps + waiting):
            if joined and joined[-1][1] == begin:
                joined[-1] = joined[-1][0], end
            else:
                joined.append((begin, end))
        self._gaps = joined

    def release(self) -> None:
        """Give the operating system the whole pages of every gap; they come back when they are used."""
        self.join()
        for begin, end in self._gaps:
            first, last = -(-begin // PAGE), end // PAGE
            if first < last and not self._away[first:last].all():
                self.memory.madvise(mmap.MADV_DONTNEED, first * PAGE, (last - first) * PAGE)
                self._away[first:last] = True
        self.away = int(self._away.sum()) * PAGE


class SuperblockAllocator:
    """The superblocks of one memory node, shared by the threads there.

    Its lock is taken once for many blocks.  It is reentrant, because garbage collection may run any code
    while the lock is held.
    """

    def __init__(self, size: int = SUPERBLOCK) -> None:
        self.size = size
        self.mapped = 0
        """Superblocks that the operating system gave."""
        self.reused = 0
        """How often one came from the stack instead."""
        self.most = 0
        """Bytes that were claimed from the operating system at once, at most."""
        self._out: set[Superblock] = set()
        """Those that pools have: a full one and its blocks' handles would be a cycle without a reference."""
        self._stack: list[Superblock] = []
        self._lock = threading.RLock()

    @property
    def cached(self) -> int:
        return len(self._stack)

    @property
    def claimed(self) -> int:
        """Bytes that the operating system has given and not got back."""
        with self._lock:
            waiting = len(self._stack) * self.size
            return waiting + sum([self.size - superblock.away for superblock in self._out])

    def take(self) -> Superblock:
        """For the thread that will use it: it touches a new one."""
        with self._lock:
            if self._stack:
                self.reused += 1
                self._out.add(superblock := self._stack.pop())
                return superblock
            self.mapped += 1
        superblock = Superblock(_mapped(self.size))
        with self._lock:
            self._out.add(superblock)
            self.most = max(self.most, self.claimed)
        return superblock

    def give(self, superblock: Superblock) -> None:
        """An empty one waits for the next thread that asks."""
        superblock.join()
        with self._lock:
            self._out.remove(superblock)
            if not superblock.away:
                self._stack.append(superblock)

    def trim(self) -> None:
        """If too many wait, the oldest go back to the system."""
        with self._lock:
            while len(self._stack) * self.size * (WAITING + 1) > self.claimed:
                del self._stack[0]

    def close(self) -> None:
        """Return the waiting superblocks to the operating system."""
        with self._lock:
            self._stack.clear()
            self._out.clear()


def _mapped(size: int) -> mmap.mmap:
    """Memory of our own, every page of it touched by this thread."""
    populate = getattr(mmap, "MAP_POPULATE", 0)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | populate)
    if not populate:
        for at in range(0, size, PAGE):
            memory[at] = 0
    return memory
