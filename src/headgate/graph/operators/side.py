"""Side outputs of ``process``: ``hg.Side("alerts", row)`` among the rows that a function gives.

The box gives one column of structs per output, and of each row exactly one of them.  ``Unpack`` is the stream
of one output.  So a side output's rows keep their place among all that the function gave.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import OperatorError, PipelineError, nearest
from headgate.graph.operator import Operator
from headgate.graph.operators._user import Row, function_name, rows_of
from headgate.graph.packet import Packet
from headgate.graph.schema import normalise

MAIN = "main"


@dataclass(frozen=True, slots=True)
class Side:
    """A row for the side output ``name``."""

    name: str
    row: Mapping[str, Any]


def sided_schema(schema: Any, side: Mapping[str, Any]) -> pa.Schema:
    """One struct per output."""
    if MAIN in side:
        raise PipelineError(f"process: a side output cannot be called '{MAIN}'; give it another name.")
    outputs = {MAIN: schema, **side}
    return pa.schema([(name, pa.struct(list(normalise(given)))) for name, given in outputs.items()])


class Sided:
    """The user's function, with each row that it gives put into the column of its output."""

    def __init__(self, fn: Callable[..., Any], schema: pa.Schema) -> None:
        self._fn = fn
        self._names = {field.name: frozenset(f.name for f in field.type.fields) for field in schema}
        self.__name__ = function_name(fn)

    def __call__(self, *given: Any) -> list[Row]:
        result = self._fn(*given)
        if isinstance(result, Side):
            result = [result]
        if result is None or isinstance(result, Mapping):
            result = rows_of(result, self.__name__, 0)
        return [self._placed(row) for row in result]

    def _placed(self, row: Any) -> Row:
        name, values = (row.name, row.row) if isinstance(row, Side) else (MAIN, row)
        if name not in self._names:
            raise OperatorError(
                f"there is no side output '{name}';{nearest(name, self._names)} declare it: "
                f"process(…, side={{'{name}': schema}})."
            )
        if not isinstance(values, Mapping) or set(values) != self._names[name]:
            raise OperatorError(
                f"a row for output '{name}' must be a dict with {', '.join(sorted(self._names[name]))}, "
                f"not {values!r}."
            )
        return {output: dict(values) if output == name else None for output in self._names}


class Unpack(Operator):
    """The rows of one output."""

    def __init__(self, schema: pa.Schema, output: str) -> None:
        self.output = output
        super().__init__([schema], [pa.schema(schema.field(output).type.fields)])

    @property
    def label(self) -> str:
        return f"output({self.output})"

    def needed(self, wanted: Sequence[frozenset[str]]) -> tuple[frozenset[str], ...]:
        return (frozenset([self.output]),)

    def process(self, packets: Sequence[Packet], state: Any) -> list[Packet]:
        mine = packets[0].filter(pc.is_valid(packets[0].batch.column(self.output)))
        columns = mine.batch.column(self.output).flatten()
        return [mine.with_batch(pa.RecordBatch.from_arrays(columns, schema=self.outputs[0]))]
