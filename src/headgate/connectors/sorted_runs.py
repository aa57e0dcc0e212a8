"""Numbers that are sorted outside memory: runs on disk, and one pass that merges them.

Chunks of numbers are sorted and written one behind the other; merging reads a part of every run at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]
RUN = 1 << 20
"""Numbers that are sorted, or merged, at a time."""


def merged(runs: Sequence[Iterator[Longs]]) -> Iterator[Longs]:
    """All numbers of sorted runs, in order; each run comes in parts."""
    parts = [next(run, None) for run in runs]
    while True:
        open_ = [place for place, part in enumerate(parts) if part is not None]
        if not open_:
            return
        # What is not greater than the last number of any part is known to come next.
        bound = min(int(parts[place][-1]) for place in open_)  # type: ignore[index]
        ready = []
        for place in open_:
            part = parts[place]
            assert part is not None
            upto = int(np.searchsorted(part, bound, side="right"))
            ready.append(part[:upto])
            parts[place] = part[upto:] if upto < len(part) else next(runs[place], None)
        together = np.concatenate(ready)
        together.sort(kind="stable")
        yield together


class SortedRuns:
    """Sorts numbers through a file, which is gone once they are read."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._begins = [0]
        self._out: BinaryIO = open(file, "wb")  # noqa: SIM115

    def add(self, chunk: Longs) -> None:
        """Numbers in any order."""
        for begin in range(0, len(chunk), RUN):
            self.add_sorted([np.sort(chunk[begin : begin + RUN])])

    def add_sorted(self, parts: Iterable[Longs]) -> None:
        """Numbers that are sorted, as one run."""
        count = 0
        for part in parts:
            self._out.write(part.tobytes())
            count += len(part)
        self._begins.append(self._begins[-1] + count)

    def read(self) -> Iterator[Longs]:
        """In order, in parts."""
        self._out.close()
        spans = list(pairwise(self._begins))
        part = max(RUN // max(len(spans), 1), 1)
        with open(self._file, "rb") as file:
            yield from merged([_run(file, begin, end, part) for begin, end in spans])
        self._file.unlink()


def _run(file: BinaryIO, begin: int, end: int, part: int) -> Iterator[Longs]:
    while begin < end:
        count = min(part, end - begin)
        file.seek(8 * begin)
        yield np.frombuffer(file.read(8 * count), dtype=np.int64)
        begin += count


class Tally:
    """Counts sorted numbers that pass, and the different ones among them."""

    def __init__(self) -> None:
        self.rows = self.different = 0
        self.low = self.high = -1

    def new(self, part: Longs) -> Longs:
        """Those of the next part that come for the first time."""
        fresh: Longs = part[np.diff(part, prepend=self.high) != 0]
        if not self.rows:
            self.low = int(part[0])
        self.rows += len(part)
        self.different += len(fresh)
        self.high = int(part[-1])
        return fresh


def pieces(parts: Iterable[Longs], size: int) -> Iterator[Longs]:
    """The same numbers in parts of ``size``, the last one excepted."""
    waiting: list[Longs] = []
    count = 0
    for part in parts:
        waiting.append(part)
        count += len(part)
        if count >= size:
            whole = np.concatenate(waiting)
            ends = len(whole) - len(whole) % size
            for begin in range(0, ends, size):
                yield whole[begin : begin + size]
            waiting, count = [whole[ends:]], len(whole) - ends
    if count:
        yield np.concatenate(waiting)
