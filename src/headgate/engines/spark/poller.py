"""Asks servers on threads of their own, so that one that does not answer does not hold up the feeder."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
PATIENCE = 60.0
"""Seconds for which a server may be away, restarting perhaps, before the source fails."""
PATIENCE_AT_START = 20.0
"""The same for a server that has never answered: its address may be wrong."""


class Watch(Generic[T]):
    """Asks on a thread of its own; ``take`` gives the answers since the last time.

    An error of the kind ``away`` is raised only when there has been no answer for ``patience`` seconds, or
    for ``patience_at_start`` if there has never been one; any other at once.
    """

    def __init__(
        self,
        name: str,
        ask: Callable[[], T],
        *,
        every: float,
        away: type[Exception] | tuple[type[Exception], ...],
        patience: float,
        patience_at_start: float,
    ) -> None:
        self._ask, self._every, self._away = ask, every, away
        self._patience, self._patience_at_start = patience, patience_at_start
        self._answers: deque[T] = deque()
        self._error: Exception | None = None
        self._answered = False
        self._since = time.monotonic()
        """When the last answer came, or the first question was put."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"headgate-{name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                answer = self._ask()
            except Exception as error:
                self._error = error
                if not isinstance(error, self._away):
                    return
            else:
                self._answers.append(answer)
                self._error, self._answered, self._since = None, True, time.monotonic()
            self._ended.wait(self._every)

    def take(self) -> list[T]:
        """Answers since the last time, oldest first."""
        answers = [self._answers.popleft() for _ in range(len(self._answers))]
        error = self._error
        if error is None or answers:
            return answers
        patience = self._patience if self._answered else self._patience_at_start
        if isinstance(error, self._away) and time.monotonic() - self._since < patience:
            return answers
        self.end()
        raise error

    @property
    def silent(self) -> tuple[float, Exception | None] | None:
        """Since when there has been no answer, in seconds since the epoch, and the error; None if there was.

        A server that has not answered its first question yet is silent, too.
        """
        if self._answered and self._error is None:
            return None
        return time.time() - (time.monotonic() - self._since), self._error

    def end(self) -> None:
        """Ask no more.  A reply that arrives later is dropped."""
        self._ended.set()
