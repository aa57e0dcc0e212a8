"""Constants as they are written: numbers with Spark's suffixes, strings, dates, timestamps, hexadecimals."""

from __future__ import annotations

import decimal as py

import pyarrow as pa
from sqlglot import exp

from headgate.errors import ExpressionError
from headgate.sql import types as t
from headgate.sql.node import Node, constant

_LONG = 2**63
_SUFFIXES = {"y": t.TINYINT, "s": t.SMALLINT, "l": t.BIGINT, "f": t.FLOAT, "d": t.DOUBLE}


def literal(tree: exp.Literal, text: str, *, negative: bool = False) -> Node:
    """A string or number; ``negative`` if a minus sign stands before it."""
    if tree.is_string:
        return constant(pa.scalar(tree.this, t.STRING), text, literal=True)
    digits = ("-" if negative else "") + tree.this
    if "e" in digits.lower():
        return constant(pa.scalar(float(digits), t.DOUBLE), text, literal=True)
    try:
        value = py.Decimal(digits)
    except py.InvalidOperation:
        raise ExpressionError(f"{digits!r} is not a number.") from None
    if "." in digits:
        return constant(decimal_scalar(value), text, literal=True)
    whole = int(value)
    if -(2**31) <= whole < 2**31:
        return constant(pa.scalar(whole, t.INT), text, literal=True)
    if -_LONG <= whole < _LONG:
        return constant(pa.scalar(whole, t.BIGINT), text, literal=True)
    return constant(decimal_scalar(value), text, literal=True)


def suffixed(tree: exp.Literal, suffix: str, text: str, *, negative: bool = False) -> Node:
    """A number with a suffix: ``5L``, ``1Y``, ``2.5D``, ``1.5BD``."""
    digits = ("-" if negative else "") + tree.this
    try:
        if suffix == "bd":
            return constant(decimal_scalar(py.Decimal(digits)), text, literal=True)
        type_ = _SUFFIXES[suffix]
        value = float(digits) if t.is_fractional(type_) else int(digits)
        return constant(pa.scalar(value, type_), text, literal=True)
    except (ValueError, OverflowError, pa.ArrowInvalid, py.InvalidOperation):
        raise ExpressionError(f"The number {digits}{suffix.upper()} is out of range.") from None


def decimal_scalar(value: py.Decimal) -> pa.Scalar:
    """A decimal with just the digits it is written with, as Spark types it: 0.5 is DECIMAL(1,1)."""
    _, digits, exponent = value.as_tuple()
    scale = max(0, -int(exponent))
    precision = max(len(digits) + max(0, int(exponent)), scale)
    if precision > 38:
        raise ExpressionError(f"The number {value} has more than 38 digits.")
    return pa.scalar(value, t.decimal(precision, scale))
