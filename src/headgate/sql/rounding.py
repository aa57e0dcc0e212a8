"""Rounding of floating-point numbers by the decimal digits that Java prints, without printing them.

Spark rounds ``BigDecimal(Double.toString(x))``.  The shortest digits of x are exactly a tie at scale s if and
only if x is the double nearest to that tie, and (2k+1) / (2*10^s) is that double, correctly rounded, while
both integers fit the mantissa.  So a division and a comparison find the same digit as printing.
"""

from __future__ import annotations

import numpy as np

from headgate.sql.values import Mask, Numbers

_EXACT = 2.0**51


def half_up_integers(data: Numbers, scale: int, *, even: bool = False) -> tuple[Numbers, Mask]:
    """``round(x * 10**scale)`` as integers, and where the answer is unsure (or x is not finite)."""
    single = data.dtype == np.float32
    size = np.abs(data.astype(np.float64))
    limit = 2.0**22 if single else _EXACT
    if scale > 22:
        return np.zeros(len(data), dtype=np.int64), np.ones(len(data), dtype=bool)
    power = 10.0 ** abs(scale)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = size * power if scale >= 0 else size / power
        unsure = ~(scaled < limit)
        down = np.floor(np.where(unsure, 0, scaled))
        for step in (-1, 1):
            neighbour = down + step if step > 0 else down
            edge = _at(neighbour, power, scale, single)
            down = (
                np.where(~unsure & (edge > size), down - 1, down)
                if step < 0
                else np.where(~unsure & (edge <= size), neighbour, down)
            )
        tie = _at(down + 0.5, power, scale, single)
    up = size > tie
    ties = size == tie
    up |= ties & (np.mod(down, 2) == 1) if even else ties
    digits = (down + up).astype(np.int64)
    return np.where(np.signbit(data), -digits, digits), unsure


def _at(whole: Numbers, power: float, scale: int, single: bool) -> Numbers:
    """The double (or float) nearest to ``whole / 10**scale``."""
    value: Numbers = whole / power if scale >= 0 else whole * power
    return value.astype(np.float32).astype(np.float64) if single else value
