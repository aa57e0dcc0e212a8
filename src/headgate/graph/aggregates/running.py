"""Aggregate functions as running values: for every row, the value after including it.

Each class keeps its state per key slot in arrays.  ``scan`` computes a packet's values without changing the
state and returns them with the change to be made, so that a bad row leaves everything as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.graph.aggregates import Input
from headgate.graph.aggregates.base import Stored
from headgate.graph.aggregates.scans import Segments, running_sums
from headgate.graph.columns import Ints, Mask, invalid
from headgate.sql import Aggregate

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


class Running(Stored):
    """State of one running aggregate for every key slot."""

    skip_nulls = True

    def __init__(self, aggregate: Aggregate) -> None:
        self.argument: pa.DataType | None = None if aggregate.argument is None else aggregate.argument.type
        self.type = aggregate.type
        self.parameters = aggregate.parameters
        self.function = aggregate.function
        super().__init__()

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
