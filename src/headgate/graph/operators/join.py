"""``keyed.join(other_keyed, within="5 minutes", on="ts")``: pairs of equal key that are close in time.

A pair is caused by the one of its rows that comes later.  Time at a tuple is the smaller of the two inputs'
maxima of event time up to and including it; a row is gone for every tuple at which time has passed it by
more than ``within``.  Whether it is still in memory then makes no difference to the results.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headgate.errors import PipelineError, TypeMismatch
from headgate.graph.columns import Ints, check_key, invalid, taken
from headgate.graph.durations import parse_duration
from headgate.graph.keys import KeyIndex
from headgate.graph.operator import Kind, Operator, State
from headgate.graph.operators._user import refuse_far_times
from headgate.graph.operators.interval import Run, Shelf
from headgate.graph.operators.snapshots import tracked
from headgate.graph.packet import Marker, Order, Packet
from headgate.graph.schema import require_columns
from headgate.graph.time import NEVER, event_times, time_column

_META = b"headgate.join"
_LEFT, _RIGHT = 0, 1
_SPARE_KEYS = 65_536


class JoinState(State):
    """Rows of both inputs that may still find partners, and the current time."""

    def __init__(self, join: Join) -> None:
        self._join = join
        self.index = KeyIndex(join.key_types)
        self.shelves = (Shelf(), Shelf())
        self.counts = [0, 0]
        self.maxima = [NEVER, NEVER]
        self.clock = NEVER
        self._untold: tuple[list[Run], list[Run]] | None = None
        """Rows of both inputs since the last call of ``changes``; None: changes are not tracked."""

    @property
    def oldest(self) -> int:
        """The time before which rows are gone."""
        return max(self.clock, NEVER) - self._join.within

    def advance(self, packets: Sequence[Packet], serials: Ints) -> Ints:
        """Time at each of ``serials`` (not decreasing), which are all those of the call."""
        moved = [self._join.moves(packet, side) for side, packet in enumerate(packets)]
        # Ticks may go beyond the last row that this bucket has; the clock must not depend on buckets.
        end = max([NEVER, *(int(at[-1]) for at in (serials, moved[0][0], moved[1][0]) if len(at))])
        at = np.append(serials, end)
        times = np.full(len(at), NEVER, dtype=np.int64)
        held = np.zeros(len(at), dtype=bool)
        for side, (moved_at, moves) in enumerate(moved):
            highest = np.maximum.accumulate(np.concatenate([[self.maxima[side]], moves]))
            self.maxima[side] = int(highest[-1])
            mine = highest[np.searchsorted(moved_at, at, side="right")]
            out = self.ended.get(side)
            if out is None and side in self.idle:
                out = int(moved_at[-1]) + 1 if len(moved_at) else NEVER
            holds = np.ones(len(at), dtype=bool) if out is None else at < out
            times = np.where(holds & held, np.minimum(times, mine), np.where(holds, mine, times))
            held |= holds
        times = np.maximum.accumulate(np.concatenate([[self.clock], times]))
        self.clock = int(times[-1])
        return times[1:-1]

    def remember(self, side: int, run: Run) -> None:
        self.shelves[side].add(run, self.oldest)
        if self._untold is not None:
            self._untold[side].append(run)

    def forget(self) -> None:
        """Let go of rows that are gone, and of keys without rows, once they are many."""
        for shelf in self.shelves:
            shelf.forget(self.oldest)
        if len(self.index) > _SPARE_KEYS + 2 * sum(map(len, self.shelves)):
            self._forget_keys()

    def _forget_keys(self) -> None:
        runs = [run.slots for shelf in self.shelves for run in shelf]
        live = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *runs]))
        numbers = np.full(len(self.index), -1, dtype=np.int64)
        self.index, numbers[live] = self.index.retain(live)
        for shelf in self.shelves:
            shelf.renumber(numbers)

    def snapshot(self) -> pa.Table:
        return self._table((self.shelves[_LEFT].runs, self.shelves[_RIGHT].runs))

    def track(self) -> None:
        self._untold = ([], [])

    def changes(self) -> pa.Table:
        """The rows that have come and are not gone yet."""
        table = self._table(tracked(self._untold))
        self.track()
        return table

    def apply(self, changes: pa.Table) -> None:
        meta = json.loads((changes.schema.metadata or {})[_META])
        self.clock, self.maxima, self.counts = meta["clock"], meta["maxima"], meta["counts"]
        self.load(changes)
        self.forget()

    def load(self, table: pa.Table) -> None:
        """Add rows that were written."""
        for batch in table.to_batches():
            sides = batch.column("_side").to_numpy()
            for side in (_LEFT, _RIGHT):
                rows = np.flatnonzero(sides == side)
                if len(rows):
                    run = self._join.written(taken(batch, rows), side, self.index)
                    self.shelves[side].add(run, self.oldest)

    def _table(self, runs: tuple[list[Run], list[Run]]) -> pa.Table:
        join = self._join
        notes = {"maxima": self.maxima, "clock": self.clock, "counts": self.counts}
        schema = join.snapshot_schema().with_metadata({_META: json.dumps(notes).encode()})
        batches = []
        for side in (_LEFT, _RIGHT):
            for run in (run.since(self.oldest) for run in runs[side]):
                rows = run.batch
                columns = [rows.column(name) for name in join.keys_by_input[side]]
                columns += [pa.array(np.full(len(run), side, dtype=np.int8)), pa.array(run.sequence)]
                for other, input_schema in enumerate(join.inputs):
                    if other == side:
                        columns.append(pa.StructArray.from_arrays(rows.columns, fields=list(input_schema)))
                    else:
                        columns.append(pa.nulls(len(run), pa.struct(list(input_schema))))
                batches.append(pa.RecordBatch.from_arrays(columns, schema=schema))
        return pa.Table.from_batches(batches, schema=schema)


@dataclass(frozen=True)
class _New:
    """The rows of one input's packet that can find partners: both key and time are there."""

    run: Run
    clock: Ints
    """Time at the row."""
    place: Ints
    """Place among all rows of the call, in the order in which they come."""


@dataclass(frozen=True)
class _Pairs:
    left: pa.RecordBatch
    right: pa.RecordBatch
    cause: Ints
    partner: Ints


class Join(Operator):
    """Inner join of two inputs by key and time."""

    kind = Kind.KEYED
    holds_time = True

    def __init__(
        self,
        left_schema: pa.Schema,
        right_schema: pa.Schema,
        left_keys: Sequence[str],
        right_keys: Sequence[str],
        within: str | float,
        on: str | Sequence[str],
    ) -> None:
        schemas = (left_schema, right_schema)
        self.within = min(parse_duration(within, "join: within"), 1 << 60)
        self.keys_by_input = (
            tuple(require_columns(left_schema, left_keys, "join: left key")),
            tuple(require_columns(right_schema, right_keys, "join: right key")),
        )
        self._check_keys(schemas)
        pair = (on, on) if isinstance(on, str) else tuple(on)
        if len(pair) != 2:
            raise PipelineError(f"join: on= takes one time column or a pair (left, right), not {on!r}.")
        self.times_by_input = (
            require_columns(left_schema, [pair[0]], "join: on, left")[0],
            require_columns(right_schema, [pair[1]], "join: on, right")[0],
        )
        for schema, name, side in zip(schemas, self.times_by_input, ("left", "right"), strict=True):
            time_column(schema, name, f"join: on, {side}")
        super().__init__(schemas, [self._output(left_schema, right_schema)])

    def _check_keys(self, schemas: tuple[pa.Schema, pa.Schema]) -> None:
        left, right = self.keys_by_input
        if not left or len(left) != len(right):
            raise PipelineError(
                f"join: the left stream has {len(left)} key columns and the right one {len(right)}; "
                "key both by the same columns."
            )
        for mine, other in zip(left, right, strict=True):
            one, two = schemas[_LEFT].field(mine), schemas[_RIGHT].field(other)
            check_key(one, "join: left key")
            if one.type != two.type:
                raise TypeMismatch(
                    f"join: key '{mine}' is {one.type} on the left, but '{other}' is {two.type} on the "
                    "right; CAST one of them with .with_columns first."
                )
        self.key_types = [schemas[_LEFT].field(name).type for name in left]

    def _output(self, left: pa.Schema, right: pa.Schema) -> pa.Schema:
        self._right_columns = [name for name in right.names if name not in self.keys_by_input[_RIGHT]]
        fields = list(left)
        names = set(left.names)
        for name in self._right_columns:
            new = name if name not in left.names else f"{name}_right"
            if new in names:
                raise PipelineError(f"join: two columns would be named '{new}'; rename one of them first.")
            names.add(new)
            fields.append(right.field(name).with_name(new))
        return pa.schema(fields)

    @property
    def label(self) -> str:
        pairs = zip(*self.keys_by_input, strict=True)
        return f"join({', '.join(a if a == b else f'{a} = {b}' for a, b in pairs)})"

    def open(self) -> JoinState:
        return JoinState(self)

    def moves(self, packet: Packet, side: int) -> tuple[Ints, Ints]:
        """Serials and event times of the rows that move this input's time."""
        if packet.ticks is not None:
            return packet.ticks.order.serials, packet.ticks.times
        times = event_times(packet.batch.column(self.times_by_input[side]))
        return packet.order.serials, times

    def process(self, packets: Sequence[Packet], state: JoinState) -> list[Packet]:
        refuse_far_times(self, packets)
        both = Order.concat([p.order for p in packets])
        come = np.argsort(both.serials, kind="stable")
        serials = both.serials[come]
        clock = state.advance(packets, serials)
        place = np.empty(len(come), dtype=np.int64)
        place[come] = np.arange(len(come))
        split = len(packets[_LEFT])
        places = (place[:split], place[split:])
        new = [self._new(packets[side], side, state, places[side], clock) for side in (_LEFT, _RIGHT)]
        found = [self._meet(new[_LEFT], run, _LEFT) for run in state.shelves[_RIGHT]]
        found += [self._meet(new[_RIGHT], run, _RIGHT) for run in state.shelves[_LEFT]]
        found.append(self._meet_each_other(new[_LEFT], new[_RIGHT]))
        for side in (_LEFT, _RIGHT):
            if len(new[side].run):
                state.remember(side, new[side].run)
        state.forget()
        markers: dict[int, Marker] = {id(m): m for p in packets for m in p.markers}
        batch, causes = self._assemble([pairs for pairs in found if pairs is not None and len(pairs.cause)])
        order = both.take(come).take(causes)
        return [Packet(batch, order, tuple(markers.values()), packets[_LEFT].request)]

    def _new(self, packet: Packet, side: int, state: JoinState, place: Ints, clock: Ints) -> _New:
        batch = packet.batch
        times = event_times(batch.column(self.times_by_input[side]))
        usable = times > NEVER
        for name in self.keys_by_input[side]:
            null = invalid(batch.column(name))
            if null is not None:
                usable &= ~null
        rows = np.arange(len(packet), dtype=np.int64)
        if not usable.all():
            rows = np.flatnonzero(usable)
            batch, times = taken(batch, rows), times[rows]
        slots = state.index.slots([batch.column(n) for n in self.keys_by_input[side]], batch.num_rows)
        run = Run(batch, slots, times, rows)
        place = place[run.sequence]
        run.sequence = run.sequence + state.counts[side]
        state.counts[side] += len(packet)
        return _New(run, clock[place], place)

    def _meet(self, new: _New, run: Run, side: int) -> _Pairs | None:
        """New rows of ``side`` with remembered rows of the other: the new row is the later one."""
        if not len(new.run):
            return None
        oldest = np.maximum(new.run.times, new.clock) - self.within
        asked, rows = run.pairs(new.run.slots, oldest, new.run.times + self.within)
        if not len(asked):
            return None
        mine, other = taken(new.run.batch, asked), taken(run.batch, rows)
        left, right = (mine, other) if side == _LEFT else (other, mine)
        return _Pairs(left, right, new.place[asked], run.sequence[rows])

    def _meet_each_other(self, left: _New, right: _New) -> _Pairs | None:
        """New rows with new rows: whichever has the later place is the cause."""
        one, two = left.run, right.run
        if not len(one) or not len(two):
            return None
        mine, other = two.pairs(one.slots, one.times - self.within, one.times + self.within)
        if not len(mine):
            return None
        right_later = right.place[other] > left.place[mine]
        now = np.where(right_later, right.clock[other], left.clock[mine])
        partner_time = np.where(right_later, one.times[mine], two.times[other])
        there = np.flatnonzero(partner_time + self.within >= now)
        mine, other, right_later = mine[there], other[there], right_later[there]
        return _Pairs(
            taken(one.batch, mine),
            taken(two.batch, other),
            np.where(right_later, right.place[other], left.place[mine]),
            np.where(right_later, one.sequence[mine], two.sequence[other]),
        )

    def _assemble(self, found: list[_Pairs]) -> tuple[pa.RecordBatch, Ints]:
        """All pairs in the order of their causes, then of their partners; and the causes' places."""
        if not found:
            return self.nothing(), np.empty(0, dtype=np.int64)
        left = pa.concat_batches([pairs.left for pairs in found])
        right = pa.concat_batches([pairs.right for pairs in found])
        columns = left.columns + [right.column(name) for name in self._right_columns]
        batch = pa.RecordBatch.from_arrays(columns, schema=self.outputs[0])
        causes = np.concatenate([pairs.cause for pairs in found])
        partners = np.concatenate([pairs.partner for pairs in found])
        # One integer for both: a call's rows times the numbers of those remembered is far below 2**63.
        first, span = int(partners.min()), int(partners.max() - partners.min()) + 1
        order = np.argsort(causes * span + (partners - first))
        return taken(batch, order), causes[order]

    def snapshot_schema(self) -> pa.Schema:
        """Key columns, then the side, the place in the input, and the row itself."""
        keys = [self.inputs[_LEFT].field(name) for name in self.keys_by_input[_LEFT]]
        rows = [
            pa.field(f"_{side}", pa.struct(list(self.inputs[i]))) for i, side in enumerate(("left", "right"))
        ]
        return pa.schema([*keys, pa.field("_side", pa.int8()), pa.field("_sequence", pa.int64()), *rows])

    def restore(self, tables: Sequence[pa.Table]) -> JoinState:
        state = self.open()
        for table in tables:
            meta = json.loads((table.schema.metadata or {}).get(_META, b"{}"))
            state.clock = max(state.clock, meta.get("clock", NEVER))
            for name, values in (("maxima", state.maxima), ("counts", state.counts)):
                values[:] = map(max, values, meta.get(name, values))
        for table in tables:
            state.load(table)
        return state

    def written(self, rows: pa.RecordBatch, side: int, index: KeyIndex) -> Run:
        """The run of rows that were written, all of ``side``."""
        content = rows.column("_left" if side == _LEFT else "_right").flatten()
        batch = pa.RecordBatch.from_arrays(content, schema=self.inputs[side])
        slots = index.slots([batch.column(n) for n in self.keys_by_input[side]], len(batch))
        times = event_times(batch.column(self.times_by_input[side]))
        return Run(batch, slots, times, rows.column("_sequence").to_numpy())
