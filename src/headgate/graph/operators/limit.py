"""``stream.limit(10)``: the first rows of a stream, or some after the first."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headgate.errors import PipelineError
from headgate.graph.operator import Kind, Operator, State
from headgate.graph.packet import Packet


class Counted(State):
    """How many rows have come."""

    count = 0

    def snapshot(self) -> pa.Table:
        return pa.table({"count": [self.count]})

    def apply(self, changes: pa.Table) -> None:
        self.count = changes["count"][-1].as_py()


class Limit(Operator):
    """``count`` rows from the ``offset``-th on; all of them if ``count`` is None."""

    kind = Kind.STATEFUL

    def __init__(self, schema: pa.Schema, count: int | None, offset: int = 0) -> None:
        for number in (count, offset):
            if number is not None and (type(number) is not int or number < 0):
                raise PipelineError(f"limit: {number!r} is not a number of rows.")
        self.first = offset
        self.end = None if count is None else offset + count
        super().__init__([schema], [schema])

    @property
    def label(self) -> str:
        if not self.first:
            return f"limit {self.end}"
        return f"limit: rows {self.first} to {'the end' if self.end is None else self.end}"

    def needed(self, wanted: Sequence[frozenset[str]]) -> tuple[frozenset[str], ...]:
        return (wanted[0],)

    def open(self) -> Counted:
        return Counted()

    def process(self, packets: Sequence[Packet], state: Counted) -> list[Packet]:
        packet = packets[0]
        size = len(packet)
        start = min(max(self.first - state.count, 0), size)
        stop = size if self.end is None else min(max(self.end - state.count, start), size)
        state.count += size
        return [packet.slice(start, stop - start)]
