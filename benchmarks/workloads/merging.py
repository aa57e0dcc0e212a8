"""A box that merges two sorted streams into one, as the sort–merge nets of Bobox (section 2) are made of.

It sorts nothing: what of both inputs is known to come next leaves, the rest waits for the slower one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headgate.extend import Kind, Operator, State
from headgate.graph.packet import Order, Packet

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Rank = Callable[[pa.RecordBatch], Floats]
"""By what rows are sorted: a number each, never smaller than that of the row before."""


class Waiting(State):
    """Rows of each input that wait for the other, and the rank that each has come to."""

    def __init__(self, schema: pa.Schema) -> None:
        nothing = pa.record_batch([pa.array([], f.type) for f in schema], schema=schema)
        self.rows = [nothing, nothing]
        self.last = [-np.inf, -np.inf]

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        return sum(batch.nbytes for batch in self.rows)

    def snapshot(self) -> pa.Table:
        sides = [side for side, batch in enumerate(self.rows) for _ in range(batch.num_rows)]
        table = pa.Table.from_batches(self.rows).append_column("side", pa.array(sides, pa.int64()))
        return table.replace_schema_metadata({"last": ",".join(map(repr, self.last))})

    def apply(self, changes: pa.Table) -> None:
        self.last = [float(text) for text in changes.schema.metadata[b"last"].decode().split(",")]
        rows = changes.drop_columns(["side"]).replace_schema_metadata(None)
        for side in (0, 1):
            kept = rows.filter(pc.equal(changes["side"], side)).combine_chunks().to_batches()
            self.rows[side] = kept[0] if kept else self.rows[side].slice(0, 0)


class Merge(Operator):
    """Two inputs that are sorted by ``rank`` become one; of equal rows that of the first input comes first.

    ``half``: only every second row leaves, by a sum of x, key and this number.
    """

    kind = Kind.STATEFUL

    def __init__(self, schema: pa.Schema, rank: Rank, half: int | None = None) -> None:
        super().__init__([schema, schema], [schema])
        self.rank, self.half = rank, half

    def open(self) -> Waiting:
        return Waiting(self.inputs[0])

    def process(self, packets: Sequence[Packet], state: Waiting) -> list[Packet]:
        waited = [batch.num_rows for batch in state.rows]
        rows = [
            pa.concat_batches([old, packet.batch]) for old, packet in zip(state.rows, packets, strict=True)
        ]
        ranks = [self.rank(batch) for batch in rows]
        state.last = [
            float(own[-1]) if len(own) else last for own, last in zip(ranks, state.last, strict=True)
        ]
        upto = [int(np.searchsorted(own, min(state.last), "right")) for own in ranks]
        serials = [
            np.concatenate([np.full(old, -1), packet.order.serials])
            for old, packet in zip(waited, packets, strict=True)
        ]
        causes = [self._causes(side, upto[side], ranks, serials, waited) for side in (0, 1)]
        state.rows = [batch.slice(end) for batch, end in zip(rows, upto, strict=True)]
        order = self._order([own[:end] for own, end in zip(ranks, upto, strict=True)])
        cause = np.concatenate([found for found, _ in causes])[order]
        place = np.concatenate([found for _, found in causes])[order]
        if np.any(np.diff(cause) < 0):  # equal ranks that came at different times
            later = np.argsort(cause, kind="stable")
            order, place = order[later], place[later]
        batch = self._taken([own.slice(0, end) for own, end in zip(rows, upto, strict=True)], order)
        both = Order.concat([packet.order for packet in packets])
        markers = tuple(marker for packet in packets for marker in packet.markers)
        return [self._halved(Packet(batch, both.take(place), markers))]

    def _causes(
        self, side: int, upto: int, ranks: list[Floats], serials: list[Ints], waited: list[int]
    ) -> tuple[Ints, Ints]:
        """By row that leaves, the serial of the row that lets it go, and its place among those of the call.

        That is the row itself or, if it comes later, the first of the other input that is not smaller.
        """
        other = 1 - side
        own = np.arange(upto)
        first = np.searchsorted(ranks[other], ranks[side][:upto], "left")
        mine, its = serials[side][own], serials[other][first]
        starts = [0, len(serials[0]) - waited[0]]
        places = np.where(
            mine >= its, starts[side] + own - waited[side], starts[other] + first - waited[other]
        )
        return np.maximum(mine, its), places

    def _order(self, ranks: list[Floats]) -> Ints:
        """The rows of both, one input behind the other, in merged order."""
        left, right = ranks
        merged = np.empty(len(left) + len(right), dtype=np.int64)
        merged[np.arange(len(left)) + np.searchsorted(right, left, "left")] = np.arange(len(left))
        after = np.arange(len(right)) + np.searchsorted(left, right, "right")
        merged[after] = len(left) + np.arange(len(right))
        return merged

    def _taken(self, rows: list[pa.RecordBatch], order: Ints) -> pa.RecordBatch:
        return pa.concat_batches(rows).take(pa.array(order))

    def _halved(self, packet: Packet) -> Packet:
        if self.half is None:
            return packet
        x, key = (packet.batch.column(name).to_numpy() for name in ("x", "key"))
        return packet.filter(pa.array((x + key + self.half) % 2 == 0))

    def finish(self, state: Waiting, end: Packet) -> list[Packet]:
        order = self._order([self.rank(batch) for batch in state.rows])
        batch = self._taken(state.rows, order)
        state.rows = [batch.slice(0, 0)] * 2
        return [self._halved(end.caused(batch, np.zeros(batch.num_rows, dtype=np.int64)))]
