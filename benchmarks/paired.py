"""Two ways against each other in interleaved pairs: what a neighbour on the machine takes, it takes of both.

The figure of a comparison is the median of the pairs' ratios, with the interval that holds it at a confidence
of 95 % whatever the distribution of the noise: between two of the ordered ratios (the sign test's).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
PAIRS = 11


@dataclass(frozen=True)
class Paired:
    """How many times as fast one way is as the other, pair by pair."""

    ratios: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)

    @property
    def interval(self) -> tuple[float, float]:
        """Where the median is; with fewer than six pairs only from the least to the most."""
        ordered = sorted(self.ratios)
        left_out = outside(len(ordered))
        return ordered[left_out], ordered[-1 - left_out]

    @property
    def not_slower(self) -> bool:
        """Whether it may be as fast as the other: it is not slower beyond the interval."""
        return self.interval[1] >= 1.0

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.median:.3f} ({low:.3f} to {high:.3f})"


def outside(pairs: int) -> int:
    """How many of the ordered ratios on either side can be left out of an interval of that confidence."""
    missed, found = 0.0, 0
    for left_out in range((pairs + 1) // 2):
        missed += 2 * math.comb(pairs, left_out) / 2**pairs
        if missed > 1 - CONFIDENCE:
            break
        found = left_out
    return found


def interleaved(
    pairs: int, one: Callable[[], float], other: Callable[[], float], least: float = 0.0
) -> tuple[Paired, Sequence[float], Sequence[float]]:
    """Seconds that either takes, once to warm up, then in pairs.

    In a pair either runs as often as it takes to come to ``least`` seconds, in turns, and the order changes
    every time: what slows the machine down for longer than a run slows both.
    """
    times = max(1, math.ceil(least / max(min(one(), other()), 1e-9)))
    ones, others = [], []
    for pair in range(pairs):
        of_one, of_other = 0.0, 0.0
        for turn in range(times):
            if (pair + turn) % 2 == 0:
                of_one += one()
                of_other += other()
            else:
                of_other += other()
                of_one += one()
        ones.append(of_one / times)
        others.append(of_other / times)
    return Paired(tuple([b / a for a, b in zip(ones, others, strict=True)])), ones, others
