"""Mathematical functions and the function forms of arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import ExpressionError
from headgate.graph.expressions import arithmetic, decimals
from headgate.graph.expressions import types as t
from headgate.graph.expressions.casts import implicit
from headgate.graph.expressions.logic import null_if
from headgate.graph.expressions.node import (
    FallibleKernel,
    Kernel,
    Node,
    constant,
    fallible,
    forgiving,
    null_of,
    strict,
)
from headgate.graph.expressions.registry import Call, function
from headgate.graph.expressions.rounding import half_up_integers
from headgate.graph.expressions.values import (
    Bad,
    Numbers,
    Value,
    as_array,
    both_valid,
    from_numbers,
    kernel,
    numbers,
    rows,
    some,
)


def _numeric(call: Call, index: int = 0) -> Node:
    node = call.args[index]
    if node.type in (t.STRING, t.NULL):
        return call.cast(index, t.DOUBLE)
    if not t.is_numeric(node.type):
        raise call.mismatch("a number", index)
    return node


def _numpy(compute: Callable[..., Any]) -> Kernel:
    """A kernel over doubles; ``compute`` sees 0 where the operand is null."""

    def run(*values: Value) -> Value:
        n = rows(*values)
        with np.errstate(all="ignore"):
            out = compute(*(numbers(v) for v in values))
        return from_numbers(np.broadcast_to(out, n), t.DOUBLE, both_valid(n, *values))

    return run


def _doubles(*names: str, compute: Callable[..., Any], args: int = 1) -> None:
    def build(call: Call) -> Node:
        nodes = [call.cast(i, t.DOUBLE) for i in range(args)]
        return strict(t.DOUBLE, call.text, _numpy(compute), *nodes)

    function(*names, args=args)(build)


_doubles("sqrt", compute=np.sqrt)
_doubles("cbrt", compute=np.cbrt)
_doubles("exp", compute=np.exp)
_doubles("expm1", compute=np.expm1)
_doubles("sin", compute=np.sin)
_doubles("cos", compute=np.cos)
_doubles("tan", compute=np.tan)
_doubles("asin", compute=np.arcsin)
_doubles("acos", compute=np.arccos)
_doubles("atan", compute=np.arctan)
_doubles("sinh", compute=np.sinh)
_doubles("cosh", compute=np.cosh)
_doubles("tanh", compute=np.tanh)
_doubles("degrees", compute=np.degrees)
_doubles("radians", compute=np.radians)
_doubles("rint", compute=np.rint)
_doubles("signum", "sign", compute=lambda x: np.where(x == 0, x, np.sign(x)))
_doubles("atan2", compute=lambda y, x: np.arctan2(y + 0.0, x + 0.0), args=2)
_doubles("hypot", compute=np.hypot, args=2)


def _java_pow(x: Numbers, y: Numbers) -> Numbers:
    # C says 1 for pow(1, NaN) and pow(-1, inf); Java says NaN.
    out = np.power(x, y)
    return np.where(np.isnan(y) | ((np.abs(x) == 1) & np.isinf(y)), np.nan, out)


_doubles("pow", "power", compute=_java_pow, args=2)


def _logarithm(call: Call, compute: Callable[[Numbers], Any], low: float = 0.0) -> Node:
    def run(value: Value) -> Value:
        data = numbers(value)
        inside = ~(data <= low)
        valid = both_valid(len(data), value)
        with np.errstate(all="ignore"):
            out = compute(np.where(inside, data, 1.0))
        return from_numbers(out, t.DOUBLE, inside if valid is None else inside & valid)

    return strict(t.DOUBLE, call.text, run, call.cast(len(call.args) - 1, t.DOUBLE))


@function("ln", args=1)
def _ln(call: Call) -> Node:
    return _logarithm(call, np.log)


@function("log10", args=1)
def _log10(call: Call) -> Node:
    return _logarithm(call, np.log10)


@function("log2", args=1)
def _log2(call: Call) -> Node:
    return _logarithm(call, np.log2)


@function("log1p", args=1)
def _log1p(call: Call) -> Node:
    return _logarithm(call, np.log1p, low=-1.0)


@function("log", args=(1, 2))
def _log(call: Call) -> Node:
    if len(call.args) == 1:
        return _logarithm(call, np.log)

    def run(base: Value, value: Value) -> Value:
        n = rows(base, value)
        b, x = (np.broadcast_to(numbers(v), n) for v in (base, value))
        inside = ~(b <= 0) & ~(x <= 0)
        valid = both_valid(n, base, value)
        with np.errstate(all="ignore"):
            out = np.log(np.where(inside, x, 1.0)) / np.log(np.where(inside, b, 2.0))
        return from_numbers(out, t.DOUBLE, inside if valid is None else inside & valid)

    return strict(t.DOUBLE, call.text, run, call.cast(0, t.DOUBLE), call.cast(1, t.DOUBLE))


@function("e", args=0)
def _e(call: Call) -> Node:
    return constant(pa.scalar(float(np.e)), call.text)


@function("pi", args=0)
def _pi(call: Call) -> Node:
    return constant(pa.scalar(float(np.pi)), call.text)


@function("abs", args=1)
def _abs(call: Call) -> Node:
    return arithmetic.absolute(_numeric(call), call.text)


@function("negative", args=1)
def _negative(call: Call) -> Node:
    return arithmetic.negate(call.args[0], call.text)


@function("positive", args=1)
def _positive(call: Call) -> Node:
    return _numeric(call)


@function("mod", args=2)
def _mod(call: Call) -> Node:
    return arithmetic.remainder("%", call.args[0], call.args[1], call.text)


@function("pmod", args=2)
def _pmod(call: Call) -> Node:
    return arithmetic.remainder("pmod", call.args[0], call.args[1], call.text)


@function("div", args=2)
def _div(call: Call) -> Node:
    return arithmetic.integral_divide(call.args[0], call.args[1], call.text)


def _try(name: str, operator: str) -> None:
    def build(call: Call) -> Node:
        if any(not t.is_numeric(n.type) and n.type not in (t.NULL, t.STRING) for n in call.args):
            raise call.mismatch("two numbers")
        left, right = call.args
        if operator in ("/", "%") and t.is_numeric(right.type):
            # Where the divisor is zero, Spark does not evaluate the dividend.
            zero = constant(pa.scalar(0, t.INT), "0", literal=True)
            right = null_if(right, zero, call.text).spelled(right.text)
        return forgiving(arithmetic.arithmetic(operator, left, right, call.text))

    function(name, args=2)(build)


_try("try_add", "+")
_try("try_subtract", "-")
_try("try_multiply", "*")
_try("try_divide", "/")
_try("try_mod", "%")


def _shift(name: str, operator: str) -> None:
    function(name, args=2)(lambda call: arithmetic.shift(operator, call.args[0], call.args[1], call.text))


_shift("shiftleft", "<<")
_shift("shiftright", ">>")
_shift("shiftrightunsigned", ">>>")


@function("bit_count", args=1)
def _bit_count(call: Call) -> Node:
    if not (t.is_integral(call.args[0].type) or call.args[0].type == t.BOOLEAN):
        raise call.mismatch("a whole number")

    def run(value: Value) -> Value:
        # Java widens to 64 bits with the sign, then counts.
        wide = numbers(value).astype(np.int64).view(np.uint64)
        return from_numbers(np.bitwise_count(wide), t.INT, both_valid(len(wide), value))

    return strict(t.INT, call.text, run, call.args[0])


@function("floor", "ceil", "ceiling", args=1)
def _floor(call: Call) -> Node:
    node = _numeric(call)
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
        valid = both_valid(len(data), value)
        bad = some(outside if valid is None else outside & valid)
        if bad is not None:
            valid = ~bad if valid is None else valid & ~bad
        top = whole >= 2.0**63
        integers = np.where(outside | top, 0, whole).astype(np.int64)
        return from_numbers(np.where(top, 2**63 - 1, integers), t.BIGINT, valid), bad

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
    node = _numeric(call)
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
        valid = both_valid(len(wide), value)
        bad = some(outside if valid is None else outside & valid)
        if bad is not None:
            valid = ~bad if valid is None else valid & ~bad
        return from_numbers(np.where(outside, 0, out), type_, valid), bad

    return run


def _round_fractional(type_: pa.DataType, scale: int, even: bool) -> Kernel:
    import decimal as py

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
