"""What a tuple is worth to a query, by the user's expression, and where in the network it can be computed.

Semantic load shedding drops the least important tuples.  A query's expression is evaluated on the tuples as
they are where the drop takes place, so it has to be computable there, and all queries behind that place have
to agree on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import ExpressionError, HeadgateError, PipelineError
from headgate.graph.network import Box, Network, Port, boxes_before
from headgate.sql import Expression, compile_expression

Floats = npt.NDArray[np.float64]


class Importance:
    """A query's expression, compiled for every input of a box."""

    def __init__(self, text: str, schemas: Sequence[pa.Schema]) -> None:
        self.text = text
        self._expressions = [_number(text, schema) for schema in schemas]

    def of(self, batch: pa.RecordBatch, port: int) -> Floats:
        """How important every row is; a row without a value is the least important."""
        values, _ = self._expressions[port].evaluate_safe(batch)
        found: Floats = pc.cast(values, pa.float64()).to_numpy(zero_copy_only=False)
        if values.null_count:
            found = np.where(values.is_null().to_numpy(zero_copy_only=False), -np.inf, found)
        return np.where(np.isnan(found), np.inf, found)  # as Spark orders numbers, NaN comes last

    def columns(self, port: int) -> frozenset[str]:
        """The columns of an input by which it is told."""
        return self._expressions[port].columns

    def __reduce__(self) -> tuple[Any, ...]:
        return Importance, (self.text, [expression._schema for expression in self._expressions])


def _number(text: str, schema: pa.Schema) -> Expression:
    compiled = compile_expression(text, schema)
    kind = compiled.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise ExpressionError(f"{text!r} is {kind}, not a number.")
    return compiled


def importance_at(box: Box, text: str) -> Importance | None:
    """An expression for the tuples that come to a box; None if it cannot be computed there."""
    try:
        return Importance(text, box.operator.inputs)
    except HeadgateError:
        return None


def importances(network: Network) -> list[bool | str | None]:
    """For every box, the expression that all its queries give and that can be computed there.

    False: they do not agree, or it cannot be computed there.  None: none of them gives any.
    """
    stated = {output.name: output.importance for output in network.outputs}
    found: list[bool | str | None] = []
    for place, box in enumerate(network.boxes):
        texts = {stated[query] for query in network.queries_of[place]}
        if texts == {None}:
            found.append(None)
            continue
        text = texts.pop() if len(texts) == 1 else None
        found.append(text if text is not None and importance_at(box, text) is not None else False)
    return found


def check_importance(query: str, text: Any, port: Port) -> None:
    """Raise if an expression can be computed nowhere on a query's way."""
    if not isinstance(text, str) or not text.strip():
        raise PipelineError(
            f"query '{query}': importance= takes an expression, e.g. importance='amount * 2', not {text!r}."
        )
    boxes = boxes_before(port)
    if any(importance_at(box, text) is not None for box in boxes):
        return
    try:
        _number(text, boxes[0].operator.inputs[0] if boxes else port[0].schema)
    except HeadgateError as error:
        raise PipelineError(
            f"query '{query}': importance={text!r} can be computed before none of its boxes, so there is no "
            f"place to drop tuples by it. Before the last one: {error}"
        ) from error
