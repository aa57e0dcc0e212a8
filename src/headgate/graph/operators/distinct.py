"""Rows of a stream that are not there yet: each leaves when it comes for the first time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headgate.graph.columns import Ints
from headgate.graph.keys import KeyIndex
from headgate.graph.operator import Kind, Operator, State
from headgate.graph.packet import Packet


class DistinctState(State):
    """The rows that have been there, numbered as they came."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        # A constant as a second column: only keys of several columns number nulls, in the order of rows.
        self._alone = len(schema) == 1
        self.index = KeyIndex([*(field.type for field in schema), *([pa.int8()] if self._alone else [])])
        self._told = 0
        self.greatest = -1

    def fresh(self, batch: pa.RecordBatch) -> Ints:
        """The places of rows that come for the first time."""
        columns = batch.columns
        if self._alone:
            columns.append(pa.array(np.zeros(batch.num_rows, dtype=np.int8)))
        slots = self.index.slots(columns, batch.num_rows)
        # Slots are given in the order of first arrivals, so a first arrival's exceeds all before it.
        highest = np.maximum.accumulate(np.concatenate([[self.greatest], slots]))
        places = np.flatnonzero(slots > highest[:-1])
        self.greatest = int(highest[-1])
        return places

    def snapshot(self) -> pa.Table:
        return self._table(0)

    def track(self) -> None:
        self._told = self.greatest + 1

    def changes(self) -> pa.Table:
        table = self._table(self._told)
        self.track()
        return table

    def apply(self, changes: pa.Table) -> None:
        for batch in changes.to_batches():
            self.fresh(batch)

    def _table(self, start: int) -> pa.Table:
        columns = self.index.keys(np.arange(start, self.greatest + 1))
        return pa.table(columns[: len(self._schema)], schema=self._schema)


class Distinct(Operator):
    """Every different row once, where it comes first; nulls are equal."""

    kind = Kind.STATEFUL

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__([schema], [schema])

    def open(self) -> DistinctState:
        return DistinctState(self.inputs[0])

    def process(self, packets: Sequence[Packet], state: DistinctState) -> list[Packet]:
        packet = packets[0]
        fresh = np.zeros(len(packet), dtype=bool)
        fresh[state.fresh(packet.batch)] = True
        return [packet.filter(pa.array(fresh))]
