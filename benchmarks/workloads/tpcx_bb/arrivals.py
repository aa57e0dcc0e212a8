"""What every generated stream needs: skewed choices, an arrival process, and bounded disorder.

All of it is vectorised and streaming: a stream is made chunk by chunk from one seeded random generator,
so that rows do not depend on how many follow them, and only rows whose place is not yet certain are held.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from headgate.demo.tpcx_bb.tables import DAY, SECOND, Columns, Ints

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE


class Zipf:
    """Ranks 0 … n-1, rank r drawn with a probability proportional to ``1 / (r + 1) ** exponent``."""

    def __init__(self, n: int, exponent: float) -> None:
        weights = np.arange(1, n + 1, dtype=np.float64) ** -exponent
        self._cumulative = np.cumsum(weights) / weights.sum()
        self._last = n - 1

    def draw(self, random: np.random.Generator, size: int) -> Ints:
        ranks = np.searchsorted(self._cumulative, random.random(size), side="right")
        return np.minimum(ranks, self._last).astype(np.int64)


class Arrivals:
    """Times of independent events, more by day than by night, never decreasing.

    A Poisson process whose clock runs unevenly: in the afternoon (UTC) events are three times as frequent
    as at night, while every day has about the same number of them.
    """

    _SWING = 0.5
    _QUIET = 3 * HOUR

    def __init__(self, random: np.random.Generator, start: int, per_day: float) -> None:
        self._random = random
        self._start = start
        self._mean_gap = DAY / per_day
        self._clock = 0.0

    def draw(self, size: int) -> Ints:
        """The next ``size`` times, in microseconds since 1970."""
        even = self._clock + np.cumsum(self._random.exponential(self._mean_gap, size))
        self._clock = float(even[-1])
        phase = 2 * np.pi * (even + self._start - self._QUIET) / DAY
        zero = 2 * np.pi * (self._start - self._QUIET) / DAY
        uneven = even + self._SWING * DAY / (2 * np.pi) * (np.sin(phase) - np.sin(zero))
        times: Ints = self._start + uneven.astype(np.int64)
        return times


def delays(random: np.random.Generator, size: int, disorder: int) -> Ints:
    """How much later than its event each row shows up: by less than ``disorder`` for a fifth, else 0."""
    late = random.random(size)
    if disorder <= 0:
        return np.zeros(size, dtype=np.int64)
    return np.where(late < 0.2, late * (disorder / 0.2), 0).astype(np.int64)


def in_order_of_arrival(chunks: Iterable[tuple[Columns, Ints, int]]) -> Iterator[Columns]:
    """Rows of chunks by time of arrival, each as soon as no later chunk can precede it.

    A chunk is its columns, the arrival of each row, and the earliest arrival that any later chunk has.
    What is held back is what belongs to events still under way.
    """
    held: Columns | None = None
    held_arrivals = np.empty(0, dtype=np.int64)
    for columns, arrivals, horizon in chunks:
        if held is not None:
            columns = {name: np.concatenate([held[name], column]) for name, column in columns.items()}
            arrivals = np.concatenate([held_arrivals, arrivals])
        order = np.argsort(arrivals, kind="stable")
        arrivals = arrivals[order]
        certain = int(np.searchsorted(arrivals, horizon, side="left"))
        ready, waiting = order[:certain], order[certain:]
        held = {name: column[waiting] for name, column in columns.items()}
        held_arrivals = arrivals[certain:]
        if certain:
            yield {name: column[ready] for name, column in columns.items()}


def spread(counts: Ints) -> tuple[Ints, Ints]:
    """For groups of ``counts`` rows: every row's group and its place in the group."""
    group = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    first = np.cumsum(counts) - counts
    return group, np.arange(len(group), dtype=np.int64) - first[group]


def grouped_cumsum(values: Ints, counts: Ints) -> Ints:
    """Running sums of ``values`` that start again with every group of ``counts`` rows (none empty)."""
    sums = np.cumsum(values)
    first = np.cumsum(counts) - counts
    before = sums[first] - values[first]
    running: Ints = sums - np.repeat(before, counts)
    return running
