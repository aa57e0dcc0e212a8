"""AND, OR, NOT, CASE, IF and the null functions: three-valued, and protecting rows as Spark does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from headgate.errors import TypeMismatch
from headgate.sql import types as t
from headgate.sql.casts import implicit
from headgate.sql.comparison import compare, comparison_kernel
from headgate.sql.node import Node, constant, evaluated_all, folded, null_of, strict
from headgate.sql.registry import Call, function
from headgate.sql.values import Bad, Value, as_array, is_true, is_valid, kernel, some, union

_invert = kernel("invert")
_if_else = kernel("if_else")
_coalesce = kernel("coalesce")
_FALSE = pa.scalar(False)


def boolean(node: Node, what: str, text: str) -> Node:
    if node.type in (t.STRING, t.NULL):
        node = implicit(node, t.BOOLEAN, what, text)
    if node.type != t.BOOLEAN:
        raise TypeMismatch(f"{what} takes BOOLEAN, not {node.type_name} ({node.text}), in {text!r}.")
    return node


def conjunction(operator: str, left: Node, right: Node, text: str) -> Node:
    """AND or OR: the right side counts only where the left has not decided."""
    for node in (left, right):
        if node.type not in (t.BOOLEAN, t.NULL) and not (node.type == t.STRING):
            raise TypeMismatch(
                f"The operator {operator} takes BOOLEAN, not {left.type_name} and "
                f"{right.type_name}, in {text!r}."
            )
    left, right = boolean(left, operator, text), boolean(right, operator, text)
    decisive = operator == "OR"
    for node in (left, right):
        if node.constant is not None and node.constant.as_py() is decisive:
            # Spark's optimizer drops the other side, whether or not it would fail.
            return constant(pa.scalar(decisive), text)
    combine = kernel("or_kleene" if decisive else "and_kleene")
    first, second = left.run, right.run

    def run(batch: pa.RecordBatch) -> tuple[Value, Bad]:
        a, bad_a = first(batch)
        b, bad_b = second(batch)
        if bad_b is not None:
            n = len(bad_b)
            decided = is_true(a if decisive else _invert(a), n)
            bad_a = union(bad_a, some(bad_b & ~decided))
        return combine(a, b), bad_a

    node = Node(t.BOOLEAN, run, text, (left, right), columns=left.columns | right.columns)
    return folded(node, lambda a, b: (combine(a, b), None))


def negation(node: Node, text: str) -> Node:
    """NOT."""
    return strict(t.BOOLEAN, text, _invert, boolean(node, "NOT", text))


def null_test(node: Node, text: str, *, valid: bool) -> Node:
    """IS NULL, IS NOT NULL."""
    return evaluated_all(t.BOOLEAN, text, kernel("is_valid" if valid else "is_null"), node)


def truth_test(node: Node, wanted: bool, text: str) -> Node:
    """IS TRUE, IS FALSE: never null."""
    node = boolean(node, "IS", text)

    def run(value: Value) -> Value:
        return _coalesce(value if wanted else _invert(value), _FALSE)

    return evaluated_all(t.BOOLEAN, text, run, node)


def conditional(branches: list[tuple[Node, Node]], default: Node | None, text: str, what: str) -> Node:
    """CASE WHEN: the first true condition chooses; what is not chosen cannot fail."""
    for condition, _ in branches:
        if condition.type != t.BOOLEAN:
            raise TypeMismatch(
                f"A condition of {what} must be BOOLEAN, not {condition.type_name} "
                f"({condition.text}), in {text!r}."
            )
    results = [value for _, value in branches] + ([default] if default is not None else [])
    target = t.common_of([r.type for r in results], what, text)
    values = [implicit(value, target, what, text) for _, value in branches]
    last = implicit(default, target, what, text) if default is not None else null_of(target)
    conditions = [condition for condition, _ in branches]
    return _choose(conditions, values, last, target, text)


def _choose(conditions: list[Node], values: list[Node], last: Node, target: pa.DataType, text: str) -> Node:
    tests = [c.run for c in conditions]
    results = [v.run for v in values]
    otherwise = last.run
    children = (*(n for pair in zip(conditions, values, strict=True) for n in pair), last)

    def run(batch: pa.RecordBatch) -> tuple[Value, Bad]:
        chosen = [test(batch) for test in tests]
        given = [result(batch) for result in results]
        out, bad_out = otherwise(batch)
        bad = _chosen_bad(chosen, given, bad_out, batch.num_rows)
        for (condition, _), (value, _) in zip(reversed(chosen), reversed(given), strict=True):
            if isinstance(condition, pa.Scalar) or condition.null_count:
                condition = _coalesce(condition, _FALSE)
            out = _if_else(condition, value, out)
        return out, bad

    columns = frozenset[str]().union(*(c.columns for c in children))
    node = Node(target, run, text, children, columns=columns, reaches=_reaching(conditions, values, last))
    if all(c.constant is not None for c in children):
        return _folded_choice(conditions, values, last, text)
    return node


def _reaching(
    conditions: list[Node], values: list[Node], last: Node
) -> Callable[[pa.RecordBatch], tuple[Node, ...]]:
    def reaches(row: pa.RecordBatch) -> tuple[Node, ...]:
        for i, (condition, value) in enumerate(zip(conditions, values, strict=True)):
            if is_true(condition.run(row)[0], 1)[0]:
                return (*conditions[: i + 1], value)
        return (*conditions, last)

    return reaches


def _folded_choice(conditions: list[Node], values: list[Node], last: Node, text: str) -> Node:
    for condition, value in zip(conditions, values, strict=True):
        if condition.constant is not None and condition.constant.as_py() is True:
            return constant(value.constant, text)
    return constant(last.constant, text)


def _chosen_bad(
    chosen: list[tuple[Value, Bad]], given: list[tuple[Value, Bad]], bad_default: Bad, length: int
) -> Bad:
    if bad_default is None and all(b is None for _, b in chosen) and all(b is None for _, b in given):
        return None
    bad = np.zeros(length, dtype=bool)
    pending = np.ones(length, dtype=bool)
    for (condition, bad_condition), (_, bad_value) in zip(chosen, given, strict=True):
        if bad_condition is not None:
            bad |= pending & bad_condition
            pending &= ~bad_condition
        taken = pending & is_true(condition, length)
        if bad_value is not None:
            bad |= taken & bad_value
        pending &= ~taken
    if bad_default is not None:
        bad |= pending & bad_default
    return some(bad)


def first_valid(nodes: list[Node], text: str) -> Node:
    """COALESCE: evaluated from the left until a value is found."""
    runs = [n.run for n in nodes]

    def run(batch: pa.RecordBatch) -> tuple[Value, Bad]:
        results = [r(batch) for r in runs]
        bad: Bad = None
        if any(own is not None for _, own in results):
            n = batch.num_rows
            pending = np.ones(n, dtype=bool)
            for value, own in results:
                if own is not None:
                    bad = union(bad, own & pending)
                    pending &= ~own
                pending &= ~is_valid(value, n)
            bad = None if bad is None else some(bad)
        return _coalesce(*(value for value, _ in results)), bad

    columns = frozenset[str]().union(*(n.columns for n in nodes))
    node = Node(nodes[0].type, run, text, tuple(nodes), columns=columns)
    return folded(node, lambda *values: (_coalesce(*values), None))


function("coalesce", args=(1, None))(lambda call: first_valid(call.common(), call.text))
function("nvl", "ifnull", args=2)(lambda call: first_valid(call.common(), call.text))


@function("nvl2", args=3)
def _nvl2(call: Call) -> Node:
    test = null_test(call.args[0], call.text, valid=True)
    return conditional([(test, call.args[1])], call.args[2], call.text, "nvl2()")


def null_if(node: Node, other: Node, text: str) -> Node:
    """The node, but null where it equals another."""
    same = compare("=", node, other, text)
    return conditional([(same, null_of(node.type))], node, text, "nullif()")


function("nullif", args=2)(lambda call: null_if(call.args[0], call.args[1], call.text))


@function("nullifzero", args=1)
def _nullifzero(call: Call) -> Node:
    return null_if(call.args[0], constant(pa.scalar(0, t.INT), "0", literal=True), call.text)


@function("zeroifnull", args=1)
def _zeroifnull(call: Call) -> Node:
    zero = constant(pa.scalar(0, t.INT), "0", literal=True)
    target = t.common_of([call.args[0].type, t.INT], "zeroifnull()", call.text)
    nodes = [implicit(n, target, "zeroifnull()", call.text) for n in (call.args[0], zero)]
    return first_valid(nodes, call.text)


function("isnull", args=1)(lambda call: null_test(call.args[0], call.text, valid=False))
function("isnotnull", args=1)(lambda call: null_test(call.args[0], call.text, valid=True))


def _fractional(call: Call, index: int) -> Node:
    node = call.args[index]
    return node if t.is_fractional(node.type) else call.cast(index, t.DOUBLE)


@function("isnan", args=1)
def _isnan(call: Call) -> Node:
    is_nan = kernel("is_nan")
    return evaluated_all(t.BOOLEAN, call.text, lambda v: _coalesce(is_nan(v), _FALSE), _fractional(call, 0))


@function("nanvl", args=2)
def _nanvl(call: Call) -> Node:
    left, right = (_fractional(call, 0), _fractional(call, 1))
    target = t.common_of([left.type, right.type], "nanvl()", call.text)
    left, right = (implicit(n, target, "nanvl()", call.text) for n in (left, right))
    nan = strict(t.BOOLEAN, call.text, kernel("is_nan"), left)
    return conditional([(nan, right)], left, call.text, "nanvl()")


@function("if", args=3)
def _if(call: Call) -> Node:
    condition, yes, no = call.args
    return conditional([(condition, yes)], no, call.text, "IF")


@function("greatest", "least", args=(2, None))
def _extreme(call: Call) -> Node:
    nodes = call.common(strings=False)
    target = nodes[0].type
    if not t.is_atomic(target):
        raise call.mismatch("values that can be compared")
    better = comparison_kernel(">" if call.name == "greatest" else "<", null_of(target), null_of(target))
    valid, or_kleene, is_null = kernel("is_valid"), kernel("or_kleene"), kernel("is_null")
    and_kleene = kernel("and_kleene")

    def run(*values: Value) -> Value:
        n = max((len(v) for v in values if isinstance(v, pa.Array)), default=1)
        out = as_array(values[0], n)
        for value in values[1:]:
            wins = and_kleene(valid(value), or_kleene(is_null(out), _coalesce(better(value, out), _FALSE)))
            out = _if_else(wins, value, out)
        return out

    return evaluated_all(target, call.text, run, *nodes)
