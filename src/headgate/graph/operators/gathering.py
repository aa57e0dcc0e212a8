"""What operators of finite plans remember: the rows of their inputs, until the stream has ended.

Bobox and LAS run plans over data that ends.  A sort or a join of such a plan waits for the last row of an
input, and then gives everything that is left.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headgate.graph.operator import Kind, Operator, State
from headgate.graph.operators.snapshots import tracked
from headgate.graph.packet import Marker, Packet

NO_ROWS = np.empty(0, dtype=np.int64)


class Gathered(State):
    """Rows of every input, in order."""

    def __init__(self, schemas: Sequence[pa.Schema]) -> None:
        self._schemas = schemas
        self._parts: list[list[pa.RecordBatch]] = [[] for _ in schemas]
        self._untold: list[list[pa.RecordBatch]] | None = None

    def add(self, side: int, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        self._parts[side].append(rows)
        if self._untold is not None:
            self._untold[side].append(rows)

    def rows(self, side: int = 0) -> pa.RecordBatch:
        """All rows of an input, together."""
        if len(self._parts[side]) != 1:
            schema = self._schemas[side]
            parts = self._parts[side] or [pa.RecordBatch.from_pylist([], schema=schema)]
            self._parts[side] = [pa.concat_batches(parts)]
        return self._parts[side][0]

    def touch(self) -> None:
        """A call goes through all rows.  One that only adds some leaves the others where they are."""
        self.nbytes = sum(part.nbytes for parts in self._parts for part in parts)

    def replace(self, side: int, rows: pa.RecordBatch) -> None:
        """Forget the rows of an input but for these."""
        self._parts[side] = [rows] if rows.num_rows else []

    def snapshot(self) -> pa.Table:
        return self._table(self._parts)

    def track(self) -> None:
        self._untold = [[] for _ in self._schemas]

    def changes(self) -> pa.Table:
        """The rows that have come; what they let an operator forget follows from them."""
        table = self._table(tracked(self._untold))
        self.track()
        return table

    def apply(self, changes: pa.Table) -> None:
        for batch in changes.to_batches():
            sides = batch.column("_side").to_numpy()
            for side, schema in enumerate(self._schemas):
                rows = np.flatnonzero(sides == side)
                if len(rows):
                    columns = batch.column(f"_{side}").take(pa.array(rows)).flatten()
                    self._parts[side].append(pa.RecordBatch.from_arrays(columns, schema=schema))

    def _table(self, parts: list[list[pa.RecordBatch]]) -> pa.Table:
        kinds = [pa.struct(list(schema)) for schema in self._schemas]
        names = [pa.field(f"_{side}", kind) for side, kind in enumerate(kinds)]
        schema = pa.schema([pa.field("_side", pa.int8()), *names])
        batches = []
        for side, rows in ((side, rows) for side, those in enumerate(parts) for rows in those):
            columns = [pa.array(np.full(rows.num_rows, side, dtype=np.int8))]
            for other, kind in enumerate(kinds):
                if other == side:
                    columns.append(pa.StructArray.from_arrays(rows.columns, fields=list(self._schemas[side])))
                else:
                    columns.append(pa.nulls(rows.num_rows, kind))
            batches.append(pa.RecordBatch.from_arrays(columns, schema=schema))
        return pa.Table.from_batches(batches, schema=schema)


class Gathering(Operator):
    """An operator that only gathers rows while they come, and gives its results at the end."""

    kind = Kind.STATEFUL

    def open(self) -> Gathered:
        return Gathered(self.inputs)

    def process(self, packets: Sequence[Packet], state: Gathered) -> list[Packet]:
        for side, packet in enumerate(packets):
            state.add(side, packet.batch)
        return [packets[0].caused(self.nothing(), NO_ROWS).with_markers(others(packets))]

    def finish(self, state: Gathered, end: Packet) -> list[Packet]:
        state.touch()
        rows = self.result(state)
        return [end.caused(rows, np.zeros(rows.num_rows, dtype=np.int64))]

    def result(self, state: Gathered) -> pa.RecordBatch:
        """All results."""
        raise NotImplementedError


def others(packets: Sequence[Packet]) -> tuple[Marker, ...]:
    """The markers that travel with all inputs but the first."""
    known = {id(marker) for marker in packets[0].markers}
    return tuple(m for packet in packets[1:] for m in packet.markers if id(m) not in known)
