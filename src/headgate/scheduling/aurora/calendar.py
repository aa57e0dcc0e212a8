"""A calendar queue (Brown, "Calendar queues", CACM 1988): a priority queue like a desk calendar.

Keys are times.  The calendar has a page for every day of a year; an entry is written on the page of its day,
whatever its year, in order of time.  The next entry is found by turning pages from today on, and passing over
those of later years.  With about as many days as entries, and days about as long as a few entries are apart,
insertion, deletion and extraction cost O(1) on average, however many entries there are.

The calendar keeps itself so: it doubles or halves the number of days with the number of entries, and when
looking things up takes too many pages it measures anew how long a day should be.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left, insort
from collections.abc import Hashable
from itertools import islice, pairwise
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

FEWEST_DAYS = 8
SAMPLE = 32
"""Entries next to come from which the length of a day is measured."""
ENTRIES_A_DAY = 3.0
"""A day is as long as so many entries are apart."""
CROWDED = 8
"""A page of fewer than two to this power of entries costs no more than an empty one."""
SHORTEST = 1e-12
"""A day's share of the time since zero, at least."""
PATIENCE = 4
"""Pages per entry that may be turned before the length of a day is measured anew."""


class CalendarQueue(Generic[T]):
    """Items by time, each at most once; of equal times, the one that came first."""

    __slots__ = ("_days", "_entries", "_first", "_last", "_length", "_number", "_spare")

    def __init__(self) -> None:
        self._entries: dict[T, tuple[float, int, T]] = {}
        self._number = 0
        """Entries made: their numbers keep equal times in order."""
        self._length = 1.0
        self._set_up(FEWEST_DAYS)

    def _set_up(self, days: int) -> None:
        """Write everything into a new calendar of so many days, a power of two."""
        self._days: list[list[tuple[float, int, T]]] = [[] for _ in range(days)]
        self._last = days - 1
        entries = sorted(self._entries.values())
        if len(entries) > 1:
            self._length = _day_length(entries) or self._length
        for entry in entries:
            self._days[int(entry[0] // self._length) & self._last].append(entry)
        self._first = int(entries[0][0] // self._length) if entries else 0
        """The day, counted from time zero, before which nothing is written."""
        self._spare = PATIENCE * (len(entries) + days)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, item: object) -> bool:
        return item in self._entries

    def key(self, item: T) -> float | None:
        """The time of an item; None if it is not there."""
        entry = self._entries.get(item)
        return None if entry is None else entry[0]

    def insert(self, key: float, item: T) -> None:
        """Write an item down; if it is there already, it moves."""
        if not math.isfinite(key):
            raise ValueError(f"a calendar has no day for the time {key}")
        if item in self._entries:
            self.delete(item)
        self._number += 1
        entry = self._entries[item] = (key, self._number, item)
        day = int(key // self._length)
        page = self._days[day & self._last]
        if not page or page[-1][0] <= key:
            page.append(entry)
        else:
            insort(page, entry)
        if day < self._first or len(self._entries) == 1:
            self._first = day
        if page[0][0] != page[-1][0]:
            self._spare -= len(page) >> CROWDED
        if len(self._entries) > 2 * len(self._days):
            self._set_up(2 * len(self._days))
        elif self._spare < 0:
            self._set_up(len(self._days))

    def delete(self, item: T) -> None:
        """Strike an item out."""
        entry = self._entries.pop(item)
        page = self._days[int(entry[0] // self._length) & self._last]
        del page[bisect_left(page, entry)]
        if len(self._days) > FEWEST_DAYS and 2 * len(self._entries) < len(self._days):
            self._set_up(len(self._days) // 2)

    def peek(self) -> tuple[float, T]:
        """The next time and item; there must be one."""
        key, _, item = self._next()
        return key, item

    def extract_min(self) -> tuple[float, T]:
        """Take out the next item, with its time; there must be one."""
        key, _, item = self._next()
        self.delete(item)
        return key, item

    def extract_until(self, limit: float) -> T | None:
        """Take out the next item if its time is not after ``limit``."""
        if not self._entries:
            return None
        key, _, item = self._next()
        if key > limit:
            return None
        self.delete(item)
        return item

    def _next(self) -> tuple[float, int, T]:
        if not self._entries:
            raise IndexError("the calendar is empty")
        if self._spare < 0:
            self._set_up(len(self._days))
        days, length, last = self._days, self._length, self._last
        for day in range(self._first, self._first + len(days)):
            page = days[day & last]
            if page and int(page[0][0] // length) == day:
                self._spare += 1 - (day - self._first)
                self._first = day
                return page[0]
        # Nothing for a year: the first entries of all pages, directly.
        self._spare -= 2 * len(days)
        entry = min([page[0] for page in days if page])
        self._first = int(entry[0] // length)
        return entry


def _day_length(entries: list[tuple[float, int, T]]) -> float:
    """By the usual distance of the next times, of entries in order: gaps far above the mean do not count."""
    keys = list(islice(dict.fromkeys([key for key, _, _ in entries]), SAMPLE))
    if len(keys) < 2:
        return 0.0
    gaps = [after - before for before, after in pairwise(keys)]
    mean = math.fsum(gaps) / len(gaps)
    usual = [gap for gap in gaps if gap <= 2 * mean]
    # Shorter days would have numbers that floats cannot tell apart.
    return max(ENTRIES_A_DAY * math.fsum(usual) / len(usual), SHORTEST * abs(keys[-1]), sys.float_info.min)
