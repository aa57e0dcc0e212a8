"""Lists of expressions: what ``select`` and ``top`` take."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from sqlglot import exp

from headgate.errors import ExpressionError
from headgate.sql import types as t
from headgate.sql.expression import Expression, compile_expression, compile_tree
from headgate.sql.guard import guarded
from headgate.sql.parse import parse
from headgate.sql.spelling import spell


def compile_projection(texts: Sequence[str], schema: pa.Schema) -> list[Expression]:
    """Compiles the columns of a select; ``"*"`` stands for all columns of the input."""
    if isinstance(texts, str):
        texts = [texts]
    if not texts:
        raise ExpressionError("select() takes at least one expression.")
    out: list[Expression] = []
    for text in texts:
        if isinstance(text, str) and text.strip() == "*":
            out.extend(compile_expression(f"`{name.replace('`', '``')}`", schema) for name in schema.names)
        else:
            out.append(compile_expression(text, schema))
    seen: dict[str, str] = {}
    for expression in out:
        key = expression.name.lower()
        if key in seen:
            raise ExpressionError(
                f"The column {expression.name!r} comes out twice, from {seen[key]!r} and "
                f"{expression.text!r}; "
                "give one of them another name with AS."
            )
        seen[key] = expression.text
    return out


@guarded
def compile_ordering(text: str, schema: pa.Schema) -> list[tuple[Expression, bool, bool]]:
    """Compiles ``"n DESC, user_id"`` to (expression, descending, nulls first), nulls as Spark orders them."""
    keys: list[tuple[Expression, bool, bool]] = []
    for place, ordered in enumerate(_ordered(text)):
        descending = bool(ordered.args.get("desc"))
        given = ordered.args.get("nulls_first")
        origin = (_ordering_key, text, schema, place)
        compiled = compile_tree(ordered.this, spell(ordered.this), schema, origin)
        if not t.is_atomic(compiled.type):
            raise ExpressionError(f"{t.spark_name(compiled.type)} cannot be ordered in {text!r}.")
        keys.append((compiled, descending, not descending if given is None else bool(given)))
    return keys


def _ordering_key(text: str, schema: pa.Schema, place: int) -> Expression:
    return compile_ordering(text, schema)[place][0]


def _ordered(text: str) -> list[exp.Ordered]:
    if not isinstance(text, str) or not text.strip():
        raise ExpressionError(f"An ordering is a string such as 'n DESC, user_id', not {text!r}.")
    # Only a statement may carry ORDER BY, and its parser knows ASC, DESC and NULLS FIRST.
    tree = parse(text, ordering=True)
    return list(tree.find(exp.Order).expressions)  # type: ignore[union-attr]
