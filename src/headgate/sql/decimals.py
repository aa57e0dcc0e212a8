"""Decimals by Spark's rules of precision and scale, computed in 256 bits and rounded half up."""

from __future__ import annotations

import decimal as py
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.sql import types as t
from headgate.sql.node import FallibleKernel
from headgate.sql.rounding import half_up_integers
from headgate.sql.values import (
    Bad,
    Mask,
    Value,
    as_array,
    both_valid,
    is_true,
    kernel,
    null_where,
    numbers,
    rows,
    some,
    union,
)

_MINIMUM_SCALE = 6


def adjusted(precision: int, scale: int) -> pa.DataType:
    """A result type cut to 38 digits as Spark does when precision loss is allowed."""
    if precision <= 38:
        return t.decimal(precision, scale)
    digits = precision - scale
    return t.decimal(38, max(38 - digits, min(scale, _MINIMUM_SCALE)))


def result_type(operator: str, a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """The type of ``a operator b`` for two decimal types."""
    integral = max(a.precision - a.scale, b.precision - b.scale)
    scale = max(a.scale, b.scale)
    if operator in ("+", "-"):
        return adjusted(integral + scale + 1, scale)
    if operator == "*":
        return adjusted(a.precision + b.precision + 1, a.scale + b.scale)
    if operator == "/":
        scale = max(_MINIMUM_SCALE, a.scale + b.precision + 1)
        return adjusted(a.precision - a.scale + b.scale + scale, scale)
    if operator in ("%", "pmod"):
        return adjusted(min(a.precision - a.scale, b.precision - b.scale) + scale, scale)
    raise AssertionError(operator)


def _wide(value: Value, scale: int, precision: int = 76) -> Value:
    return value.cast(pa.decimal256(precision, scale))


def fit(value: pa.Array, target: pa.DataType) -> tuple[Value, Bad]:
    """A wide decimal array rounded half up into a decimal type; what does not fit is bad."""
    if value.type.scale > target.scale:
        value = pc.round(value, ndigits=target.scale, round_mode="half_towards_infinity")
    limit = py.Decimal(10) ** (target.precision - target.scale)
    bound = pa.scalar(limit, pa.decimal256(76, 0)).cast(pa.decimal256(76, value.type.scale))
    low = pa.scalar(-limit, pa.decimal256(76, 0)).cast(pa.decimal256(76, value.type.scale))
    outside = pc.or_(pc.greater_equal(value, bound), pc.less_equal(value, low))
    bad = some(is_true(outside, len(value)))
    if bad is not None:
        value = null_where(value, bad)
    return value.cast(target, safe=False), bad


def arithmetic(operator: str, a: pa.DataType, b: pa.DataType, target: pa.DataType) -> FallibleKernel:
    """The kernel of ``+``, ``-`` or ``*`` on two decimals."""
    name = {"+": "add", "-": "subtract", "*": "multiply"}[operator]
    exact = a.precision + b.precision + 1 if operator == "*" else None
    if operator != "*":
        exact = max(a.precision - a.scale, b.precision - b.scale) + max(a.scale, b.scale) + 1
    narrow = kernel(name)
    if exact is not None and exact <= 38:
        return lambda x, y: (narrow(x, y), None)

    def run(x: Value, y: Value) -> tuple[Value, Bad]:
        n = rows(x, y)
        left = _wide(as_array(x, n), a.scale, a.precision)
        right = _wide(as_array(y, n), b.scale, b.precision)
        result = narrow(left, right)
        return fit(result.cast(pa.decimal256(76, result.type.scale)), target)

    return run


def zero(b: pa.DataType) -> pa.Scalar:
    return pa.scalar(py.Decimal(0), b)


def division(a: pa.DataType, b: pa.DataType, target: pa.DataType) -> FallibleKernel | None:
    """The kernel of ``/`` on two decimals; None if 256 bits cannot hold the scaled dividend."""
    shift = target.scale + 1 + b.scale - a.scale
    digits = a.precision + max(0, shift)
    if digits > 75 or shift < 2:
        return None
    none = zero(b)

    def run(x: Value, y: Value) -> tuple[Value, Bad]:
        n = rows(x, y)
        x, y = as_array(x, n), as_array(y, n)
        bad = _zero_divisor(x, y, none)
        if bad is not None:
            y = null_where(y, bad)
        quotient = _integer_quotient(x, y, a, b, target.scale + 1)
        wide = _declared(quotient, pa.decimal256(76, target.scale + 1))
        out, overflow = fit(wide, target)
        return out, union(bad, overflow)

    return run


def _zero_divisor(x: pa.Array, y: pa.Array, none: pa.Scalar) -> Bad:
    return some(is_true(pc.equal(y, none), len(y)) & is_true(pc.is_valid(x), len(x)))


def _declared(value: pa.Array, type_: pa.DataType) -> pa.Array:
    """The same digits under another precision and scale."""
    return pa.Array.from_buffers(type_, len(value), value.buffers(), value.null_count, value.offset)


def _integer_quotient(x: pa.Array, y: pa.Array, a: pa.DataType, b: pa.DataType, scale: int) -> pa.Array:
    """``x / y`` truncated to ``scale`` digits, as an integer of 256 bits.

    Arrow multiplies the dividend by 10^(p + 1), p being the divisor's declared precision, before it divides.
    Declaring p one less than the shift that is wanted makes that the whole computation.
    """
    shift = scale + b.scale - a.scale
    left = _declared(_wide(x, a.scale), pa.decimal256(76 - shift, 3))
    right = _declared(_wide(y, b.scale), pa.decimal256(shift - 1, 0))
    return pc.divide(left, right)


def rescale(target: pa.DataType) -> FallibleKernel:
    """The kernel that casts a decimal or an integral to a decimal type."""
    fast = kernel("cast", pc.CastOptions.safe(target))

    def run(value: Value) -> tuple[Value, Bad]:
        source = value.type
        if t.is_decimal(source) and source.scale <= target.scale:
            try:
                return fast(value), None
            except pa.ArrowInvalid:
                pass
        array = as_array(value, 1)
        scale = source.scale if t.is_decimal(source) else 0
        if not t.is_decimal(source):
            array = (
                array.cast(t.as_decimal(source)) if source != t.BIGINT else array.cast(pa.decimal128(19, 0))
            )
        return fit(array.cast(pa.decimal256(76, max(scale, target.scale))), target)

    return run


def to_integral(source: pa.DataType, target: pa.DataType) -> FallibleKernel:
    """The kernel that truncates a decimal to an integral type."""
    bits = target.bit_width
    low = pa.scalar(py.Decimal(-(2 ** (bits - 1))), pa.decimal128(38, 0))
    high = pa.scalar(py.Decimal(2 ** (bits - 1) - 1), pa.decimal128(38, 0))

    def run(value: Value) -> tuple[Value, Bad]:
        array = as_array(value, 1)
        whole = pc.trunc(array.cast(pa.decimal256(76, source.scale)))
        whole = whole.cast(pa.decimal128(38, 0), safe=False)
        bad = some(is_true(pc.or_(pc.less(whole, low), pc.greater(whole, high)), len(array)))
        if bad is not None:
            whole = null_where(whole, bad)
        return whole.cast(target), bad

    return run


def to_double(value: Value, scale: int) -> Value:
    """The nearest doubles of decimals of at most 15 digits."""
    if isinstance(value, pa.Scalar):
        return pa.scalar(None if value.as_py() is None else float(value.as_py()), pa.float64())
    begin, end = 2 * value.offset, 2 * (value.offset + len(value))
    low = np.frombuffer(value.buffers()[1], dtype=np.int64)[begin:end:2]
    found = pa.array(low / float(10**scale))
    return (
        found if not value.null_count else pc.if_else(value.is_valid(), found, pa.scalar(None, pa.float64()))
    )


def from_fractional(source: pa.DataType, target: pa.DataType) -> FallibleKernel:
    """The kernel that rounds a double or float half up to a decimal, by its shortest digits as Java does."""

    def run(value: Value) -> tuple[Value, Bad]:
        data = numbers(value)
        finite: Mask = np.isfinite(data)
        valid = both_valid(len(data), value)
        keep = finite if valid is None else finite & valid
        digits: list[Any] | Any
        digits, unsure = half_up_integers(data, target.scale)
        if not (unsure & keep).any():
            out = _from_int64(np.where(keep, digits, 0), target.scale, keep)
            return fit(out, target)
        context = py.Context(prec=400, rounding=py.ROUND_HALF_UP)
        quantum = py.Decimal(1).scaleb(-target.scale)
        texts = [
            py.Decimal(repr(x.item())).quantize(quantum, context=context)
            if k and abs(float(x)) < 1e38
            else None
            for x, k in zip(data, keep, strict=True)
        ]
        huge = keep & (np.abs(np.where(finite, data, 0).astype(np.float64)) >= 1e38)
        out, bad = fit(pa.array(texts, pa.decimal256(76, target.scale)), target)
        return out, union(some(huge), bad)

    return run


def _from_int64(digits: Any, scale: int, valid: Mask) -> pa.Array:
    """Integers as the digits of a wide decimal."""
    words = np.empty((len(digits), 4), dtype=np.int64)
    words[:, 0] = digits
    words[:, 1:] = (digits >> 63)[:, None]
    bits = None if valid.all() else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(pa.decimal256(76, scale), len(digits), [bits, pa.py_buffer(words)])
