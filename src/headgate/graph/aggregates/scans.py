"""Running values per key, vectorised: prefix operations within the segments of a sorted packet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headgate.graph import arrays
from headgate.graph.columns import Ints, Mask

_SHORT = 32


def stable_order(slots: Ints) -> Ints:
    """The permutation that sorts small non-negative integers stably: a radix sort by 16 bits."""
    order = np.argsort(slots.astype(np.uint16), kind="stable")
    rest = slots >> 16
    while bool(rest.any()):
        order = order[np.argsort(rest[order].astype(np.uint16), kind="stable")]
        rest = rest >> 16
    return order


@dataclass(slots=True)
class Segments:
    """Rows sorted by key in their order of arrival; each segment continues a key's state or starts afresh."""

    order: Ints
    """Row of each sorted place."""
    starts: Ints
    lengths: Ints
    slots: Ints
    fresh: Mask
    """Segments that do not continue what is remembered of their key."""
    final: Mask
    """Segments that are the last of their key."""

    @property
    def ends(self) -> Ints:
        return self.starts + self.lengths - 1

    @staticmethod
    def of(slots: Ints, order: Ints, restarts: Mask | None = None) -> Segments:
        """Segments of the rows' ``slots``; a key's state is forgotten before the sorted rows ``restarts``."""
        ordered = slots[order]
        new_key = np.ones(len(order), dtype=np.bool_)
        new_key[1:] = ordered[1:] != ordered[:-1]
        begins = new_key if restarts is None else new_key | restarts
        starts = np.flatnonzero(begins)
        lengths = np.diff(np.append(starts, len(order)))
        fresh = np.zeros(len(starts), dtype=np.bool_) if restarts is None else restarts[starts]
        final = np.ones(len(starts), dtype=np.bool_)
        final[:-1] = new_key[starts[1:]]
        return Segments(order, starts, lengths, ordered[starts], fresh, final)

    def unsorted(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Values of sorted rows, back in the packet's order."""
        result = arrays.empty(len(values), values.dtype)
        result[self.order] = values
        return result


def running_sums(values: Ints, segments: Segments, carry: Ints) -> Ints:
    """Prefix sums of integers (modulo 2^64) within segments, each from its ``carry``."""
    sums = np.cumsum(values)
    base = sums[segments.starts] - values[segments.starts] - carry
    return sums - np.repeat(base, segments.lengths)


def running(
    ufunc: np.ufunc, values: npt.NDArray[Any], segments: Segments, carry: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """Prefix ``ufunc`` within segments, each from its ``carry``, in the order of the rows.

    Short segments go side by side, one row of each at a time; long ones one after the other.
    """
    out = values.copy()
    out[segments.starts] = ufunc(carry, out[segments.starts])
    long = segments.lengths > _SHORT
    for start, length in zip(segments.starts[long].tolist(), segments.lengths[long].tolist(), strict=True):
        ufunc.accumulate(out[start : start + length], out=out[start : start + length])
    starts, lengths = segments.starts[~long], segments.lengths[~long]
    step = 1
    while len(starts):
        longer = lengths > step
        starts, lengths = starts[longer], lengths[longer]
        places = starts + step
        out[places] = ufunc(out[places - 1], out[places])
        step += 1
    return out


Moments = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]
"""Counts, means and sums of squared deviations."""


def join_moments(one: Moments, other: Moments) -> Moments:
    """Moments of the union (Chan, Golub and LeVeque, 1983)."""
    total = one[0] + other[0]
    share = other[0] / np.maximum(total, 1)
    distance = other[1] - one[1]
    return total, one[1] + distance * share, one[2] + other[2] + distance**2 * one[0] * share


def running_moments(values: Moments, starts: Ints, lengths: Ints, carry: Moments) -> Moments:
    """Prefix moments within segments: in blocks side by side, then over the blocks' totals."""
    count = len(values[0])
    blocks = -(-lengths // _SHORT)
    block_starts = np.repeat(starts - _SHORT * (np.cumsum(blocks) - blocks), blocks) + _SHORT * np.arange(
        int(blocks.sum())
    )
    block_ends = np.append(block_starts[1:], count)
    out: Moments = (values[0].copy(), values[1].copy(), values[2].copy())
    active, ends = block_starts, block_ends
    for step in range(1, _SHORT):
        longer = active + step < ends
        active, ends = active[longer], ends[longer]
        if not len(active):
            break
        _put(out, active + step, join_moments(_get(out, active + step - 1), _get(out, active + step)))
    if len(block_starts) == len(starts):
        before = carry
    else:
        block_of = np.cumsum(blocks) - blocks
        totals = running_moments(_get(out, block_ends - 1), block_of, blocks, carry)
        before = tuple(np.concatenate([[0.0], part[:-1]]) for part in totals)  # type: ignore[assignment]
        _put(before, block_of, carry)
    lengths_of_blocks = block_ends - block_starts
    repeated: Moments = tuple(np.repeat(part, lengths_of_blocks) for part in before)  # type: ignore[assignment]
    return join_moments(repeated, out)


def _get(moments: Moments, places: Ints) -> Moments:
    return moments[0][places], moments[1][places], moments[2][places]


def _put(moments: Moments, places: Ints, values: Moments) -> None:
    for part, value in zip(moments, values, strict=True):
        part[places] = value
