"""``= != < <= > >= <=>``, IN and BETWEEN: NaN equals itself and is the greatest, as in Spark."""

from __future__ import annotations

import math

import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import TypeMismatch
from headgate.sql import types as t
from headgate.sql.casts import implicit
from headgate.sql.node import Kernel, Node, constant, evaluated_all, folded, null_of, strict
from headgate.sql.values import Bad, Value, is_true, is_valid, kernel, may_have_nan, union

_ARROW = {
    "=": "equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
_MIRROR = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_invert = kernel("invert")
_is_nan = kernel("is_nan")
_or = kernel("or")
_and = kernel("and")


def compare(operator: str, left: Node, right: Node, text: str) -> Node:
    """``left operator right``."""
    left, right = comparable(f"The operator {operator}", left, right, text)
    if left.type == t.NULL:
        return null_of(t.BOOLEAN, text)
    return strict(t.BOOLEAN, text, comparison_kernel(operator, left, right), left, right)


def comparable(what: str, left: Node, right: Node, text: str) -> tuple[Node, Node]:
    """Both operands brought to the type in which they are compared."""
    target = t.common_type(left.type, right.type)
    if target is None or not (t.is_atomic(target) or target == t.NULL):
        raise TypeMismatch(f"{what} cannot compare {left.type_name} with {right.type_name} in {text!r}.")
    sides = implicit(left, target, what, text), implicit(right, target, what, text)
    for side, other in ((sides[0], right), (sides[1], left)):
        _check_literal(side, other, text)
    return sides


def _check_literal(side: Node, other: Node, text: str) -> None:
    """Refuses a text that no value of the other side could equal: the cast would fail on every row."""
    written = side.children[0] if len(side.children) == 1 else None
    if written is not None and written.literal and written.type == t.STRING and side.constant is None:
        raise TypeMismatch(
            f"The text {written.text!r} is compared with {other.text} ({other.type_name}) in {text!r}, but "
            f"it is no {side.type_name}. Write a value of that type, or cast the other side to STRING."
        )


def comparison_kernel(operator: str, left: Node, right: Node) -> Kernel:
    """The kernel of a comparison of two operands of one type."""
    if not t.is_fractional(left.type):
        return kernel(_ARROW[operator])
    if _is_number(right):
        return _against_number(operator)
    if _is_number(left):
        mirrored = _against_number(_MIRROR[operator])
        return lambda a, b: mirrored(b, a)
    return _nan_aware(operator)


def _is_number(node: Node) -> bool:
    return node.constant is not None and node.constant.is_valid and not math.isnan(node.constant.as_py())


def _against_number(operator: str) -> Kernel:
    # NaN is greater than any number: "not (a <= x)" says so, where IEEE's "a > x" does not.
    if operator in (">", ">="):
        opposite = kernel("less_equal" if operator == ">" else "less")
        return lambda a, b: _invert(opposite(a, b))
    return kernel(_ARROW[operator])


def _nan_aware(operator: str) -> Kernel:
    if operator in ("=", "!="):
        equal = kernel("equal")

        def same(a: Value, b: Value) -> Value:
            if not (may_have_nan(a) and may_have_nan(b)):
                return equal(a, b)
            return _or(equal(a, b), _and(_is_nan(a), _is_nan(b)))

        return same if operator == "=" else lambda a, b: _invert(same(a, b))
    if operator in (">=", "<"):
        at_least = kernel("greater_equal")

        def not_less(a: Value, b: Value) -> Value:
            out = at_least(a, b)
            return _or(out, _is_nan(a)) if may_have_nan(a) else out

        return not_less if operator == ">=" else lambda a, b: _invert(not_less(a, b))
    mirrored = _nan_aware(_MIRROR[operator])
    return lambda a, b: mirrored(b, a)


def null_safe_equal(left: Node, right: Node, text: str) -> Node:
    """``<=>``: null equals null, and the answer is never null.

    Spark does not evaluate what is compared with itself, so no row of it is bad.
    """
    if left.text == right.text:
        return constant(pa.scalar(True), text)
    left, right = comparable("The operator <=>", left, right, text)
    is_null, coalesce, false = kernel("is_null"), kernel("coalesce"), pa.scalar(False)
    if left.type == t.NULL:
        return evaluated_all(t.BOOLEAN, text, lambda a, b: pa.scalar(True), left, right)
    equal = comparison_kernel("=", left, right)

    def run(a: Value, b: Value) -> Value:
        return _or(coalesce(equal(a, b), false), _and(is_null(a), is_null(b)))

    return evaluated_all(t.BOOLEAN, text, run, left, right)


def membership(value: Node, options: list[Node], text: str) -> Node:
    """``value IN (options)``: null if nothing matches and a null stood among the options."""
    target = t.common_of([value.type, *(o.type for o in options)], "The operator IN", text)
    if not (t.is_atomic(target) or target == t.NULL):
        raise TypeMismatch(f"The operator IN cannot compare {t.spark_name(target)} in {text!r}.")
    value = implicit(value, target, "The operator IN", text)
    options = [implicit(o, target, "The operator IN", text) for o in options]
    for option in options:
        _check_literal(option, value, text)
    if value.constant is not None and not value.constant.is_valid:
        return null_of(t.BOOLEAN, text)
    if target != t.NULL and all(o.constant is not None for o in options):
        return _in_constants(value, options, text)
    return _in_expressions(value, options, text)


def _in_constants(value: Node, options: list[Node], text: str) -> Node:
    chosen = [o.constant for o in options if o.constant is not None and o.constant.is_valid]
    has_null = len(chosen) < len(options)
    known = pa.array([s.as_py() for s in chosen], type=value.type)
    numbers_ = [s.as_py() for s in chosen]
    if t.is_fractional(value.type) and 0.0 in numbers_:
        # Arrow's lookup tells 0.0 from -0.0; Spark does not.
        known = pa.array([*numbers_, 0.0, -0.0], type=value.type)
    lookup = kernel("is_in", pc.SetLookupOptions(known, skip_nulls=True))
    null, if_else, valid = pa.scalar(None, t.BOOLEAN), kernel("if_else"), kernel("is_valid")

    def run(v: Value) -> Value:
        found = lookup(v)
        if has_null:
            return if_else(found, found, null)
        if isinstance(v, pa.Array) and not v.null_count:
            return found
        return if_else(valid(v), found, null)

    return strict(t.BOOLEAN, text, run, value)


def _in_expressions(value: Node, options: list[Node], text: str) -> Node:
    tests = [comparison_kernel("=", value, option) for option in options]
    or_kleene = kernel("or_kleene")
    subject = value.run
    runs = [o.run for o in options]

    def kernel_of(*values: Value) -> Value:
        out = tests[0](values[0], values[1])
        for test, option in zip(tests[1:], values[2:], strict=True):
            out = or_kleene(out, test(values[0], option))
        return out

    def run(batch: pa.RecordBatch) -> tuple[Value, Bad]:
        v, bad = subject(batch)
        results = [option(batch) for option in runs]
        out = kernel_of(v, *(r[0] for r in results))
        if any(r[1] is not None for r in results):
            n = batch.num_rows
            pending = is_valid(v, n)
            for (option, own), test in zip(results, tests, strict=True):
                if own is not None:
                    bad = union(bad, own & pending)
                pending &= ~is_true(test(v, option), n)
        return out, bad

    columns = frozenset[str]().union(value.columns, *(o.columns for o in options))
    node = Node(t.BOOLEAN, run, text, (value, *options), columns=columns)
    return folded(node, lambda *values: (kernel_of(*values), None))
