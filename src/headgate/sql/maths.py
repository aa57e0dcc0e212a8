"""Mathematical functions and the function forms of arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.sql import arithmetic
from headgate.sql import types as t
from headgate.sql.logic import null_if
from headgate.sql.node import (
    Node,
    constant,
    strict,
)
from headgate.sql.registry import Call, function
from headgate.sql.values import Numbers, Value, both_valid, computed, from_numbers, numbers, rows


def _doubles(*names: str, compute: Callable[..., Any], args: int = 1) -> None:
    def build(call: Call) -> Node:
        nodes = [call.cast(i, t.DOUBLE) for i in range(args)]
        return strict(t.DOUBLE, call.text, computed(t.DOUBLE, compute), *nodes)

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
_doubles("asinh", compute=np.arcsinh)
_doubles("acosh", compute=np.arccosh)
_doubles("atanh", compute=np.arctanh)
_doubles("cot", compute=lambda x: 1 / np.tan(x))
_doubles("csc", compute=lambda x: 1 / np.sin(x))
_doubles("sec", compute=lambda x: 1 / np.cos(x))
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


def _logarithm(call: Call, compute: Callable[..., Any], low: float = 0.0) -> Node:
    """Null where an operand is ``low`` or less; ``compute`` sees 2 there, so it never divides by log(1)."""

    def run(*values: Value) -> Value:
        n = rows(*values)
        operands = [np.broadcast_to(numbers(value), n) for value in values]
        inside = np.all([~(operand <= low) for operand in operands], axis=0)
        valid = both_valid(n, *values)
        with np.errstate(all="ignore"):
            out = compute(*(np.where(inside, operand, 2.0) for operand in operands))
        return from_numbers(out, t.DOUBLE, inside if valid is None else inside & valid)

    return strict(t.DOUBLE, call.text, run, *(call.cast(i, t.DOUBLE) for i in range(len(call.args))))


function("ln", args=1)(lambda call: _logarithm(call, np.log))
function("log10", args=1)(lambda call: _logarithm(call, np.log10))
function("log2", args=1)(lambda call: _logarithm(call, np.log2))
function("log1p", args=1)(lambda call: _logarithm(call, np.log1p, low=-1.0))


@function("log", args=(1, 2))
def _log(call: Call) -> Node:
    return _logarithm(call, np.log if len(call.args) == 1 else lambda base, x: np.log(x) / np.log(base))


function("e", args=0)(lambda call: constant(pa.scalar(float(np.e)), call.text))
function("pi", args=0)(lambda call: constant(pa.scalar(float(np.pi)), call.text))
function("abs", args=1)(lambda call: arithmetic.absolute(call.numeric(), call.text))
function("negative", args=1)(lambda call: arithmetic.negate(call.args[0], call.text))
function("positive", args=1)(lambda call: call.numeric())
function("mod", args=2)(lambda call: arithmetic.remainder("%", call.args[0], call.args[1], call.text))
function("pmod", args=2)(lambda call: arithmetic.remainder("pmod", call.args[0], call.args[1], call.text))
function("div", args=2)(lambda call: arithmetic.integral_divide(call.args[0], call.args[1], call.text))


def _try(name: str, operator: str) -> None:
    def build(call: Call) -> Node:
        if any(not t.is_numeric(n.type) and n.type not in (t.NULL, t.STRING) for n in call.args):
            raise call.mismatch("two numbers")
        left, right = call.args
        if operator in ("/", "%") and t.is_numeric(right.type):
            # Where the divisor is zero, Spark does not evaluate the dividend.
            zero = constant(pa.scalar(0, t.INT), "0", literal=True)
            right = null_if(right, zero, call.text).spelled(right.text)
        found = arithmetic.arithmetic(operator, left, right, call.text, forgive=True)
        divisor = call.args[1].constant
        if left.constant is None and found.constant is not None and divisor is not None and divisor.is_valid:
            # Null for every row, but Spark does not know that beforehand: it evaluates what is next to it.
            return replace(
                found, constant=None, run=lambda batch: (pa.nulls(batch.num_rows, found.type), None)
            )
        return found

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

    # Java widens to 64 bits with the sign, then counts.
    run = computed(t.INT, lambda data: np.bitwise_count(data.astype(np.int64).view(np.uint64)))
    return strict(t.INT, call.text, run, call.args[0])
