"""Where a step is best cut: between row groups and extents, so that no group is decoded by two tasks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from headgate.checkpoint.offsets import PARQUET, Piece
from headgate.engines.spark.reading import row_groups

SLACK = 0.3
"""How far a cut may move, as a share of what lies between two cuts."""


def natural_cuts(pieces: Sequence[Piece]) -> list[int]:
    """The serials at which files, row groups, partitions or ranges begin; none where sources take turns."""
    cuts: set[int] = set()
    for number, piece in enumerate(pieces):
        serials = piece.serials()
        if not isinstance(serials, int):
            return []
        if number:  # the first may begin in the middle of something
            cuts.add(serials)
        kind, _, path = piece.unit.partition(":")
        if kind != PARQUET:
            continue
        try:
            starts = row_groups(path)
        except OSError:
            continue  # the task that reads it says so
        first = bisect_left(starts, piece.first)
        cuts.update(
            serials + start - piece.first for start in starts[first:] if start < piece.first + piece.rows
        )
    return sorted(cuts)


def moved(cut: int, cuts: Sequence[int], slack: float) -> int:
    """The natural cut next to ``cut``, if it is not further than ``slack`` serials away."""
    place = bisect_left(cuts, cut)
    near = min(cuts[max(place - 1, 0) : place + 1], key=lambda found: abs(found - cut), default=cut)
    return near if abs(near - cut) <= slack else cut


def slices(low: int, high: int, count: int, cuts: Sequence[int]) -> list[tuple[int, int]]:
    """``count`` ranges of about the same size, cut at natural places if there are some near by."""
    count = min(count, high - low)
    ideal = np.linspace(low, high, count + 1).astype(np.int64).tolist()
    slack = SLACK * (high - low) / count
    inner = [moved(cut, cuts, slack) for cut in ideal[1:-1]]
    return list(pairwise([low, *inner, high]))
