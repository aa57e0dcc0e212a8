"""Superblocks: 10 MB at a time from the operating system, by memory node (section 5.2).

A superblock is touched by the thread that asks for it, so that its pages come from that thread's node (first
touch).  One that is given back waits on a stack, and the last given back is the first to be used again: its
pages are there, and may be in a cache.
"""

from __future__ import annotations

import mmap
import threading

SUPERBLOCK = 10 * 1024 * 1024
PAGE = mmap.PAGESIZE


class Superblock:
    """Memory that is cut into blocks of one size."""

    __slots__ = ("blocks", "free", "handles", "memory", "size")

    def __init__(self, memory: mmap.mmap) -> None:
        self.memory = memory
        self.size = 0
        self.blocks = 0
        self.free: list[int] = []
        """Blocks that are not in use; the last freed is the next to be used."""
        self.handles: dict[int, object] = {}
        """By block, the weak reference that tells when it is free again; kept here so that it lives."""

    def cut(self, size: int) -> None:
        """Into blocks of that size; the first one is used first."""
        self.size = size
        self.blocks = len(self.memory) // size
        self.free = list(range(self.blocks - 1, -1, -1))

    @property
    def empty(self) -> bool:
        return len(self.free) == self.blocks


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
        self._stack: list[Superblock] = []
        self._lock = threading.RLock()

    @property
    def cached(self) -> int:
        return len(self._stack)

    def take(self) -> Superblock:
        """For the thread that will use it: it touches a new one."""
        with self._lock:
            if self._stack:
                self.reused += 1
                return self._stack.pop()
            self.mapped += 1
        return Superblock(_mapped(self.size))

    def give(self, superblock: Superblock) -> None:
        with self._lock:
            self._stack.append(superblock)

    def close(self) -> None:
        """Return the waiting superblocks to the operating system."""
        with self._lock:
            self._stack.clear()


def _mapped(size: int) -> mmap.mmap:
    """Memory of our own, every page of it touched by this thread."""
    populate = getattr(mmap, "MAP_POPULATE", 0)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | populate)
    if not populate:
        for at in range(0, size, PAGE):
            memory[at] = 0
    return memory
