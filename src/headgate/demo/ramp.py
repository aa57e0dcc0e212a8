"""A counter whose rate rises and falls: a calm shop, a rush, and calm again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

import numpy as np
import numpy.typing as npt

from headgate.connectors.rate import RateSource


class Ramp(RateSource):
    """Row i arrives with its burst; ``steps`` are (second, rows a second), each until the next one."""

    def __init__(self, steps: Sequence[tuple[float, float]], burst: int, start_time: datetime) -> None:
        super().__init__(steps[0][1], None, burst, start_time)
        self._times = np.array([time for time, _ in steps])
        self._rates = np.array([rate for _, rate in steps])
        self._rows = np.concatenate([[0.0], np.cumsum(np.diff(self._times) * self._rates[:-1])])
        """Rows that have arrived when each step begins."""

    def arrival(self, row: int) -> float:
        return float(self.arrivals(row, row + 1)[0])

    def arrivals(self, start: int, end: int) -> npt.NDArray[np.float64]:
        rows = np.arange(start, end) // self.burst * self.burst
        step = np.searchsorted(self._rows, rows, side="right") - 1
        found: npt.NDArray[np.float64] = self._times[step] + (rows - self._rows[step]) / self._rates[step]
        return found

    def due(self, now: float) -> int:
        if now < 0:
            return 0
        step = int(np.searchsorted(self._times, now, side="right")) - 1
        rows = self._rows[step] + (now - self._times[step]) * self._rates[step]
        burst = max(0, math.floor(rows / self.burst) - 1)
        while self.arrival(burst * self.burst) <= now:  # the estimate may be off where a division rounds
            burst += 1
        return int(burst * self.burst)
