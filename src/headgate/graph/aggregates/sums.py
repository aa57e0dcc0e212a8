"""count, sum, avg, variance and standard deviation.

Sums of integers and decimals are exact: they are kept in one 64-bit word while that cannot overflow, and in
32-bit limbs from then on.  Whether a sum overflows its type is decided by its final value.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import OperatorError
from headgate.graph.aggregates.base import Accumulator, present
from headgate.graph.columns import Ints, decimals, from_words, integers, limbs, words
from headgate.graph.numbering import distinct, grown

_SAFE = 1 << 62
LOW = np.int64(0xFFFF_FFFF)


def as_floats(values: pa.Array) -> npt.NDArray[np.float64]:
    """Numbers as doubles; the values have no nulls."""
    plain = words(values)
    if plain is not None:
        return plain.astype(np.float64, copy=False)
    return values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


class Count(Accumulator):
    orderless = True
    fields = {"count": (np.int64, 0)}  # noqa: RUF012

    def update(self, groups: Ints, values: pa.Array | None, sequence: Ints) -> None:
        if values is not None:
            groups, _, _ = present(groups, values, sequence)
        np.add.at(self.arrays["count"], groups, 1)

    def merge(self, into: Ints, source: Self, groups: Ints) -> None:
        np.add.at(self.arrays["count"], into, source.arrays["count"][groups])

    def result(self, groups: Ints) -> pa.Array:
        return from_words(self.arrays["count"][groups], self.type)


class ExactSum(Accumulator):
    """Sum of integers or decimals.

    ``bound`` is above every group's magnitude; as long as it is below 2^62 the word ``limb0`` holds the
    sums, and the others are not kept.
    """

    orderless = True
    fields = {"count": (np.int64, 0), "limb0": (np.int64, 0)}  # noqa: RUF012

    def __init__(
        self, argument: pa.DataType | None, result: pa.DataType, parameters: Sequence[Any] = ()
    ) -> None:
        super().__init__(argument, result, parameters)
        self.bound = 0
        self.wide: list[Ints] | None = None
        """Limbs of 32 bits in words of 64, the last one signed; carried when they might overflow."""

    def grow(self, count: int) -> None:
        super().grow(count)
        if self.wide is not None:
            self.wide = [grown(limb, count) for limb in self.wide]

    def update(self, groups: Ints, values: pa.Array | None, sequence: Ints) -> None:
        assert values is not None
        groups, values, _ = present(groups, values, sequence)
        if not len(groups):
            return
        np.add.at(self.arrays["count"], groups, 1)
        if pa.types.is_decimal(values.type) and values.type.precision > 18:
            self._add_limbs(groups, split_words(*limbs(values).T))
            return
        numbers = integers(values)
        if self.wide is None and self._room(_bound(numbers) * len(numbers)):
            np.add.at(self.arrays["limb0"], groups, numbers)
            return
        self._add_limbs(groups, split_words(numbers, numbers >> 63))

    def _room(self, more: int) -> bool:
        """Whether the words can take ``more`` for certain."""
        if self.bound + more >= _SAFE:
            self.bound = highest(self.arrays["limb0"])
        if self.bound + more >= _SAFE:
            return False
        self.bound += more
        return True

    def _widen(self) -> list[Ints]:
        if self.wide is None:
            words = self.arrays["limb0"]
            self.wide = split_words(words, words >> 63)
        return self.wide

    def _add_limbs(self, groups: Ints, parts: Sequence[Ints]) -> None:
        wide = self._widen()
        for limb, part in zip(wide, parts, strict=True):
            np.add.at(limb, groups, part)
        touched = groups if len(groups) < len(wide[0]) else slice(None)
        for low, high in itertools.pairwise(wide):
            carry = low[touched] >> 32
            low[touched] &= LOW
            if isinstance(touched, slice):
                high += carry
            else:
                # A group that repeats has been carried once already: its later carries are zero.
                unique, places = np.unique(touched, return_index=True)
                high[unique] += carry[places]

    def merge(self, into: Ints, source: Self, groups: Ints) -> None:
        np.add.at(self.arrays["count"], into, source.arrays["count"][groups])
        if self.wide is None and source.wide is None:
            words = source.arrays["limb0"][groups]
            if self._room(_bound(words) * len(words)):
                np.add.at(self.arrays["limb0"], into, words)
                return
        self._add_limbs(into, [limb[groups] for limb in source._widen()])

    def words(self, groups: Ints) -> tuple[Ints, Ints]:
        """(low, high) 64 bits of each group's sum."""
        if self.wide is None:
            low = self.arrays["limb0"][groups]
            return low, low >> 63
        parts = [limb[groups] for limb in self.wide]
        return parts[0] | (parts[1] << 32), parts[2] | (parts[3] << 32)

    def result(self, groups: Ints) -> pa.Array:
        low, high = self.words(groups)
        null = self.arrays["count"][groups] == 0
        if pa.types.is_decimal(self.type):
            totals = decimals(low, high, null, pa.decimal128(38, self.type.scale))
            if self.type.precision < 38 and self.wide is not None:
                totals = self._fit(totals)
            return totals.cast(self.type, safe=False) if self.type.precision < 38 else totals
        if self.wide is not None and bool((high != low >> 63).any()):
            raise OperatorError(
                "sum() overflowed BIGINT; sum a DECIMAL or a DOUBLE instead, e.g. sum(CAST(x AS DOUBLE))."
            )
        return from_words(low, self.type, null if np.count_nonzero(null) else None)

    def _fit(self, totals: pa.Array) -> pa.Array:
        limit = pa.scalar(10 ** (self.type.precision - self.type.scale), type=pa.decimal128(38, 0))
        over = pc.greater_equal(pc.abs(totals), limit.cast(pa.decimal128(38, self.type.scale)))
        if pc.any(over).as_py():
            raise OperatorError(
                f"sum() overflowed {self.type}; cast its argument to a wider DECIMAL or to DOUBLE."
            )
        return totals

    def take(self, groups: Ints) -> Self:
        taken = super().take(groups)
        taken.bound = self.bound
        if self.wide is not None:
            taken.wide = [limb[groups] for limb in self.wide]
        elif len(groups):
            taken.bound = highest(taken.arrays["limb0"])
        return taken

    def snapshot(self, groups: Ints) -> dict[str, pa.Array]:
        low, high = self.words(groups)
        return {"count": pa.array(self.arrays["count"][groups]), "low": pa.array(low), "high": pa.array(high)}

    def restore(self, groups: Ints, columns: dict[str, pa.Array]) -> None:
        if not len(groups):
            return
        self.arrays["count"][groups] = columns["count"].to_numpy()
        low, high = columns["low"].to_numpy(), columns["high"].to_numpy()
        if self.wide is None and bool((high == low >> 63).all()) and highest(low) < _SAFE:
            self.bound = max(self.bound, highest(low))
            self.arrays["limb0"][groups] = low
            return
        for limb, part in zip(self._widen(), split_words(low, high), strict=True):
            limb[groups] = part


def _bound(words: Ints) -> int:
    """At least the greatest magnitude, and at most about twice that: it takes one pass."""
    return int(np.bitwise_or.reduce(words ^ (words >> 63))) + 1


def highest(words: Ints) -> int:
    """The greatest magnitude."""
    return max(abs(int(words.max())), abs(int(words.min()))) if len(words) else 0


def split_words(low: Ints, high: Ints) -> list[Ints]:
    """Numbers of 128 bits as limbs of 32, the last one signed."""
    return [low & LOW, (low >> 32) & LOW, high & LOW, high >> 32]


class FloatSum(Accumulator):
    orderless = True
    fields = {"count": (np.int64, 0), "total": (np.float64, 0.0)}  # noqa: RUF012

    def update(self, groups: Ints, values: pa.Array | None, sequence: Ints) -> None:
        assert values is not None
        groups, values, _ = present(groups, values, sequence)
        np.add.at(self.arrays["count"], groups, 1)
        np.add.at(self.arrays["total"], groups, as_floats(values))

    def merge(self, into: Ints, source: Self, groups: Ints) -> None:
        for name in self.fields:
            np.add.at(self.arrays[name], into, source.arrays[name][groups])

    def result(self, groups: Ints) -> pa.Array:
        return pa.array(self.arrays["total"][groups], mask=self.arrays["count"][groups] == 0).cast(self.type)


class Average(FloatSum):
    def result(self, groups: Ints) -> pa.Array:
        count = self.arrays["count"][groups]
        null = count == 0
        averages = self.arrays["total"][groups] / np.maximum(count, 1)
        return from_words(averages, pa.float64(), null if np.count_nonzero(null) else None)


class DecimalAverage(ExactSum):
    """avg of decimals: the exact sum divided by the count, rounded half up to the result's scale."""

    def result(self, groups: Ints) -> pa.Array:
        assert self.argument is not None
        low, high = self.words(groups)
        shift = 10 ** (self.type.scale - self.argument.scale)
        averages = []
        for count, below, above in zip(
            self.arrays["count"][groups].tolist(), low.tolist(), high.tolist(), strict=True
        ):
            if not count:
                averages.append(0)
                continue
            total = ((above << 64) | (below & 0xFFFF_FFFF_FFFF_FFFF)) * shift
            rounded = (2 * abs(total) + count) // (2 * count)
            averages.append(rounded if total >= 0 else -rounded)
        # Two's complement words, as Arrow lays decimals out.
        below_words = np.array([a & 0xFFFF_FFFF_FFFF_FFFF for a in averages], dtype=np.uint64).view(np.int64)
        above_words = np.array([a >> 64 for a in averages], dtype=np.int64)
        return decimals(below_words, above_words, self.arrays["count"][groups] == 0, self.type)


class Moments(Accumulator):
    """Count, mean and sum of squared deviations, joined as Chan, Golub and LeVeque do (1983, section 2)."""

    orderless = True
    fields = {"count": (np.int64, 0), "mean": (np.float64, 0.0), "squares": (np.float64, 0.0)}  # noqa: RUF012

    def update(self, groups: Ints, values: pa.Array | None, sequence: Ints) -> None:
        assert values is not None
        groups, values, _ = present(groups, values, sequence)
        if not len(groups):
            return
        unique, places = distinct(groups)
        floats = as_floats(values)
        count = np.bincount(places, minlength=len(unique))
        mean = np.bincount(places, floats, minlength=len(unique)) / count
        squares = np.bincount(places, (floats - mean[places]) ** 2, minlength=len(unique))
        self._join(unique, count, mean, squares)

    def _join(self, unique: Ints, count: Any, mean: Any, squares: Any) -> None:
        counts, means, sums = self.arrays["count"], self.arrays["mean"], self.arrays["squares"]
        before = counts[unique]
        total = before + count
        share = count / np.maximum(total, 1)
        distance = mean - means[unique]
        sums[unique] += squares + distance**2 * before * share
        means[unique] += distance * share
        counts[unique] = total

    def merge(self, into: Ints, source: Self, groups: Ints) -> None:
        unique, places = distinct(into)
        n = len(unique)
        counts, means = source.arrays["count"][groups], source.arrays["mean"][groups]
        count = np.bincount(places, counts, minlength=n).astype(np.int64)
        mean = np.bincount(places, counts * means, minlength=n) / np.maximum(count, 1)
        deviations = source.arrays["squares"][groups] + counts * (means - mean[places]) ** 2
        self._join(unique, count, mean, np.bincount(places, deviations, minlength=n))

    def result(self, groups: Ints) -> pa.Array:
        sample, root = self.parameters
        return moments_result(self.arrays["count"][groups], self.arrays["squares"][groups], sample, root)


def moments_result(count: Any, squares: Any, sample: bool, root: bool) -> pa.Array:
    """Variance or deviation; null where it is not defined: of nothing, and of one value of a sample."""
    divisor = count - 1 if sample else count
    values = squares / np.maximum(divisor, 1)
    return pa.array(np.sqrt(values) if root else values, mask=divisor <= 0)
