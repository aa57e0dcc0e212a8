"""``+ - * / % div``, negation and bits: ANSI mode, so overflow and division by zero make a row bad."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from headgate.errors import ExpressionError, TypeMismatch
from headgate.sql import decimals
from headgate.sql import types as t
from headgate.sql.casts import implicit
from headgate.sql.node import FallibleKernel, Node, fallible, forgiving, strict
from headgate.sql.values import (
    Bad,
    Mask,
    Numbers,
    Value,
    as_array,
    both_valid,
    checked,
    computed,
    from_numbers,
    is_true,
    is_valid,
    kernel,
    null_where,
    numbers,
    rows,
    some,
)

_equal = kernel("equal")
_ARROW_NAMES = {"+": "add", "-": "subtract", "*": "multiply"}


def arithmetic(operator: str, left: Node, right: Node, text: str, *, forgive: bool = False) -> Node:
    """``left operator right`` for numbers; with ``forgive`` its own failures are null."""
    node = _arithmetic(operator, left, right, text, forgive)
    return forgiving(node) if forgive else node


def _arithmetic(operator: str, left: Node, right: Node, text: str, forgive: bool) -> Node:
    if operator == "/":
        return divide(left, right, text)
    if operator == "div":
        return integral_divide(left, right, text)
    if operator in ("%", "pmod"):
        return remainder(operator, left, right, text)
    left, right = numeric_operands(operator, left, right, text)
    type_ = left.type
    if t.is_decimal(type_) or t.is_decimal(right.type):
        result = decimals.result_type(operator, left.type, right.type)
        run = decimals.arithmetic(operator, left.type, right.type, result)
        return fallible(result, text, f"{t.spark_name(result)} overflow in {text}", run, left, right)
    if t.is_fractional(type_):
        return strict(type_, text, kernel(_ARROW_NAMES[operator]), left, right)
    if operator == "-":
        return _whole(operator, left, right, text)
    return _reordered(operator, left, right, text, forgive=forgive)


def _whole(operator: str, left: Node, right: Node, text: str) -> Node:
    reason = f"{left.type_name} overflow in {text}"
    return fallible(left.type, text, reason, _checked(operator), left, right)


def _reordered(operator: str, left: Node, right: Node, text: str, *, forgive: bool) -> Node:
    """A sum or product of whole numbers with its constants last.

    Spark's optimizer moves them there (ReorderAssociativeOperator), which changes the rows that overflow, and
    makes the outermost operator's leniency (``try_add``) that of all.
    """

    def join(a: Node, b: Node) -> Node:
        node = _whole(operator, a, b, text)
        return forgiving(node) if forgive else node

    terms: list[Node] = []
    for side in (left, right):
        terms += side.terms[1] if side.terms is not None and side.terms[0] == operator else (side,)
    constants = [n for n in terms if n.constant is not None]
    others = [n for n in terms if n.constant is None]
    if len(terms) > 2 and constants and others:
        node = join(functools.reduce(join, others), functools.reduce(join, constants))
    else:
        node = join(left, right)
    return node if node.constant is not None else replace(node, terms=(operator, tuple(terms)))


def numeric_operands(operator: str, left: Node, right: Node, text: str) -> tuple[Node, Node]:
    """Both operands brought to the type in which Spark computes; two decimals keep their own."""
    target = t.common_type(left.type, right.type)
    if target == t.NULL:
        target = t.DOUBLE
    if target is None or not t.is_numeric(target):
        raise TypeMismatch(
            f"The operator {operator} takes numbers, not {left.type_name} and {right.type_name}, in {text!r}."
        )
    if t.is_decimal(target):
        return _as_decimal(left, right), _as_decimal(right, left)
    what = f"The operator {operator}"
    return implicit(left, target, what, text), implicit(right, target, what, text)


def _as_decimal(node: Node, other: Node) -> Node:
    if t.is_decimal(node.type):
        return node
    if node.type == t.NULL:
        return implicit(node, other.type, "arithmetic", node.text)
    target = t.as_decimal(node.type)
    if node.literal and node.constant is not None:
        # Next to a decimal, Spark types an integer literal with just the digits that it has.
        target = t.decimal(len(str(abs(node.constant.as_py()))), 0)
    return implicit(node, target, "arithmetic", node.text)


def _checked(operator: str) -> FallibleKernel:
    name = _ARROW_NAMES[operator]
    fast, wrapping = kernel(f"{name}_checked"), kernel(name)
    overflowed = _OVERFLOWED[operator]

    def run(a: Value, b: Value) -> tuple[Value, Bad]:
        try:
            return fast(a, b), None
        except pa.ArrowInvalid:
            result = wrapping(a, b)
            bad = overflowed(numbers(a), numbers(b), numbers(result)) & is_valid(result, len(result))
            return null_where(result, bad), some(bad)

    return run


def _add_overflowed(a: Numbers, b: Numbers, r: Numbers) -> Mask:
    return ((a ^ r) & (b ^ r)) < 0


def _subtract_overflowed(a: Numbers, b: Numbers, r: Numbers) -> Mask:
    return ((a ^ b) & (a ^ r)) < 0


def _multiply_overflowed(a: Numbers, b: Numbers, r: Numbers) -> Mask:
    lowest = np.iinfo(r.dtype).min
    with np.errstate(all="ignore"):
        back = np.floor_divide(r, np.where(a == 0, 1, a).astype(r.dtype))
    overflowed: Mask = ((a != 0) & (back != b)) | ((a == -1) & (b == lowest))
    return overflowed


_OVERFLOWED: dict[str, Callable[[Numbers, Numbers, Numbers], Mask]] = {
    "+": _add_overflowed,
    "-": _subtract_overflowed,
    "*": _multiply_overflowed,
}


def divide(left: Node, right: Node, text: str) -> Node:
    """``/``: decimals stay decimals, everything else is computed in doubles."""
    target = t.common_type(left.type, right.type)
    if target is not None and t.is_decimal(target):
        a, b = _as_decimal(left, right), _as_decimal(right, left)
        result = decimals.result_type("/", a.type, b.type)
        run = decimals.division(a.type, b.type, result)
        if run is None:
            raise ExpressionError(
                f"Dividing {t.spark_name(a.type)} by {t.spark_name(b.type)} is not supported in {text!r}; "
                "cast an operand to DOUBLE or to a smaller DECIMAL."
            )
        return fallible(result, text, f"division by zero in {text}", run, a, b, order=(1, 0))
    if target is None or not (t.is_numeric(target) or target == t.NULL):
        raise TypeMismatch(
            f"The operator / takes numbers, not {left.type_name} and {right.type_name}, in {text!r}."
        )
    a, b = (implicit(n, t.DOUBLE, "The operator /", text) for n in (left, right))
    constant = b.constant
    if constant is not None and constant.is_valid and constant.as_py() != 0:
        return strict(t.DOUBLE, text, kernel("divide"), a, b)
    return fallible(t.DOUBLE, text, f"division by zero in {text}", _safe_divide(), a, b, order=(1, 0))


def _safe_divide() -> FallibleKernel:
    fast, unchecked, zero = kernel("divide_checked"), kernel("divide"), pa.scalar(0.0)

    def run(a: Value, b: Value) -> tuple[Value, Bad]:
        try:
            return fast(a, b), None
        except pa.ArrowInvalid:
            n = rows(a, b)
            bad = is_true(_equal(as_array(b, n), zero), n) & is_valid(a, n)
            return null_where(unchecked(as_array(a, n), as_array(b, n)), bad), some(bad)

    return run


def integral_divide(left: Node, right: Node, text: str) -> Node:
    """``div``: truncating division with a BIGINT result."""
    for node in (left, right):
        if not (t.is_integral(node.type) or node.type == t.NULL):
            raise TypeMismatch(
                f"The operator div takes whole numbers, not {left.type_name} and "
                f"{right.type_name}, in {text!r}."
            )
    a, b = (implicit(n, t.BIGINT, "The operator div", text) for n in (left, right))
    reason = f"division by zero or overflow in {text}"
    return fallible(t.BIGINT, text, reason, _safe_integral_divide(), a, b, order=(1, 0))


def _safe_integral_divide() -> FallibleKernel:
    fast = kernel("divide_checked")

    def run(a: Value, b: Value) -> tuple[Value, Bad]:
        try:
            return fast(a, b), None
        except pa.ArrowInvalid:
            n = rows(a, b)
            x, y = numbers(as_array(a, n)), numbers(as_array(b, n))
            bad = (y == 0) | ((x == np.iinfo(np.int64).min) & (y == -1))
            divisor = null_where(as_array(b, n), bad)
            valid = both_valid(n, a, b)
            if valid is not None:
                bad &= valid
            return fast(as_array(a, n), divisor), some(bad)

    return run


def remainder(operator: str, left: Node, right: Node, text: str) -> Node:
    """``%`` with the sign of the dividend, and ``pmod`` with the sign of the divisor's class."""
    left, right = numeric_operands(operator, left, right, text)
    if t.is_decimal(left.type) or t.is_decimal(right.type):
        raise _no_decimal_remainder(operator, left, right, text)
    type_ = left.type
    positive = operator == "pmod"
    fixed = None if right.constant is None or not right.constant.is_valid else numbers(right.constant)
    if positive or (fixed is not None and not fixed[0]):
        fixed = None

    def run(a: Value, b: Value) -> tuple[Value, Bad]:
        n = rows(a, b)
        if fixed is not None:
            with np.errstate(all="ignore"):
                r = np.fmod(numbers(a), fixed)
            return from_numbers(r, type_, both_valid(n, a)), None
        x, y = numbers(a), numbers(b)
        zero = np.broadcast_to(y == 0, n)
        with np.errstate(all="ignore"):
            divisor = np.where(y == 0, 1, y).astype(y.dtype)
            r = np.fmod(x, divisor)
            if positive:
                r = np.where(r < 0, np.fmod(_java_add(r, divisor), divisor), r)
        return checked(np.broadcast_to(r, n), zero, type_, a, b)

    return fallible(type_, text, f"remainder by zero in {text}", run, left, right, order=(1, 0))


def _java_add(r: Numbers, divisor: Numbers) -> Numbers:
    # Java adds bytes and shorts as ints, so only INT and BIGINT wrap.
    if r.dtype in (np.int8, np.int16):
        return r.astype(np.int32) + divisor
    return r + divisor


def _no_decimal_remainder(operator: str, left: Node, right: Node, text: str) -> ExpressionError:
    return ExpressionError(
        f"{operator} on {left.type_name} and {right.type_name} is not supported in {text!r}; cast "
        f"to DOUBLE or BIGINT."
    )


def negate(node: Node, text: str) -> Node:
    """Unary minus."""
    if node.type == t.STRING or node.type == t.NULL:
        node = implicit(node, t.DOUBLE, "The operator -", text)
    if not t.is_numeric(node.type):
        raise TypeMismatch(f"The operator - takes a number, not {node.type_name}, in {text!r}.")
    if not t.is_integral(node.type):
        return strict(node.type, text, kernel("negate"), node)
    return _unary_checked("negate", node, text)


def absolute(node: Node, text: str) -> Node:
    """``abs``."""
    if not t.is_integral(node.type):
        return strict(node.type, text, kernel("abs"), node)
    return _unary_checked("abs", node, text)


def _unary_checked(name: str, node: Node, text: str) -> Node:
    fast, wrapping = kernel(f"{name}_checked"), kernel(name)

    def run(a: Value) -> tuple[Value, Bad]:
        try:
            return fast(a), None
        except pa.ArrowInvalid:
            data = numbers(a)
            bad = (data == np.iinfo(data.dtype).min) & is_valid(a, len(data))
            return null_where(wrapping(a), bad), some(bad)

    return fallible(node.type, text, f"{node.type_name} overflow in {text}", run, node)


def bits(name: str, left: Node, right: Node, text: str) -> Node:
    """``& | ^`` on whole numbers of one type."""
    target = t.common_type(left.type, right.type)
    if target is None or not t.is_integral(target):
        raise TypeMismatch(
            f"The operator {name} takes whole numbers, not {left.type_name} and {right.type_name}, "
            f"in {text!r}."
        )
    arrow = {"&": "bit_wise_and", "|": "bit_wise_or", "^": "bit_wise_xor"}[name]
    a, b = (implicit(n, target, f"The operator {name}", text) for n in (left, right))
    return strict(target, text, kernel(arrow), a, b)


def bit_not(node: Node, text: str) -> Node:
    """``~``."""
    if not t.is_integral(node.type):
        raise TypeMismatch(f"The operator ~ takes a whole number, not {node.type_name}, in {text!r}.")
    return strict(node.type, text, kernel("bit_wise_not"), node)


def shift(name: str, left: Node, right: Node, text: str) -> Node:
    """``<< >> >>>`` with Java's rule that only the low bits of the distance count."""
    what = f"The operator {name}"
    target = t.BIGINT if left.type == t.BIGINT else t.INT
    a, b = implicit(left, target, what, text), implicit(right, t.INT, what, text)
    width = 63 if target == t.BIGINT else 31

    def moved(data: Numbers, distance: Numbers) -> Numbers:
        distance = (distance & width).astype(data.dtype)
        if name == "<<":
            return np.left_shift(data, distance)
        if name == ">>":
            return np.right_shift(data, distance)
        unsigned = np.uint64 if width == 63 else np.uint32
        logical: Numbers = np.right_shift(data.view(unsigned), distance.astype(unsigned)).view(data.dtype)
        return logical

    return strict(target, text, computed(target, moved), a, b)
