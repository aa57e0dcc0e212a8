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

from headgate.graph.aggregates.base import Accumulator, present
from headgate.graph.aggregates.choices import from_sortable, sortable
from headgate.graph.columns import Ints, integers, is_narrow


@dataclass(slots=True)
class Run:
    """Rows sorted by group."""

    groups: Ints
    sequence: Ints
    values: pa.Array
    weights: Ints

    def take(self, rows: Ints) -> Run:
        return Run(
            self.groups[rows], self.sequence[rows], self.values.take(pa.array(rows)), self.weights[rows]
        )


def _joined(runs: Sequence[Run]) -> Run:
    return Run(
        np.concatenate([r.groups for r in runs]),
        np.concatenate([r.sequence for r in runs]),
        pa.concat_arrays([r.values for r in runs]),
        np.concatenate([r.weights for r in runs]),
    )


class Log:
    """Rows of groups.  ``compact`` may shorten a run whose rows are not all needed."""

    def __init__(self, kind: pa.DataType, compact: Callable[[Run], Run]) -> None:
        self.type = kind
        self._compact = compact
        self._runs: list[Run] = []

    def append(self, run: Run) -> None:
        """Add rows in any order of groups."""
        if not len(run.groups):
            return
        run = self._sorted(run)
        while self._runs and len(self._runs[-1].groups) <= 2 * len(run.groups):
            run = self._sorted(_joined([self._runs.pop(), run]))
        self._runs.append(run)

    def _sorted(self, run: Run) -> Run:
        return self._compact(run.take(np.argsort(run.groups, kind="stable")))

    def rows(self, groups: Ints) -> Run:
        """The rows of ``groups``, with each group's place in ``groups`` as their group, sorted by it."""
        found = [
            Run(np.zeros(0, np.int64), np.zeros(0, np.int64), pa.array([], self.type), np.zeros(0, np.int64))
        ]
        for run in self._runs:
            low = np.searchsorted(run.groups, groups, side="left")
            length = np.searchsorted(run.groups, groups, side="right") - low
            places = np.repeat(np.arange(len(groups)), length)
            starts = np.repeat(low - np.concatenate([[0], np.cumsum(length)[:-1]]), length)
            part = run.take(starts + np.arange(len(places)))
            part.groups = places
            found.append(part)
        return self._sorted(_joined(found))


class Remembering(Accumulator):
    """An accumulator whose state is a log."""

    def __init__(
        self, argument: pa.DataType | None, result: pa.DataType, parameters: Sequence[Any] = ()
    ) -> None:
        super().__init__(argument, result, parameters)
        self.log = Log(self.stored, self.compact)
        self.untold: list[Run] | None = None
        """Rows that have come since changes were last asked for; None: nobody asks."""

    @property
    def stored(self) -> pa.DataType:
        return self.argument

    def compact(self, run: Run) -> Run:
        return run

    def encode(self, values: pa.Array) -> pa.Array:
        return values

    def update(self, groups: Ints, values: pa.Array | None, sequence: Ints) -> None:
        assert values is not None
        groups, values, sequence = present(groups, values, sequence)
        run = Run(groups, sequence, self.encode(values), np.ones(len(groups), dtype=np.int64))
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
        columns = {
            "sequence": pa.array(rows.sequence),
            "value": rows.values,
            "weight": pa.array(rows.weights),
        }
        return {name: pa.ListArray.from_arrays(offsets, column) for name, column in columns.items()}

    def restore(self, groups: Ints, columns: dict[str, pa.Array]) -> None:
        lengths = columns["value"].value_lengths().to_numpy()
        self.log.append(
            Run(
                np.repeat(groups, lengths),
                columns["sequence"].flatten().to_numpy(),
                columns["value"].flatten(),
                columns["weight"].flatten().to_numpy(),
            )
        )


class CollectList(Remembering):
    """The values in order of arrival, without nulls."""

    def result(self, groups: Ints) -> pa.Array:
        rows = self.log.rows(groups)
        rows = rows.take(np.lexsort((rows.sequence, rows.groups)))
        offsets = np.searchsorted(rows.groups, np.arange(len(groups) + 1)).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), rows.values).cast(self.type)


class CountDistinct(Remembering):
    """Exact: the log keeps each distinct value of a group at most once per run."""

    def compact(self, run: Run) -> Run:
        if is_narrow(run.values.type):
            codes = integers(run.values)
        else:
            codes = run.values.dictionary_encode().indices.to_numpy().astype(np.int64)
        order = np.lexsort((codes, run.groups))
        groups, codes = run.groups[order], codes[order]
        new = np.ones(len(order), dtype=np.bool_)
        new[1:] = (groups[1:] != groups[:-1]) | (codes[1:] != codes[:-1])
        return run.take(order[new])

    def result(self, groups: Ints) -> pa.Array:
        return pa.array(np.bincount(self.log.rows(groups).groups, minlength=len(groups)))


class Percentile(Remembering):
    """approx_percentile: the smallest value that at least the share p of the values do not exceed.

    Exact while a group has at most 64 times ``accuracy`` values.  Beyond, its sorted values are put into
    buckets of at most a 1/(32 * accuracy) of their number, each kept as its highest value and its weight.
    A bucket blurs ranks by less than its weight; summaries are joined in a tree whose depth is below 32 for
    any stream that fits the numbers, so the value given for p has a rank within n/accuracy of p * n.
    ``parameters`` = (p or a tuple of them, accuracy).
    """

    @property
    def stored(self) -> pa.DataType:
        return pa.int64()

    def encode(self, values: pa.Array) -> pa.Array:
        return pa.array(sortable(values))

    def compact(self, run: Run) -> Run:
        values = run.values.to_numpy()
        order = np.lexsort((values, run.groups))
        run = run.take(order)
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
        values = rows.values.to_numpy()
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
