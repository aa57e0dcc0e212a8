"""The utility-urgency space in buckets (Aurora, section 6.2, figure 12).

Gradients and slacks are divided into ranges; a pair of ranges is a bucket.  QoS graphs are piecewise linear,
so the bucket of a box as a function of its expected output latency is a table of latencies at which it
changes, computed once.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from headgate.scheduling.catalog import Goal

FLAT = 1e-9
"""Less than that share of the steepest slope is nothing to lose, or left by rounding."""
SAME = 1 + 1e-9
"""Gradients that differ by less than this factor differ by rounding."""


class Piece(NamedTuple):
    """Part of a graph on which the gradient is constant and the same critical point is next."""

    start: float
    end: float
    gradient: float


class Ranges(NamedTuple):
    """Latencies at which the bucket changes, the last one infinite, and the bucket before each.

    ``rises`` says, from each range on, at which latencies the box rises: within its own range of gradients to
    less slack, and to each range of gradients above all that came before.
    """

    ends: list[float]
    buckets: list[int]
    rises: list[list[tuple[int, float]]]


def pieces(goals: Sequence[tuple[Goal, float]]) -> list[Piece]:
    """Goals as one graph, each moved by the seconds to its output: gradients add up, all points count."""
    steps: list[tuple[float, float]] = []
    for goal, ahead in goals:
        before = 0.0
        for point in goal.critical_points:
            after = goal.gradient(point)
            steps.append((max(point - ahead, 0.0), after - before))
            before = after
    found: list[Piece] = []
    start, gradient = 0.0, 0.0
    for point, change in [*sorted(steps), (math.inf, 0.0)]:
        if point > start:
            found.append(Piece(start, point, gradient))
            start = point
        gradient += change
    return found


class UtilitySpace:
    """So many ranges of gradient times so many of slack; the greater a bucket's number, the sooner it runs.

    With two ranges or more, one of gradients is for nothing to lose, and one of slacks for no critical point
    to come.  As there are only so many slopes, every one gets a range of its own where there are enough;
    else they are divided in equal ratios, since a query that many share must not hide what one alone loses.
    Slacks are divided in equal parts up to the longest: the more parts, the more often boxes move.
    """

    def __init__(self, graphs: Iterable[Sequence[Piece]], gradients: int, slacks: int) -> None:
        found = [piece for graph in graphs for piece in graph]
        self.slacks = slacks
        slopes = _distinct([piece.gradient for piece in found])
        self.gradient_edges = _slope_edges(slopes, gradients - 1)
        """A gradient of at least the k-th is in a range above the k-th."""
        longest = max([piece.end - piece.start for piece in found if piece.end < math.inf], default=0.0)
        self.slack_edges = _slack_edges(longest, slacks - 1)
        """A slack of at most the k-th is in a range more urgent than those above it."""

    def bucket(self, gradient: float, slack: float) -> int:
        """The bucket of a gradient and a slack."""
        later = bisect_left(self.slack_edges, slack)
        return bisect_right(self.gradient_edges, gradient) * self.slacks + self.slacks - 1 - later

    def ranges(self, graph: Sequence[Piece]) -> Ranges:
        """Where on a graph the bucket changes."""
        ends: list[float] = []
        buckets: list[int] = []
        for start, end, gradient in graph:
            if end < math.inf:
                inside = self.slack_edges[: bisect_left(self.slack_edges, end - start)]
                parts = [(end - slack, math.nextafter(slack, math.inf)) for slack in reversed(inside)]
                parts.append((end, 0.0))
            else:
                parts = [(end, math.inf)]
            for until, slack in parts:
                bucket = self.bucket(gradient, slack)
                if buckets and buckets[-1] == bucket:
                    ends[-1] = until
                elif not ends or until > ends[-1]:
                    ends.append(until)
                    buckets.append(bucket)
        return Ranges(ends, buckets, _rises(ends, buckets, self.slacks))


def _rises(ends: Sequence[float], buckets: Sequence[int], slacks: int) -> list[list[tuple[int, float]]]:
    found: list[list[tuple[int, float]]] = []
    higher: list[tuple[int, float]] = []
    for at in reversed(range(len(ends))):
        row = buckets[at] // slacks
        higher = [rise for rise in higher if rise[0] > row]
        within: list[tuple[int, float]] = []
        for following in range(at + 1, len(ends)):
            if buckets[following] > buckets[at]:
                if buckets[following] // slacks == row:
                    within = [(row, ends[following - 1])]
                break
        found.append(within + higher)
        if at:
            higher = [(row, ends[at - 1]), *higher]
    return found[::-1]


def _distinct(slopes: Sequence[float]) -> list[float]:
    least = FLAT * max(slopes, default=0.0)
    found: list[float] = []
    for slope in sorted(slopes):
        if slope > (found[-1] * SAME if found else least):
            found.append(slope)
    return found


def _slope_edges(slopes: Sequence[float], ranges: int) -> list[float]:
    """Lower edges of that many ranges for slopes; what is below the first is nothing to lose."""
    if not slopes or not ranges:
        return []
    lowest = slopes[0] / 2
    if len(slopes) <= ranges:
        return [lowest, *(math.sqrt(low * high) for low, high in pairwise(slopes))]
    ratio = slopes[-1] / slopes[0]
    return [lowest, *(slopes[0] * ratio ** (k / ranges) for k in range(1, ranges))]


def _slack_edges(longest: float, ranges: int) -> list[float]:
    """Upper edges of that many ranges for finite slacks; only an infinite one is beyond the last."""
    if not longest or not ranges:
        return []
    return [*(longest * k / ranges for k in range(1, ranges)), sys.float_info.max]
