"""Running values that choose or remember: min, max, first, last and count(DISTINCT)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.graph.aggregates.base import Cells, firsts
from headgate.graph.aggregates.choices import from_sortable
from headgate.graph.aggregates.running import Change, Rows, Running
from headgate.graph.aggregates.scans import Segments, running, running_sums
from headgate.graph.columns import Ints, sortable
from headgate.graph.keys import KeyIndex
from headgate.graph.numbering import distinct
from headgate.sql import Aggregate


class RunningExtreme(Running):
    """min or max of values that fit 64 bits."""

    def __init__(self, aggregate: Aggregate) -> None:
        self._best = np.maximum if aggregate.function == "max" else np.minimum
        self._worst = -(1 << 63) if aggregate.function == "max" else (1 << 63) - 1
        self.fields = {"seen": (np.bool_, False), "value": (np.int64, self._worst)}
        super().__init__(aggregate)

    def scan(self, rows: Rows, segments: Segments) -> tuple[pa.Array, Change]:
        assert rows.values is not None
        bits = rows.sorted(sortable(rows.values), self._worst)
        value = running(self._best, bits, segments, self.carry("value", segments))
        seen = running(np.logical_or, rows.sorted_counted, segments, self.carry("seen", segments))
        result = from_sortable(segments.unsorted(value), segments.unsorted(~seen), self.type)
        return result, self.change(segments, value=value, seen=seen)


class RunningChoice(Running):
    """first, last, and min and max of long values: one of the rows' values, or the one remembered.

    The values that a packet can choose from are put into one pool, those remembered first; what runs along
    the segments is a place in the pool, or a rank in it.
    """

    fields = {"seen": (np.bool_, False)}  # noqa: RUF012

    def __init__(self, aggregate: Aggregate) -> None:
        super().__init__(aggregate)
        self.cells = {"value": Cells(self.argument if aggregate.function.endswith("_by") else aggregate.type)}
        self.by = aggregate.function in ("max_by", "min_by")
        self.ranked = self.by or aggregate.function in ("min", "max")
        self.highest = aggregate.function in ("max", "max_by", "last")
        ignores = bool(aggregate.parameters and aggregate.parameters[0])
        self.skip_nulls = self.ranked or ignores

    def scan(self, rows: Rows, segments: Segments) -> tuple[pa.Array, Change]:
        assert rows.values is not None
        known = len(segments.slots)
        pool = pa.concat_arrays([self.cells["value"].get(segments.slots), rows.values])
        weight = np.arange(len(pool))
        if self.ranked:
            ranked = pc.struct_field(pool, 1) if self.by else pool
            weight = pc.rank(ranked, sort_keys="ascending", tiebreaker="first").to_numpy().astype(np.int64)
        else:
            # Rows weigh by their sorted place, so that the order of arrival decides within a key.
            weight[known + segments.order] = np.arange(known, len(pool))
        none = -1 if self.highest else len(pool) + 1
        seen = self.carry("seen", segments)
        best = np.maximum if self.highest else np.minimum
        chosen = running(
            best,
            np.where(rows.sorted_counted, weight[known + segments.order], none),
            segments,
            np.where(seen, weight[:known], none),
        )
        place = np.zeros(len(pool) + 1, dtype=np.int64)
        place[weight] = np.arange(len(pool))
        missing = chosen == none
        picks = np.where(missing, 0, place[np.where(missing, 0, chosen)])
        result = pool.take(pa.array(segments.unsorted(picks), mask=segments.unsorted(missing)))
        slots, last = segments.slots[segments.final], segments.ends[segments.final]
        ends = pool.take(pa.array(picks[last], mask=missing[last]))
        was_seen = ~missing[last]

        def apply() -> None:
            self.cells["value"].put(slots, ends)
            self.arrays["seen"][slots] = was_seen

        return pc.struct_field(result, 0) if self.by else result, apply


class RunningLag(Running):
    """lag: the value of the key's row before, or the default if there was none."""

    fields = {"seen": (np.bool_, False)}  # noqa: RUF012
    skip_nulls = False

    def __init__(self, aggregate: Aggregate) -> None:
        super().__init__(aggregate)
        self.cells = {"value": Cells(aggregate.type)}
        (self.default,) = aggregate.parameters

    def scan(self, rows: Rows, segments: Segments) -> tuple[pa.Array, Change]:
        assert rows.values is not None
        known = len(segments.slots)
        none = pa.array([self.default], self.type)
        pool = pa.concat_arrays([self.cells["value"].get(segments.slots), rows.values, none])
        places = np.empty(len(segments.order), dtype=np.int64)
        places[1:] = known + segments.order[:-1]
        seen = self.carry("seen", segments)
        places[segments.starts] = np.where(seen, np.arange(known), len(pool) - 1)
        result = pool.take(pa.array(segments.unsorted(places)))
        slots, last = segments.slots[segments.final], segments.ends[segments.final]
        ends = rows.values.take(pa.array(segments.order[last]))

        def apply() -> None:
            self.cells["value"].put(slots, ends)
            self.arrays["seen"][slots] = True

        return result, apply


class RunningDistinct(Running):
    """count(DISTINCT): a row counts if its (incarnation of the key, value) is met for the first time."""

    fields = {"count": (np.int64, 0), "incarnation": (np.int64, -1)}  # noqa: RUF012

    def __init__(self, aggregate: Aggregate) -> None:
        super().__init__(aggregate)
        self._pairs = KeyIndex([pa.int64(), self.argument])
        self._incarnations = 0
        self._told_pairs = self._told_incarnations = 0
        """Both are numbered in order, so ``changes`` has written everything below these numbers."""

    def scan(self, rows: Rows, segments: Segments) -> tuple[pa.Array, Change]:
        assert rows.values is not None
        lives = self.carry("incarnation", segments)
        unborn = lives < 0
        lives[unborn] = np.arange(self._incarnations, self._incarnations + int(unborn.sum()))
        self._incarnations += int(unborn.sum())
        life = segments.unsorted(np.repeat(lives, segments.lengths))
        counted = np.flatnonzero(rows.counted)
        known = len(self._pairs)
        pairs = self._pairs.slots(
            [pa.array(life[counted]), rows.values.take(pa.array(counted))], len(counted)
        )
        fresh, places = distinct(pairs)
        first = firsts(places, len(fresh))[fresh >= known]
        new = np.zeros(len(life), dtype=np.int64)
        new[counted[first]] = 1
        count = running_sums(new[segments.order], segments, self.carry("count", segments))
        lives_of_rows = np.repeat(lives, segments.lengths)
        return pa.array(segments.unsorted(count)), self.change(
            segments, count=count, incarnation=lives_of_rows
        )

    def _values(self, slots: Ints, since: int = 0) -> tuple[Ints, pa.Array]:
        """Distinct values of ``slots`` from pair ``since`` on, and the place of each one's slot."""
        lives, values = self._pairs.keys(np.arange(since, len(self._pairs)))
        mine = self.arrays["incarnation"][slots]
        by_life = np.argsort(mine)
        owner = np.full(len(lives), -1, dtype=np.int64)
        if len(slots):
            life = lives.to_numpy()
            found = by_life[np.minimum(np.searchsorted(mine[by_life], life), len(slots) - 1)]
            owner = np.where(mine[found] == life, found, -1)
        order = np.argsort(owner, kind="stable")
        order = order[owner[order] >= 0]
        return owner[order], values.take(pa.array(order))

    def keep(self, slots: Ints) -> None:
        columns = self.snapshot(slots)
        for name, (dtype, fill) in self.fields.items():
            self.arrays[name] = np.full(len(slots), fill, dtype=dtype)
        self._pairs, self._incarnations = KeyIndex(self._pairs.types), 0
        self._told_pairs = self._told_incarnations = 0
        self.restore(np.arange(len(slots)), columns)

    def told(self) -> None:
        self._told_pairs, self._told_incarnations = len(self._pairs), self._incarnations

    def changes(self, slots: Ints) -> dict[str, pa.Array]:
        """The new values; ``continues`` if they come to those that the key had."""
        continues = self.arrays["incarnation"][slots] < self._told_incarnations
        return self.snapshot(slots, self._told_pairs) | {"continues": pa.array(continues)}

    def apply(self, slots: Ints, columns: dict[str, pa.Array]) -> None:
        continues = columns["continues"].to_numpy(zero_copy_only=False)
        known = self.arrays["incarnation"][slots]
        self.restore(slots, columns, np.where(continues, known, -1))

    def snapshot(self, slots: Ints, since: int = 0) -> dict[str, pa.Array]:
        owner, values = self._values(slots, since)
        offsets = pa.array(np.searchsorted(owner, np.arange(len(slots) + 1)).astype(np.int32))
        return {
            "count": pa.array(self.arrays["count"][slots]),
            "values": pa.ListArray.from_arrays(offsets, values),
        }

    def restore(self, slots: Ints, columns: dict[str, pa.Array], known: Ints | None = None) -> None:
        lives = np.full(len(slots), -1, dtype=np.int64) if known is None else known
        unborn = np.flatnonzero(lives < 0)
        lives[unborn] = np.arange(self._incarnations, self._incarnations + len(unborn))
        self._incarnations += len(unborn)
        self.arrays["count"][slots] = columns["count"].to_numpy()
        self.arrays["incarnation"][slots] = lives
        life = np.repeat(lives, columns["values"].value_lengths().to_numpy())
        self._pairs.slots([pa.array(life), columns["values"].flatten()], len(life))
