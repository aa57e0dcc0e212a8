"""Aggregate functions as running values: for every row, the value after including it.

Each class keeps its state per key slot in arrays.  ``scan`` computes a packet's values without changing the
state and returns them with the change to be made, so that a bad row leaves everything as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import BadRow, UnsupportedFunction
from headgate.graph.aggregates import Input
from headgate.graph.aggregates.base import Cells, distinct, firsts
from headgate.graph.aggregates.choices import from_sortable, sortable
from headgate.graph.aggregates.scans import Segments, running, running_moments, running_sums
from headgate.graph.aggregates.sums import as_floats, moments_result
from headgate.graph.columns import Ints, Mask, decimals, integers, invalid, is_narrow, limbs
from headgate.graph.expressions import Aggregate
from headgate.graph.keys import KeyIndex, grown

Change = Callable[[], None]


class Rows:
    """One aggregate's input for a packet: which rows count, and their values, in the packet's order."""

    def __init__(self, given: Input, count: int, segments: Segments, skip_nulls: bool) -> None:
        chosen, values = given
        self.counted: Mask = np.ones(count, dtype=np.bool_)
        if chosen is not None:
            self.counted[:] = False
            self.counted[chosen] = True
            if values is not None:
                place = np.zeros(count, dtype=np.int64)
                place[chosen] = np.arange(len(chosen))
                values = values.take(pa.array(place)) if len(chosen) else pa.nulls(count, values.type)
        self.values: pa.Array | None = values
        self._order = segments.order
        null = None if values is None or not skip_nulls else invalid(values)
        if null is not None:
            self.counted &= ~null
        self.sorted_counted: Mask = self.counted[segments.order]

    def sorted(self, values: npt.NDArray[Any], otherwise: Any) -> npt.NDArray[Any]:
        """Sorted values, with ``otherwise`` where the row does not count."""
        ordered = values[self._order]
        return ordered if self.sorted_counted.all() else np.where(self.sorted_counted, ordered, otherwise)


class Running:
    """State of one running aggregate for every key slot."""

    fields: dict[str, tuple[Any, Any]] = {}  # noqa: RUF012
    skip_nulls = True

    def __init__(self, aggregate: Aggregate) -> None:
        self.argument: pa.DataType | None = None if aggregate.argument is None else aggregate.argument.type
        self.type = aggregate.type
        self.parameters = aggregate.parameters
        self.function = aggregate.function
        self.arrays: dict[str, npt.NDArray[Any]] = {
            n: np.zeros(0, dtype=d) for n, (d, _) in self.fields.items()
        }
        self.cells: dict[str, Cells] = {}

    def grow(self, count: int) -> None:
        for name, (_, fill) in self.fields.items():
            self.arrays[name] = grown(self.arrays[name], count, fill)
        for cells in self.cells.values():
            cells.grow(count)

    def carry(self, name: str, segments: Segments) -> npt.NDArray[Any]:
        """What each segment continues from."""
        values = self.arrays[name][segments.slots]
        return np.where(segments.fresh, self.fields[name][1], values).astype(values.dtype)

    def change(self, segments: Segments, **values: npt.NDArray[Any]) -> Change:
        """The change to the state after sorted running ``values``."""
        slots, last = segments.slots[segments.final], segments.ends[segments.final]

        def apply() -> None:
            for name, value in values.items():
                self.arrays[name][slots] = value[last]

        return apply

    def scan(self, rows: Rows, segments: Segments) -> tuple[pa.Array, Change]:
        """The running values in the packet's order."""
        raise NotImplementedError

    def count(self, rows: Rows, segments: Segments) -> Ints:
        return running_sums(rows.sorted_counted.astype(np.int64), segments, self.carry("count", segments))

    def keep(self, slots: Ints) -> None:
        """Forget all but ``slots``, which become the first ones."""
        for name, array in self.arrays.items():
            self.arrays[name] = array[slots]
        self.cells = {name: cells.take(slots) for name, cells in self.cells.items()}

    def snapshot(self, slots: Ints) -> dict[str, pa.Array]:
        columns = {name: pa.array(array[slots]) for name, array in self.arrays.items()}
        return columns | {name: cells.get(slots) for name, cells in self.cells.items()}

    def restore(self, slots: Ints, columns: dict[str, pa.Array]) -> None:
        for name, array in self.arrays.items():
            array[slots] = columns[name].to_numpy(zero_copy_only=False)
        for name, cells in self.cells.items():
            cells.put(slots, columns[name])


class RunningCount(Running):
    fields = {"count": (np.int64, 0)}  # noqa: RUF012

    def scan(self, rows: Rows, segments: Segments) -> tuple[pa.Array, Change]:
        count = self.count(rows, segments)
        return pa.array(segments.unsorted(count)), self.change(segments, count=count)


_LOW = np.int64(0xFFFF_FFFF)


class RunningSum(Running):
    """Exact sums of integers and decimals, as 128-bit numbers in two words."""

    fields = {"count": (np.int64, 0), "low": (np.int64, 0), "high": (np.int64, 0)}  # noqa: RUF012

    def scan(self, rows: Rows, segments: Segments) -> tuple[pa.Array, Change]:
        assert rows.values is not None
        count = self.count(rows, segments)
        low, high = self._sums(rows, segments)
        null = segments.unsorted(count == 0)
        change = self.change(segments, count=count, low=low, high=high)
        if pa.types.is_decimal(self.type):
            sums = decimals(
                segments.unsorted(low), segments.unsorted(high), null, pa.decimal128(38, self.type.scale)
            )
            self._refuse(_beyond(sums, self.type))
            return sums.cast(self.type, safe=False) if self.type.precision < 38 else sums, change
        self._refuse(segments.unsorted(high != low >> 63))
        return pa.array(segments.unsorted(low), mask=null if null.any() else None), change

    def _refuse(self, over: Mask) -> None:
        if over.any():
            raise BadRow(f"the running sum overflows {self.type}", int(over.argmax()))

    def _sums(self, rows: Rows, segments: Segments) -> tuple[Ints, Ints]:
        low, high = self.carry("low", segments), self.carry("high", segments)
        assert rows.values is not None
        kind = rows.values.type
        if pa.types.is_decimal(kind) and kind.precision > 18:
            unscaled = limbs(rows.values)
            below, above = rows.sorted(unscaled[:, 0], 0), rows.sorted(unscaled[:, 1], 0)
        else:
            below = rows.sorted(integers(rows.values), 0)
            if bool((high == low >> 63).all()) and _highest(below) * len(below) + _highest(low) < 1 << 62:
                sums = running_sums(below, segments, low)
                return sums, sums >> 63
            above = below >> 63
        parts = [
            running_sums(part, segments, start)
            for part, start in zip(_split(below, above), _split(low, high), strict=True)
        ]
        for place in range(3):
            parts[place + 1] = parts[place + 1] + (parts[place] >> 32)
            parts[place] = parts[place] & _LOW
        return parts[0] | (parts[1] << 32), parts[2] | (parts[3] << 32)


def _split(low: Ints, high: Ints) -> list[Ints]:
    return [low & _LOW, (low >> 32) & _LOW, high & _LOW, high >> 32]


def _highest(values: Ints) -> int:
    return max(abs(int(values.max())), abs(int(values.min()))) if len(values) else 0


def _beyond(sums: pa.Array, kind: pa.DataType) -> Mask:
    """Which sums have more digits than the type."""
    if kind.precision >= 38:
        return np.zeros(len(sums), dtype=np.bool_)
    limit = pa.scalar(10 ** (kind.precision - kind.scale)).cast(pa.decimal128(38, kind.scale))
    over: Mask = pc.greater_equal(pc.abs(sums), limit).fill_null(False).to_numpy(zero_copy_only=False)
    return over


class RunningFloat(Running):
    """Sum or average of doubles, added in order of arrival."""

    fields = {"count": (np.int64, 0), "total": (np.float64, 0.0)}  # noqa: RUF012

    def scan(self, rows: Rows, segments: Segments) -> tuple[pa.Array, Change]:
        assert rows.values is not None
        count = self.count(rows, segments)
        floats = rows.sorted(as_floats(rows.values.fill_null(0)), 0.0)
        total = running(np.add, floats, segments, self.carry("total", segments))
        value = total / np.maximum(count, 1) if self.function == "avg" else total
        none = segments.unsorted(count == 0)
        result = pa.array(segments.unsorted(value), mask=none if none.any() else None)
        return result.cast(self.type), self.change(segments, count=count, total=total)


class RunningMoments(Running):
    fields = {"count": (np.float64, 0.0), "mean": (np.float64, 0.0), "squares": (np.float64, 0.0)}  # noqa: RUF012

    def scan(self, rows: Rows, segments: Segments) -> tuple[pa.Array, Change]:
        assert rows.values is not None
        floats = rows.sorted(as_floats(rows.values.fill_null(0)), 0.0)
        single = (rows.sorted_counted.astype(np.float64), floats, np.zeros(len(floats)))
        carry = (self.carry("count", segments), self.carry("mean", segments), self.carry("squares", segments))
        count, mean, squares = running_moments(single, segments.starts, segments.lengths, carry)
        result = moments_result(
            segments.unsorted(count),
            segments.unsorted(squares),
            self.function in ("stddev", "variance"),
            self.function.startswith("stddev"),
        )
        return result, self.change(segments, count=count, mean=mean, squares=squares)


class RunningExtreme(Running):
    """min or max of values that fit 64 bits."""

    def __init__(self, aggregate: Aggregate) -> None:
        self._best = np.maximum if aggregate.function == "max" else np.minimum
        self._worst = -(1 << 63) if aggregate.function == "max" else (1 << 63) - 1
        self.fields = {"seen": (np.bool_, False), "value": (np.int64, self._worst)}
        super().__init__(aggregate)

    def scan(self, rows: Rows, segments: Segments) -> tuple[pa.Array, Change]:
        assert rows.values is not None
        bits = rows.sorted(sortable(rows.values), self._worst)
        value = running(self._best, bits, segments, self.carry("value", segments))
        seen = running(np.logical_or, rows.sorted_counted, segments, self.carry("seen", segments))
        result = from_sortable(segments.unsorted(value), segments.unsorted(~seen), self.type)
        return result, self.change(segments, value=value, seen=seen)


class RunningChoice(Running):
    """first, last, and min and max of long values: one of the rows' values, or the one remembered.

    The values that a packet can choose from are put into one pool, those remembered first; what runs along
    the segments is a place in the pool, or a rank in it.
    """

    fields = {"seen": (np.bool_, False)}  # noqa: RUF012

    def __init__(self, aggregate: Aggregate) -> None:
        super().__init__(aggregate)
        self.cells = {"value": Cells(aggregate.type)}
        self.ranked = aggregate.function in ("min", "max")
        self.highest = aggregate.function in ("max", "last")
        ignores = bool(aggregate.parameters and aggregate.parameters[0])
        self.skip_nulls = self.ranked or ignores

    def scan(self, rows: Rows, segments: Segments) -> tuple[pa.Array, Change]:
        assert rows.values is not None
        known = len(segments.slots)
        pool = pa.concat_arrays([self.cells["value"].get(segments.slots), rows.values])
        weight = np.arange(len(pool))
        if self.ranked:
            weight = pc.rank(pool, sort_keys="ascending", tiebreaker="first").to_numpy().astype(np.int64)
        else:
            # Rows weigh by their sorted place, so that the order of arrival decides within a key.
            weight[known + segments.order] = np.arange(known, len(pool))
        none = -1 if self.highest else len(pool) + 1
        seen = self.carry("seen", segments)
        best = np.maximum if self.highest else np.minimum
        chosen = running(
            best,
            np.where(rows.sorted_counted, weight[known + segments.order], none),
            segments,
            np.where(seen, weight[:known], none),
        )
        place = np.zeros(len(pool) + 1, dtype=np.int64)
        place[weight] = np.arange(len(pool))
        missing = chosen == none
        picks = np.where(missing, 0, place[np.where(missing, 0, chosen)])
        result = pool.take(pa.array(segments.unsorted(picks), mask=segments.unsorted(missing)))
        slots, last = segments.slots[segments.final], segments.ends[segments.final]
        ends = pool.take(pa.array(picks[last], mask=missing[last]))
        was_seen = ~missing[last]

        def apply() -> None:
            self.cells["value"].put(slots, ends)
            self.arrays["seen"][slots] = was_seen

        return result, apply


class RunningDistinct(Running):
    """count(DISTINCT): a row counts if its (incarnation of the key, value) is met for the first time."""

    fields = {"count": (np.int64, 0), "incarnation": (np.int64, -1)}  # noqa: RUF012

    def __init__(self, aggregate: Aggregate) -> None:
        super().__init__(aggregate)
        self._pairs = KeyIndex([pa.int64(), self.argument])
        self._incarnations = 0

    def scan(self, rows: Rows, segments: Segments) -> tuple[pa.Array, Change]:
        assert rows.values is not None
        lives = self.carry("incarnation", segments)
        unborn = lives < 0
        lives[unborn] = np.arange(self._incarnations, self._incarnations + int(unborn.sum()))
        self._incarnations += int(unborn.sum())
        life = segments.unsorted(np.repeat(lives, segments.lengths))
        counted = np.flatnonzero(rows.counted)
        known = len(self._pairs)
        pairs = self._pairs.slots(
            [pa.array(life[counted]), rows.values.take(pa.array(counted))], len(counted)
        )
        fresh, places = distinct(pairs)
        first = firsts(places, len(fresh))[fresh >= known]
        new = np.zeros(len(life), dtype=np.int64)
        new[counted[first]] = 1
        count = running_sums(new[segments.order], segments, self.carry("count", segments))
        lives_of_rows = np.repeat(lives, segments.lengths)
        return pa.array(segments.unsorted(count)), self.change(
            segments, count=count, incarnation=lives_of_rows
        )

    def _values(self, slots: Ints) -> tuple[Ints, pa.Array]:
        """Distinct values of ``slots``, and the place of each one's slot."""
        lives, values = self._pairs.keys(np.arange(len(self._pairs)))
        place = np.full(self._incarnations + 1, -1, dtype=np.int64)
        place[self.arrays["incarnation"][slots]] = np.arange(len(slots))
        place[-1] = -1
        owner = place[lives.to_numpy()] if len(lives) else np.zeros(0, dtype=np.int64)
        order = np.argsort(owner, kind="stable")
        order = order[owner[order] >= 0]
        return owner[order], values.take(pa.array(order))

    def keep(self, slots: Ints) -> None:
        columns = self.snapshot(slots)
        for name, (dtype, fill) in self.fields.items():
            self.arrays[name] = np.full(len(slots), fill, dtype=dtype)
        self._pairs, self._incarnations = KeyIndex(self._pairs.types), 0
        self.restore(np.arange(len(slots)), columns)

    def snapshot(self, slots: Ints) -> dict[str, pa.Array]:
        owner, values = self._values(slots)
        offsets = pa.array(np.searchsorted(owner, np.arange(len(slots) + 1)).astype(np.int32))
        return {
            "count": pa.array(self.arrays["count"][slots]),
            "values": pa.ListArray.from_arrays(offsets, values),
        }

    def restore(self, slots: Ints, columns: dict[str, pa.Array]) -> None:
        lives = np.arange(self._incarnations, self._incarnations + len(slots))
        self._incarnations += len(slots)
        self.arrays["count"][slots] = columns["count"].to_numpy()
        self.arrays["incarnation"][slots] = lives
        life = np.repeat(lives, columns["values"].value_lengths().to_numpy())
        self._pairs.slots([pa.array(life), columns["values"].flatten()], len(life))


def running_state(aggregate: Aggregate) -> Running:
    """The running form of ``aggregate``; refuses those that have none."""
    function = aggregate.function
    if function in ("count", "count_distinct"):
        return (RunningCount if function == "count" else RunningDistinct)(aggregate)
    if function in ("stddev", "stddev_pop", "variance", "var_pop"):
        return RunningMoments(aggregate)
    argument = aggregate.argument.type if aggregate.argument is not None else None
    if function == "sum" and not pa.types.is_floating(argument):
        return RunningSum(aggregate)
    if function == "sum" or (function == "avg" and not pa.types.is_decimal(argument)):
        return RunningFloat(aggregate)
    if function in ("min", "max") and is_narrow(aggregate.type):
        return RunningExtreme(aggregate)
    if function in ("min", "max", "first", "last"):
        return RunningChoice(aggregate)
    hint = (
        "cast it to DOUBLE"
        if function == "avg"
        else "it would grow with every row; use it in a window, with agg()"
    )
    raise UnsupportedFunction(f"running: '{aggregate.text}' is not possible as a running value; {hint}.")


def scan_all(
    states: Sequence[Running], inputs: Sequence[Input], rows: int, segments: Segments
) -> tuple[list[pa.Array], list[Change]]:
    """Every aggregate's values and changes.  Those that cannot fail on a row and note it come last."""
    results: list[pa.Array] = [None] * len(states)
    changes: list[Change] = []
    for place in sorted(range(len(states)), key=lambda p: isinstance(states[p], RunningDistinct)):
        state = states[place]
        results[place], change = state.scan(Rows(inputs[place], rows, segments, state.skip_nulls), segments)
        changes.append(change)
    return results, changes
