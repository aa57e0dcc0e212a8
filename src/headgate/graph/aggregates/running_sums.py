"""Running count, sum, avg, variance and standard deviation."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import BadRow
from headgate.graph.aggregates.running import Change, Rows, Running
from headgate.graph.aggregates.scans import Segments, running, running_moments, running_sums
from headgate.graph.aggregates.sums import LOW, as_floats, highest, moments_result, split_words
from headgate.graph.columns import Ints, Mask, decimals, integers, limbs


class RunningCount(Running):
    fields = {"count": (np.int64, 0)}  # noqa: RUF012

    def scan(self, rows: Rows, segments: Segments) -> tuple[pa.Array, Change]:
        count = self.count(rows, segments)
        return pa.array(segments.unsorted(count)), self.change(segments, count=count)


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
            if bool((high == low >> 63).all()) and highest(below) * len(below) + highest(low) < 1 << 62:
                sums = running_sums(below, segments, low)
                return sums, sums >> 63
            above = below >> 63
        parts = [
            running_sums(part, segments, start)
            for part, start in zip(split_words(below, above), split_words(low, high), strict=True)
        ]
        for place in range(3):
            parts[place + 1] = parts[place + 1] + (parts[place] >> 32)
            parts[place] = parts[place] & LOW
        return parts[0] | (parts[1] << 32), parts[2] | (parts[3] << 32)


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
