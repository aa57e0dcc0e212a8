"""Functions of arrays, computed on all rows' elements at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import ExpressionError
from headgate.sql import types as t
from headgate.sql.casts import cast, implicit
from headgate.sql.lists import Lists, codes, element, first_of_row, lists_of, ranks
from headgate.sql.node import Kernel, Node, constant, evaluated_all, fallible, strict
from headgate.sql.registry import Call, function
from headgate.sql.values import (
    Bad,
    Mask,
    Numbers,
    Value,
    as_array,
    from_numbers,
    is_valid,
    numbers,
    rows,
    some,
)


def interleaved(values: list[pa.Array], n: int) -> pa.Array:
    """The first value of every array, then the second, ..."""
    order = np.arange(len(values) * n).reshape(len(values), n).T.reshape(-1)
    return pa.concat_arrays(values).take(pa.array(order))


@function("array", args=(0, None))
def _array(call: Call) -> Node:
    nodes = call.common() if call.args else []
    kind = nodes[0].type if nodes else t.NULL
    if not nodes:
        return constant(pa.scalar([], pa.list_(t.NULL)), call.text)

    def run(*values: Value) -> Value:
        n = rows(*values)
        flat = interleaved([as_array(v, n) for v in values], n)
        return Lists(np.full(n, len(values)), flat, np.ones(n, dtype=bool)).array(kind)

    return evaluated_all(pa.list_(kind), call.text, run, *nodes)


def _same_type(call: Call, *indices: int) -> list[Node]:
    """Arrays brought to one type."""
    for i in indices:
        if call.args[i].type != t.NULL:
            element(call.args[i], f"{call.name}()", call.text)
    target = t.common_of([call.args[i].type for i in indices], f"{call.name}()", call.text)
    return [cast(call.args[i], target).spelled(call.args[i].text) for i in indices]


def _both(call: Call, *extra: Node) -> tuple[Node, Node, pa.DataType]:
    """An array and a value, brought to the wider of the element's and the value's type."""
    array, value = call.args[0], call.args[1]
    inner = element(array, f"{call.name}()", call.text)
    wider = t.common_type(inner, value.type)
    if wider is None:
        raise call.mismatch("an ARRAY and a value of its element type")
    return (
        cast(array, pa.list_(wider)).spelled(array.text),
        cast(value, wider).spelled(value.text),
        wider,
    )


def _mapped(change: Callable[[Lists], Lists], *names: str) -> None:
    """A function of one array that keeps its type."""

    def build(call: Call) -> Node:
        inner = element(call.args[0], f"{call.name}()", call.text)
        return strict(
            call.args[0].type, call.text, lambda v: change(lists_of(v, rows(v))).array(inner), call.args[0]
        )

    function(*names, args=1)(build)


_mapped(lambda x: x.kept(first_of_row(x.parents, codes(x.flat))), "array_distinct")
_mapped(lambda x: x.kept(is_valid(x.flat, len(x.flat))), "array_compact")


def reversed_lists(value: Value) -> pa.Array:
    found = lists_of(value, rows(value))
    order = np.repeat(found.starts + found.lengths - 1, found.lengths) - found.positions
    return found.ordered(order).array(as_array(value, 1).type.value_type)


def joined_lists(element_type: pa.DataType) -> Kernel:
    """The kernel that puts arrays one behind the other."""

    def run(*values: Value) -> pa.Array:
        n = rows(*values)
        parts = [lists_of(v, n) for v in values]
        parents = np.concatenate([p.parents for p in parts])
        flat = pa.concat_arrays([p.flat for p in parts]).take(pa.array(np.argsort(parents, kind="stable")))
        valid = np.logical_and.reduce([p.valid for p in parts])
        whole = Lists(
            sum((p.lengths for p in parts), np.zeros(n, dtype=np.int64)), flat, np.ones(n, dtype=bool)
        )
        whole = whole.kept(valid[whole.parents])
        whole.valid = valid
        return whole.array(element_type)

    return run


def concatenated(call: Call) -> Node:
    """``concat`` of arrays."""
    nodes = _same_type(call, *range(len(call.args)))
    return strict(nodes[0].type, call.text, joined_lists(nodes[0].type.value_type), *nodes)


def _pair(a: Value, b: Value) -> tuple[int, Lists, Lists, Numbers, Numbers]:
    """Two operands' arrays, and the codes of their elements, numbered together."""
    n = rows(a, b)
    left, right = lists_of(a, n), lists_of(b, n)
    code = codes(pa.concat_arrays([left.flat, right.flat]))
    return n, left, right, code[: len(left.flat)], code[len(left.flat) :]


def _in_row(left: Lists, mine: Numbers, right: Lists, theirs: Numbers) -> Mask:
    """Which elements of the left arrays are in the right array of their row."""
    width = int(max(mine.max(initial=0), theirs.max(initial=0))) + 1
    return np.isin(left.parents * width + mine, right.parents * width + theirs)


@function("array_union", "array_intersect", "array_except", args=2)
def _sets(call: Call) -> Node:
    nodes = _same_type(call, 0, 1)
    inner = nodes[0].type.value_type
    join = joined_lists(inner)

    def union(a: Value, b: Value) -> Value:
        both = lists_of(join(a, b), rows(a, b))
        return both.kept(first_of_row(both.parents, codes(both.flat))).array(inner)

    def other(a: Value, b: Value) -> Value:
        _, left, right, mine, theirs = _pair(a, b)
        found = _in_row(left, mine, right, theirs)
        kept = left.kept(
            (found if call.name == "array_intersect" else ~found) & first_of_row(left.parents, mine)
        )
        kept = kept.kept(right.valid[kept.parents])
        kept.valid = left.valid & right.valid
        return kept.array(inner)

    return strict(nodes[0].type, call.text, union if call.name == "array_union" else other, *nodes)


@function("arrays_overlap", args=2)
def _overlap(call: Call) -> Node:
    nodes = _same_type(call, 0, 1)

    def run(a: Value, b: Value) -> Value:
        _, left, right, mine, theirs = _pair(a, b)
        real = is_valid(left.flat, len(left.flat))
        found = left.some(_in_row(left, mine, right, theirs) & real)
        nulls = left.some(~real) | right.some(~is_valid(right.flat, len(right.flat)))
        unknown = nulls & (left.lengths > 0) & (right.lengths > 0) & ~found
        return from_numbers(found, t.BOOLEAN, left.valid & right.valid & ~unknown)

    return strict(t.BOOLEAN, call.text, run, *nodes)


@function("array_position", "array_remove", args=2)
def _equal_elements(call: Call) -> Node:
    array, value, inner = _both(call)
    position = call.name == "array_position"

    def run(a: Value, v: Value) -> Value:
        n = rows(a, v)
        found, wanted = lists_of(a, n), as_array(v, n)
        code = codes(pa.concat_arrays([found.flat, wanted]))
        match = code[: len(found.flat)] == code[len(found.flat) :][found.parents]
        match &= is_valid(found.flat, len(found.flat))
        valid = found.valid & is_valid(wanted, n)
        if position:
            place = np.zeros(n, dtype=np.int64)
            where = np.flatnonzero(match)[::-1]
            place[found.parents[where]] = found.positions[where] + 1
            return from_numbers(place, t.BIGINT, valid)
        kept = found.kept(~match & valid[found.parents])
        kept.valid = valid
        return kept.array(inner)

    return strict(t.BIGINT if position else array.type, call.text, run, array, value)


@function("array_append", "array_prepend", args=2)
def _append(call: Call) -> Node:
    array, value, inner = _both(call)
    join, last = joined_lists(inner), call.name == "array_append"

    def run(a: Value, v: Value) -> Value:
        n = rows(a, v)
        single = Lists(np.ones(n, dtype=np.int64), as_array(v, n), np.ones(n, dtype=bool)).array(inner)
        whole = as_array(a, n)
        return join(whole, single) if last else join(single, whole)

    return evaluated_all(array.type, call.text, run, array, value)


@function("array_insert", args=3)
def _insert(call: Call) -> Node:
    inner = element(call.args[0], "array_insert()", call.text)
    wider = t.common_type(inner, call.args[2].type)
    if wider is None:
        raise call.mismatch("an ARRAY, a position and a value of its element type")

    def run(a: Value, place: Value, v: Value) -> tuple[Value, Bad]:
        n = rows(a, place, v)
        found, values = lists_of(a, n), as_array(v, n)
        at = np.broadcast_to(numbers(place), n).astype(np.int64)
        valid = found.valid & is_valid(place, n)
        bad = (at == 0) & valid
        size = found.lengths
        # From the end: -1 appends.  Beyond either end, nulls fill the gap.
        index = np.where(at > 0, at - 1, size + at + 1)
        before = np.where(index < 0, -index, 0)
        length = np.where(index < 0, size + 1 - index, np.maximum(size, index) + 1)
        valid &= ~bad
        length = np.where(valid, length, 0)
        index = np.maximum(index, 0)
        parents = np.repeat(np.arange(n), length)
        position = np.arange(len(parents)) - np.repeat(np.cumsum(length) - length, length)
        old = position - before[parents] - np.where(before[parents] > 0, 1, position > index[parents])
        here = (position == index[parents]) & ((before[parents] == 0) | (position == 0))
        inside = (old >= 0) & (old < size[parents]) & ~here
        source = np.where(here, len(found.flat) + parents, found.starts[parents] + old)
        missing = ~(inside | here)
        pool = pa.concat_arrays([found.flat, values])
        flat = pool.take(pa.array(np.where(missing, 0, source), mask=missing))
        return Lists(length, flat, valid).array(wider), some(bad)

    nodes = [cast(call.args[0], pa.list_(wider)), call.cast(1, t.INT), cast(call.args[2], wider)]
    reason = f"the position of {call.text} is 0"
    return fallible(pa.list_(wider), call.text, reason, run, *nodes, nullable=True)


@function("array_repeat", args=2)
def _repeat(call: Call) -> Node:
    kind = call.args[0].type

    def run(v: Value, count: Value) -> Value:
        n = rows(v, count)
        times = np.maximum(np.broadcast_to(numbers(count), n), 0).astype(np.int64)
        valid = is_valid(count, n)
        times = np.where(valid, times, 0)
        flat = as_array(v, n).take(pa.array(np.repeat(np.arange(n), times)))
        return Lists(times, flat, valid).array(kind)

    return evaluated_all(pa.list_(kind), call.text, run, call.args[0], call.cast(1, t.INT))


@function("array_max", "array_min", args=1)
def _extreme(call: Call) -> Node:
    inner = element(call.args[0], f"{call.name}()", call.text)
    _check_order(call, inner)
    highest = call.name == "array_max"

    def run(value: Value) -> Value:
        found = lists_of(value, rows(value))
        found = found.kept(is_valid(found.flat, len(found.flat)))
        rank = ranks(found.flat)
        order = np.lexsort((-rank if highest else rank, found.parents))
        some_ = found.lengths > 0
        first = order[found.starts[some_]]
        picks = np.zeros(len(found.lengths), dtype=np.int64)
        picks[some_] = first
        return found.flat.take(pa.array(picks, mask=~some_))

    return strict(inner, call.text, run, call.args[0])


def _check_order(call: Call, inner: pa.DataType) -> None:
    if t.is_nested(inner):
        raise ExpressionError(
            f"{call.name}() of {t.spark_name(inner)} elements is not supported in {call.text!r}."
        )


@function("sort_array", "array_sort", args=(1, 2))
def _sort(call: Call) -> Node:
    inner = element(call.args[0], f"{call.name}()", call.text)
    _check_order(call, inner)
    down = False
    if len(call.args) == 2:
        if call.name == "array_sort":
            raise ExpressionError(
                f"array_sort() with a function is not supported in {call.text!r}; use sort_array()."
            )
        down = not call.constant(1, t.BOOLEAN, "order").as_py()
    nulls_first = call.name == "sort_array" and not down

    def run(value: Value) -> Value:
        found = lists_of(value, rows(value))
        null = ~is_valid(found.flat, len(found.flat))
        rank = np.where(null, 0, ranks(found.flat))
        order = np.lexsort((-rank if down else rank, ~null if nulls_first else null, found.parents))
        return found.ordered(order).array(inner)

    return strict(call.args[0].type, call.text, run, call.args[0])


@function("slice", args=3)
def _slice(call: Call) -> Node:
    inner = element(call.args[0], "slice()", call.text)

    def run(a: Value, start: Value, count: Value) -> tuple[Value, Bad]:
        n = rows(a, start, count)
        found = lists_of(a, n)
        first, size = (np.broadcast_to(numbers(v), n).astype(np.int64) for v in (start, count))
        valid = found.valid & is_valid(start, n) & is_valid(count, n)
        bad = ((first == 0) | (size < 0)) & valid
        low = np.where(first > 0, first - 1, found.lengths + first)
        inside = (found.positions >= low[found.parents]) & (found.positions < (low + size)[found.parents])
        # A start before the first element gives nothing.
        inside &= ((low >= 0) & valid & ~bad)[found.parents]
        kept = found.kept(inside)
        kept.valid = valid & ~bad
        return kept.array(inner), some(bad)

    reason = f"the start of {call.text} is 0 or its length negative"
    return fallible(
        call.args[0].type, call.text, reason, run, call.args[0], call.cast(1, t.INT), call.cast(2, t.INT)
    )


@function("flatten", args=1)
def _flatten(call: Call) -> Node:
    inner = element(call.args[0], "flatten()", call.text)
    if not t.is_array(inner):
        raise call.mismatch("an ARRAY of ARRAYs")

    def run(value: Value) -> Value:
        outer = lists_of(value, rows(value))
        within = lists_of(outer.flat, len(outer.flat))
        holes = outer.some(~within.valid)
        lengths = np.bincount(outer.parents, weights=within.lengths, minlength=len(outer.lengths)).astype(
            np.int64
        )
        whole = Lists(lengths, within.flat, outer.valid)
        if holes.any():
            whole = whole.kept(~holes[whole.parents])
            whole.valid = outer.valid & ~holes
        return whole.array(inner.value_type)

    return strict(inner, call.text, run, call.args[0])


@function("array_join", args=(2, 3))
def _join(call: Call) -> Node:
    inner = element(call.args[0], "array_join()", call.text)
    if inner != t.STRING:
        raise call.mismatch("an ARRAY<STRING> and a delimiter")
    nodes = [call.args[0], *(call.cast(i, t.STRING) for i in range(1, len(call.args)))]

    def run(a: Value, delimiter: Value, missing: Value | None = None) -> Value:
        n = rows(a, delimiter) if missing is None else rows(a, delimiter, missing)
        found = lists_of(a, n)
        valid = found.valid & is_valid(delimiter, n)
        if missing is None:
            found = found.kept(is_valid(found.flat, len(found.flat)))
        else:
            valid &= is_valid(missing, n)
            found.flat = pc.coalesce(found.flat, as_array(missing, n).take(pa.array(found.parents)))
        joined = pc.binary_join(found.array(t.STRING), as_array(delimiter, n))
        return pc.if_else(pa.array(valid), joined, pa.scalar(None, t.STRING))

    return strict(t.STRING, call.text, run, *nodes)


@function("arrays_zip", args=(1, None))
def _zip(call: Call) -> Node:
    inner = [element(n, "arrays_zip()", call.text) for n in call.args]
    names = [_field_name(tree, i) for i, tree in enumerate(call.trees)]
    kind = pa.struct(list(zip(names, inner, strict=True)))

    def run(*values: Value) -> Value:
        n = rows(*values)
        parts = [lists_of(v, n) for v in values]
        valid = np.logical_and.reduce([p.valid for p in parts])
        lengths = np.where(valid, np.maximum.reduce([p.lengths for p in parts]), 0)
        whole = Lists(lengths, pa.nulls(int(lengths.sum())), valid)
        columns = []
        for part in parts:
            missing = whole.positions >= part.lengths[whole.parents]
            source = np.where(missing, 0, part.starts[whole.parents] + whole.positions)
            columns.append(part.flat.take(pa.array(source, mask=missing)))
        whole.flat = pa.StructArray.from_arrays(columns, fields=list(kind))
        return whole.array(kind)

    return strict(pa.list_(kind), call.text, run, *call.args)


def _field_name(tree: Any, place: int) -> str:
    name = tree.parts[-1].name if hasattr(tree, "parts") and tree.name else ""
    return name or str(place)


@function("sequence", args=(2, 3))
def _sequence(call: Call) -> Node:
    if not all(t.is_integral(n.type) for n in call.args):
        raise ExpressionError(f"sequence() is supported for whole numbers only, not in {call.text!r}.")
    target = t.common_of([n.type for n in call.args], "sequence()", call.text)
    nodes = [implicit(n, target, "sequence()", call.text) for n in call.args]

    def run(*values: Value) -> tuple[Value, Bad]:
        n = rows(*values)
        # Python's whole numbers do not overflow; a sequence between the ends of BIGINT would.
        low, high = (np.broadcast_to(numbers(v), n).astype(np.int64) for v in values[:2])
        step = (
            np.broadcast_to(numbers(values[2]), n).astype(np.int64)
            if len(values) == 3
            else np.where(low <= high, 1, -1)
        )
        valid = np.logical_and.reduce([is_valid(v, n) for v in values])
        wrong = ((step > 0) & (low > high)) | ((step < 0) & (low < high)) | ((step == 0) & (low != high))
        span = (high.astype(np.float64) - low) / np.where(step == 0, 1, step)
        wrong |= span > _LONGEST
        bad = wrong & valid
        count = np.where(valid & ~bad, np.floor(np.where(wrong, 0, span)).astype(np.int64) + 1, 0)
        parents = np.repeat(np.arange(n), count)
        position = np.arange(len(parents)) - np.repeat(np.cumsum(count) - count, count)
        flat = from_numbers(low[parents] + position * step[parents], target)
        return Lists(count, flat, valid & ~bad).array(target), some(bad)

    reason = f"the step of {call.text} does not lead from start to stop, or the sequence is too long"
    return fallible(pa.list_(target), call.text, reason, run, *nodes)


_LONGEST = 2**31 - 16


@function("get", args=2)
def _get(call: Call) -> Node:
    inner = element(call.args[0], "get()", call.text)
    if not t.is_integral(call.args[1].type):
        raise call.mismatch("an ARRAY and a whole number")

    def run(a: Value, index: Value) -> Value:
        n = rows(a, index)
        found = lists_of(a, n)
        at = np.broadcast_to(numbers(index), n).astype(np.int64)
        inside = (at >= 0) & (at < found.lengths) & found.valid & is_valid(index, n)
        return found.flat.take(pa.array(np.where(inside, found.starts + at, 0), mask=~inside))

    return strict(inner, call.text, run, call.args[0], call.cast(1, t.INT))
