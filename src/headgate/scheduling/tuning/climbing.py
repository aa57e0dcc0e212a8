"""Hill climbing on a measured rate: one step for a period, and it stays if it pays.

What pays is a margin above (or, for a step that is welcome anyway, not a margin below) what there was, so
that noise moves nothing.  A direction that did not pay is tried again only after a pause, which doubles each
time.  With ``leaps``, it is then tried one step further, up to the end: behind a valley there may be a higher
hill.
"""

from __future__ import annotations

from headgate.errors import PipelineError

LONGEST_PAUSE = 32


def check_climb(name: str, period: float, margin: float) -> None:
    """Raise if so nothing can be tried and judged."""
    if period <= 0 or not 0 <= margin < 1:
        raise PipelineError(
            f"{name}(period={period:g}, margin={margin:g}): the period must be positive, and the margin a "
            "share below 1."
        )


class Climber:
    """A whole number between two ends, and how it is changed.

    ``up`` and ``down``: what of the rate before there must be after a step for it to stay.
    """

    def __init__(
        self, lowest: int, highest: int, start: int, *, up: float, down: float, leaps: bool = False
    ) -> None:
        self.value = start
        self._leaps = leaps
        self._reach = {1: 1, -1: 1}
        """By direction, how far the next step goes."""
        self._lowest, self._highest = lowest, highest
        self._wanted = {1: up, -1: down}
        self._before = 0.0
        """The rate before the step that is being tried."""
        self._step = 0
        self._direction = 1
        self._pause = {1: 1, -1: 1}
        """Periods to wait after the next failure."""
        self._wait = {1: 1, -1: 1}
        """Periods until a direction is tried."""

    def bound(self, highest: int) -> None:
        """Another upper end; a value above it is brought down, and a step that is being tried ends there."""
        self._highest = max(highest, self._lowest)
        if self.value > self._highest:
            self.value, self._step = self._highest, 0

    def reconsider(self, rate: float) -> int:
        """A period is over, with that rate: judge the step that was tried, or try one.  Returns the value."""
        for direction in self._wait:
            self._wait[direction] -= 1
        if self._step:
            self._judge(rate)
            return self.value
        if rate <= 0:  # of a period in which nothing came nothing can be learnt
            return self.value
        for direction in (self._direction, -self._direction):
            step = direction * self._reach[direction]
            if self._wait[direction] <= 0 and self._lowest <= self.value + step <= self._highest:
                self._before, self._step = rate, step
                self.value += step
                break
        return self.value

    def _judge(self, rate: float) -> None:
        step, self._step = self._step, 0
        direction = 1 if step > 0 else -1
        if rate >= self._wanted[direction] * self._before:
            self._direction = direction
            self._pause[direction] = 1
            self._reach = {1: 1, -1: 1}
            return
        # It did not pay: back, and wait longer before that is tried again.
        self.value -= step
        self._direction = -direction
        if self._leaps:
            reach = self._reach[direction] + 1
            inside = self._lowest <= self.value + direction * reach <= self._highest
            self._reach[direction] = reach if inside else 1
        self._pause[direction] = min(2 * self._pause[direction], LONGEST_PAUSE)
        self._wait[direction] = self._pause[direction]
