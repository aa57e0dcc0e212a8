"""Event time as an operator sees it: the running maximum of the time column, minus the allowed lateness.

Time advances per tuple, never per packet, so that what an operator says does not depend on how the stream
was cut.  An operator that sees only some rows of its stream (one bucket's) learns from the packet's ticks how
time moved in the whole of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headgate.errors import PipelineError, TypeMismatch
from headgate.graph.columns import Ints, Mask, from_words, integers, invalid
from headgate.graph.packet import Order, Packet, Ticks
from headgate.graph.schema import require_columns

NEVER = -(1 << 62)
"""Before any event time; a quarter of the range, so that subtracting a lateness cannot overflow."""

LIMIT = 1 << 61
"""Microseconds from 1970, before and after, that operators can count with: some 73,000 years.

A row beyond is a bad row.  Its window would have no end that fits 64 bits, or one behind the time at which
the end of the stream closes windows, so it would be in none and not late either.
"""

LONGEST = 1 << 59
"""Microseconds of the longest window and lateness: with them no sum or difference of times overflows."""

_DAY = 86_400_000_000
_YEAR = 31_556_952_000_000


def time_column(schema: pa.Schema, name: str, what: str) -> int:
    """The event-time column's index; an error if it is not a time."""
    (name,) = require_columns(schema, [name], what)
    index: int = schema.get_field_index(name)
    kind = schema.field(index).type
    if not (pa.types.is_date32(kind) or (pa.types.is_timestamp(kind) and kind.unit == "us")):
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            advice = f"make it a time with timestamp_seconds({name})"
        else:
            advice = f"make it a time with CAST({name} AS TIMESTAMP)"
        raise TypeMismatch(f"{what}: column '{name}' is {kind}, not a timestamp or a date; {advice}.")
    return index


def window_time(kind: pa.DataType) -> pa.DataType:
    """The type of window_start and window_end for an event-time column of this type."""
    return kind if pa.types.is_timestamp(kind) else pa.timestamp("us")


def event_times(array: pa.Array, limit: int = LIMIT) -> Ints:
    """Microseconds of every value; ``NEVER`` for null and for times beyond ``limit``, which move nothing."""
    times = integers(array)
    null = invalid(array)
    far = beyond(array, limit)
    if far is not None:
        null = far if null is None else null | far
    if pa.types.is_date32(array.type):
        times = times * _DAY
    return times if null is None else np.where(null, NEVER, times)


def beyond(array: pa.Array, limit: int = LIMIT) -> Mask | None:
    """Which times are further than ``limit`` from 1970; None if none is."""
    values = integers(array)  # nulls are 0
    most = limit // _DAY if pa.types.is_date32(array.type) else limit
    if not len(values) or (values.max() <= most and values.min() >= -most):
        return None
    return (values > most) | (values < -most)


def too_far(array: pa.Array, row: int, name: str, limit: int = LIMIT) -> str:
    """What is wrong with a time beyond ``limit``."""
    value = int(integers(array.slice(row, 1))[0])
    unit = "days" if pa.types.is_date32(array.type) else "microseconds"
    return (
        f"column '{name}' is {value} {unit} from 1970, and event times must be within "
        f"{limit // _YEAR:,} years of it"
    )


def check_length(micros: int, given: object, what: str) -> int:
    """``micros``, unless windows of that length cannot be counted."""
    if micros > LONGEST:
        raise PipelineError(
            f"{what}: '{given}' is too long; the longest is {LONGEST // _YEAR // 1000 * 1000:,} years."
        )
    return micros


def time_array(times: Ints, kind: pa.DataType) -> pa.Array:
    """A column of times from microseconds."""
    return from_words(times, kind)


def ticks_of(packet: Packet, column: int, limit: int = LIMIT, grain: tuple[int, int] | None = None) -> Ticks:
    """What every bucket of ``packet`` has to know about time: the rows at which its maximum moves.

    The last row is always among them: an input that falls idle does so after it.  ``grain``, a length and a
    lateness, says that only times a whole number of lengths (and the lateness) from 1970 matter to the
    operator.  Then the rows that pass such a time are enough, and the one with the highest time.
    """
    times = event_times(packet.batch.column(column), limit)
    highest = np.maximum.accumulate(times)
    moves = None if grain is None or not len(times) else _passing(highest, *grain)
    if moves is None:
        moved = np.diff(highest, prepend=NEVER - 1) > 0
        moved[-1:] = True
        moves = np.flatnonzero(moved)
    return Ticks(packet.order.take(moves), times[moves])


def _passing(highest: Ints, length: int, lateness: int) -> Ints | None:
    """The rows at which time passes a multiple of ``length``, the first, that of the maximum, and the last.

    None if there are so many that nothing is saved.
    """
    first, last = ((int(highest[place]) - lateness) // length for place in (0, -1))
    if last - first > len(highest) // 4:
        return None
    borders = np.arange(first + 1, last + 1, dtype=np.int64) * length + lateness
    found = highest.searchsorted([*borders.tolist(), int(highest[-1])])
    return np.unique(np.concatenate([[0], found, [len(highest) - 1]])).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Passage:
    """How time moved while a packet passed.

    ``before`` is the time that each row met.  ``after`` is the time after each tick, not decreasing; the
    ticks are the packet's rows unless it carries ticks of its own, and ``order`` is theirs.  Row i comes
    before the effect of tick ``place[i]``.
    """

    times: Ints
    before: Ints
    after: Ints
    order: Order
    place: Ints | None
    maximum: int

    def causes(self, times: Ints) -> Ints:
        """The tick that brings time to each of ``times``."""
        return self.after.searchsorted(times, side="left")

    def end(self, before: int) -> int:
        """The time after the packet."""
        return int(self.after[-1]) if len(self.after) else before


_DENSE = 8
"""Numbers per row up to which counting them is faster than searching for each row."""


def _places(at: Ints, rows: Ints) -> Ints:
    """For each of ``rows`` how many of ``at`` are smaller; both ascend, and ``at`` has no number twice."""
    if not len(at) or not len(rows):
        return np.zeros(len(rows), dtype=np.int64)
    low, high = int(at[0]), int(at[-1])
    if high - low > _DENSE * len(rows) or rows[0] < low:
        return np.searchsorted(at, rows, side="left")
    smaller = np.zeros(high - low + 2, dtype=np.int32)
    smaller[at - (low - 1)] = 1
    np.cumsum(smaller, out=smaller)
    places: Ints = smaller[np.minimum(rows, high + 1) - low].astype(np.int64)
    return places


class Clock:
    """Time of one operator: the maximum event time that it has seen."""

    __slots__ = ("lateness", "maximum")

    def __init__(self, lateness: int = 0, maximum: int = NEVER) -> None:
        self.lateness = lateness
        self.maximum = maximum

    @property
    def now(self) -> int:
        return self.maximum - self.lateness

    def pass_by(self, packet: Packet, column: int) -> Passage:
        """How time moves with ``packet``; the clock itself is set by ``maximum`` of the answer."""
        times = event_times(packet.batch.column(column))
        ticks = packet.ticks
        highest = np.empty((len(times) if ticks is None else len(ticks.times)) + 1, dtype=np.int64)
        highest[0] = self.maximum
        highest[1:] = times if ticks is None else ticks.times
        np.maximum.accumulate(highest, out=highest)
        maximum = int(highest[-1])
        if self.lateness:
            highest -= self.lateness
        if ticks is None:
            return Passage(times, highest[:-1], highest[1:], packet.order, None, maximum)
        at, rows = ticks.order.ordinals, packet.order.ordinals
        if at is None or rows is None:
            at, rows = ticks.order.serials, packet.order.serials
        place = _places(at, rows)
        return Passage(times, highest[place], highest[1:], ticks.order, place, maximum)
