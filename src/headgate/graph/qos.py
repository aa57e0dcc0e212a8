"""QoS graphs (Aurora, sections 2.1 and 6.1): what a result is worth, given its latency.

Piecewise linear, utility in [0, 1], never rising with latency, any number of critical points.  Two points of
one latency are a step: a deadline.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from headgate.errors import PipelineError
from headgate.graph.durations import Duration, parse_duration

WORTHLESS = 10
"""After so many times its goal, a result is worth nothing."""


class QoS:
    """Utility of a result against its latency in seconds: ``QoS([(0, 1), (0.5, 1), (5, 0)])``.

    Before the first point utility is that of the first, after the last that of the last.  A graph may fall at
    once: ``QoS([(0, 1), (1, 1), (1, 0)])`` is worth 1 up to one second, and nothing after it.
    """

    def __init__(self, points: Iterable[tuple[float, float]]) -> None:
        try:
            pairs = [(float(latency), float(utility)) for latency, utility in points]
        except (TypeError, ValueError):
            raise PipelineError(
                "QoS graph: give points as (seconds, utility), e.g. QoS([(0, 1), (0.5, 1), (5, 0)])."
            ) from None
        if not pairs:
            raise PipelineError("QoS graph: it has no points; give at least one, e.g. QoS([(0, 1), (1, 0)]).")
        for place, (latency, utility) in enumerate(pairs):
            if not math.isfinite(latency) or latency < 0:
                raise PipelineError(
                    f"QoS graph: latency {latency:g} of point {place + 1} must be seconds, zero or more."
                )
            if not 0.0 <= utility <= 1.0:
                raise PipelineError(
                    f"QoS graph: utility {utility:g} at {latency:g} s lies outside 0 to 1; scale it."
                )
        for (before, high), (after, low) in pairwise(pairs):
            if after < before:
                raise PipelineError(
                    f"QoS graph: latencies must not fall, but {after:g} s follows {before:g} s; sort them."
                )
            if low > high:
                raise PipelineError(
                    f"QoS graph: utility rises from {high:g} at {before:g} s to {low:g} at {after:g} s; "
                    "a later result cannot be worth more than an earlier one."
                )
        self.points: tuple[tuple[float, float], ...] = tuple(pairs)
        self._latencies = [latency for latency, _ in pairs]
        self._utilities = [utility for _, utility in pairs]
        self._steps = len(set(self._latencies)) < len(pairs)

    def utility(self, latency: float) -> float:
        """What a result of that latency is worth."""
        if self._steps:
            return float(self.utilities(np.array([latency]))[0])
        return float(np.interp(latency, self._latencies, self._utilities))

    def utilities(self, latencies: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        found = np.interp(latencies, self._latencies, self._utilities)
        if not self._steps:
            return found
        # A result that is just in time has met the deadline; interp takes the value after a step.
        points, worth = np.array(self._latencies), np.array(self._utilities)
        place = np.searchsorted(points, latencies)
        exact = np.append(points, math.nan)[place] == latencies
        return np.where(exact, np.append(worth, 0.0)[place], found)

    def gradient(self, latency: float) -> float:
        """Utility lost per second of further delay; 0 past the last critical point.

        Before a step, what it takes counts evenly from the critical point before it: at the step itself it is
        too late to be urgent.
        """
        place = bisect_right(self._latencies, latency)
        if place == 0 or place == len(self._latencies):
            return 0.0
        begin, end = self._latencies[place - 1], self._latencies[place]
        last = bisect_right(self._latencies, end) - 1
        return (self._utilities[place - 1] - self._utilities[last]) / (end - begin)

    def slack(self, latency: float) -> float:
        """Seconds to the next critical point; infinite past the last."""
        place = bisect_right(self._latencies, latency)
        return self._latencies[place] - latency if place < len(self._latencies) else math.inf

    @property
    def critical_points(self) -> list[float]:
        """Latencies at which the gradient may change, in order."""
        return self._latencies

    def __repr__(self) -> str:
        return f"QoS({[(latency, utility) for latency, utility in self.points]})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QoS) and self.points == other.points

    def __hash__(self) -> int:
        return hash(self.points)


def goal_of(text: Duration | None, name: str) -> QoS | None:
    """A latency goal as a QoS graph: full utility up to the goal, none after ten times as long."""
    if text is None:
        return None
    seconds = parse_duration(text, f"query '{name}': goal") / 1e6
    if not seconds:
        raise PipelineError(f"query '{name}': goal = '{text}' must be more than zero, e.g. '500 ms'.")
    return QoS([(0, 1), (seconds, 1), (WORTHLESS * seconds, 0)])
