"""Session windows: rows of one key that follow each other by less than a gap.

Which rows share a session depends on the order of arrival only where a row comes so late that a session it
would have prolonged has already closed.  Everywhere else sessions are what sorting says: the rows and open
sessions of a key, sorted by time, break where the gap is reached.  So a packet is sorted once; the few keys
with such a row are gone through row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from headgate.graph.aggregates.base import distinct
from headgate.graph.columns import Ints, Mask, lexical_order
from headgate.graph.keys import grown
from headgate.graph.operators.calendar import Calendar
from headgate.graph.operators.panes import Assignment, Closed
from headgate.graph.windows import Window

_OPENS, _ROW, _ENDS = 0, 1, 2


@dataclass(slots=True)
class _Points:
    """Rows, and first and last times of open sessions, to be sorted by key and time."""

    keys: Ints
    times: Ints
    kinds: Ints
    owners: Ints
    """Row, or session."""

    def take(self, order: Ints | Mask) -> _Points:
        return _Points(self.keys[order], self.times[order], self.kinds[order], self.owners[order])

    def order(self) -> Ints:
        return lexical_order([self.keys, self.times, self.kinds])


@dataclass(slots=True)
class _Runs:
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


class Sessions:
    """Open sessions of every key, and when they close."""

    direct = True
    lasting = False
    """Sessions are merged: all those of a key are told if one of them has changed."""

    def __init__(self, window: Window) -> None:
        self.gap = window.size
        self.count = 0
        self.calendar = Calendar()
        self.alive: Mask = np.zeros(0, dtype=np.bool_)
        self._slot: Ints = np.zeros(0, dtype=np.int64)
        self._first: Ints = np.zeros(0, dtype=np.int64)
        self._last: Ints = np.zeros(0, dtype=np.int64)
        self._next: Ints = np.zeros(0, dtype=np.int64)
        self._head: Ints = np.full(0, -1, dtype=np.int64)
        """Sessions of a key are a chain: from the slot's head by next; dead ones may be in it."""

    def late(self, times: Ints, before: Ints) -> Mask:
        """Rows whose own session would have closed."""
        return times + self.gap <= before

    def slots(self, groups: Ints) -> Ints:
        return self._slot[groups]

    def bounds(self, groups: Ints) -> tuple[Ints, Ints]:
        """Start and end of sessions."""
        return self._first[groups], self._last[groups] + self.gap

    def assign(self, slots: Ints, times: Ints, before: Ints) -> Assignment:
        """The session of every row; sessions that a row has joined are merged into one of them."""
        if not len(slots):
            return Assignment(slots)
        unique, keys = distinct(slots)
        self._head = grown(self._head, int(unique.max()) + 1, -1)
        olds, of_key = self._chains(unique)
        runs = self._sorted_runs(keys, times, before, olds, of_key)
        return self._settle(unique, runs)

    def _chains(self, slots: Ints) -> tuple[Ints, Ints]:
        """The open sessions of ``slots``, and the place of each one's slot."""
        found, places = [], []
        current, place = self._head[slots], np.arange(len(slots))
        while True:
            there = current >= 0
            current, place = current[there], place[there]
            if not len(current):
                break
            live = self.alive[current]
            found.append(current[live])
            places.append(place[live])
            current = self._next[current]
        none = np.zeros(0, dtype=np.int64)
        return np.concatenate([none, *found]), np.concatenate([none, *places])

    def _sorted_runs(self, keys: Ints, times: Ints, before: Ints, olds: Ints, of_key: Ints) -> _Runs:
        rows = np.arange(len(keys))
        points = _Points(
            np.concatenate([keys, of_key, of_key]),
            np.concatenate([times, self._first[olds], self._last[olds]]),
            np.repeat(np.array([_ROW, _OPENS, _ENDS]), [len(keys), len(olds), len(olds)]),
            np.concatenate([rows, olds, olds]),
        )
        points = points.take(points.order())
        inside = np.cumsum((points.kinds == _OPENS).astype(np.int64) - (points.kinds == _ENDS))
        other_key = points.keys[1:] != points.keys[:-1]
        outside = inside[:-1] == 0
        breaks = np.ones(len(points.keys), dtype=np.bool_)
        breaks[1:] = other_key | (outside & (points.times[1:] - points.times[:-1] >= self.gap))
        is_row = points.kinds == _ROW
        # The row would prolong what ends with the point before it; was that still open when it came?
        met = np.where(is_row[1:], before[np.where(is_row, points.owners, 0)[1:]], points.times[:-1])
        too_late = ~breaks[1:] & outside & is_row[1:] & (points.times[:-1] + self.gap <= met)
        if too_late.any():
            return self._exact_runs(points, np.unique(points.keys[1:][too_late]), keys, times, before)
        return _runs(points, breaks, len(keys))

    def _exact_runs(self, points: _Points, exact: Ints, keys: Ints, times: Ints, before: Ints) -> _Runs:
        """As ``_runs``, where the keys in ``exact`` are gone through row by row."""
        slow = np.zeros(int(points.keys.max()) + 1, dtype=np.bool_)
        slow[exact] = True
        plain = points.take(~slow[points.keys])
        inside = np.cumsum((plain.kinds == _OPENS).astype(np.int64) - (plain.kinds == _ENDS))
        breaks = np.ones(len(plain.keys), dtype=np.bool_)
        breaks[1:] = (plain.keys[1:] != plain.keys[:-1]) | (
            (inside[:-1] == 0) & (plain.times[1:] - plain.times[:-1] >= self.gap)
        )
        runs = _runs(plain, breaks, len(keys))
        opened: dict[int, list[_Open]] = {int(key): [] for key in exact}
        ended: dict[int, list[_Open]] = {int(key): [] for key in exact}
        olds = points.take((points.kinds == _OPENS) & slow[points.keys])
        for key, old in zip(olds.keys.tolist(), olds.owners.tolist(), strict=True):
            opened[key].append(_Open(int(self._first[old]), int(self._last[old]), olds=[old]))
        rows = np.flatnonzero(slow[keys])
        for row, key, time, now in zip(
            rows.tolist(), keys[rows].tolist(), times[rows].tolist(), before[rows].tolist(), strict=True
        ):
            joined = _Open(time, time, [row])
            apart = []
            for session in opened[key]:
                if session.last + self.gap <= now:
                    ended[key].append(session)
                elif session.first - self.gap < time < session.last + self.gap:
                    joined.first, joined.last = (
                        min(joined.first, session.first),
                        max(joined.last, session.last),
                    )
                    joined.rows += session.rows
                    joined.olds += session.olds
                else:
                    apart.append(session)
            opened[key] = [*apart, joined]
        sessions = [(key, s) for key in opened for s in (*ended[key], *opened[key])]
        return _with_exact(runs, sessions)

    def _settle(self, unique: Ints, runs: _Runs) -> Assignment:
        """Number the sessions, merge those that were joined, and chain them by key."""
        group = np.full(len(runs.keys), -1, dtype=np.int64)
        group[runs.of_old[::-1]] = runs.olds[::-1]
        fresh = np.flatnonzero(group < 0)
        known, self.count = self.count, self.count + len(fresh)
        group[fresh] = np.arange(known, self.count)
        self._reserve()
        self.alive[known : self.count] = True
        self._slot[group] = unique[runs.keys]
        self._first[group] = runs.first
        self._last[group] = runs.last
        self.calendar.push(runs.last[fresh] + self.gap, group[fresh])
        into = group[runs.of_old]
        gone = runs.olds != into
        merged = runs.olds[gone]
        self.alive[merged] = False
        order = slice(None) if bool((runs.keys[1:] >= runs.keys[:-1]).all()) else np.argsort(runs.keys)
        self._chain(group[order])
        if not len(merged):
            return Assignment(group[runs.of_row])
        return Assignment(group[runs.of_row], None, merged, into[gone])

    def _reserve(self) -> None:
        self.alive = grown(self.alive, self.count, False)
        self._slot = grown(self._slot, self.count)
        self._first = grown(self._first, self.count)
        self._last = grown(self._last, self.count)
        self._next = grown(self._next, self.count, -1)

    def _chain(self, groups: Ints) -> None:
        """Chain ``groups``, which are all sessions of their keys, those of one key together."""
        if not len(groups):
            return
        slots = self._slot[groups]
        same = slots[1:] == slots[:-1]
        self._next[groups[-1]] = -1
        self._next[groups[:-1]] = np.where(same, groups[1:], -1)
        heads = np.ones(len(groups), dtype=np.bool_)
        heads[1:] = ~same
        self._head[slots[heads]] = groups[heads]

    def close(self, now: int) -> Closed:
        """Take out the sessions that end at ``now`` or before."""
        _, groups = self.calendar.pop(now)
        groups = groups[self.alive[groups]]
        starts, ends = self.bounds(groups)
        # A session that has grown since it was entered is entered again.
        grew = ends > now
        if grew.any():
            self.calendar.push(ends[grew], groups[grew])
            groups, starts, ends = groups[~grew], starts[~grew], ends[~grew]
        self.alive[groups] = False
        return Closed(self._slot[groups], starts, ends, groups, None, groups)

    def snapshot(self) -> tuple[Ints, dict[str, pa.Array]]:
        """The open sessions and their columns."""
        groups = np.flatnonzero(self.alive[: self.count])
        return groups, {"first": pa.array(self._first[groups]), "last": pa.array(self._last[groups])}

    def changed(self, groups: Ints, now: int) -> tuple[Ints, dict[str, pa.Array]]:
        """What is to be written if the open sessions ``groups`` have changed, as ``snapshot``."""
        groups, _ = self._chains(distinct(self._slot[groups])[0])
        return groups, {"first": pa.array(self._first[groups]), "last": pa.array(self._last[groups])}

    def drop(self, slots: Ints) -> int:
        """Take out the open sessions of keys; how many there were."""
        slots = slots[slots < len(self._head)]
        groups, _ = self._chains(slots)
        self.alive[groups] = False
        return len(groups)

    def restore(self, slots: Ints, columns: dict[str, pa.Array]) -> Ints:
        """Sessions from columns that were snapshotted."""
        groups = np.arange(self.count, self.count + len(slots))
        self.count += len(slots)
        self._reserve()
        self.alive[groups] = True
        self._slot[groups] = slots
        self._first[groups] = columns["first"].to_numpy()
        self._last[groups] = columns["last"].to_numpy()
        self.calendar.push(self._last[groups] + self.gap, groups)
        self._head = grown(self._head, int(slots.max()) + 1, -1)
        there, _ = self._chains(distinct(slots)[0])
        together = np.concatenate([there, groups])
        self._chain(together[np.argsort(self._slot[together], kind="stable")])
        return groups

    def compacted(self, window: Window, groups: Ints, slots: Ints) -> Sessions:
        """The same with only the open sessions ``groups``, whose keys are now at ``slots``."""
        sessions = Sessions(window)
        if len(groups):
            bounds = {"first": pa.array(self._first[groups]), "last": pa.array(self._last[groups])}
            sessions.restore(slots, bounds)
        return sessions


def _runs(points: _Points, breaks: Mask, rows: int) -> _Runs:
    """Sessions from sorted points and where they break; rows without a point get no session."""
    run = np.cumsum(breaks) - 1
    starts = np.flatnonzero(breaks)
    ends = np.append(starts[1:], len(breaks))[: len(starts)] - 1
    of_row = np.full(rows, -1, dtype=np.int64)
    is_row, opens = points.kinds == _ROW, points.kinds == _OPENS
    of_row[points.owners[is_row]] = run[is_row]
    return _Runs(
        points.keys[starts],
        points.times[starts],
        points.times[ends],
        of_row,
        points.owners[opens],
        run[opens],
    )


def _with_exact(runs: _Runs, sessions: Sequence[tuple[int, _Open]]) -> _Runs:
    start = len(runs.keys)
    olds, of_old = [], []
    for place, (_, session) in enumerate(sessions, start):
        runs.of_row[session.rows] = place
        olds += session.olds
        of_old += [place] * len(session.olds)
    return _Runs(
        np.concatenate([runs.keys, np.array([key for key, _ in sessions], dtype=np.int64)]),
        np.concatenate([runs.first, np.array([s.first for _, s in sessions], dtype=np.int64)]),
        np.concatenate([runs.last, np.array([s.last for _, s in sessions], dtype=np.int64)]),
        runs.of_row,
        np.concatenate([runs.olds, np.array(olds, dtype=np.int64)]),
        np.concatenate([runs.of_old, np.array(of_old, dtype=np.int64)]),
    )
