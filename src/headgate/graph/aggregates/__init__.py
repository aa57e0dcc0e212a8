"""Aggregate functions over groups: what windows keep while they are open.

``Accumulators`` is the state of several aggregates for one set of groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from headgate.errors import BadRow, UnsupportedFunction
from headgate.graph.aggregates.base import Accumulator
from headgate.graph.aggregates.choices import Position, extreme
from headgate.graph.aggregates.logs import CollectList, CollectSet, CountDistinct, JoinedText, Percentile
from headgate.graph.aggregates.pairs import BITS, Bits, By, Comoments, ExactPercentile, Mode, Shape
from headgate.graph.aggregates.sums import Average, Count, DecimalAverage, ExactSum, FloatSum, Moments
from headgate.graph.columns import Ints, invalid
from headgate.sql import Aggregate
from headgate.sql.aggregates import PAIRED

Input = tuple[Ints | None, pa.Array | None]
"""Rows that an aggregate counts (None: all), and their argument (None: it has none)."""


def _argument(aggregate: Aggregate) -> pa.DataType:
    assert aggregate.argument is not None
    return aggregate.argument.type


def _sum(aggregate: Aggregate) -> Accumulator:
    argument = _argument(aggregate)
    return (FloatSum if pa.types.is_floating(argument) else ExactSum)(argument, aggregate.type)


def _average(aggregate: Aggregate) -> Accumulator:
    argument = _argument(aggregate)
    return (DecimalAverage if pa.types.is_decimal(argument) else Average)(argument, aggregate.type)


def _moments(sample: bool, root: bool) -> Callable[[Aggregate], Accumulator]:
    return lambda a: Moments(_argument(a), a.type, (sample, root))


_FUNCTIONS: dict[str, Callable[[Aggregate], Accumulator]] = {
    "count": lambda a: Count(None, a.type),
    "count_distinct": lambda a: CountDistinct(_argument(a), a.type),
    "sum": _sum,
    "avg": _average,
    "min": lambda a: extreme(_argument(a), a.type, False),
    "max": lambda a: extreme(_argument(a), a.type, True),
    "stddev": _moments(sample=True, root=True),
    "stddev_pop": _moments(sample=False, root=True),
    "variance": _moments(sample=True, root=False),
    "var_pop": _moments(sample=False, root=False),
    "first": lambda a: Position(_argument(a), a.type, (False, bool(a.parameters and a.parameters[0]))),
    "last": lambda a: Position(_argument(a), a.type, (True, bool(a.parameters and a.parameters[0]))),
    "collect_list": lambda a: CollectList(_argument(a), a.type),
    "approx_percentile": lambda a: Percentile(_argument(a), a.type, a.parameters),
    "percentile": lambda a: ExactPercentile(_argument(a), a.type, a.parameters),
    "collect_set": lambda a: CollectSet(_argument(a), a.type),
    "string_agg": lambda a: JoinedText(_argument(a), a.type, a.parameters),
    "mode": lambda a: Mode(_argument(a), a.type),
    "max_by": lambda a: By(_argument(a), a.type, (True,)),
    "min_by": lambda a: By(_argument(a), a.type, (False,)),
    "skewness": lambda a: Shape(_argument(a), a.type, (False,)),
    "kurtosis": lambda a: Shape(_argument(a), a.type, (True,)),
    **{name: lambda a: Bits(_argument(a), a.type, (a.function,)) for name in BITS},
    **{name: lambda a: Comoments(_argument(a), a.type, (a.function,)) for name in PAIRED},
}


def accumulator(aggregate: Aggregate) -> Accumulator:
    """An accumulator without groups for ``aggregate``."""
    make = _FUNCTIONS.get(aggregate.function)
    if aggregate.function == "lag":
        raise UnsupportedFunction(
            f"'{aggregate.text}': a window has no row before; add lag() with running() and aggregate that."
        )
    if make is None:
        raise UnsupportedFunction(f"'{aggregate.text}': the aggregate {aggregate.function} is not supported.")
    return make(aggregate)


def evaluate(aggregates: Sequence[Aggregate], batch: pa.RecordBatch) -> list[Input]:
    """The rows and arguments that ``batch`` gives to each aggregate; raises ``BadRow``."""
    inputs: list[Input] = []
    for aggregate in aggregates:
        rows, seen = None, batch
        if aggregate.filter is not None:
            mask = aggregate.filter.evaluate(batch)
            null = invalid(mask)
            chosen = mask.fill_null(False) if null is not None else mask
            rows = np.flatnonzero(chosen.to_numpy(zero_copy_only=False))
            seen = batch.filter(chosen)
        try:
            values = None if aggregate.argument is None else aggregate.argument.evaluate(seen)
        except BadRow as bad:
            raise BadRow(str(bad), bad.index if rows is None else int(rows[bad.index])) from bad
        inputs.append((rows, values))
    return inputs


class Accumulators:
    """The state of several aggregates for the same groups."""

    def __init__(self, aggregates: Sequence[Aggregate]) -> None:
        self.aggregates = tuple(aggregates)
        self.parts = [accumulator(a) for a in aggregates]
        self._room = 0

    def grow(self, count: int) -> None:
        """Make room for groups below ``count``, and for as many more."""
        if count > self._room:
            self._room = 2 * count
            for part in self.parts:
                part.grow(self._room)

    def update(self, groups: Ints, inputs: Sequence[Input], sequence: Ints) -> None:
        """Fold rows in: row i of the batch that was evaluated belongs to ``groups[i]``."""
        for part, (rows, values) in zip(self.parts, inputs, strict=True):
            if rows is None:
                part.update(groups, values, sequence)
            else:
                part.update(groups[rows], values, sequence[rows])

    def merge(self, into: Ints, source: Accumulators, groups: Ints) -> None:
        for part, other in zip(self.parts, source.parts, strict=True):
            part.merge(into, other, groups)

    def take(self, groups: Ints) -> Accumulators:
        taken = Accumulators(())
        taken.aggregates = self.aggregates
        taken.parts = [part.take(groups) for part in self.parts]
        return taken

    def results(self, groups: Ints) -> list[pa.Array]:
        return [part.result(groups) for part in self.parts]

    def snapshot(self, groups: Ints) -> dict[str, pa.Array]:
        """Columns named by the aggregate's place and the part of its state."""
        return {
            f"{place}.{name}": column
            for place, part in enumerate(self.parts)
            for name, column in part.snapshot(groups).items()
        }

    def restore(self, groups: Ints, columns: dict[str, pa.Array]) -> None:
        for place, part in enumerate(self.parts):
            part.restore(groups, _of(place, columns))

    def told(self) -> None:
        for part in self.parts:
            part.told()

    def changes(self, groups: Ints) -> dict[str, pa.Array]:
        """As ``snapshot``, but only the additions to ``groups`` since ``told``."""
        return {
            f"{place}.{name}": column
            for place, part in enumerate(self.parts)
            for name, column in part.changes(groups).items()
        }

    def apply(self, groups: Ints, columns: dict[str, pa.Array]) -> None:
        for place, part in enumerate(self.parts):
            part.apply(groups, _of(place, columns))


def _of(place: int, columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """The columns of the aggregate at ``place``."""
    prefix = f"{place}."
    return {n.removeprefix(prefix): c for n, c in columns.items() if n.startswith(prefix)}
