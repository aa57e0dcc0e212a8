"""The state of windows: keys, groups of rows, and what is accumulated for each group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from headgate.graph.aggregates import Accumulators, Input
from headgate.graph.columns import Ints, taken
from headgate.graph.keys import KeyIndex, moved, sorted_distinct
from headgate.graph.numbering import grown
from headgate.graph.operator import State
from headgate.graph.operators.panes import Closed, Panes
from headgate.graph.operators.session import Sessions
from headgate.graph.operators.snapshots import Touched, column, is_whole, marked, marks, tracked, whole
from headgate.graph.time import NEVER, Clock
from headgate.graph.windows import Window
from headgate.sql import Aggregate

_FEW = 1024


class Windowing(Protocol):
    """What the state needs to know of its operator."""

    window: Window
    keys: tuple[str, ...]
    key_types: list[pa.DataType]
    aggregates: list[Aggregate]
    early: int | None

    def new_groups(self) -> Panes | Sessions: ...


class WindowState(State):
    """Open windows: keys, groups of rows, and what is accumulated for each group."""

    def __init__(self, operator: Windowing) -> None:
        self._operator = operator
        self.seen = 0
        self.clock = Clock(operator.window.lateness)
        self._touched: Touched | None = None
        self._ended = False
        """Whether the end of the stream has closed windows that time has not."""
        self.clear()

    def clear(self) -> None:
        """Forget all windows."""
        self.keys = KeyIndex(self._operator.key_types)
        self.groups = self._operator.new_groups()
        self.accumulators = Accumulators(self._operator.aggregates)
        self.changed = np.zeros(0, dtype=np.bool_)
        """Groups that have changed since their last early result."""
        self._unreported: list[Ints] = []
        self.dead = 0
        if self._touched is not None:
            self.track()

    def add(self, slots: Ints, times: Ints, before: Ints, inputs: Sequence[Input], sequence: Ints) -> Ints:
        """Fold in rows that are not late; their groups."""
        self.groups.reserve(len(self.keys))
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
            self._unreported.append(fresh)
        if self._touched is not None:
            self._touched.add(groups)
        return groups

    def fold(self, into: Ints, given: Accumulators, groups: Ints) -> None:
        """Fold ``groups`` of what was accumulated elsewhere into groups that are known here."""
        self.accumulators.grow(self.groups.count)
        self.accumulators.merge(into, given, groups)
        if self._touched is not None:
            self._touched.add(into)

    def close(self, now: int) -> Closed | None:
        """Take out the windows that end at ``now`` or before; None if there are none."""
        if self.groups.calendar.first > now:
            return None
        closed = self.groups.close(now)
        self.dead += len(closed.dropped)
        return closed if len(closed.slots) else None

    def end(self) -> None:
        """The stream has ended and its windows have left."""
        self.clear()
        self._ended = True

    def take_changed(self) -> Ints:
        """The open groups that changed since this was last asked."""
        groups = np.concatenate([np.zeros(0, dtype=np.int64), *self._unreported])
        self._unreported.clear()
        self.changed[groups] = False
        live: Ints = groups[self.groups.alive[groups]]
        return live

    def tidy(self) -> None:
        """Forget closed groups, and keys without open groups, once they are more than half."""
        if self.dead <= max(_FEW, self.groups.count // 2):
            return
        live = np.flatnonzero(self.groups.alive[: self.groups.count])
        if self._touched is not None:
            places = np.full(self.groups.count, -1, dtype=np.int64)
            places[live] = np.arange(len(live))
            self._touched.move(places)
        slots = self.groups.slots(live)
        used = sorted_distinct(slots, len(self.keys))
        if 2 * len(used) < len(self.keys):
            self.keys, places = self.keys.retain(used)
            slots = moved(used, places)[slots]
        changed = self.changed[live] if self._operator.early is not None else self.changed
        self.groups = self.groups.compacted(self._operator.window, live, slots)
        self.accumulators = self.accumulators.take(live)
        self.changed, self._unreported = changed, [np.flatnonzero(changed)]
        self.dead = 0

    def snapshot(self) -> pa.Table:
        groups, columns = self.groups.snapshot()
        return self._table(groups, columns, self.accumulators.snapshot(groups))

    def track(self) -> None:
        self._touched, self._ended = Touched(), False
        self._tell()

    def _tell(self) -> None:
        if self._touched is not None and self.groups.lasting:
            self.accumulators.told()

    def changes(self) -> pa.Table:
        touched = tracked(self._touched).take()
        if self._ended:
            self._ended = False
            self._tell()
            return whole(self.snapshot())
        groups, columns = self.groups.changed(touched[self.groups.alive[touched]], self.clock.now)
        if self.groups.lasting:
            values = self.accumulators.changes(groups)
        else:
            values = self.accumulators.snapshot(groups)
        self._tell()
        return self._table(groups, columns, values)

    def apply(self, changes: pa.Table) -> None:
        early, before = self._operator.early, self.clock.now
        self.clock.maximum, self.seen, self.late = marks([changes], NEVER)
        if is_whole(changes):
            self.clear()
        else:
            if early is not None and before // early < self.clock.now // early:
                self.take_changed()
            self.close(self.clock.now)
        if changes.num_rows:
            self.load(changes, known=True)
        self.tidy()

    def _table(self, groups: Ints, columns: dict[str, pa.Array], values: dict[str, pa.Array]) -> pa.Table:
        keys = self.keys.keys(self.groups.slots(groups))
        there = groups < len(self.changed)
        changed = np.zeros(len(groups), dtype=np.bool_)
        changed[there] = self.changed[groups[there]]
        columns = columns | {"changed": pa.array(changed)} | values
        names = [*self._operator.keys, *(f"state.{name}" for name in columns)]
        table = pa.Table.from_arrays([*keys, *columns.values()], names=names)
        return marked(table, self.clock.maximum, self.seen, self.late)

    def load(self, table: pa.Table, known: bool = False) -> None:
        """Add the groups of a snapshot; with ``known``, of changes, whose groups may exist here already."""
        keys = [column(table, name) for name in self._operator.keys]
        columns = {
            name.removeprefix("state."): column(table, name) for name in table.column_names[len(keys) :]
        }
        slots = self.keys.slots(keys, table.num_rows)
        if known and isinstance(self.groups, Sessions):
            self.dead += self.groups.drop(np.unique(slots))
        groups = self.groups.restore(slots, columns)
        self.accumulators.grow(self.groups.count)
        if known and self.groups.lasting:
            self.accumulators.apply(groups, columns)
        else:
            self.accumulators.restore(groups, columns)
        self.changed = grown(self.changed, self.groups.count, False)
        fresh = groups[columns["changed"].to_numpy(zero_copy_only=False) & ~self.changed[groups]]
        self.changed[fresh] = True
        self._unreported.append(fresh)


def _expanded(given: Input, rows: Ints, count: int) -> Input:
    """An aggregate's input where row i of the new rows is row ``rows[i]`` of the old."""
    chosen, values = given
    if chosen is None:
        return None, None if values is None else taken(values, rows)
    place = np.full(count, -1, dtype=np.int64)
    place[chosen] = np.arange(len(chosen))
    places = place[rows]
    kept = np.flatnonzero(places >= 0)
    return kept, None if values is None else taken(values, places[kept])


def sliced(given: Input, start: int, end: int) -> Input:
    """An aggregate's input for the rows from ``start`` to ``end``."""
    rows, values = given
    if rows is None:
        return None, None if values is None else values.slice(start, end - start)
    low, high = np.searchsorted(rows, [start, end])
    return rows[low:high] - start, None if values is None else values.slice(low, high - low)
