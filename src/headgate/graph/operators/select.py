"""``stream.select("user_id", "price * quantity AS revenue")`` and ``stream.with_columns(...)``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headgate.errors import BadRow, PipelineError
from headgate.graph.operator import Operator
from headgate.graph.operators._user import located
from headgate.graph.packet import Packet
from headgate.sql import compile_projection


class Select(Operator):
    """One output column per expression."""

    verb = "select"

    def __init__(self, schema: pa.Schema, expressions: Sequence[str]) -> None:
        self.texts = (expressions,) if isinstance(expressions, str) else tuple(expressions)
        if not self.texts:
            raise PipelineError(f"{self.verb}: give at least one expression.")
        super().__init__([schema], [])
        self._compile()

    def _compile(self) -> None:
        self.expressions = compile_projection(list(self.texts), self.inputs[0])
        seen: set[str] = set()
        for expression in self.expressions:
            if expression.name.lower() in seen:
                raise PipelineError(
                    f"{self.verb}: two expressions are named '{expression.name}'; "
                    "give one of them another name with AS."
                )
            seen.add(expression.name.lower())
        self._plan = self._columns()
        self.outputs = (pa.schema([pa.field(name, type_) for name, type_, _ in self._plan]),)

    def _columns(self) -> list[tuple[str, pa.DataType, Any]]:
        """Name, type and evaluation of every output column; an int stands for the input column there."""
        return [(e.name, e.type, e.evaluate) for e in self.expressions]

    @property
    def label(self) -> str:
        return f"{self.verb}({', '.join(self.texts)})"

    def needed(self, wanted: Sequence[frozenset[str]]) -> tuple[frozenset[str], ...]:
        # Also what only unwanted expressions use: a row on which one of them raises is a bad row.
        found = frozenset[str]().union(*(expression.columns for expression in self.expressions))
        kept = [
            self.inputs[0].names[c] for name, _, c in self._plan if isinstance(c, int) and name in wanted[0]
        ]
        return (found.union(kept),)

    def process(self, packets: Sequence[Packet], state: Any) -> list[Packet]:
        packet = packets[0]
        batch = packet.batch
        try:
            arrays = [
                batch.column(column) if isinstance(column, int) else column(batch)
                for _, _, column in self._plan
            ]
        except BadRow as bad:
            raise located(bad, self.label, packet) from bad
        return [packet.with_batch(pa.RecordBatch.from_arrays(arrays, schema=self.outputs[0]))]

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("expressions", "_plan", "_added")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._compile()


FEW = 16
"""So many columns are appended one by one, which copies the list of all each time; more are added at once."""


class WithColumns(Select):
    """The input's columns and one more per expression; an expression named like a column replaces it."""

    verb = "with_columns"

    def process(self, packets: Sequence[Packet], state: Any) -> list[Packet]:
        if not self._only_adds or len(self._added) > FEW:
            return super().process(packets, state)
        packet = packets[0]
        given = batch = packet.batch
        try:
            for field, evaluate in self._added:
                batch = batch.append_column(field, evaluate(given))
        except BadRow as bad:
            raise located(bad, self.label, packet) from bad
        return [packet.with_batch(batch)]

    def _compile(self) -> None:
        super()._compile()
        self._only_adds = all(
            column == place for place, (_, _, column) in enumerate(self._plan[: self._width])
        )
        self._added = [
            (pa.field(name, type_), evaluate) for name, type_, evaluate in self._plan[self._width :]
        ]

    @property
    def _width(self) -> int:
        return len(self.inputs[0])

    def _columns(self) -> list[tuple[str, pa.DataType, Any]]:
        schema = self.inputs[0]
        new = {e.name.lower(): (e.name, e.type, e.evaluate) for e in self.expressions}
        kept: list[tuple[str, pa.DataType, Any]] = [
            new.pop(field.name.lower(), (field.name, field.type, place)) for place, field in enumerate(schema)
        ]
        return kept + list(new.values())
