"""QoS graphs (Aurora, sections 2.1 and 6.1): what a result is worth, given its latency.

Piecewise linear, utility in [0, 1], never rising with latency, any number of critical points.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from headgate.errors import PipelineError


class QoS:
    """Utility of a result against its latency in seconds: ``QoS([(0, 1), (0.5, 1), (5, 0)])``.

    Before the first point utility is that of the first, after the last that of the last.
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
            if after <= before:
                raise PipelineError(
                    f"QoS graph: latencies must increase, but {after:g} s follows {before:g} s; sort them."
                )
            if low > high:
                raise PipelineError(
                    f"QoS graph: utility rises from {high:g} at {before:g} s to {low:g} at {after:g} s; "
                    "a later result cannot be worth more than an earlier one."
                )
        self.points: tuple[tuple[float, float], ...] = tuple(pairs)
        self._latencies = [latency for latency, _ in pairs]
        self._utilities = [utility for _, utility in pairs]

    def utility(self, latency: float) -> float:
        """What a result of that latency is worth."""
        return float(np.interp(latency, self._latencies, self._utilities))

    def utilities(self, latencies: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.interp(latencies, self._latencies, self._utilities)

    def gradient(self, latency: float) -> float:
        """Utility lost per second of further delay; 0 past the last critical point."""
        place = bisect_right(self._latencies, latency)
        if place == 0 or place == len(self._latencies):
            return 0.0
        rise = self._utilities[place - 1] - self._utilities[place]
        return rise / (self._latencies[place] - self._latencies[place - 1])

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
