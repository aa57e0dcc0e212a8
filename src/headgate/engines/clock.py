"""Time, in seconds since the run began: the one place where real and virtual runs differ."""

from __future__ import annotations

import time


class WallClock:
    """Real time."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._start


class VirtualClock:
    """Time that moves only when it is told to, for simulation and for tests."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def advance(self, to: float) -> None:
        """Move on; time never goes back."""
        self.time = max(self.time, to)
