"""Putting results in order that several workers made at once (ordered processing, section 3).

What a box takes gets the next number, and its results leave in the order of the numbers: ``send`` sends
result ``number`` on if all earlier ones have left, or else leaves it to the worker that sends those.
``send_downstream`` must not raise: later results would wait for ever.  Two schemes behind one interface:

- ``nonblocking``: a bounded ring.  A worker puts its result into its place, which no other uses, and sends
  on what is next if no other is doing so.  No worker ever waits for one that is sending.  A result that
  lies so far ahead that its place is taken is refused, so ``has_place`` is asked before work is taken.
- ``lock``: one lock around everything, and a buffer without bound.  A worker waits while another sends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from headgate.atomics import Cell, Flag, Lock, Slots

T = TypeVar("T")


class NonBlocking(Generic[T]):
    """The ring of figure 4; its numbers begin at 0."""

    def __init__(self, send_downstream: Callable[[T], None], size: int) -> None:
        self._send_downstream = send_downstream
        self._next = Cell(0)
        """Written only by the worker that holds the flag."""
        self._ring: Slots[T] = Slots(size)
        self._size = size
        self._sending = Flag()

    @property
    def next(self) -> int:
        """The number that leaves next."""
        return self._next.load()

    def has_place(self, number: int) -> bool:
        """Whether a result of that number would be taken; once it would, it always will."""
        return number < self._next.load() + self._size

    def send(self, number: int, result: T) -> bool:
        """Whether the result was taken; if not, try again: earlier ones have to leave first."""
        added = self._try_add(number, result)
        self._send_pending()
        return added

    def _try_add(self, number: int, result: T) -> bool:
        first = self._next.load()
        if first <= number < first + self._size:
            self._ring.store(number % self._size, result)
            return True
        return False

    def _send_pending(self) -> None:
        while not self._sending.test_and_set():
            while True:
                number = self._next.load()
                place = number % self._size
                result = self._ring.load(place)
                if result is None:
                    break
                self._send_downstream(result)
                self._ring.store(place, None)
                self._next.store(number + 1)
            self._sending.clear()
            # Its maker may have added it after we looked and found the flag set: then it is ours to send.
            if self._ring.load(place) is None:
                return


class LockBased(Generic[T]):
    """The scheme of figure 2, for comparison."""

    def __init__(self, send_downstream: Callable[[T], None], size: int) -> None:
        self._send_downstream = send_downstream
        self._lock = Lock()
        self._waiting: dict[int, T] = {}
        self._next = Cell(0)

    @property
    def next(self) -> int:
        """The number that leaves next."""
        return self._next.load()

    def has_place(self, number: int) -> bool:
        """Always true: the buffer has no bound."""
        return True

    def send(self, number: int, result: T) -> bool:
        """Always true: the buffer has no bound."""
        self._lock.acquire()
        try:
            self._waiting[number] = result
            while (first := self._next.load()) in self._waiting:
                self._send_downstream(self._waiting.pop(first))
                self._next.store(first + 1)
        finally:
            self._lock.release()
        return True


Reorder = NonBlocking[T] | LockBased[T]
SCHEMES: dict[str, Callable[[Callable[[T], None], int], Reorder[T]]] = {
    "nonblocking": NonBlocking,
    "lock": LockBased,
}
