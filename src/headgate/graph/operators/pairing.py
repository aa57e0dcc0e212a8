"""Pairs of rows as rows: what the joins of finite plans share.

Key columns are of types whose values fit 64 bits.  A null key finds no partner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from headgate.errors import PipelineError
from headgate.graph.columns import Ints, integers, invalid, is_narrow, taken
from headgate.sql import compile_predicate

PAIRS = 1 << 20
"""Pairs that are looked at at a time: a condition may leave few of many."""


class Pairing:
    """Columns of the left and of the right row of a pair, where a condition holds.

    ``keep`` names the columns of the result in their order; a name that both have is the left one's.
    """

    def __init__(
        self, left: pa.Schema, right: pa.Schema, where: str | None, keep: Sequence[str], verb: str
    ) -> None:
        self.where, self.keep, self._inputs = where, tuple(keep), (left, right)
        mine = [field for field in right if field.name not in left.names]
        both = pa.schema([*left, *mine])
        missing = [name for name in keep if name not in both.names]
        if missing:
            raise PipelineError(f"{verb}: there is no column '{missing[0]}' on either side.")
        self.schema = pa.schema([both.field(name) for name in keep])
        looked_at = set(keep) | (compile_predicate(where, both).columns if where is not None else set())
        self._both = pa.schema([field for field in both if field.name in looked_at])
        self._compile()

    def _compile(self) -> None:
        self._holds = None if self.where is None else compile_predicate(self.where, self._both).evaluate

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_holds"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._compile()

    def rows(
        self, left: pa.RecordBatch, right: pa.RecordBatch, mine: Ints, other: Ints
    ) -> tuple[pa.RecordBatch, Ints]:
        """The pairs for which the condition holds, and their left rows."""
        columns = []
        for name in self._both.names:
            side, places = (left, mine) if name in self._inputs[0].names else (right, other)
            columns.append(taken(side.column(name), places))
        found = pa.RecordBatch.from_arrays(columns, schema=self._both)
        if self._holds is not None:
            mask = self._holds(found)
            found = found.filter(mask)
            if mask.null_count:
                mask = mask.fill_null(False)
            mine = mine[mask.to_numpy(zero_copy_only=False)]
        return found.select(self.keep), mine

    def alone(self, left: pa.RecordBatch, mine: Ints) -> pa.RecordBatch:
        """Left rows without a partner."""
        columns = [
            taken(left.column(field.name), mine)
            if field.name in self._inputs[0].names
            else pa.nulls(len(mine), field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def check_keys(schemas: Sequence[pa.Schema], on: Sequence[tuple[str, str]], verb: str) -> None:
    for pair in on:
        for schema, name in zip(schemas, pair, strict=True):
            if name not in schema.names:
                raise PipelineError(f"{verb}: there is no column '{name}' to join by.")
            if not is_narrow(schema.field(name).type):
                raise PipelineError(
                    f"{verb}: column '{name}' is {schema.field(name).type}; number its values, and join by "
                    "the numbers."
                )


def keys(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> tuple[Ints, Ints]:
    """One integer per row on either side, equal if and only if all key columns are equal and none is null."""
    if not left:
        raise ValueError("no key columns")
    one, two = integers(left[0]), integers(right[0])
    for mine, other in zip(left[1:], right[1:], strict=True):
        both = np.concatenate([one, two])
        more = np.concatenate([integers(mine), integers(other)])
        both = np.unique(both, return_inverse=True)[1] << 32 | np.unique(more, return_inverse=True)[1]
        one, two = both[: len(one)], both[len(one) :]
    lowest = min(int(one.min(initial=0)), int(two.min(initial=0)))
    for side, columns, null in ((0, left, lowest - 1), (1, right, lowest - 2)):
        for column in columns:
            missing = invalid(column)
            if missing is not None and side == 0:
                one = np.where(missing, null, one)
            elif missing is not None:
                two = np.where(missing, null, two)
    return one, two


def sorted_places(values: Ints) -> Ints | None:
    """The places of values when sorted (stable); None if they are sorted already."""
    if bool((values[1:] >= values[:-1]).all()):
        return None
    if int(values.min()) >= 0 and int(values.max()) < 1 << 31:
        # Sorting numbers takes a fraction of sorting places by them.
        return np.sort((values << 32) | np.arange(len(values))) & 0xFFFF_FFFF
    return np.argsort(values, kind="stable")


class Index:
    """Finds the rows of a key: a table by key where keys are dense, as the numbers of terms are."""

    def __init__(self, values: Ints) -> None:
        self._places = sorted_places(values)
        self._sorted = values if self._places is None else values[self._places]
        self._low = int(self._sorted[0]) if len(values) else 0
        span = int(self._sorted[-1]) - self._low + 1 if len(values) else 0
        self._begins: Ints | None = None
        if span <= 16 * len(values) + 65_536:
            counts = np.bincount(self._sorted - self._low, minlength=span)
            self._begins = np.concatenate([[0], np.cumsum(counts)])

    def find(self, values: Ints) -> tuple[Ints, Ints]:
        """For each value where its rows begin, and how many there are."""
        if self._begins is None:
            begins = np.searchsorted(self._sorted, values)
            return begins, np.searchsorted(self._sorted, values, side="right") - begins
        inside = (values >= self._low) & (values < self._low + len(self._begins) - 1)
        slots = np.where(inside, values - self._low, 0)
        begins = self._begins[slots]
        return begins, np.where(inside, self._begins[slots + 1] - begins, 0) if len(
            self._sorted
        ) else begins * 0

    def pairs(self, values: Ints) -> Iterator[tuple[int, int, Ints, Ints]]:
        """Rows from where to where, and their pairs: the asking rows, and the rows that they find."""
        begins, counts = self.find(values)
        ends = np.cumsum(counts)
        start = 0
        while start < len(values):
            before = int(ends[start - 1]) if start else 0
            stop = max(int(np.searchsorted(ends, before + PAIRS, side="right")), start + 1)
            mine, other = spread(begins[start:stop], counts[start:stop])
            other = other if self._places is None else self._places[other]
            yield start, stop, mine + start, other
            start = stop


def spread(begins: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Each place as often as it counts, and one after the other what it begins."""
    mine = np.repeat(np.arange(len(counts)), counts)
    ends = np.cumsum(counts)
    return mine, np.arange(len(mine)) + np.repeat(begins - (ends - counts), counts)
