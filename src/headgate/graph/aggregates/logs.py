"""collect_list, count(DISTINCT) and approx_percentile: functions that remember values.

A log keeps rows of (group, sequence, value, weight) in runs sorted by group, of geometrically growing
length, so that adding rows and reading some groups' rows cost the logarithm of the state, not the state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.graph.aggregates.base import Accumulator, present
from headgate.graph.aggregates.choices import from_sortable
from headgate.graph.columns import Ints, from_words, integers, is_narrow, sortable, taken, words
from headgate.graph.runs import outgrown

Values = Any
"""Numbers as they are in memory, or an Arrow array of anything else; without nulls."""
_NONE: Ints = np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class Run:
    """Rows sorted by group."""

    groups: Ints
    sequence: Ints
    values: Values
    weights: Ints | None = None
    """How many rows each stands for; None: every row for itself."""

    def __len__(self) -> int:
        return len(self.groups)

    def take(self, rows: Ints) -> Run:
        values = taken(self.values, rows) if isinstance(self.values, pa.Array) else self.values[rows]
        weights = None if self.weights is None else self.weights[rows]
        return Run(self.groups[rows], self.sequence[rows], values, weights)


def _joined(runs: Sequence[Run]) -> Run:
    if len(runs) == 1:
        return runs[0]
    values = [r.values for r in runs]
    weights = [r.weights for r in runs if r.weights is not None]
    return Run(
        np.concatenate([r.groups for r in runs]),
        np.concatenate([r.sequence for r in runs]),
        pa.concat_arrays(values) if isinstance(values[0], pa.Array) else np.concatenate(values),
        np.concatenate(weights) if weights else None,
    )


class Log:
    """Rows of groups.  ``compact`` may shorten a run whose rows are not all needed."""

    def __init__(self, kind: pa.DataType, compact: Callable[[Run], Run] | None) -> None:
        self.type = kind
        self._compact = compact
        self._runs: list[Run] = []

    def append(self, run: Run) -> None:
        """Add rows in any order of groups."""
        if len(run):
            self._runs.append(self._sorted(_joined([*outgrown(self._runs, len(run)), run])))

    def _sorted(self, run: Run) -> Run:
        run = run.take(run.groups.argsort(kind="stable"))
        return run if self._compact is None else self._compact(run)

    def rows(self, groups: Ints) -> Run:
        """The rows of ``groups``, with each group's place in ``groups`` as their group, sorted by it."""
        found = []
        for run in self._runs:
            low = run.groups.searchsorted(groups, side="left")
            length = run.groups.searchsorted(groups, side="right") - low
            through = length.cumsum()
            if not len(through) or not through[-1]:
                continue
            rows = np.arange(through[-1]) + (low - through + length).repeat(length)
            part = run.take(rows)
            part.groups = np.arange(len(groups)).repeat(length)
            found.append(part)
        if not found:
            return Run(_NONE, _NONE, kept(pa.array([], self.type)), _NONE)
        return found[0] if len(found) == 1 else self._sorted(_joined(found))


def kept(values: pa.Array) -> Values:
    """Values without nulls as a run keeps them."""
    plain = words(values)
    return values if plain is None else plain


class Remembering(Accumulator):
    """An accumulator whose state is a log."""

    def __init__(
        self, argument: pa.DataType | None, result: pa.DataType, parameters: Sequence[Any] = ()
    ) -> None:
        super().__init__(argument, result, parameters)
        self.log = Log(self.stored, self.compact)
        self.untold: list[Run] | None = None
        """Rows since the last call of ``told`` or ``changes``; None: changes are not tracked."""

    @property
    def stored(self) -> pa.DataType:
        return self.argument

    compact: Callable[[Run], Run] | None = None
    weighted = False
    """Whether a row may stand for several."""

    def encode(self, values: pa.Array) -> Values:
        return kept(values)

    def column(self, values: Values) -> pa.Array:
        """Values that a run keeps as an array."""
        return values if isinstance(values, pa.Array) else from_words(values, self.stored)

    def update(self, groups: Ints, values: pa.Array | None, sequence: Ints) -> None:
        assert values is not None
        groups, values, sequence = present(groups, values, sequence)
        weights = np.ones(len(groups), dtype=np.int64) if self.weighted else None
        run = Run(groups, sequence, self.encode(values), weights)
        self.log.append(run)
        if self.untold is not None and len(groups):
            self.untold.append(run)

    def merge(self, into: Ints, source: Self, groups: Ints) -> None:
        rows = source.log.rows(groups)
        rows.groups = into[rows.groups]
        self.log.append(rows)

    def take(self, groups: Ints) -> Self:
        taken = self.empty()
        taken.log.append(self.log.rows(groups))
        if self.untold is not None:
            rows = self._untold_rows(groups)
            taken.untold = [rows] if len(rows.groups) else []
        return taken

    def told(self) -> None:
        self.untold = []

    def changes(self, groups: Ints) -> dict[str, pa.Array]:
        return self._lists(self._untold_rows(groups), len(groups))

    def _untold_rows(self, groups: Ints) -> Run:
        log = Log(self.stored, self.compact)
        if self.untold:
            log.append(_joined(self.untold))
        return log.rows(groups)

    def snapshot(self, groups: Ints) -> dict[str, pa.Array]:
        return self._lists(self.log.rows(groups), len(groups))

    def _lists(self, rows: Run, count: int) -> dict[str, pa.Array]:
        offsets = pa.array(np.searchsorted(rows.groups, np.arange(count + 1)).astype(np.int32))
        weights = np.ones(len(rows), dtype=np.int64) if rows.weights is None else rows.weights
        columns = {
            "sequence": pa.array(rows.sequence),
            "value": self.column(rows.values),
            "weight": pa.array(weights),
        }
        return {name: pa.ListArray.from_arrays(offsets, column) for name, column in columns.items()}

    def in_order(self, groups: Ints) -> pa.Array:
        """The values of every group as they came."""
        rows = self.log.rows(groups)
        rows = rows.take(np.lexsort((rows.sequence, rows.groups)))
        offsets = rows.groups.searchsorted(np.arange(len(groups) + 1)).astype(np.int32)
        type_ = pa.list_(self.stored)
        return pa.ListArray.from_arrays(from_words(offsets, pa.int32()), self.column(rows.values), type_)

    def restore(self, groups: Ints, columns: dict[str, pa.Array]) -> None:
        lengths = columns["value"].value_lengths().to_numpy()
        self.log.append(
            Run(
                np.repeat(groups, lengths),
                columns["sequence"].flatten().to_numpy(),
                kept(columns["value"].flatten()),
                columns["weight"].flatten().to_numpy() if self.weighted else None,
            )
        )


class CollectList(Remembering):
    """The values in order of arrival, without nulls."""

    def result(self, groups: Ints) -> pa.Array:
        return self.in_order(groups)


class CountDistinct(Remembering):
    """Exact: the log keeps each distinct value of a group at most once per run."""

    def compact(self, run: Run) -> Run:
        values = self.column(run.values)
        if is_narrow(values.type):
            codes = integers(values)
        else:
            codes = values.dictionary_encode().indices.to_numpy().astype(np.int64)
        order = np.lexsort((codes, run.groups))
        groups, codes = run.groups[order], codes[order]
        new = np.ones(len(order), dtype=np.bool_)
        new[1:] = (groups[1:] != groups[:-1]) | (codes[1:] != codes[:-1])
        return run.take(order[new])

    def result(self, groups: Ints) -> pa.Array:
        return pa.array(np.bincount(self.log.rows(groups).groups, minlength=len(groups)))


class CollectSet(CountDistinct):
    """The distinct values in order of their first arrival, without nulls."""

    def result(self, groups: Ints) -> pa.Array:
        return self.in_order(groups)


class JoinedText(CollectList):
    """string_agg: the texts in order of arrival; ``parameters`` = (delimiter,)."""

    def result(self, groups: Ints) -> pa.Array:
        texts = self.in_order(groups)
        empty = pc.equal(pc.list_value_length(texts), 0)
        return pc.if_else(empty, pa.scalar(None, pa.string()), pc.binary_join(texts, self.parameters[0]))


class Percentile(Remembering):
    """approx_percentile: the smallest value that at least the share p of the values do not exceed.

    Exact while a group has at most 64 times ``accuracy`` values.  Beyond, its sorted values are put into
    buckets of at most a 1/(32 * accuracy) of their number, each kept as its highest value and its weight.
    A bucket blurs ranks by less than its weight; summaries are joined in a tree whose depth is below 32 for
    any stream that fits the numbers, so the value given for p has a rank within n/accuracy of p * n.
    ``parameters`` = (p or a tuple of them, accuracy).
    """

    weighted = True

    @property
    def stored(self) -> pa.DataType:
        return pa.int64()

    def encode(self, values: pa.Array) -> Values:
        return sortable(values)

    def compact(self, run: Run) -> Run:
        order = np.lexsort((run.values, run.groups))
        run = run.take(order)
        assert run.weights is not None
        buckets = 32 * int(self.parameters[1])
        starts = np.flatnonzero(np.concatenate([[True], run.groups[1:] != run.groups[:-1]]))
        if not len(order) or np.diff(np.append(starts, len(order))).max() <= 2 * buckets:
            return run
        lengths = np.diff(np.append(starts, len(order)))
        total = np.add.reduceat(run.weights, starts)
        through = np.cumsum(run.weights) - np.repeat(np.cumsum(total) - total, lengths)
        size = np.where(lengths > 2 * buckets, -(-total // buckets), 1)
        bucket = np.where(
            np.repeat(size > 1, lengths), (through - 1) // np.repeat(size, lengths), np.arange(len(order))
        )
        last = np.ones(len(order), dtype=np.bool_)
        last[:-1] = (run.groups[1:] != run.groups[:-1]) | (bucket[1:] != bucket[:-1])
        ends = np.flatnonzero(last)
        weights = np.diff(np.concatenate([[0], np.cumsum(run.weights)[ends]]))
        run = run.take(ends)
        run.weights = weights
        return run

    def result(self, groups: Ints) -> pa.Array:
        rows = self.log.rows(groups)
        values = rows.values
        assert rows.weights is not None
        total = np.bincount(rows.groups, rows.weights, minlength=len(groups)).astype(np.int64)
        below = np.concatenate([[0], np.cumsum(total)[:-1]]) if len(groups) else total
        through = np.cumsum(rows.weights)
        wanted = self.parameters[0]
        shares = wanted if isinstance(wanted, tuple) else (wanted,)
        columns = []
        for share in shares:
            rank = np.clip(np.ceil(float(share) * total).astype(np.int64), 1, np.maximum(total, 1))
            place = np.minimum(np.searchsorted(through, below + rank, side="left"), max(len(values) - 1, 0))
            columns.append(values[place] if len(values) else np.zeros(len(groups), dtype=np.int64))
        if not isinstance(wanted, tuple):
            return from_sortable(columns[0], total == 0, self.type)
        flat = np.column_stack(columns).reshape(-1)[np.repeat(total > 0, len(shares))]
        offsets = np.concatenate([[0], np.cumsum((total > 0) * len(shares))]).astype(np.int32)
        mask = pa.array(total == 0)
        items = from_sortable(flat, None, self.type.value_type)
        return pa.ListArray.from_arrays(pa.array(offsets), items, mask=mask).cast(self.type)
