"""Which blocks of rows a predicate can be true on, by their columns' smallest and greatest values.

Files keep these for every block.  A block is passed over only if the predicate is true on none of its rows
and raises on none: a row on which Spark would raise is a bad row and must be seen.  So only predicates that
cannot raise are taken: comparisons of a column with a constant, IN, BETWEEN and IS NOT NULL, joined by AND
and OR.  None of them is true on a row of nulls, so such rows can stand for the block's.

A comparison is evaluated at the block's ends by its own compiled expression.  It is monotone in the column,
so types, time zones and decimals need no second implementation here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.types as pt
from sqlglot import exp

from headgate.errors import HeadgateError
from headgate.sql.expression import Expression, compile_tree, strip_alias
from headgate.sql.parse import parse


class Bound(NamedTuple):
    """What is known of a column in a block; None: it is not known."""

    rows: int
    nulls: int | None = None
    least: Any = None
    most: Any = None
    """Values that pyarrow takes for the column's type."""


Bounds = Mapping[str, Bound]
_Test = Callable[[Bounds], bool]
"""Whether a part of the predicate may be true on some row; a column that is not there is not known."""

_SHORT = 18
"""Digits of a decimal constant with which every integer can be compared: both fit 38 digits."""
_ORDERED = (exp.GT, exp.GTE, exp.LT, exp.LTE)


class Ranges:
    """A predicate, as a test of blocks.  Pickled as its text and schema."""

    def __init__(self, text: str, schema: pa.Schema, test: _Test, columns: frozenset[str]) -> None:
        self.text = text
        self.columns = columns
        """The columns whose bounds it asks for."""
        self._schema = schema
        self._test = test

    def possible(self, bounds: Bounds) -> bool:
        """Whether the predicate may be true on some row of a block."""
        return self._test(bounds)

    def __reduce__(self) -> tuple[Any, ...]:
        return compile_ranges, (self.text, self._schema)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranges) and self.text == other.text and self._schema.equals(other._schema)

    def __hash__(self) -> int:
        return hash(self.text)


def compile_ranges(text: str, schema: pa.Schema) -> Ranges | None:
    """The predicate ``text`` as a test of blocks; None if blocks cannot be told by it."""
    builder = _Builder(schema)
    test = builder.build(strip_alias(parse(text))[0])
    return None if test is None else Ranges(text, schema, test, frozenset(builder.columns))


class _Builder:
    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self.columns: set[str] = set()

    def build(self, tree: exp.Expr) -> _Test | None:
        tree = tree.unnest()
        if isinstance(tree, exp.And | exp.Or):
            parts = [self.build(part) for part in (tree.this, tree.expression)]
            return _joined(parts, all if isinstance(tree, exp.And) else any)
        if isinstance(tree, exp.Not):
            inner = tree.this.unnest()
            if isinstance(inner, exp.Is) and isinstance(inner.expression, exp.Null):
                return self._not_null(inner.this)
            return None
        if isinstance(tree, exp.Between):
            column, low, high = tree.this, tree.args["low"], tree.args["high"]
            ends = [exp.GTE(this=column, expression=low), exp.LTE(this=column, expression=high)]
            return None if tree.args.get("symmetric") else _joined([self.build(end) for end in ends], all)
        if isinstance(tree, exp.In) and tree.expressions and not tree.args.get("query"):
            equal = [exp.EQ(this=tree.this, expression=option) for option in tree.expressions]
            return _joined([self.build(each) for each in equal], any)
        if isinstance(tree, exp.EQ):
            sides = {"this": tree.this, "expression": tree.expression}
            return _joined([self._compared(exp.GTE(**sides)), self._compared(exp.LTE(**sides))], all)
        return self._compared(tree) if isinstance(tree, _ORDERED) else None

    def _not_null(self, tree: exp.Expr) -> _Test | None:
        column = self._column(tree)
        if column is None:
            return None
        self.columns.add(column)
        return lambda bounds: not _all_null(bounds.get(column))

    def _column(self, tree: exp.Expr) -> str | None:
        """The name of a column that stands by itself."""
        found = self._compiled(tree.unnest())
        if found is None or not isinstance(tree.unnest(), exp.Column) or found.name not in found.columns:
            return None
        return found.name if found.type == self._schema.field(found.name).type else None

    def _compared(self, tree: exp.Expr) -> _Test | None:
        """A comparison of a column with a constant, by an order."""
        sides = (tree.this, tree.expression)
        columns = [self._column(side) for side in sides]
        if (columns[0] is None) == (columns[1] is None):
            return None
        column = columns[0] or columns[1]
        assert column is not None
        field = self._schema.field(column)
        constant = self._compiled(sides[0 if columns[0] is None else 1])
        whole = self._compiled(tree)
        if constant is None or constant._node.constant is None or whole is None:
            return None
        if not _alike(field.type, constant.type) or _true(whole, field, [_sample(field.type)]) is None:
            return None
        self.columns.add(column)
        # A block's ends leave NaN out, which is greater than all numbers.
        if pt.is_floating(field.type) and _true(whole, field, [float("nan")]) != [False]:
            return lambda bounds: not _all_null(bounds.get(column))
        return lambda bounds: _ordered(whole, field, bounds.get(column))

    def _compiled(self, tree: exp.Expr) -> Expression | None:
        try:
            return compile_tree(tree, tree.sql("spark"), self._schema)
        except HeadgateError:
            return None


def _joined(parts: Sequence[_Test | None], how: Callable[[Any], bool]) -> _Test | None:
    tests = [part for part in parts if part is not None]
    if len(tests) < len(parts):
        return None  # what is not known may raise
    return lambda bounds: how(test(bounds) for test in tests)


def _all_null(bound: Bound | None) -> bool:
    return bound is not None and bound.nulls == bound.rows


def _ordered(comparison: Expression, field: pa.Field, bound: Bound | None) -> bool:
    """Whether a comparison is true at one of the block's ends, and so whether it can be true between them."""
    if _all_null(bound):
        return False
    if bound is None or bound.least is None or bound.most is None:
        return True
    found = _true(comparison, field, [bound.least, bound.most])
    return found is None or any(found)


def _true(comparison: Expression, field: pa.Field, values: Sequence[Any]) -> list[bool] | None:
    """Where a comparison of one column is true; None if it raises or the values are not of the type."""
    try:
        batch = pa.RecordBatch.from_arrays([pa.array(values, field.type)], schema=pa.schema([field]))
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    found, bad = comparison.evaluate_safe(batch)
    return None if bad is not None else [value is True for value in found.to_pylist()]


def _alike(column: pa.DataType, constant: pa.DataType) -> bool:
    """Whether all values of a column can be compared with a constant, without a cast that may raise."""
    if pt.is_integer(column) or pt.is_floating(column):
        short = pt.is_decimal(constant) and constant.precision <= _SHORT
        return bool(pt.is_integer(constant) or pt.is_floating(constant) or short)
    if pt.is_string(column):
        return bool(pt.is_string(constant))
    if pt.is_date(column) or pt.is_timestamp(column):
        return bool(pt.is_date(constant) or pt.is_timestamp(constant) or pt.is_string(constant))
    return False


def _sample(type_: pa.DataType) -> pa.Scalar:
    """Some value of a type: a constant that cannot be cast to it raises on every row."""
    return pa.scalar("" if pt.is_string(type_) else 0, type_)
