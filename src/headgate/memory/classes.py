"""Size classes: 63 sizes from 8 kB to 512 kB, each 7 % above the last, in whole cache lines (section 5.1)."""

from __future__ import annotations

import math
from bisect import bisect_left

LINE = 64
CLASSES = 63
SMALLEST = 8192
GROWTH = 1.07

SIZES = tuple(math.ceil(SMALLEST * GROWTH**i / LINE) * LINE for i in range(CLASSES))
"""Bytes of the blocks of each class."""


def class_of(size: int) -> int | None:
    """The class of the smallest blocks that hold so many bytes; None if these are too few or too many."""
    if size < SMALLEST or size > SIZES[-1]:
        return None
    return bisect_left(SIZES, size)
