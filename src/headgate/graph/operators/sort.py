"""A sort of a finite input, decomposed as in Bobox: runs are sorted side by side, then a net merges them.

``Deal`` deals the rows out, each ``SortRun`` sorts its share, and boxes of ``MergeRuns`` merge two runs each.
A hash join is decomposed too: ``DealByKey`` deals out both of its inputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headgate.errors import BadRow
from headgate.graph.columns import lexical_order, sort_keys, taken
from headgate.graph.operator import Kind, Operator
from headgate.graph.operators._user import located
from headgate.graph.operators.gathering import Gathered, Gathering
from headgate.graph.operators.limit import Counted
from headgate.graph.packet import Packet
from headgate.graph.partition import buckets
from headgate.sql import compile_ordering

HAND = 4_096
"""Rows that are dealt to a run before the next one's turn."""


class Deal(Operator):
    """Rows in turns to ``ways`` outputs, by their place in the stream."""

    kind = Kind.STATEFUL

    def __init__(self, schema: pa.Schema, ways: int) -> None:
        super().__init__([schema], [schema] * ways)

    def open(self) -> Counted:
        return Counted()

    def process(self, packets: Sequence[Packet], state: Counted) -> list[Packet]:
        packet, ways = packets[0], len(self.outputs)
        turn = (state.count + np.arange(len(packet))) // HAND % ways
        state.count += len(packet)
        return [packet.filter(pa.array(turn == way)) for way in range(ways)]


class DealByKey(Operator):
    """Rows of one key to one of ``ways`` outputs, by a hash: so a join becomes several, each of some keys."""

    def __init__(self, schema: pa.Schema, keys: Sequence[str], ways: int) -> None:
        self.keys, self.ways = tuple(keys), ways
        super().__init__([schema], [schema] * ways)

    @property
    def label(self) -> str:
        return f"deal({', '.join(self.keys)})"

    def process(self, packets: Sequence[Packet], state: None) -> list[Packet]:
        packet = packets[0]
        way = buckets(packet.batch, self.keys, self.ways)
        return [packet.filter(pa.array(way == mine)) for mine in range(self.ways)]


class SortRun(Gathering):
    """All rows of a finite input, sorted; the first ``limit`` of them if only these are wanted.

    ``by`` is what follows ORDER BY in Spark SQL.  Rows that tie stay as they came.
    """

    verb = "sort"

    def __init__(self, schema: pa.Schema, by: str, limit: int | None = None, inputs: int = 1) -> None:
        self.by, self.limit = by, limit
        super().__init__([schema] * inputs, [schema])
        self._compile()

    def _compile(self) -> None:
        self._ordering = compile_ordering(self.by, self.inputs[0])

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_ordering"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._compile()

    @property
    def label(self) -> str:
        return f"{self.verb}({self.by}{'' if self.limit is None else f', first {self.limit}'})"

    def finish(self, state: Gathered, end: Packet) -> list[Packet]:
        try:
            return super().finish(state, end)
        except BadRow as bad:
            raise located(bad, self.label, end, np.zeros(bad.index + 1, dtype=np.int64)) from bad

    def result(self, state: Gathered) -> pa.RecordBatch:
        rows = pa.concat_batches([state.rows(side) for side in range(len(self.inputs))])
        sorting = [(e.evaluate(rows), descending, first) for e, descending, first in self._ordering]
        keys = [key for column, descending, first in sorting for key in sort_keys(column, descending, first)]
        return taken(rows, self._order(keys)[: self.limit])

    def _order(self, keys: list[np.ndarray]) -> np.ndarray:
        return lexical_order([*keys, np.arange(len(keys[0]))])


class MergeRuns(SortRun):
    """Two sorted runs as one; rows that tie are the first run's first."""

    verb = "merge"

    def __init__(self, schema: pa.Schema, by: str, limit: int | None = None) -> None:
        super().__init__(schema, by, limit, inputs=2)

    def _order(self, keys: list[np.ndarray]) -> np.ndarray:
        if len(keys) == 1:
            # A stable sort finds the two runs and merges them.
            return np.argsort(keys[0], kind="stable")
        return super()._order(keys)
