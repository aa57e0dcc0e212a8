"""Checks of what users derive themselves, so that a mistake is an error where the pipeline is built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headgate.errors import PipelineError
from headgate.graph.operator import Kind, Operator, State
from headgate.graph.schema import normalise, require_columns


def check_own(operator: Any, schemas: Sequence[pa.Schema]) -> None:
    """Refuse an operator that cannot work on streams of these schemas."""
    if not isinstance(operator, Operator):
        raise PipelineError(
            f"apply: {operator!r} is not an operator; derive a class from hg.extend.Operator and give an "
            "object of it."
        )
    name = type(operator).__name__
    if len(getattr(operator, "outputs", ())) != 1:
        raise PipelineError(
            f"apply: {name} must have exactly one output; call super().__init__([input], [output]) with the "
            "schemas."
        )
    if len(operator.inputs) != len(schemas):
        raise PipelineError(
            f"apply: {name} has {len(operator.inputs)} inputs, and {len(schemas)} streams were given."
        )
    for number, (wanted, given) in enumerate(zip(operator.inputs, schemas, strict=True), 1):
        if wanted != given:
            raise PipelineError(
                f"apply: input {number} of {name} has the columns {_columns(wanted)}, but the stream has "
                f"{_columns(given)}; make the operator with stream.schema."
            )
    _require_normal(operator.outputs[0], f"apply: the output of {name}")
    if operator.kind is Kind.KEYED:
        if len(operator.keys_by_input) != len(schemas):
            raise PipelineError(
                f"apply: {name} is keyed; set self.keys_by_input to the key columns of each input, e.g. "
                "(('user_id',),)."
            )
        for keys, schema in zip(operator.keys_by_input, schemas, strict=True):
            require_columns(schema, keys, f"apply: keys of {name}")
    if operator.kind is not Kind.STATELESS and not isinstance(operator.open(), State):
        raise PipelineError(f"apply: {name} is {operator.kind.value}, so its open() must return a State.")


def _require_normal(schema: pa.Schema, where: str) -> None:
    """Operators know few types, each in one form; the built-in sources convert to them."""
    for field, normal in zip(schema, normalise(schema), strict=True):
        if field.type != normal.type:
            raise PipelineError(
                f"{where}: column '{field.name}' is {field.type}; declare it as {normal.type} and convert "
                "the rows."
            )


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema) or "none"
