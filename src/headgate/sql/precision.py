"""``round``, ``bround``, ``floor`` and ``ceil``."""

from __future__ import annotations

import decimal as py
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import ExpressionError
from headgate.sql import decimals
from headgate.sql import types as t
from headgate.sql.casts import implicit
from headgate.sql.node import FallibleKernel, Kernel, Node, fallible, null_of, strict
from headgate.sql.registry import Call, function
from headgate.sql.rounding import half_up_integers
from headgate.sql.values import Bad, Value, as_array, both_valid, checked, from_numbers, kernel, numbers


@function("floor", "ceil", "ceiling", args=1)
def _floor(call: Call) -> Node:
    node = call.numeric()
    name = "floor" if call.name == "floor" else "ceil"
    if t.is_integral(node.type):
        return implicit(node, t.BIGINT, call.name, call.text)
    if t.is_decimal(node.type):
        return _decimal_floor(name, node, call)
    if node.type == t.FLOAT:
        node = implicit(node, t.DOUBLE, call.name, call.text)
    compute = np.floor if name == "floor" else np.ceil

    def run(value: Value) -> tuple[Value, Bad]:
        data = numbers(value)
        whole = compute(np.where(np.isnan(data), 0.0, data))
        outside = ~((whole >= -(2.0**63)) & (whole <= 2.0**63))
        top = whole >= 2.0**63
        integers = np.where(outside | top, 0, whole).astype(np.int64)
        return checked(np.where(top, 2**63 - 1, integers), outside, t.BIGINT, value)

    return fallible(t.BIGINT, call.text, f"BIGINT overflow in {call.text}", run, node)


def _decimal_floor(name: str, node: Node, call: Call) -> Node:
    if node.type.scale == 0:
        return node
    result = t.bounded(node.type.precision - node.type.scale + 1, 0)
    compute = kernel(name)

    def run(value: Value) -> tuple[Value, Bad]:
        wide = as_array(value, 1).cast(pa.decimal256(76, node.type.scale))
        return decimals.fit(compute(wide), result)

    return fallible(result, call.text, f"overflow in {call.text}", run, node)


@function("round", "bround", args=(1, 2))
def _round(call: Call) -> Node:
    node = call.numeric()
    scale = call.constant(1, t.INT, "scale").as_py() if len(call.args) == 2 else 0
    if scale is None:
        return null_of(node.type, call.text)
    even = call.name == "bround"
    reason = f"{node.type_name} overflow in {call.text}"
    if t.is_decimal(node.type):
        return _round_decimal(node, scale, even, call)
    if t.is_integral(node.type):
        if scale >= 0:
            return node
        return fallible(node.type, call.text, reason, _round_integral(node.type, scale, even), node)
    if abs(scale) > 15:
        raise ExpressionError(
            f"Rounding a {node.type_name} to more than 15 digits is not supported in {call.text!r}."
        )
    return strict(node.type, call.text, _round_fractional(node.type, scale, even), node)


def _round_decimal(node: Node, scale: int, even: bool, call: Call) -> Node:
    precision, own = node.type.precision, node.type.scale
    least = precision - own + 1
    if scale < 0:
        result = t.bounded(max(least, -scale + 1), 0)
    else:
        kept = min(own, scale)
        result = t.decimal(min(least + kept, 38), kept)
    mode = "half_to_even" if even else "half_towards_infinity"

    def run(value: Value) -> tuple[Value, Bad]:
        wide = as_array(value, 1).cast(pa.decimal256(76, own))
        return decimals.fit(pc.round(wide, ndigits=scale, round_mode=mode), result)

    return fallible(result, call.text, f"{t.spark_name(result)} overflow in {call.text}", run, node)


def _round_integral(type_: pa.DataType, scale: int, even: bool) -> FallibleKernel:
    limits = np.iinfo(type_.to_pandas_dtype())

    def run(value: Value) -> tuple[Value, Bad]:
        if -scale > 18:
            return from_numbers(0 * numbers(value), type_, both_valid(len(value), value)), None
        wide = numbers(value).astype(np.int64)
        unit = 10**-scale
        low = np.fmod(wide, unit)
        base = wide - low
        size = np.abs(low)
        half = unit // 2
        up = size > half
        ties = size == half
        up |= ties & (np.mod(base // unit, 2) == 1) if even else ties
        step = np.where(up, np.sign(low) * unit, 0)
        with np.errstate(over="ignore"):
            out = base + step
        wrapped = ((base ^ out) & (step ^ out)) < 0
        outside = wrapped | (out < limits.min) | (out > limits.max)
        return checked(np.where(outside, 0, out), outside, type_, value)

    return run


def _round_fractional(type_: pa.DataType, scale: int, even: bool) -> Kernel:
    power = 10.0 ** abs(scale)
    context = py.Context(prec=400, rounding=py.ROUND_HALF_EVEN if even else py.ROUND_HALF_UP)
    quantum = py.Decimal(1).scaleb(-scale)

    def printed(number: Any) -> float:
        return float(py.Decimal(str(number)).quantize(quantum, context=context))

    def run(value: Value) -> Value:
        # Spark rounds a float by the digits of the double that it is.
        data = numbers(value).astype(np.float64)
        digits, unsure = half_up_integers(data, scale, even=even)
        out = digits / power if scale >= 0 else digits * power
        # More digits than the mantissa holds: only numbers with many digits on both sides of the point.
        whole = ~np.isfinite(data) | (np.abs(data) >= 2.0**53) if scale >= 0 else ~np.isfinite(data)
        out = np.where(unsure & whole, data, out)
        rest = np.flatnonzero(unsure & ~whole)
        if len(rest):
            distinct, inverse = np.unique(data[rest], return_inverse=True)
            out[rest] = np.array([printed(x) for x in distinct])[inverse]
        return from_numbers(out, type_, both_valid(len(data), value))

    return run
