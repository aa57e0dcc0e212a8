"""Which source rows have been admitted, and which serials they have.

Nothing is copied into a queue: a source is a list of extents (a file's rows, a partition's offsets), and what
waits for a box is a range of serials.  If all sources are finite they take turns of 1,024 rows, as on every
engine, and a row's serial follows from the sources' sizes by a formula.  Otherwise extents get their serials
as they arrive, and the commit log says which.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headgate.checkpoint.storage import Storage
from headgate.graph import turns
from headgate.graph.turns import Turns

PARQUET, SPOOL, REFUSED = "parquet", "spool", "refused"
FILES = (PARQUET, SPOOL, REFUSED)
"""Kinds of extents that are files: the user's, those of the spool, and those in which rows were refused."""


@dataclass(frozen=True, slots=True)
class Extent:
    """``rows`` consecutive rows of a source from ``first`` of ``unit`` on: a file, a partition, a range.

    ``arrival`` (seconds since the epoch) is when they came, on average; where rows say it themselves, that is
    for the scheduler alone.
    """

    unit: str
    first: int
    rows: int
    arrival: float | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows for a task to read, with their serials: consecutive from ``serial``, or by ``turns``."""

    unit: str
    first: int
    rows: int
    arrival: float | None
    serial: int
    turns: Turns | None = None
    row: int = 0
    """Place of the first row in the whole source, which is what turns count."""

    def serials(self) -> int | npt.NDArray[np.int64]:
        if self.turns is None:
            return self.serial
        if len(self.turns.totals) == 1:  # a source that takes turns with no other
            return self.row
        return self.turns.serials(self.row, self.rows)

    def span(self) -> tuple[int, int]:
        """The first and the last serial."""
        if self.turns is None:
            return self.serial, self.serial + self.rows - 1
        return self.turns.serial(self.row), self.turns.serial(self.row + self.rows - 1)


@dataclass
class Admitted:
    """One source's extents, in order: row k of the source is row ``k - starts[i]`` of extent i."""

    extents: list[Extent] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    serials: list[int] = field(default_factory=list)
    """The serial of each extent's first row, unless sources take turns."""
    ages: list[float] = field(default_factory=list)
    """Before each extent, the sum over all rows of the seconds that they came after ``since``."""
    since: float | None = None
    """An arrival from which the others are counted, so that sums of them stay exact."""
    rows: int = 0
    turns: Turns | None = None
    ended_at: int | None = None
    """The serial from which on it is known to have ended."""

    def add(self, extent: Extent, serial: int) -> None:
        self._append(extent, self.rows, serial)
        self.rows += extent.rows

    def _append(self, extent: Extent, start: int, serial: int) -> None:
        self.ages.append(self.ages[-1] + self._age(-1) * self.extents[-1].rows if self.extents else 0.0)
        self.extents.append(extent)
        self.starts.append(start)
        self.serials.append(serial)
        if self.since is None:
            self.since = extent.arrival

    def _age(self, place: int) -> float:
        """How long after ``since`` the rows of an extent came."""
        return (self.extents[place].arrival or 0.0) - (self.since or 0.0)

    def below(self, serial: int) -> int:
        """How many rows have a smaller serial."""
        turns = self.turns
        if turns is not None:
            return _first(0, self.rows, lambda row: turns.serial(row) >= serial)
        place = bisect_left(self.serials, serial) - 1
        if place < 0:
            return self.starts[0] if self.starts else self.rows
        return self.starts[place] + min(self.extents[place].rows, serial - self.serials[place])

    def serial(self, row: int) -> int:
        """The serial of a row."""
        if self.turns is not None:
            return self.turns.serial(row)
        place = bisect_right(self.starts, row) - 1
        return self.serials[place] + row - self.starts[place]

    def pieces(self, low: int, high: int) -> list[Piece]:
        """The rows with serials from ``low`` up to ``high``."""
        row, end = self.below(low), self.below(high)
        pieces = []
        place = max(bisect_right(self.starts, row) - 1, 0)
        while row < end:
            extent, start = self.extents[place], self.starts[place]
            upto = min(end, start + extent.rows)
            if upto > row:
                pieces.append(
                    Piece(
                        extent.unit,
                        extent.first + row - start,
                        upto - row,
                        extent.arrival,
                        self.serial(row),
                        self.turns,
                        row,
                    )
                )
            row, place = max(row, upto), place + 1
        return pieces

    def forget(self, serial: int, there: Callable[[Extent], bool] = lambda _: False) -> None:
        """Drop extents that every cursor has passed; turns need only the sizes, extents stay.

        Files that tasks read themselves stay, one extent for each: nothing is kept for them but their names,
        and a query that joins later with ``start="earliest"`` reads them again.  ``there``: stop before the
        first one that it says can still be read.
        """
        if self.turns is not None or (self.extents and self.extents[0].unit.startswith(f"{PARQUET}:")):
            return
        gone = 0
        while (
            gone < len(self.extents) - 1
            and self.serials[gone] + self.extents[gone].rows <= serial
            and not there(self.extents[gone])
        ):
            gone += 1
        if gone:
            del self.extents[:gone], self.starts[:gone], self.serials[:gone], self.ages[:gone]

    def gone(self, storage: Storage) -> tuple[int, int]:
        """How many rows cannot be read any more, and the serial from which on all can.

        Besides those of extents that were dropped, those of files that are not there: of the user's folder,
        or of the checkpoint's spool, whose files go before a snapshot of the log says so.
        """
        rows = self.starts[0] if self.starts else self.rows
        serial = self.serials[0] if rows and self.serials else 0
        for extent, start in zip(self.extents, self.starts, strict=True):
            kind, _, name = extent.unit.partition(":")
            if kind not in FILES:
                continue
            if not (os.path.exists(name) if kind == PARQUET else storage.exists(name)):
                rows, serial = rows + extent.rows, self.serial(start + extent.rows - 1) + 1
        return rows, serial

    def arrivals(self, low: int, high: int) -> tuple[float, float] | None:
        """Oldest and mean arrival of the rows between two serials; None if there are none.

        Asked for every box again and again, however many extents wait: sums know the answer.
        """
        row, end = self.below(low), self.below(high)
        if row >= end or self.since is None:
            return None
        (first, before), (_, upto) = self._summed(row), self._summed(end)
        return self.since + self._age(first), self.since + (upto - before) / (end - row)

    def _summed(self, row: int) -> tuple[int, float]:
        """The extent of a row, and the ages of all rows before it together."""
        place = max(bisect_right(self.starts, row) - 1, 0)
        return place, self.ages[place] + (row - self.starts[place]) * self._age(place)


class Offsets:
    """All sources' extents, and the next serial."""

    def __init__(self, sources: int) -> None:
        self.sources = [Admitted() for _ in range(sources)]
        self.next_serial = 0
        self.ended = False
        """No source will bring anything more."""
        self.broken = False
        """A source has failed: it brings nothing more in this run, but the next one may find it mended."""

    def take_turns(self, extents: Sequence[Sequence[Extent]]) -> None:
        """Admit finite sources, all of them at once."""
        totals = tuple(sum(e.rows for e in own) for own in extents)
        for place, (admitted, own) in enumerate(zip(self.sources, extents, strict=True)):
            admitted.turns = Turns(place, totals, turns.TURN)
            for extent in own:
                admitted.add(extent, 0)
            admitted.ended_at = admitted.turns.serial(totals[place])
        self.next_serial = sum(totals)
        if len(totals) == 1:
            self.sources[0].ended_at = self.next_serial
        self.ended = True

    def admit(self, place: int, extent: Extent) -> int:
        """Admit rows that have arrived; returns their first serial."""
        serial = self.next_serial
        self.sources[place].add(extent, serial)
        self.next_serial += extent.rows
        return serial

    # --- as data ------------------------------------------------------------------------------------

    def to_data(self) -> dict[str, Any]:
        return {
            "next": self.next_serial,
            "ended": self.ended and not self.broken,
            "sources": [
                {
                    "rows": own.rows,
                    "extents": [
                        [e.unit, e.first, e.rows, e.arrival, start, serial]
                        for e, start, serial in zip(own.extents, own.starts, own.serials, strict=True)
                    ],
                    "turns": [own.turns.place, list(own.turns.totals), own.turns.length]
                    if own.turns
                    else None,
                    "ended_at": own.ended_at,
                }
                for own in self.sources
            ],
        }

    @staticmethod
    def of_data(data: dict[str, Any]) -> Offsets:
        offsets = Offsets(len(data["sources"]))
        offsets.next_serial, offsets.ended = data["next"], data["ended"]
        for own, given in zip(offsets.sources, data["sources"], strict=True):
            own.rows, own.ended_at = given["rows"], given["ended_at"]
            if given["turns"] is not None:
                place, totals, length = given["turns"]
                own.turns = Turns(place, tuple(totals), length)
            for unit, first, rows, arrival, start, serial in given["extents"]:
                own._append(Extent(unit, first, rows, arrival), start, serial)
        return offsets


def _first(low: int, high: int, holds: Any) -> int:
    """The smallest number from ``low`` on for which ``holds``, which stays true from there; or ``high``."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
