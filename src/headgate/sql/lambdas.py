"""``transform``, ``filter``, ``exists`` and the other functions that take a lambda.

A lambda's body is compiled like any expression, with its variables as columns behind the stream's own.  It is
evaluated once on the elements of all rows, each with its row's columns; ``aggregate`` evaluates it once for
each place in the arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from sqlglot import exp

from headgate.errors import ExpressionError, TypeMismatch
from headgate.sql import types as t
from headgate.sql.lists import Lists, codes, element, first_of_row, lists_of, map_array
from headgate.sql.logic import boolean
from headgate.sql.maps import halves, map_type
from headgate.sql.node import Node, Run
from headgate.sql.values import (
    Bad,
    Mask,
    Numbers,
    Value,
    as_array,
    from_numbers,
    is_true,
    is_valid,
    some,
    union,
)

Body: TypeAlias = "Callable[[exp.Lambda, list[pa.DataType]], Lambda]"


@dataclass(frozen=True, slots=True)
class Lambda:
    """A compiled body: ``schema`` is the stream's columns followed by the variables."""

    node: Node
    schema: pa.Schema
    variables: int

    @property
    def columns(self) -> frozenset[str]:
        """The stream's columns that the body reads."""
        return self.node.columns - frozenset(self.schema.names[len(self.schema) - self.variables :])

    def run(self, batch: pa.RecordBatch, parents: Numbers, *values: pa.Array) -> tuple[pa.Array, Bad]:
        """The body's values where row ``parents[i]`` of a batch has the i-th of each variable's values."""
        n = len(parents)
        rows, filler = pa.array(parents), pa.nulls(n)
        used = self.node.columns
        own = len(self.schema) - self.variables
        columns = [batch.column(i).take(rows) if self.schema.names[i] in used else filler for i in range(own)]
        columns += list(values[: self.variables])
        inner = pa.RecordBatch.from_arrays(columns, names=[str(i) for i in range(len(columns))])
        value, bad = self.node.run(inner)
        return as_array(value, n), bad


@dataclass(frozen=True, slots=True)
class LambdaCall:
    """A call with lambdas among its operands."""

    name: str
    text: str
    trees: list[exp.Expr]
    compile: Callable[[exp.Expr], Node]
    body: Body

    def lambda_(self, place: int, *types: pa.DataType, more: tuple[pa.DataType, ...] = ()) -> Lambda:
        """The lambda at a place, whose variables are of these types and perhaps ``more``."""
        tree = self.trees[place]
        count = len(tree.expressions) if isinstance(tree, exp.Lambda) else 0
        if not len(types) <= count <= len(types) + len(more):
            raise ExpressionError(
                f"Operand {place + 1} of {self.name}() is a function of {len(types)} "
                f"variable{'s' if len(types) > 1 else ''}, such as {_EXAMPLES[len(types)]}, in {self.text!r}."
            )
        assert isinstance(tree, exp.Lambda)
        return self.body(tree, [*types, *more][:count])


_EXAMPLES = {1: "x -> x + 1", 2: "(x, y) -> x + y", 3: "(k, a, b) -> a + b"}
Build: TypeAlias = Callable[[LambdaCall], Node]
LAMBDAS: dict[str, tuple[Build, int, int]] = {}


def _lambda(*names: str, args: tuple[int, int]) -> Callable[[Build], Build]:
    def register(build: Build) -> Build:
        for name in names:
            LAMBDAS[name] = (build, *args)
        return build

    return register


def build(call: LambdaCall) -> Node:
    """Compiles a call of a function that takes lambdas."""
    made, least, most = LAMBDAS[call.name]
    if not least <= len(call.trees) <= most:
        raise ExpressionError(f"{call.name}() takes {least} to {most} operands in {call.text!r}.")
    return made(call).spelled(call.text)


def _node(type_: pa.DataType, call: LambdaCall, run: Run, nodes: list[Node], bodies: list[Lambda]) -> Node:
    columns = frozenset[str]().union(*(n.columns for n in nodes), *(b.columns for b in bodies))
    reason = next((b.node.reason for b in bodies if b.node.reason), f"the function of {call.text} fails")
    return Node(type_, run, call.text, tuple(nodes), columns=columns, reason=reason)


def _elements(
    call: LambdaCall, type_: pa.DataType, node: Node, body: Lambda,
    finish: Callable[[Lists, pa.Array, Mask], Value], early: bool | None = None,
) -> Node:  # fmt: skip
    """A node that evaluates a body on the elements of one array.

    With ``early`` Spark stops at the first element for which the body is so.
    """

    def run(batch: pa.RecordBatch) -> tuple[Value, Bad]:
        value, bad = node.run(batch)
        found = lists_of(value, batch.num_rows)
        variables = (
            halves(found) if t.is_map(node.type) else (found.flat, from_numbers(found.positions, t.INT))
        )
        result, own = body.run(batch, found.parents, *variables)
        failed = np.zeros(batch.num_rows, dtype=bool)
        if own is not None:
            if early is not None:
                stops = (
                    is_true(result, len(result))
                    if early
                    else is_valid(result, len(result)) & ~is_true(result, len(result))
                )
                stops &= ~own
                seen: Numbers = np.cumsum(stops) - stops
                before = np.concatenate([[0], np.cumsum(stops)])[found.starts]
                own = own & (seen == np.repeat(before, found.lengths))
            failed = found.some(own)
            bad = union(bad, some(failed))
        return finish(found, result, failed), bad

    return _node(type_, call, run, [node], [body])


def _array(call: LambdaCall, place: int = 0) -> tuple[Node, pa.DataType]:
    node = call.compile(call.trees[place])
    return node, element(node, f"{call.name}()", call.text)


def _condition(call: LambdaCall, body: Lambda) -> Lambda:
    node = boolean(body.node, f"The function of {call.name}()", call.text)
    return Lambda(node, body.schema, body.variables)


@_lambda("transform", args=(2, 2))
def _transform(call: LambdaCall) -> Node:
    node, inner = _array(call)
    body = call.lambda_(1, inner, more=(t.INT,))
    kind = body.node.type

    def finish(found: Lists, result: pa.Array, failed: Mask) -> Value:
        return Lists(found.lengths, result, found.valid).array(kind)

    return _elements(call, pa.list_(kind), node, body, finish)


@_lambda("filter", args=(2, 2))
def _filter(call: LambdaCall) -> Node:
    node, inner = _array(call)
    body = _condition(call, call.lambda_(1, inner, more=(t.INT,)))

    def finish(found: Lists, result: pa.Array, failed: Mask) -> Value:
        return found.kept(is_true(result, len(result))).array(inner)

    return _elements(call, node.type, node, body, finish)


@_lambda("exists", "forall", args=(2, 2))
def _exists(call: LambdaCall) -> Node:
    node, inner = _array(call)
    body = _condition(call, call.lambda_(1, inner))
    every = call.name == "forall"

    def finish(found: Lists, result: pa.Array, failed: Mask) -> Value:
        yes, known = is_true(result, len(result)), is_valid(result, len(result))
        decided = found.some(known & ~yes if every else yes)
        unknown = found.some(~known) & ~decided
        return from_numbers(~decided if every else decided, t.BOOLEAN, found.valid & ~unknown)

    return _elements(call, t.BOOLEAN, node, body, finish, early=not every)


@_lambda("aggregate", "reduce", args=(3, 4))
def _aggregate(call: LambdaCall) -> Node:
    node, inner = _array(call)
    start = call.compile(call.trees[1])
    merge = call.lambda_(2, start.type, inner)
    if merge.node.type != start.type:
        raise TypeMismatch(
            f"The function of {call.name}() must give {start.type_name}, the type of its start, not "
            f"{merge.node.type_name}, in {call.text!r}; cast the start."
        )
    last = call.lambda_(3, start.type) if len(call.trees) == 4 else None

    def run(batch: pa.RecordBatch) -> tuple[Value, Bad]:
        n = batch.num_rows
        value, bad = node.run(batch)
        begin, own = start.run(batch)
        found = lists_of(value, n)
        bad = union(bad, None if own is None else some(own & found.valid))
        total = as_array(begin, n)
        failed = np.zeros(n, dtype=bool) if bad is None else bad.copy()
        for place in range(int(found.lengths.max(initial=0))):
            live = np.flatnonzero((found.lengths > place) & ~failed)
            items = found.flat.take(pa.array(found.starts[live] + place))
            merged, own = merge.run(batch, live, total.take(pa.array(live)), items)
            total = _put(total, live, merged)
            if own is not None:
                failed[live[own]] = True
        if last is not None:
            total, own = last.run(batch, np.arange(n), total)
            if own is not None:
                failed |= own & found.valid
        out = pa.compute.if_else(pa.array(found.valid), total, pa.scalar(None, total.type))
        return out, some(failed)

    kind = start.type if last is None else last.node.type
    return _node(kind, call, run, [node, start], [merge, *([last] if last else [])])


def _put(total: pa.Array, rows: Numbers, values: pa.Array) -> pa.Array:
    """``total`` with ``values`` at ``rows``."""
    if len(rows) == len(total):
        return values
    place = np.arange(len(total))
    place[rows] = len(total) + np.arange(len(rows))
    return pa.concat_arrays([total, values]).take(pa.array(place))


@_lambda("zip_with", args=(3, 3))
def _zip_with(call: LambdaCall) -> Node:
    (a, left), (b, right) = _array(call, 0), _array(call, 1)
    body = call.lambda_(2, left, right)

    def run(batch: pa.RecordBatch) -> tuple[Value, Bad]:
        n = batch.num_rows
        (x, bad), (y, own) = a.run(batch), b.run(batch)
        first, second = lists_of(x, n), lists_of(y, n)
        bad = union(bad, None if own is None else own & first.valid)
        valid = first.valid & second.valid
        lengths = np.where(valid, np.maximum(first.lengths, second.lengths), 0)
        whole = Lists(lengths, pa.nulls(int(lengths.sum())), valid)
        padded = [_padded(part, whole) for part in (first, second)]
        result, own = body.run(batch, whole.parents, *padded)
        if own is not None:
            bad = union(bad, some(whole.some(own)))
        whole.flat = result
        return whole.array(body.node.type), bad

    return _node(pa.list_(body.node.type), call, run, [a, b], [body])


def _padded(part: Lists, whole: Lists) -> pa.Array:
    missing = whole.positions >= part.lengths[whole.parents]
    return part.flat.take(
        pa.array(np.where(missing, 0, part.starts[whole.parents] + whole.positions), mask=missing)
    )


@_lambda("map_filter", args=(2, 2))
def _map_filter(call: LambdaCall) -> Node:
    node = call.compile(call.trees[0])
    kind = map_type(node, "map_filter()", call.text)
    body = _condition(call, call.lambda_(1, kind.key_type, kind.item_type))

    def finish(found: Lists, result: pa.Array, failed: Mask) -> Value:
        kept = found.kept(is_true(result, len(result)))
        return map_array(kept, *halves(kept), kind)[0]

    return _elements(call, kind, node, body, finish)


@_lambda("transform_values", args=(2, 2))
def _transform_values(call: LambdaCall) -> Node:
    node = call.compile(call.trees[0])
    kind = map_type(node, "transform_values()", call.text)
    body = call.lambda_(1, kind.key_type, kind.item_type)
    gives = pa.map_(kind.key_type, body.node.type)

    def finish(found: Lists, result: pa.Array, failed: Mask) -> Value:
        return map_array(found, halves(found)[0], result, gives)[0]

    return _elements(call, gives, node, body, finish)


@_lambda("transform_keys", args=(2, 2))
def _transform_keys(call: LambdaCall) -> Node:
    node = call.compile(call.trees[0])
    kind = map_type(node, "transform_keys()", call.text)
    body = call.lambda_(1, kind.key_type, kind.item_type)
    gives = pa.map_(body.node.type, kind.item_type)

    def run(batch: pa.RecordBatch) -> tuple[Value, Bad]:
        value, bad = node.run(batch)
        found = lists_of(value, batch.num_rows)
        keys, items = halves(found)
        made, own = body.run(batch, found.parents, keys, items)
        out, twice = map_array(found, made, items, gives)
        failed = None if own is None else some(found.some(own))
        return out, union(bad, union(failed, twice))

    return _node(gives, call, run, [node], [body])


@_lambda("map_zip_with", args=(3, 3))
def _map_zip_with(call: LambdaCall) -> Node:
    a, b = call.compile(call.trees[0]), call.compile(call.trees[1])
    left, right = (map_type(n, "map_zip_with()", call.text) for n in (a, b))
    if left.key_type != right.key_type:
        raise TypeMismatch(f"The maps of map_zip_with() must have keys of one type in {call.text!r}.")
    body = call.lambda_(2, left.key_type, left.item_type, right.item_type)
    gives = pa.map_(left.key_type, body.node.type)

    def run(batch: pa.RecordBatch) -> tuple[Value, Bad]:
        (x, bad), (y, own) = a.run(batch), b.run(batch)
        n = batch.num_rows
        first, second = lists_of(x, n), lists_of(y, n)
        bad = union(bad, None if own is None else own & first.valid)
        valid = first.valid & second.valid
        first, second = (part.kept(valid[part.parents]) for part in (first, second))
        whole, columns = _outer(first, second, valid)
        result, own = body.run(batch, whole.parents, whole.flat, *columns)
        if own is not None:
            bad = union(bad, some(whole.some(own)))
        return map_array(whole, whole.flat, result, gives)[0], bad

    return _node(gives, call, run, [a, b], [body])


def _outer(first: Lists, second: Lists, valid: Mask) -> tuple[Lists, list[Any]]:
    """The keys of either map of a row, in order, and what each map has for them."""
    keys = pa.concat_arrays([halves(first)[0], halves(second)[0]])
    parents = np.concatenate([first.parents, second.parents])
    pair = parents * (len(keys) + 1) + codes(keys)
    order = np.argsort(parents, kind="stable")
    kept = order[first_of_row(parents[order], codes(keys)[order])]
    whole = Lists(np.bincount(parents[kept], minlength=len(valid)), keys.take(pa.array(kept)), valid)
    columns = []
    for part, own in ((first, pair[: len(first.flat)]), (second, pair[len(first.flat) :])):
        by = np.argsort(own)
        at = np.minimum(np.searchsorted(own[by], pair[kept]), max(len(own) - 1, 0))
        place = by[at] if len(own) else np.zeros(len(kept), dtype=np.int64)
        missing = (own[place] != pair[kept]) if len(own) else np.ones(len(kept), dtype=bool)
        columns.append(halves(part)[1].take(pa.array(np.where(missing, 0, place), mask=missing)))
    return whole, columns
