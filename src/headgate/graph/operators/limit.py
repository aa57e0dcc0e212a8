"""``stream.limit(10)``: the first rows of a stream."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headgate.errors import PipelineError
from headgate.graph.operator import Kind, Operator, State
from headgate.graph.packet import Packet


class LimitState(State):
    """How many rows have passed."""

    passed = 0

    def snapshot(self) -> pa.Table:
        return pa.table({"passed": [self.passed]})

    def apply(self, changes: pa.Table) -> None:
        self.passed = changes["passed"][-1].as_py()


class Limit(Operator):
    """Lets ``n`` rows pass, and none after them."""

    kind = Kind.STATEFUL

    def __init__(self, schema: pa.Schema, n: int) -> None:
        if not isinstance(n, int) or isinstance(n, bool) or n < 0:
            raise PipelineError(f"limit: {n!r} is not a number of rows.")
        self.n = n
        super().__init__([schema], [schema])

    @property
    def label(self) -> str:
        return f"limit {self.n}"

    def needed(self, wanted: Sequence[frozenset[str]]) -> tuple[frozenset[str], ...]:
        return (wanted[0],)

    def open(self) -> LimitState:
        return LimitState()

    def process(self, packets: Sequence[Packet], state: LimitState) -> list[Packet]:
        passing = packets[0].slice(0, min(len(packets[0]), self.n - state.passed))
        state.passed += len(passing)
        return [passing]
