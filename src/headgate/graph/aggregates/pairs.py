"""Aggregates of two columns (corr, covariances, regressions), of higher moments and of bits.

Two columns come as one struct, null where the row does not count.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.graph.aggregates.base import Accumulator, Cells, present
from headgate.graph.aggregates.logs import Percentile, Remembering, Run
from headgate.graph.columns import Ints, from_integers, integers, taken
from headgate.graph.numbering import distinct


class Comoments(Accumulator):
    """Count, means and sums of squared and mixed deviations of (x, y); ``parameters`` = (function,)."""

    fields = dict.fromkeys(("count", "x", "y", "xx", "yy", "xy"), (np.float64, 0.0))

    def update(self, groups: Ints, values: pa.Array | None, sequence: Ints) -> None:
        assert values is not None
        groups, values, _ = present(groups, values, sequence)
        if len(groups):
            x, y = (column.to_numpy(zero_copy_only=False) for column in values.flatten())
            none = np.zeros(len(groups))
            self._fold(groups, (np.ones(len(groups)), x, y, none, none, none))

    def _fold(self, groups: Ints, parts: tuple[Any, ...]) -> None:
        """Joins moments of disjoint sets, as Chan, Golub and LeVeque do."""
        unique, places = distinct(groups)
        held = [self.arrays[name][unique] for name in self.fields]
        count, x, y, xx, yy, xy = parts

        def total(own: Any, given: Any) -> Any:
            return own + np.bincount(places, given, minlength=len(unique))

        n = total(held[0], count)
        size = np.maximum(n, 1)
        mean_x, mean_y = (
            total(held[0] * held[1], count * x) / size,
            total(held[0] * held[2], count * y) / size,
        )
        dx, dy, hx, hy = x - mean_x[places], y - mean_y[places], held[1] - mean_x, held[2] - mean_y
        self.arrays["count"][unique], self.arrays["x"][unique], self.arrays["y"][unique] = n, mean_x, mean_y
        self.arrays["xx"][unique] = total(held[3] + held[0] * hx * hx, xx + count * dx * dx)
        self.arrays["yy"][unique] = total(held[4] + held[0] * hy * hy, yy + count * dy * dy)
        self.arrays["xy"][unique] = total(held[5] + held[0] * hx * hy, xy + count * dx * dy)

    def merge(self, into: Ints, source: Self, groups: Ints) -> None:
        self._fold(into, tuple(source.arrays[name][groups] for name in self.fields))

    def result(self, groups: Ints) -> pa.Array:
        n, x, y, xx, yy, xy = (self.arrays[name][groups] for name in self.fields)
        function = self.parameters[0]
        if function == "regr_count":
            return pa.array(n.astype(np.int64))
        with np.errstate(all="ignore"):
            # regr_*(y, x): the first operand is y there and x in corr.
            slope = xy / yy
            values = {
                "corr": xy / np.sqrt(xx * yy),
                "covar_pop": xy / n,
                "covar_samp": xy / (n - 1),
                "regr_avgx": y,
                "regr_avgy": x,
                "regr_slope": slope,
                "regr_intercept": x - slope * y,
                "regr_r2": np.where(xx == 0, 1.0, xy * xy / xx / yy),
                "regr_sxx": yy,
                "regr_syy": xx,
                "regr_sxy": xy,
            }[function]
        null = n == 0
        if function == "covar_samp":
            null = n < 2
        elif function == "corr":
            null = (n < 2) | (xx == 0) | (yy == 0)
        elif function in ("regr_slope", "regr_intercept", "regr_r2"):
            null = (n < 2) | (yy == 0)
        return pa.array(values, mask=null)


class Shape(Accumulator):
    """skewness and kurtosis: sums of powers of deviations from the mean; ``parameters`` = (kurtosis,)."""

    fields = dict.fromkeys(("count", "mean", "m2", "m3", "m4"), (np.float64, 0.0))

    def update(self, groups: Ints, values: pa.Array | None, sequence: Ints) -> None:
        assert values is not None
        groups, values, _ = present(groups, values, sequence)
        if len(groups):
            none = np.zeros(len(groups))
            self._fold(
                groups, (np.ones(len(groups)), values.to_numpy(zero_copy_only=False), none, none, none)
            )

    def _fold(self, groups: Ints, parts: tuple[Any, ...]) -> None:
        """Moments about the joint mean: each set's own, moved by the distance of the means."""
        unique, places = distinct(groups)
        held = tuple(self.arrays[name][unique] for name in self.fields)
        count = held[0] + np.bincount(places, parts[0], minlength=len(unique))
        total = held[0] * held[1] + np.bincount(places, parts[0] * parts[1], minlength=len(unique))
        mean = total / np.maximum(count, 1)
        own, given = _moved(held, held[1] - mean), _moved(parts, parts[1] - mean[places])
        for name, mine, theirs in zip(("m2", "m3", "m4"), own, given, strict=True):
            self.arrays[name][unique] = mine + np.bincount(places, theirs, minlength=len(unique))
        self.arrays["count"][unique], self.arrays["mean"][unique] = count, mean

    def merge(self, into: Ints, source: Self, groups: Ints) -> None:
        self._fold(into, tuple(source.arrays[name][groups] for name in self.fields))

    def result(self, groups: Ints) -> pa.Array:
        n, _, m2, m3, m4 = (self.arrays[name][groups] for name in self.fields)
        with np.errstate(all="ignore"):
            values = n * m4 / (m2 * m2) - 3 if self.parameters[0] else np.sqrt(n) * m3 / np.sqrt(m2**3)
        return pa.array(values, mask=(n == 0) | (m2 == 0))


def _moved(parts: tuple[Any, ...], d: Any) -> tuple[Any, Any, Any]:
    n, _, m2, m3, m4 = parts
    return (
        m2 + n * d**2,
        m3 + 3 * d * m2 + n * d**3,
        m4 + 4 * d * m3 + 6 * d**2 * m2 + n * d**4,
    )


class Bits(Accumulator):
    """bit_and, bit_or and bit_xor; ``parameters`` = (function,)."""

    fields = {"seen": (np.bool_, False), "value": (np.int64, 0)}  # noqa: RUF012

    def __init__(self, argument: Any, result: pa.DataType, parameters: Any = ()) -> None:
        self.fold, start = BITS[parameters[0]]
        self.fields = {"seen": (np.bool_, False), "value": (np.int64, start)}
        super().__init__(argument, result, parameters)

    def update(self, groups: Ints, values: pa.Array | None, sequence: Ints) -> None:
        assert values is not None
        groups, values, _ = present(groups, values, sequence)
        self._fold(groups, integers(values))

    def _fold(self, groups: Ints, bits: Ints) -> None:
        self.fold.at(self.arrays["value"], groups, bits)
        self.arrays["seen"][groups] = True

    def merge(self, into: Ints, source: Self, groups: Ints) -> None:
        seen = source.arrays["seen"][groups]
        self._fold(into[seen], source.arrays["value"][groups][seen])

    def result(self, groups: Ints) -> pa.Array:
        return from_integers(self.arrays["value"][groups], ~self.arrays["seen"][groups], self.type)


BITS: dict[str, tuple[Any, int]] = {
    "bit_and": (np.bitwise_and, -1),
    "bit_or": (np.bitwise_or, 0),
    "bit_xor": (np.bitwise_xor, 0),
}


class By(Accumulator):
    """max_by and min_by: of (value, order), the value with the highest or lowest order."""

    fields = {"seen": (np.bool_, False)}  # noqa: RUF012

    def __init__(self, argument: Any, result: pa.DataType, parameters: Any = ()) -> None:
        super().__init__(argument, result, parameters)
        self.cells = {"pair": Cells(argument)}

    def update(self, groups: Ints, values: pa.Array | None, sequence: Ints) -> None:
        assert values is not None
        groups, values, _ = present(groups, values, sequence)
        if len(groups):
            self._fold(groups, values)

    def _fold(self, groups: Ints, pairs: pa.Array) -> None:
        unique, places = distinct(groups)
        known = unique[self.arrays["seen"][unique]]
        if len(known):
            # The groups' pairs so far compete as if they were rows.
            groups = np.concatenate([known, groups])
            pairs = pa.concat_arrays([self.cells["pair"].get(known), pairs])
            unique, places = distinct(groups)
        order = "descending" if self.parameters[0] else "ascending"
        by_rank = pc.array_sort_indices(pc.struct_field(pairs, 1), order=order).to_numpy()[::-1]
        best = np.empty(len(unique), dtype=np.int64)
        best[places[by_rank]] = by_rank
        self.cells["pair"].put(unique, taken(pairs, best))
        self.arrays["seen"][unique] = True

    def merge(self, into: Ints, source: Self, groups: Ints) -> None:
        seen = source.arrays["seen"][groups]
        if seen.any():
            self._fold(into[seen], source.cells["pair"].get(groups[seen]))

    def result(self, groups: Ints) -> pa.Array:
        return pc.struct_field(self.cells["pair"].get(groups), 0)


class ExactPercentile(Percentile):
    """percentile and median: exact, interpolated between the two nearest values."""

    def encode(self, values: pa.Array) -> Any:
        return values.cast(pa.float64()).to_numpy(zero_copy_only=False)

    @property
    def stored(self) -> pa.DataType:
        return pa.float64()

    def compact(self, run: Run) -> Run:
        return run.take(np.lexsort((run.values, run.groups)))

    def result(self, groups: Ints) -> pa.Array:
        rows = self.log.rows(groups)
        count = np.bincount(rows.groups, minlength=len(groups))
        first = np.cumsum(count) - count
        values = np.append(rows.values, 0.0)
        wanted = self.parameters[0]
        columns = []
        for share in wanted if isinstance(wanted, tuple) else (wanted,):
            place = float(share) * np.maximum(count - 1, 0)
            low = np.floor(place).astype(np.int64)
            high = np.ceil(place).astype(np.int64)
            a, b = (
                values[np.minimum(first + low, len(values) - 1)],
                values[np.minimum(first + high, len(values) - 1)],
            )
            columns.append(np.where(low == high, a, (high - place) * a + (place - low) * b))
        if not isinstance(wanted, tuple):
            return pa.array(columns[0], mask=count == 0)
        flat = np.column_stack(columns)[count > 0].reshape(-1)
        offsets = np.concatenate([[0], np.cumsum((count > 0) * len(wanted))]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat), mask=pa.array(count == 0))


class Mode(Remembering):
    """The value that comes most often; of several, the one that came first."""

    def result(self, groups: Ints) -> pa.Array:
        rows = self.log.rows(groups)
        column = self.column(rows.values)
        code = column.dictionary_encode().indices.to_numpy().astype(np.int64)
        order = np.lexsort((rows.sequence, code, rows.groups))
        group, code, arrived = rows.groups[order], code[order], rows.sequence[order]
        starts = np.flatnonzero(
            np.concatenate([[True], (group[1:] != group[:-1]) | (code[1:] != code[:-1])])[: len(group)]
        )
        times = np.diff(np.append(starts, len(group)))
        best = np.lexsort((arrived[starts], -times, group[starts]))
        firsts, at = np.unique(group[starts][best], return_index=True)
        picks = np.zeros(len(groups), dtype=np.int64)
        picks[firsts] = order[starts[best[at]]]
        missing = np.ones(len(groups), dtype=bool)
        missing[firsts] = False
        return column.take(pa.array(picks, mask=missing))
