"""``stream.filter("price > 0")``: keep the rows for which a predicate is true."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headgate.errors import BadRow
from headgate.graph.operator import Operator
from headgate.graph.operators._user import located
from headgate.graph.packet import Packet
from headgate.sql import compile_predicate


class Filter(Operator):
    """Keeps the rows where ``predicate`` is true; false and null are dropped."""

    def __init__(self, schema: pa.Schema, predicate: str) -> None:
        super().__init__([schema], [schema])
        self.predicate = predicate
        self._compile()

    def _compile(self) -> None:
        self.expression = compile_predicate(self.predicate, self.inputs[0])
        self._evaluate = self.expression.evaluate

    @property
    def label(self) -> str:
        return f"filter({self.predicate})"

    def needed(self, wanted: Sequence[frozenset[str]]) -> tuple[frozenset[str], ...]:
        return (wanted[0] | self.expression.columns,)

    def process(self, packets: Sequence[Packet], state: Any) -> list[Packet]:
        packet = packets[0]
        try:
            mask = self._evaluate(packet.batch)
        except BadRow as bad:
            raise located(bad, self.label, packet) from bad
        return [packet.filter(mask)]

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("expression", "_evaluate")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._compile()
