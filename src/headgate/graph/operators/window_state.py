"""The state of windows: keys, groups of rows, and what is accumulated for each group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headgate.graph.aggregates import Accumulators, Input
from headgate.graph.columns import Ints
from headgate.graph.keys import KeyIndex, grown
from headgate.graph.operator import State
from headgate.graph.operators.panes import Closed
from headgate.graph.operators.snapshots import column, marked
from headgate.graph.time import Clock

if TYPE_CHECKING:
    from headgate.graph.operators.window import WindowAggregate

_FEW = 1024


class WindowState(State):
    """Open windows: keys, groups of rows, and what is accumulated for each group."""

    def __init__(self, operator: WindowAggregate) -> None:
        self._operator = operator
        self.late = 0
        self.seen = 0
        self.clock = Clock(operator.window.lateness)
        self.keys = KeyIndex(operator.key_types)
        self.groups = operator.new_groups()
        self.accumulators = Accumulators(operator.aggregates)
        self.changed = np.zeros(0, dtype=np.bool_)
        """Groups that have changed since their last early result."""
        self.changes: list[Ints] = []
        self.dead = 0

    def add(self, slots: Ints, times: Ints, before: Ints, inputs: Sequence[Input], sequence: Ints) -> None:
        """Fold in rows that are not late."""
        assignment = self.groups.assign(slots, times, before)
        groups, rows = assignment.groups, assignment.rows
        self.accumulators.grow(self.groups.count)
        if assignment.merged is not None and assignment.into is not None:
            self.accumulators.merge(assignment.into, self.accumulators, assignment.merged)
            self.dead += len(assignment.merged)
        if rows is not None:
            inputs = [_expanded(given, rows, len(slots)) for given in inputs]
            sequence = sequence[rows]
        self.accumulators.update(groups, inputs, sequence)
        if self._operator.early is not None and len(groups):
            self.changed = grown(self.changed, self.groups.count, False)
            fresh = np.unique(groups[~self.changed[groups]])
            self.changed[fresh] = True
            self.changes.append(fresh)

    def close(self, now: int) -> Closed:
        closed = self.groups.close(now)
        self.dead += len(closed.dropped)
        return closed

    def take_changed(self) -> Ints:
        """The open groups that changed since this was last asked."""
        groups = np.concatenate([np.zeros(0, dtype=np.int64), *self.changes])
        self.changes.clear()
        self.changed[groups] = False
        live: Ints = groups[self.groups.alive[groups]]
        return live

    def tidy(self) -> None:
        """Forget closed groups, and keys without open groups, once they are more than half."""
        if self.dead <= max(_FEW, self.groups.count // 2):
            return
        live = np.flatnonzero(self.groups.alive[: self.groups.count])
        slots = self.groups.slots(live)
        used = np.unique(slots)
        if 2 * len(used) < len(self.keys):
            self.keys, moved = self.keys.retain(used)
            slots = moved[np.searchsorted(used, slots)]
        changed = self.changed[live] if self._operator.early is not None else self.changed
        self.groups = self.groups.compacted(self._operator.window, live, slots)
        self.accumulators = self.accumulators.take(live)
        self.changed, self.changes = changed, [np.flatnonzero(changed)]
        self.dead = 0

    def snapshot(self) -> pa.Table:
        groups, columns = self.groups.snapshot()
        keys = self.keys.keys(self.groups.slots(groups))
        changed = grown(self.changed, self.groups.count, False)[groups]
        columns = columns | {"changed": pa.array(changed)} | self.accumulators.snapshot(groups)
        names = [*self._operator.keys, *(f"state.{name}" for name in columns)]
        table = pa.Table.from_arrays([*keys, *columns.values()], names=names)
        return marked(table, self.clock.maximum, self.seen, self.late)

    def load(self, table: pa.Table) -> None:
        """Add the groups of a snapshot."""
        keys = [column(table, name) for name in self._operator.keys]
        columns = {
            name.removeprefix("state."): column(table, name) for name in table.column_names[len(keys) :]
        }
        groups = self.groups.restore(self.keys.slots(keys, table.num_rows), columns)
        self.accumulators.grow(self.groups.count)
        self.accumulators.restore(groups, columns)
        self.changed = grown(self.changed, self.groups.count, False)
        fresh = groups[columns["changed"].to_numpy(zero_copy_only=False)]
        self.changed[fresh] = True
        self.changes.append(fresh)


def _expanded(given: Input, rows: Ints, count: int) -> Input:
    """An aggregate's input where row i of the new rows is row ``rows[i]`` of the old."""
    chosen, values = given
    if chosen is None:
        return None, None if values is None else values.take(pa.array(rows))
    place = np.full(count, -1, dtype=np.int64)
    place[chosen] = np.arange(len(chosen))
    places = place[rows]
    kept = np.flatnonzero(places >= 0)
    return kept, None if values is None else values.take(pa.array(places[kept]))


def sliced(given: Input, start: int, end: int) -> Input:
    """An aggregate's input for the rows from ``start`` to ``end``."""
    rows, values = given
    if rows is None:
        return None, None if values is None else values.slice(start, end - start)
    low, high = np.searchsorted(rows, [start, end])
    return rows[low:high] - start, None if values is None else values.slice(low, high - low)
