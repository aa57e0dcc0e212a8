"""Tumbling and sliding windows: which groups a row belongs to, and which windows close.

A sliding window is the union of panes (Li et al., "No pane, no gain", 2005): a row is kept once, in the pane
of length gcd(size, every) that it falls in, and panes are joined when a window closes.  A row that comes
after some of its windows have closed must not be missing in the others nor enter those: it goes to a group
of its own that says with which window it starts.  With ``direct`` a row is kept once for each of its windows
instead, so that a single window's value can be read at any time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headgate.graph.aggregates import Accumulators
from headgate.graph.columns import Ints, Mask
from headgate.graph.numbering import Numbering, factorized, grown
from headgate.graph.operators.calendar import Calendar
from headgate.graph.windows import Window

_PARTS = 31
_PART = (1 << _PARTS) - 1


@dataclass(slots=True)
class Assignment:
    """Rows and their groups; ``rows`` None: every row in order.  Groups ``merged`` went into ``into``."""

    groups: Ints
    rows: Ints | None = None
    merged: Ints | None = None
    into: Ints | None = None


@dataclass(slots=True)
class Closed:
    """Windows that have closed; window i is the join of the groups j whose ``window[j]`` is i."""

    slots: Ints
    starts: Ints
    ends: Ints
    groups: Ints
    window: Ints | None
    """None: each window is one group."""
    dropped: Ints

    def ordered(self, order: Ints) -> Closed:
        """The same windows in another order."""
        slots, starts, ends = self.slots[order], self.starts[order], self.ends[order]
        if self.window is None:
            return Closed(slots, starts, ends, self.groups[order], None, self.dropped)
        places = np.empty(len(order), dtype=np.int64)
        places[order] = np.arange(len(order))
        return Closed(slots, starts, ends, self.groups, places[self.window], self.dropped)


def countable(window: Window) -> int:
    """Microseconds from 1970 up to which the numbers of panes fit: those of tiny panes are large."""
    overlap = -(-window.size // window.every)
    return (1 << 62) // overlap * math.gcd(window.size, window.every)


class Panes:
    """Groups of (key slot, pane) or (key slot, window), and when their windows close."""

    lasting = True
    """A group is the same one as long as it is open, so its changes can be written by themselves."""

    def __init__(self, window: Window, direct: bool) -> None:
        self.size, self.every = window.size, window.every
        self.direct = direct or window.kind == "tumbling"
        self.pane = math.gcd(self.size, self.every)
        self.overlap = -(-self.size // self.every)
        self.calendar = Calendar()
        self.alive: Mask = np.zeros(0, dtype=np.bool_)
        self._parts = Numbering()
        self._recent = (-1 << 63, 0)
        """A part, and its number: packets of one part follow each other."""
        self._of_slot: Ints = np.full(0, -1, dtype=np.int64)
        """By slot, the group of that part, as far as it was looked for; -1: it was not."""
        self._rows = 0
        """Rows of that part so far."""
        self._keys = 0
        self._groups = Numbering()

    @property
    def count(self) -> int:
        return self._groups.count

    def late(self, times: Ints, before: Ints) -> Mask:
        """Rows whose last window had closed."""
        return (times // self.every) * self.every + self.size <= before

    def reserve(self, keys: int) -> None:
        """Slots of keys are below ``keys`` from now on."""
        self._keys = keys

    def assign(self, slots: Ints, times: Ints, before: Ints) -> Assignment:
        """The groups of rows that are not late."""
        if not len(slots):
            return Assignment(slots)
        last = times // self.every
        if not self.direct:
            pane = times // self.pane
            first = self._first(pane)
            start: Ints = np.maximum(first, (before - self.size) // self.every + 1)
            part = pane * self.overlap + (start - first)
            return Assignment(self._find(slots, part, start))
        if self.overlap == 1 and self.size == self.every:
            return Assignment(self._find(slots, last, last))
        window = (last[:, None] - np.arange(self.overlap)).reshape(-1)
        rows = np.repeat(np.arange(len(slots)), self.overlap)
        end = window * self.every + self.size
        is_open = (end > times[rows]) & (end > before[rows])
        rows, window = rows[is_open], window[is_open]
        return Assignment(self._find(slots[rows], window, window), rows)

    def enter(self, slots: Ints, parts: Ints, now: int) -> tuple[Ints, Mask]:
        """The groups of what was gathered without knowing that time was ``now``, and which of it was late."""
        if self.direct:
            first = last = parts
        else:
            pane = parts // self.overlap
            lowest = self._first(pane)
            last = pane * self.pane // self.every
            first = np.maximum(lowest + parts % self.overlap, (now - self.size) // self.every + 1)
            parts = pane * self.overlap + (first - lowest)
        late: Mask = last * self.every + self.size <= now
        kept = ~late
        slots, parts, first = slots[kept], parts[kept], first[kept]
        return (self._find(slots, parts, first) if len(slots) else slots), late

    def _first(self, pane: Ints) -> Ints:
        """The first window of each pane."""
        first: Ints = -((self.size - self.pane - pane * self.pane) // self.every)
        return first

    def _find(self, slots: Ints, parts: Ints, windows: Ints) -> Ints:
        known = self._groups.count
        if parts[0] == parts[-1] and bool((parts == parts[0]).all()):
            groups = self._find_recent(slots, parts)
        else:
            groups = self._groups.number((slots << _PARTS) | self._parts.number(parts))
        if self._groups.count > known:
            self.alive = grown(self.alive, self._groups.count, False)
            self.alive[known : self._groups.count] = True
            fresh = (groups >= known).nonzero()[0]
            first = np.empty(self._groups.count - known, dtype=np.int64)
            first[groups[fresh] - known] = windows[fresh]
            self.calendar.push(first * self.every + self.size, np.arange(known, self._groups.count))
        return groups

    def _find_recent(self, slots: Ints, parts: Ints) -> Ints:
        """The groups of rows of one part.

        An array by slot is faster than the hash table.  It is made once so many rows of the part have come
        that its size does not matter: the cost of a packet does not grow with the number of keys.
        """
        part = int(parts[0])
        if part != self._recent[0]:
            self._recent = part, int(self._parts.number(parts[:1])[0])
            self._of_slot, self._rows = self._of_slot[:0], 0
        self._rows += len(slots)
        if self._rows < self._keys:
            return self._groups.number((slots << _PARTS) | self._recent[1])
        self._of_slot = grown(self._of_slot, self._keys, -1)
        groups = self._of_slot[slots]
        unknown = (groups < 0).nonzero()[0]
        if len(unknown):
            groups[unknown] = self._groups.number((slots[unknown] << _PARTS) | self._recent[1])
            self._of_slot[slots[unknown]] = groups[unknown]
        return groups

    def slots(self, groups: Ints) -> Ints:
        slots: Ints = self._groups.values[groups] >> _PARTS
        return slots

    def bounds(self, groups: Ints) -> tuple[Ints, Ints]:
        """Start and end of the windows of direct groups."""
        starts = self.parts(groups) * self.every
        return starts, starts + self.size

    def parts(self, groups: Ints) -> Ints:
        """The window of direct groups; of others the pane, and with which of its windows they start."""
        parts: Ints = self._parts.values[self._groups.values[groups] & _PART]
        return parts

    def close(self, now: int) -> Closed:
        """Take out the windows that end at ``now`` or before."""
        due, groups = self.calendar.pop(now)
        if self.direct:
            self.alive[groups] = False
            starts, ends = self.bounds(groups)
            return Closed(self.slots(groups), starts, ends, groups, None, groups)
        first = (due - self.size) // self.every
        last = (self.parts(groups) // self.overlap) * self.pane // self.every
        through = np.minimum(last, (now - self.size) // self.every)
        times = through - first + 1
        stay = through < last
        self.calendar.push((through[stay] + 1) * self.every + self.size, groups[stay])
        dropped = groups[~stay]
        self.alive[dropped] = False
        members = np.repeat(groups, times)
        offsets = np.arange(len(members)) - np.repeat(np.cumsum(times) - times, times)
        windows = np.repeat(first, times) + offsets
        # Windows may be thousands of years apart: their ranks fit an integer together with the slot.
        numbers, ranks = np.unique(windows, return_inverse=True) if _far(windows) else (None, windows)
        lowest = int(ranks.min()) if len(ranks) else 0
        span = int(ranks.max()) - lowest + 1 if len(ranks) else 1
        pairs, places = factorized(self.slots(members) * span + (ranks - lowest))
        windows = pairs % span + lowest
        starts = (windows if numbers is None else numbers[windows]) * self.every
        return Closed(pairs // span, starts, starts + self.size, members, places, dropped)

    def snapshot(self) -> tuple[Ints, dict[str, pa.Array]]:
        """The live groups and their columns."""
        due, groups = self.calendar.entries()
        return groups, {"part": pa.array(self.parts(groups)), "due": pa.array(due)}

    def changed(self, groups: Ints, now: int) -> tuple[Ints, dict[str, pa.Array]]:
        """What ``changes`` writes for the live ``groups``, in the form of ``snapshot``; time is ``now``."""
        part = self.parts(groups)
        first = part if self.direct else self._first(part // self.overlap) + part % self.overlap
        due = np.maximum(first, (now - self.size) // self.every + 1) * self.every + self.size
        return groups, {"part": pa.array(part), "due": pa.array(due)}

    def restore(self, slots: Ints, columns: dict[str, pa.Array]) -> Ints:
        """Groups from columns that were snapshotted; those that exist stay as they are."""
        known = self._groups.count
        groups = self._groups.number((slots << _PARTS) | self._parts.number(columns["part"].to_numpy()))
        self.alive = grown(self.alive, self._groups.count, False)
        self.alive[known : self._groups.count] = True
        fresh = groups >= known
        self.calendar.push(columns["due"].to_numpy()[fresh], groups[fresh])
        return groups

    def compacted(self, window: Window, groups: Ints, slots: Ints) -> Panes:
        """The same with only the live ``groups``, whose keys are now at ``slots``."""
        panes = Panes(window, self.direct)
        place = np.full(self.count, -1, dtype=np.int64)
        place[groups] = np.arange(len(groups))
        panes._groups = Numbering.of((slots << _PARTS) | panes._parts.number(self.parts(groups)))
        panes.alive = np.ones(len(groups), dtype=np.bool_)
        due, entered = self.calendar.entries()
        panes.calendar.push(due, place[entered])
        return panes


def _far(windows: Ints) -> bool:
    return len(windows) > 0 and int(windows.max()) - int(windows.min()) > _PART


def joined(accumulators: Accumulators, closed: Closed) -> list[pa.Array]:
    """The results of closed windows."""
    if closed.window is None:
        return accumulators.results(closed.groups)
    total = Accumulators(accumulators.aggregates)
    total.grow(len(closed.slots))
    total.merge(closed.window, accumulators, closed.groups)
    return total.results(np.arange(len(closed.slots)))
