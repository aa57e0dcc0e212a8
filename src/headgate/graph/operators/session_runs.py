"""Which rows share a session, for keys with several open sessions or rows that come before or too late.

Everywhere but where a row comes too late for a session that it would have prolonged, sessions are what
sorting says: the rows and open sessions of a key, sorted by time, break where the gap is reached.  The few
keys with such a row are gone through row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from headgate.graph.columns import Ints, Mask, lexical_order

_OPENS, _ROW, _ENDS = 0, 1, 2


@dataclass(slots=True)
class Opened:
    """Open sessions: their numbers, the places of their keys, and their first and last times."""

    groups: Ints
    keys: Ints
    first: Ints
    last: Ints


@dataclass(slots=True)
class _Points:
    """Rows, and first and last times of open sessions, to be sorted by key and time."""

    keys: Ints
    times: Ints
    kinds: Ints
    owners: Ints
    """Row, or place among the open sessions."""

    def take(self, order: Ints | Mask) -> _Points:
        return _Points(self.keys[order], self.times[order], self.kinds[order], self.owners[order])

    def order(self) -> Ints:
        return lexical_order([self.keys, self.times, self.kinds])


@dataclass(slots=True)
class Runs:
    """Sessions after a packet: for each its key, times and earlier sessions, and for each row its session."""

    keys: Ints
    first: Ints
    last: Ints
    of_row: Ints
    olds: Ints
    of_old: Ints


@dataclass(slots=True)
class _Open:
    """One session in the exact path."""

    first: int
    last: int
    rows: list[int] = field(default_factory=list)
    olds: list[int] = field(default_factory=list)


def sorted_runs(keys: Ints, times: Ints, before: Ints, opened: Opened, gap: int) -> Runs:
    """The sessions of rows of ``keys`` at ``times``, which met the time ``before``."""
    olds = np.arange(len(opened.groups))
    points = _Points(
        np.concatenate([keys, opened.keys, opened.keys]),
        np.concatenate([times, opened.first, opened.last]),
        np.repeat(np.array([_ROW, _OPENS, _ENDS]), [len(keys), len(olds), len(olds)]),
        np.concatenate([np.arange(len(keys)), olds, olds]),
    )
    points = points.take(points.order())
    breaks, outside = _breaks(points, gap)
    is_row = points.kinds == _ROW
    # The row would prolong what ends with the point before it; was that still open when it came?
    met = np.where(is_row[1:], before[np.where(is_row, points.owners, 0)[1:]], points.times[:-1])
    too_late = ~breaks[1:] & outside & is_row[1:] & (points.times[:-1] + gap <= met)
    if too_late.any():
        exact = np.unique(points.keys[1:][too_late])
        runs = _exact_runs(points, exact, keys, times, before, opened, gap)
    else:
        runs = _runs(points, breaks, len(keys))
    runs.olds = opened.groups[runs.olds]
    return runs


def _breaks(points: _Points, gap: int) -> tuple[Mask, Mask]:
    """Where a session starts, and which points have no open session around them and the next one."""
    inside = np.cumsum((points.kinds == _OPENS).astype(np.int64) - (points.kinds == _ENDS))
    outside = inside[:-1] == 0
    breaks = np.ones(len(points.keys), dtype=np.bool_)
    breaks[1:] = (points.keys[1:] != points.keys[:-1]) | (
        outside & (points.times[1:] - points.times[:-1] >= gap)
    )
    return breaks, outside


def _exact_runs(
    points: _Points, exact: Ints, keys: Ints, times: Ints, before: Ints, opened: Opened, gap: int
) -> Runs:
    """As ``_runs``, where the keys in ``exact`` are gone through row by row."""
    slow = np.zeros(int(points.keys.max()) + 1, dtype=np.bool_)
    slow[exact] = True
    plain = points.take(~slow[points.keys])
    runs = _runs(plain, _breaks(plain, gap)[0], len(keys))
    current: dict[int, list[_Open]] = {int(key): [] for key in exact}
    ended: dict[int, list[_Open]] = {int(key): [] for key in exact}
    olds = points.take((points.kinds == _OPENS) & slow[points.keys])
    for key, old in zip(olds.keys.tolist(), olds.owners.tolist(), strict=True):
        current[key].append(_Open(int(opened.first[old]), int(opened.last[old]), olds=[old]))
    rows = np.flatnonzero(slow[keys])
    for row, key, time, now in zip(
        rows.tolist(), keys[rows].tolist(), times[rows].tolist(), before[rows].tolist(), strict=True
    ):
        joined = _Open(time, time, [row])
        apart = []
        for session in current[key]:
            if session.last + gap <= now:
                ended[key].append(session)
            elif session.first - gap < time < session.last + gap:
                joined.first, joined.last = min(joined.first, session.first), max(joined.last, session.last)
                joined.rows += session.rows
                joined.olds += session.olds
            else:
                apart.append(session)
        current[key] = [*apart, joined]
    return _with_exact(runs, [(key, s) for key in current for s in (*ended[key], *current[key])])


def _runs(points: _Points, breaks: Mask, rows: int) -> Runs:
    """Sessions from sorted points and where they break; rows without a point get no session."""
    run = np.cumsum(breaks) - 1
    starts = np.flatnonzero(breaks)
    ends = np.append(starts[1:], len(breaks))[: len(starts)] - 1
    of_row = np.full(rows, -1, dtype=np.int64)
    is_row, opens = points.kinds == _ROW, points.kinds == _OPENS
    of_row[points.owners[is_row]] = run[is_row]
    return Runs(
        points.keys[starts],
        points.times[starts],
        points.times[ends],
        of_row,
        points.owners[opens],
        run[opens],
    )


def _with_exact(runs: Runs, sessions: Sequence[tuple[int, _Open]]) -> Runs:
    start = len(runs.keys)
    olds: list[int] = []
    of_old: list[int] = []
    for place, (_, session) in enumerate(sessions, start):
        runs.of_row[session.rows] = place
        olds += session.olds
        of_old += [place] * len(session.olds)
    return Runs(
        np.concatenate([runs.keys, np.array([key for key, _ in sessions], dtype=np.int64)]),
        np.concatenate([runs.first, np.array([s.first for _, s in sessions], dtype=np.int64)]),
        np.concatenate([runs.last, np.array([s.last for _, s in sessions], dtype=np.int64)]),
        runs.of_row,
        np.concatenate([runs.olds, np.array(olds, dtype=np.int64)]),
        np.concatenate([runs.of_old, np.array(of_old, dtype=np.int64)]),
    )
