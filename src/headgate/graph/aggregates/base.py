"""What an accumulator is: the state of one aggregate function for many groups at once.

Groups are dense integers.  A packet is folded in by array operations; no function sees single rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.graph.columns import Ints, from_integers, integers, invalid, is_narrow
from headgate.graph.numbering import grown


def firsts(places: Ints, count: int) -> Ints:
    """The first row of each of ``count`` distinct groups."""
    rows = np.empty(count, dtype=np.int64)
    rows[places[::-1]] = np.arange(len(places) - 1, -1, -1)
    return rows


def lasts(places: Ints, count: int) -> Ints:
    """The last row of each of ``count`` distinct groups."""
    rows = np.empty(count, dtype=np.int64)
    rows[places] = np.arange(len(places))
    return rows


def present(groups: Ints, values: pa.Array, sequence: Ints) -> tuple[Ints, pa.Array, Ints]:
    """The rows whose value is not null."""
    null = invalid(values)
    if null is None:
        return groups, values, sequence
    return groups[~null], values.drop_null(), sequence[~null]


class Cells:
    """One value of any type per group, each possibly null."""

    def __init__(self, kind: pa.DataType) -> None:
        self.type = kind
        self._narrow = is_narrow(kind)
        self._values: npt.NDArray[Any] = np.zeros(0, dtype=np.int64 if self._narrow else object)
        self._null: npt.NDArray[np.bool_] = np.ones(0, dtype=np.bool_)

    def grow(self, count: int) -> None:
        self._values = grown(self._values, count, 0 if self._narrow else None)
        self._null = grown(self._null, count, True)

    def put(self, groups: Ints, values: pa.Array) -> None:
        null = invalid(values)
        self._null[groups] = False if null is None else null
        if self._narrow:
            self._values[groups] = integers(values)
        else:
            self._values[groups] = _objects(values)

    def get(self, groups: Ints) -> pa.Array:
        if self._narrow:
            return from_integers(self._values[groups], self._null[groups], self.type)
        return pa.array(self._values[groups].tolist(), type=self.type)

    def take(self, groups: Ints) -> Cells:
        cells = Cells(self.type)
        cells._values = self._values[groups]
        cells._null = self._null[groups]
        return cells


def _objects(values: pa.Array) -> npt.NDArray[Any]:
    objects = np.empty(len(values), dtype=object)
    objects[:] = values.to_pylist()
    return objects


class Stored:
    """What an aggregate function remembers of every group, or of every key's slot.

    ``fields`` names the arrays that hold it, with the value a new group starts from; ``cells`` those that
    hold values of the argument's own type.  A function that needs more overrides what handles them.
    """

    fields: dict[str, tuple[Any, Any]] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.arrays: dict[str, npt.NDArray[Any]] = {
            n: np.zeros(0, dtype=d) for n, (d, _) in self.fields.items()
        }
        self.cells: dict[str, Cells] = {}

    def grow(self, count: int) -> None:
        """Make room for groups below ``count``."""
        for name, (_, fill) in self.fields.items():
            self.arrays[name] = grown(self.arrays[name], count, fill)
        for cells in self.cells.values():
            cells.grow(count)

    def snapshot(self, groups: Ints) -> dict[str, pa.Array]:
        """The state of ``groups`` as columns."""
        columns = {name: pa.array(array[groups]) for name, array in self.arrays.items()}
        return columns | {name: cells.get(groups) for name, cells in self.cells.items()}

    def restore(self, groups: Ints, columns: dict[str, pa.Array]) -> None:
        """Put the state of fresh ``groups`` back from columns."""
        for name, array in self.arrays.items():
            array[groups] = columns[name].to_numpy(zero_copy_only=False)
        for name, cells in self.cells.items():
            cells.put(groups, columns[name])

    def told(self) -> None:
        """From here on, ``changes`` tells only what comes later."""

    def changes(self, groups: Ints) -> dict[str, pa.Array]:
        """As columns, the additions to ``groups`` (all that changed) since ``told``."""
        return self.snapshot(groups)

    def apply(self, groups: Ints, columns: dict[str, pa.Array]) -> None:
        """Take over ``changes`` of groups, which are new here or came with earlier changes."""
        self.restore(groups, columns)


class Accumulator(Stored):
    """State of one aggregate function by group."""

    orderless: ClassVar[bool] = False
    """It looks at no ``sequence``: groups can be accumulated apart and merged in any order."""

    def __init__(
        self, argument: pa.DataType | None, result: pa.DataType, parameters: Sequence[Any] = ()
    ) -> None:
        self.argument = argument
        self.type = result
        self.parameters = tuple(parameters)
        super().__init__()

    def update(self, groups: Ints, values: pa.Array | None, sequence: Ints) -> None:
        """Fold rows in; ``sequence`` is their order of arrival and does not decrease."""
        raise NotImplementedError

    def merge(self, into: Ints, source: Self, groups: Ints) -> None:
        """Fold ``groups`` of ``source`` (perhaps this one) into groups ``into``, which may repeat."""
        raise NotImplementedError

    def result(self, groups: Ints) -> pa.Array:
        """The value of each group."""
        raise NotImplementedError

    def empty(self) -> Self:
        """An accumulator of the same function without groups."""
        return type(self)(self.argument, self.type, self.parameters)

    def take(self, groups: Ints) -> Self:
        """An accumulator of only these groups, numbered by their place."""
        taken = self.empty()
        for name, array in self.arrays.items():
            taken.arrays[name] = array[groups]
        for name, cells in self.cells.items():
            taken.cells[name] = cells.take(groups)
        return taken
