"""A join of two inputs that are sorted by their key: pairs leave while rows come.

The pairs of a key are complete when both inputs have gone on to a greater one.  The row with which the later
input does so is their cause, so the order of results depends on no cut.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headgate.errors import OperatorError
from headgate.graph.columns import Ints, integers
from headgate.graph.operator import Kind, Operator
from headgate.graph.operators.gathering import NO_ROWS, Gathered, others
from headgate.graph.operators.pairing import Pairing, check_keys, spread
from headgate.graph.packet import Order, Packet

_NEVER = -(1 << 62)


class MergeState(Gathered):
    """Rows of both inputs whose key is not complete, and the greatest key that either has had."""

    def __init__(self, join: MergeJoin) -> None:
        super().__init__(join.inputs)
        self._join = join
        self.greatest = [_NEVER, _NEVER]

    def settle(self) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Take out the rows of complete keys."""
        bound, complete = min(self.greatest), []
        for side in (0, 1):
            rows = self.rows(side)
            count = int(np.searchsorted(self._join.keys(rows, side), bound))
            complete.append(rows.slice(0, count))
            if count:
                self.replace(side, rows.slice(count))
        return complete[0], complete[1]

    def apply(self, changes: pa.Table) -> None:
        super().apply(changes)
        for side in (0, 1):
            rows = self.rows(side)
            if rows.num_rows:
                self.greatest[side] = max(self.greatest[side], int(self._join.keys(rows, side)[-1]))
        self.settle()


class MergeJoin(Operator):
    """Pairs of equal key for which ``where`` holds, sorted by key, then in the order of the left rows."""

    kind = Kind.STATEFUL

    def __init__(
        self,
        left: pa.Schema,
        right: pa.Schema,
        on: tuple[str, str],
        keep: Sequence[str],
        *,
        where: str | None = None,
    ) -> None:
        check_keys((left, right), [on], "merge join")
        self.on = on
        self._pairing = Pairing(left, right, where, keep, "merge join")
        super().__init__([left, right], [self._pairing.schema])

    @property
    def label(self) -> str:
        where = f" where {self._pairing.where}" if self._pairing.where else ""
        return f"merge join({self.on[0]}{'' if self.on[0] == self.on[1] else f' = {self.on[1]}'}{where})"

    def open(self) -> MergeState:
        return MergeState(self)

    def keys(self, rows: pa.RecordBatch, side: int) -> Ints:
        return integers(rows.column(self.on[side]))

    def process(self, packets: Sequence[Packet], state: MergeState) -> list[Packet]:
        before = tuple(state.greatest)
        come = [self.keys(packet.batch, side) for side, packet in enumerate(packets)]
        for side, keys in enumerate(come):
            if not len(keys):
                continue
            if keys[0] < before[side] or bool((keys[1:] < keys[:-1]).any()):
                raise OperatorError(f"{self.label}: an input is not sorted by '{self.on[side]}'.")
            state.add(side, packets[side].batch)
            state.greatest[side] = int(keys[-1])
        markers = (*packets[0].markers, *others(packets))
        if min(state.greatest) > min(before):
            rows, complete = self._pairs(*state.settle())
            state.touch()
            if rows.num_rows:
                order = self._causes(packets, come, before, complete)
                return [Packet(rows, order, markers, packets[0].request)]
        return [packets[0].caused(self.nothing(), NO_ROWS).with_markers(others(packets))]

    def _pairs(self, left: pa.RecordBatch, right: pa.RecordBatch) -> tuple[pa.RecordBatch, Ints]:
        one, two = self.keys(left, 0), self.keys(right, 1)
        begins = np.searchsorted(two, one)
        mine, other = spread(begins, np.searchsorted(two, one, side="right") - begins)
        rows, mine = self._pairing.rows(left, right, mine, other)
        return rows, one[mine]

    def _causes(
        self, packets: Sequence[Packet], come: Sequence[Ints], before: Sequence[int], keys: Ints
    ) -> Order:
        """The order of the rows with which the later input went on from each key."""
        both = Order.concat([packet.order for packet in packets])
        arrival = np.argsort(both.serials, kind="stable")
        place = np.empty(len(arrival), dtype=np.int64)
        place[arrival] = np.arange(len(arrival))
        causes, first = np.zeros(len(keys), dtype=np.int64), 0
        for mine, greatest in zip(come, before, strict=True):
            gone_on = np.append(place[first : first + len(mine)], 0)[
                np.searchsorted(mine, keys, side="right")
            ]
            # From smaller keys the input had gone on before this call.
            causes = np.maximum(causes, np.where(keys < greatest, 0, gone_on))
            first += len(mine)
        return both.take(arrival).take(causes)

    def finish(self, state: MergeState, end: Packet) -> list[Packet]:
        rows, _ = self._pairs(state.rows(0), state.rows(1))
        return [end.caused(rows, np.zeros(rows.num_rows, dtype=np.int64))]
