"""The one order of several finite sources: turns of 1,024 rows, in the order of their declaration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

TURN = 1024
"""Rows of a turn."""


@dataclass(frozen=True, slots=True)
class Turns:
    """Serials of one finite source's rows among several, from the number of rows of each."""

    place: int
    totals: tuple[int, ...]
    length: int
    """Rows of a turn."""

    def serial(self, row: int) -> int:
        """The serial of a row; of the row behind the last, where the source is known to have ended."""
        turn = row // self.length
        others = (
            min(total, (turn + (other < self.place)) * self.length)
            for other, total in enumerate(self.totals)
            if other != self.place
        )
        return row + sum(others)

    def serials(self, row: int, count: int) -> npt.NDArray[np.int64]:
        rows = np.arange(row, row + count, dtype=np.int64)
        turn = rows // self.length
        serials = rows.copy()
        for other, total in enumerate(self.totals):
            if other != self.place:
                serials += np.minimum(total, (turn + (other < self.place)) * self.length)
        return serials
