"""min, max, first and last: functions that choose one of the group's values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.graph.aggregates.base import Accumulator, Cells, firsts, lasts, present
from headgate.graph.columns import Ints, flipped, from_integers, is_narrow, sortable, taken
from headgate.graph.numbering import distinct


def from_sortable(bits: Ints, null: Any, kind: pa.DataType) -> pa.Array:
    """The values whose ``sortable`` is ``bits``."""
    if pa.types.is_floating(kind):
        bits = flipped(bits)
    return from_integers(bits, null, kind)


class Extreme(Accumulator):
    """min (``parameters`` = (False,)) or max (True) of values that fit 64 bits."""

    orderless = True
    fields = {"seen": (np.bool_, False), "value": (np.int64, 0)}  # noqa: RUF012

    def __init__(
        self, argument: pa.DataType | None, result: pa.DataType, parameters: Sequence[Any] = ()
    ) -> None:
        self.highest = bool(parameters[0])
        worst = -(1 << 63) if self.highest else (1 << 63) - 1
        self.fields = {"seen": (np.bool_, False), "value": (np.int64, worst)}
        super().__init__(argument, result, parameters)

    def update(self, groups: Ints, values: pa.Array | None, sequence: Ints) -> None:
        assert values is not None
        groups, values, _ = present(groups, values, sequence)
        self._fold(groups, sortable(values))

    def _fold(self, groups: Ints, bits: Ints) -> None:
        (np.maximum if self.highest else np.minimum).at(self.arrays["value"], groups, bits)
        self.arrays["seen"][groups] = True

    def merge(self, into: Ints, source: Self, groups: Ints) -> None:
        seen = source.arrays["seen"][groups]
        self._fold(into[seen], source.arrays["value"][groups][seen])

    def result(self, groups: Ints) -> pa.Array:
        return from_sortable(self.arrays["value"][groups], ~self.arrays["seen"][groups], self.type)


class WideExtreme(Accumulator):
    """min or max of text, bytes and wide decimals."""

    orderless = True
    fields = {"seen": (np.bool_, False)}  # noqa: RUF012

    def __init__(
        self, argument: pa.DataType | None, result: pa.DataType, parameters: Sequence[Any] = ()
    ) -> None:
        super().__init__(argument, result, parameters)
        self.highest = bool(parameters[0])
        self.cells = {"value": Cells(result)}

    def update(self, groups: Ints, values: pa.Array | None, sequence: Ints) -> None:
        assert values is not None
        groups, values, _ = present(groups, values, sequence)
        if len(groups):
            self._fold(groups, values)

    def _fold(self, groups: Ints, values: pa.Array) -> None:
        unique, places = distinct(groups)
        known = unique[self.arrays["seen"][unique]]
        if len(known):
            # The groups' values so far compete as if they were rows.
            groups = np.concatenate([groups, known])
            values = pa.concat_arrays([values, self.cells["value"].get(known)])
            unique, places = distinct(groups)
        order = "descending" if self.highest else "ascending"
        best = np.empty(len(unique), dtype=np.int64)
        by_rank = pc.array_sort_indices(values, order=order).to_numpy()[::-1]
        best[places[by_rank]] = by_rank
        self.cells["value"].put(unique, taken(values, best))
        self.arrays["seen"][unique] = True

    def merge(self, into: Ints, source: Self, groups: Ints) -> None:
        seen = source.arrays["seen"][groups]
        if seen.any():
            self._fold(into[seen], source.cells["value"].get(groups[seen]))

    def result(self, groups: Ints) -> pa.Array:
        return self.cells["value"].get(groups)


class Position(Accumulator):
    """first or last by order of arrival; ``parameters`` = (last, ignore nulls)."""

    fields = {"seen": (np.bool_, False), "sequence": (np.int64, 0)}  # noqa: RUF012

    def __init__(
        self, argument: pa.DataType | None, result: pa.DataType, parameters: Sequence[Any] = ()
    ) -> None:
        super().__init__(argument, result, parameters)
        self.last, self.ignore_nulls = parameters
        self.cells = {"value": Cells(result)}

    def update(self, groups: Ints, values: pa.Array | None, sequence: Ints) -> None:
        assert values is not None
        if self.ignore_nulls:
            groups, values, sequence = present(groups, values, sequence)
        if not self.last:
            fresh = ~self.arrays["seen"][groups]
            if not fresh.all():
                groups, sequence = groups[fresh], sequence[fresh]
                values = values.filter(pa.array(fresh))
        if len(groups):
            self._choose(groups, values, sequence)

    def _choose(self, groups: Ints, values: pa.Array, sequence: Ints) -> None:
        unique, places = distinct(groups)
        rows = (lasts if self.last else firsts)(places, len(unique))
        self.cells["value"].put(unique, taken(values, rows))
        self.arrays["sequence"][unique] = sequence[rows]
        self.arrays["seen"][unique] = True

    def merge(self, into: Ints, source: Self, groups: Ints) -> None:
        seen = source.arrays["seen"][groups]
        into, groups = into[seen], groups[seen]
        sequence = source.arrays["sequence"][groups]
        mine = self.arrays["sequence"][into]
        better = ~self.arrays["seen"][into] | ((sequence > mine) if self.last else (sequence < mine))
        if not better.any():
            return
        into, groups, sequence = into[better], groups[better], sequence[better]
        order = np.argsort(sequence, kind="stable")
        self._choose(into[order], source.cells["value"].get(groups[order]), sequence[order])

    def result(self, groups: Ints) -> pa.Array:
        return self.cells["value"].get(groups)


def extreme(argument: pa.DataType, result: pa.DataType, highest: bool) -> Accumulator:
    return (Extreme if is_narrow(result) else WideExtreme)(argument, result, (highest,))
