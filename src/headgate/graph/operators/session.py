"""Session windows: rows of one key that follow each other by less than a gap.

Which rows share a session depends on the order of arrival only where a row comes so late that a session it
would have prolonged has already closed.  Nearly always a key has one open session at most, and its rows come
after the session's first: then they prolong it one after the other, in the order of their times, until the
gap is reached.  Other keys are sorted together with all their open sessions.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headgate.graph.columns import Ints, Mask, lexical_order
from headgate.graph.numbering import distinct, grown
from headgate.graph.operators.calendar import Calendar
from headgate.graph.operators.panes import Assignment, Closed
from headgate.graph.operators.session_runs import Opened, Runs, sorted_runs
from headgate.graph.time import NEVER
from headgate.graph.windows import Window


class Sessions:
    """Open sessions of every key, and when they close."""

    direct = True
    lasting = False
    """Sessions are merged: if one of a key's has changed, all of them are written."""

    def __init__(self, window: Window) -> None:
        self.gap = window.size
        self.count = 0
        self.calendar = Calendar()
        # One more than there are: the last one, which is -1, stands for no session.
        self.alive: Mask = np.zeros(1, dtype=np.bool_)
        self._slot: Ints = np.zeros(1, dtype=np.int64)
        self._first: Ints = np.full(1, NEVER, dtype=np.int64)
        self._last: Ints = np.full(1, NEVER, dtype=np.int64)
        """Of a session that is not open any more, both are never."""
        self._next: Ints = np.full(1, -1, dtype=np.int64)
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
        olds = self._head[unique]
        last = self._last[olds]
        live = last > NEVER
        order = lexical_order([keys, times])
        key, time = keys[order], times[order]
        leads = np.ones(len(key), dtype=np.bool_)
        np.not_equal(key[1:], key[:-1], out=leads[1:])
        # What a row finds: the last time of its key so far.
        found = last[key]
        found[1:] = np.where(leads[1:], found[1:], np.maximum(found[1:], time[:-1]))
        fresh = time - found >= self.gap
        too_late = ~fresh & (found + self.gap <= before[order])
        hard = (self._next[olds] >= 0) | (time[leads] < self._first[olds])
        if np.count_nonzero(too_late):
            hard[key[too_late]] = True
        of_row = np.empty(len(slots), dtype=np.int64)
        merged = into = None
        if np.count_nonzero(hard):
            rows = hard[keys].nonzero()[0]
            sorted_out = self._sort_out(slots[rows], times[rows], before[rows])
            of_row[rows], merged, into = sorted_out.groups, sorted_out.merged, sorted_out.into
            easy = ~hard
            stay = easy[key]
            key, time, order = (easy.cumsum() - 1)[key[stay]], time[stay], order[stay]
            leads, fresh = leads[stay], fresh[stay]
            unique, olds, last, live = unique[easy], olds[easy], last[easy], live[easy]
        begins = leads | fresh
        finals = np.ones(len(key), dtype=np.bool_)
        finals[:-1] = begins[1:]
        if np.count_nonzero(fresh):
            starts, ends = time[begins], time[finals]
            groups = self._prolong(unique, olds, live, key[begins], fresh[begins], starts, ends)
        else:
            self._last[olds] = np.maximum(last, time[finals])
            groups = olds
        of_row[order] = groups[begins.cumsum() - 1]
        return Assignment(of_row, None, merged, into)

    def _prolong(
        self, unique: Ints, olds: Ints, live: Mask, owners: Ints, new: Mask, starts: Ints, ends: Ints
    ) -> Ints:
        """The numbers of sessions by key and time; those that are not ``new`` go on with ``olds``."""
        known, self.count = self.count, self.count + int(np.count_nonzero(new))
        self._reserve()
        made = np.arange(known, self.count)
        groups = olds[owners]
        groups[new] = made
        self.alive[known : self.count] = True
        self._slot[known : self.count] = unique[owners[new]]
        self._first[known : self.count] = starts[new]
        self._last[groups] = np.maximum(self._last[groups], ends)
        self.calendar.push(ends[new] + self.gap, made)
        leaders = groups
        if len(groups) > len(unique):
            follows = owners[1:] == owners[:-1]
            self._next[groups[:-1][follows]] = groups[1:][follows]
            first = np.ones(len(groups), dtype=np.bool_)
            first[1:] = ~follows
            leaders = groups[first]
        self._head[unique] = np.where(live, olds, leaders)
        both = live & (leaders != olds)
        if np.count_nonzero(both):
            self._next[olds[both]] = leaders[both]
        return groups

    def _sort_out(self, slots: Ints, times: Ints, before: Ints) -> Assignment:
        """As ``assign``, for all rows of keys that are sorted out with all their open sessions."""
        unique, keys = distinct(slots)
        olds, of_key = self._chains(unique)
        opened = Opened(olds, of_key, self._first[olds], self._last[olds])
        return self._settle(unique, sorted_runs(keys, times, before, opened, self.gap))

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

    def _settle(self, unique: Ints, runs: Runs) -> Assignment:
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
        self._forget(merged)
        order = slice(None) if bool((runs.keys[1:] >= runs.keys[:-1]).all()) else np.argsort(runs.keys)
        self._chain(group[order])
        if not len(merged):
            return Assignment(group[runs.of_row])
        return Assignment(group[runs.of_row], None, merged, into[gone])

    def reserve(self, keys: int) -> None:
        """Make room for so many keys."""
        self._head = grown(self._head, keys, -1)

    def _reserve(self) -> None:
        if len(self.alive) > self.count:
            return
        self.alive = grown(self.alive, self.count + 1, False)
        self._slot = grown(self._slot, self.count + 1)
        self._first = grown(self._first, self.count + 1, NEVER)
        self._last = grown(self._last, self.count + 1, NEVER)
        self._next = grown(self._next, self.count + 1, -1)

    def _forget(self, groups: Ints) -> None:
        self.alive[groups] = False
        self._first[groups] = NEVER
        self._last[groups] = NEVER

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
        if np.count_nonzero(grew):
            self.calendar.push(ends[grew], groups[grew])
            done = ~grew
            groups, starts, ends = groups[done], starts[done], ends[done]
        self._forget(groups)
        return Closed(self._slot[groups], starts, ends, groups, None, groups)

    def snapshot(self) -> tuple[Ints, dict[str, pa.Array]]:
        """The open sessions and their columns."""
        groups = np.flatnonzero(self.alive[: self.count])
        return groups, {"first": pa.array(self._first[groups]), "last": pa.array(self._last[groups])}

    def changed(self, groups: Ints, now: int) -> tuple[Ints, dict[str, pa.Array]]:
        """What ``changes`` writes for the open sessions ``groups``, in the form of ``snapshot``."""
        groups, _ = self._chains(distinct(self._slot[groups])[0])
        return groups, {"first": pa.array(self._first[groups]), "last": pa.array(self._last[groups])}

    def drop(self, slots: Ints) -> int:
        """Take out the open sessions of keys; how many there were."""
        slots = slots[slots < len(self._head)]
        groups, _ = self._chains(slots)
        self._forget(groups)
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
        self.reserve(int(slots.max()) + 1)
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
