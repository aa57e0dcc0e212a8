"""How tests wait: for a condition, not for an amount of time, with a deadline that only a hang reaches."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from headgate.connectors.rate import RateSource
from headgate.connectors.source import Chunk, Reader, Wait

T = TypeVar("T")
PATIENCE = 500.0
"""Seconds after which a run that should have ended counts as hanging."""
SOON = 240.0
"""Seconds after which something inside a run counts as never happening: the run can still say so."""


def eventually(condition: Callable[[], T], what: str = "it has not happened", patience: float = SOON) -> T:
    """What ``condition`` gives as soon as that is true; a test in which it never is fails with ``what``."""
    end = time.monotonic() + patience
    while not (found := condition()):
        assert time.monotonic() < end, f"{what} within {patience:g} seconds"
        time.sleep(0.002)
    return found


class Held(RateSource):
    """A rate whose last rows wait until ``released`` says so: what a test wants to see first comes first.

    It is a ``RateSource``, so every engine reads it as one.
    """

    def __init__(self, rate: float, limit: int, hold: int, released: Callable[[], object]) -> None:
        super().__init__(rate, limit, 1, datetime.fromtimestamp(0, UTC))
        self._free, self._released = limit - hold, released

    def due(self, now: float) -> int:
        rows = super().due(now)
        return rows if rows <= self._free or self._released() else self._free

    def open(self) -> Reader:
        return _HeldReader(super().open())


class _HeldReader(Reader):
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def poll(self, now: float, max_rows: int) -> Chunk | Wait | None:
        found = self._reader.poll(now, max_rows)
        # Held rows have arrived long ago by their rate; whoever asked at that time would ask all the time.
        overdue = isinstance(found, Wait) and found.until is not None and found.until <= now
        return Wait(now + 0.01) if overdue else found
