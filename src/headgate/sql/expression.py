"""A compiled expression: what operators hold, ship and evaluate."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from sqlglot import exp

from headgate.errors import BadRow, ExpressionError
from headgate.sql.compiler import Compiler, check_boolean
from headgate.sql.guard import guarded
from headgate.sql.node import Node, Run
from headgate.sql.parse import parse
from headgate.sql.spelling import spell
from headgate.sql.udfs import shipped
from headgate.sql.values import Bad, Value, as_array


class Expression:
    """A Spark SQL expression compiled against a schema.  Immutable; pickled as its text and schema."""

    __slots__ = ("_fields", "_node", "_origin", "_run", "_schema", "columns", "name", "text", "type")

    text: str
    name: str
    type: pa.DataType
    columns: frozenset[str]
    _schema: pa.Schema
    _node: Node
    _run: Run
    _fields: list[tuple[int, pa.Field]]
    _origin: tuple[Any, ...] | None

    def __init__(
        self, text: str, schema: pa.Schema, name: str, node: Node, origin: tuple[Any, ...] | None = None
    ) -> None:
        """``origin`` is a function and its operands that make the same expression, if not its text does."""
        fields = [(schema.get_field_index(c), schema.field(c)) for c in sorted(node.columns)]
        for slot, value in (
            ("text", text),
            ("name", name),
            ("type", node.type),
            ("columns", node.columns),
            ("_schema", schema),
            ("_node", node),
            ("_run", node.run),
            ("_fields", fields),
            ("_origin", origin),
        ):
            object.__setattr__(self, slot, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"an Expression is immutable; {name!r} cannot be set")

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._origin is not None:
            return shipped(str(self._origin[1]), (self._origin[0], self._origin[1:]))
        return shipped(self.text, (compile_expression, (self.text, self._schema)))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Expression) and self.text == other.text and self._schema.equals(other._schema)
        )

    def __hash__(self) -> int:
        return hash(self.text)

    def evaluate(self, batch: pa.RecordBatch) -> pa.Array:
        """The values for a batch, or BadRow for the first row on which Spark would raise."""
        value, bad = self._values(batch)
        if bad is not None:
            index = int(bad.argmax())
            raise BadRow(self._explain(batch, index), index)
        return as_array(value, batch.num_rows)

    def evaluate_safe(self, batch: pa.RecordBatch) -> tuple[pa.Array, pa.BooleanArray | None]:
        """The values for a batch (null on bad rows) and the mask of bad rows, or None if there is none."""
        value, bad = self._values(batch)
        array = as_array(value, batch.num_rows)
        if bad is None:
            return array, None
        mask = pa.array(bad)
        return pa.compute.if_else(mask, pa.scalar(None, array.type), array), mask

    def _values(self, batch: pa.RecordBatch) -> tuple[Value, Bad]:
        if not batch.schema.equals(self._schema):
            batch = self._conform(batch)
        value, bad = self._run(batch)
        if bad is not None and not bad.any():
            bad = None
        return value, bad

    def _conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with the columns where they were compiled: order and other columns may differ."""
        columns: list[pa.Array | None] = [None] * len(self._schema)
        for index, field in self._fields:
            place = batch.schema.get_field_index(field.name)
            if place < 0 or batch.schema.field(place).type != field.type:
                found = "is missing" if place < 0 else f"is {batch.schema.field(place).type}"
                raise ExpressionError(
                    f"{self.text!r} was compiled for {field.name} {field.type}, which {found} in the packet."
                )
            columns[index] = batch.column(place)
        filler = pa.nulls(batch.num_rows)
        filled = [filler if c is None else c for c in columns]
        return pa.RecordBatch.from_arrays(filled, names=[str(i) for i in range(len(filled))])

    def _explain(self, batch: pa.RecordBatch, index: int) -> str:
        if not batch.schema.equals(self._schema):
            batch = self._conform(batch)
        row = batch.slice(index, 1)
        node = _culprit(self._node, row)
        values = ", ".join(f"{field.name} = {_shown(row.column(i)[0])}" for i, field in self._fields)
        where = f" ({values})" if values else ""
        return f"{node.reason or 'bad value'}{where}; the expression is {self.text!r}"


def _shown(scalar: pa.Scalar) -> str:
    shown = str(scalar)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _culprit(node: Node, row: pa.RecordBatch) -> Node:
    """The innermost node that makes a row bad."""
    for child in node.children if node.reaches is None else node.reaches(row):
        bad = child.run(row)[1]
        if bad is not None and bad.any():
            return _culprit(child, row)
    return node


def strip_alias(tree: exp.Expr) -> tuple[exp.Expr, str | None]:
    """A tree without its alias, and the alias."""
    if isinstance(tree, exp.Alias):
        return tree.this, tree.alias
    return tree, None


def compile_tree(
    tree: exp.Expr, text: str, schema: pa.Schema, origin: tuple[Any, ...] | None = None
) -> Expression:
    """Compiles a parsed tree; ``text`` is the user's own."""
    body, alias = strip_alias(tree)
    if isinstance(body, exp.Star):
        raise ExpressionError("'*' means all columns and is possible only by itself, in select().")
    node = Compiler(text, schema).compile(body)
    return Expression(text, schema, alias or _name(body, node), node, origin)


def _name(tree: exp.Expr, node: Node) -> str:
    if isinstance(tree, exp.Column):
        # Spark keeps the column's own spelling for a plain column, and the last field's for a.b.
        return node.text if len(tree.parts) == 1 else tree.parts[-1].name
    if isinstance(tree, exp.Cast | exp.TryCast | exp.Paren):
        inner = tree
        while isinstance(inner, exp.Cast | exp.TryCast | exp.Paren):
            inner = inner.this
        if isinstance(inner, exp.Column):
            # ... and for a cast of one.
            return inner.parts[-1].name
    return spell(tree)


@guarded
def compile_expression(text: str, schema: pa.Schema) -> Expression:
    """Compiles one expression, with or without an alias."""
    return compile_tree(parse(text), text, schema)


@guarded
def compile_predicate(text: str, schema: pa.Schema) -> Expression:
    """Compiles a condition."""
    compiled = compile_expression(text, schema)
    node = check_boolean(compiled._node, text)
    if node is compiled._node:
        return compiled
    return Expression(text, schema, compiled.name, node, (compile_predicate, text, schema))
