"""The few operations that the concurrent structures rest on, each indivisible with and without the GIL.

Python has neither an atomic integer nor a test-and-set instruction.  What it has: a lock's non-blocking
``acquire``, which is a test-and-set; ``deque.append`` and ``deque.popleft``, and reading or writing one place
of a list or one attribute, each of which another thread sees done or not begun (under the GIL because it is
one step of the interpreter, without it because the object has a lock of its own).  A counter that several
threads change needs a lock around one addition, held for no longer than that.

The structures use nothing else, so a test that puts its own versions of these classes in their place can
choose every interleaving.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Cell(Generic[T]):
    """One value: read and written whole."""

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = value

    def load(self) -> T:
        return self._value

    def store(self, value: T) -> None:
        self._value = value


class Counter:
    """A number that several threads add to."""

    __slots__ = ("_lock", "_value")

    def __init__(self, value: int = 0) -> None:
        self._value = value
        self._lock = threading.Lock()

    def load(self) -> int:
        return self._value

    def fetch_add(self, amount: int) -> int:
        """Add, and return what it was before."""
        with self._lock:
            before = self._value
            self._value = before + amount
        return before


class Flag:
    """Set by one thread at a time; no thread ever waits for it."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def test_and_set(self) -> bool:
        """Set it; true if another thread had set it already."""
        return not self._lock.acquire(blocking=False)

    def clear(self) -> None:
        self._lock.release()

    def is_set(self) -> bool:
        return self._lock.locked()


class Slots(Generic[T]):
    """A fixed number of places, each read and written whole; empty ones hold None."""

    __slots__ = ("_places",)

    def __init__(self, size: int) -> None:
        self._places: list[T | None] = [None] * size

    def __len__(self) -> int:
        return len(self._places)

    def load(self, place: int) -> T | None:
        return self._places[place]

    def store(self, place: int, value: T | None) -> None:
        self._places[place] = value


class Queue(Generic[T]):
    """First in, first out, for any number of threads on either side."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: deque[T] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def items(self) -> list[T]:
        """What is in it, if no thread takes any meanwhile."""
        while True:
            try:
                return list(self._items)
            except RuntimeError:  # it was changed while we looked
                continue

    def enqueue(self, item: T) -> None:
        self._items.append(item)

    def try_dequeue(self) -> T | None:
        """The first item; None if there is none."""
        try:
            return self._items.popleft()
        except IndexError:
            return None


class Lock:
    """Waits until it is free."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def acquire(self) -> None:
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()
