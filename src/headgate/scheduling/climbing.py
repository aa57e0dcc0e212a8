"""Hill climbing on a measured rate: one step for a period, and it stays if it pays.

What pays is a margin above (or, for a step that is welcome anyway, not a margin below) what there was, so
that noise moves nothing.  A step that did not pay is tried again only after a pause, which doubles each time.
"""

from __future__ import annotations

LONGEST_PAUSE = 32


class Climber:
    """A whole number between two ends, and how it is changed.

    ``up`` and ``down``: what of the rate before there must be after a step for it to stay.
    """

    def __init__(self, lowest: int, highest: int, start: int, *, up: float, down: float) -> None:
        self.value = start
        self._lowest, self._highest = lowest, highest
        self._wanted = {1: up, -1: down}
        self._before = 0.0
        """The rate before the step that is being tried."""
        self._step = 0
        self._direction = 1
        self._pause = {1: 1, -1: 1}
        self._wait = 1

    def reconsider(self, rate: float) -> int:
        """A period is over, with that rate: judge the step that was tried, or try one.  Returns the value."""
        if self._step:
            self._judge(rate)
            return self.value
        self._wait -= 1
        if self._wait > 0:
            return self.value
        if not self._lowest <= self.value + self._direction <= self._highest:
            self._direction = -self._direction
        if not self._lowest <= self.value + self._direction <= self._highest:
            self._wait = LONGEST_PAUSE
            return self.value
        self._before, self._step = rate, self._direction
        self.value += self._direction
        return self.value

    def _judge(self, rate: float) -> None:
        step, self._step = self._step, 0
        if rate >= self._wanted[step] * self._before:
            self._pause[step] = 1
            self._wait = 1
            return
        # It did not pay: back, and wait longer before that is tried again.
        self._pause[step] = min(2 * self._pause[step], LONGEST_PAUSE)
        self._direction = -step
        self._wait = self._pause[self._direction]
        self.value -= step
