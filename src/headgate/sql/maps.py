"""Functions of maps and structs."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from headgate.errors import ExpressionError, TypeMismatch
from headgate.sql import types as t
from headgate.sql.arrays import interleaved, joined_lists
from headgate.sql.casts import cast, implicit
from headgate.sql.lists import Lists, codes, element, lists_of, map_array
from headgate.sql.node import Node, constant, evaluated_all, examined, fallible, strict
from headgate.sql.patterns import to_re2
from headgate.sql.registry import Call, function
from headgate.sql.values import Bad, Value, as_array, from_numbers, is_valid, rows, some


def map_type(node: Node, what: str, text: str) -> pa.DataType:
    if not t.is_map(node.type):
        raise TypeMismatch(f"{what} takes a MAP, not {node.type_name} ({node.text}), in {text!r}.")
    return node.type


def halves(found: Lists) -> tuple[pa.Array, pa.Array]:
    """The keys and values of all maps."""
    keys, items = found.flat.flatten()
    return keys, items


@function("struct", args=(1, None))
def _struct(call: Call) -> Node:
    names = [tree.alias or _named(tree) or f"col{i + 1}" for i, tree in enumerate(call.trees)]
    return _structs(call.text, names, list(call.args))


def _named(tree: exp.Expr) -> str:
    if isinstance(tree, exp.Column):
        return str(tree.parts[-1].name)
    if isinstance(tree, exp.Dot):
        return str(tree.expression.name)
    return str(tree.name) if isinstance(tree, exp.Identifier) else ""


@function("named_struct", args=(2, None))
def _named_struct(call: Call) -> Node:
    if len(call.args) % 2:
        raise ExpressionError(f"named_struct() takes pairs of a name and a value in {call.text!r}.")
    names = [str(call.constant(i, t.STRING, "field name").as_py()) for i in range(0, len(call.args), 2)]
    return _structs(call.text, names, list(call.args[1::2]))


def _structs(text: str, names: list[str], nodes: list[Node]) -> Node:
    kind = pa.struct([(name, node.type) for name, node in zip(names, nodes, strict=True)])

    def run(*values: Value) -> Value:
        n = rows(*values)
        return pa.StructArray.from_arrays([as_array(v, n) for v in values], fields=list(kind))

    return evaluated_all(kind, text, run, *nodes)


@function("map", args=(2, None))
def _map(call: Call) -> Node:
    if len(call.args) % 2:
        raise ExpressionError(f"map() takes pairs of a key and a value in {call.text!r}.")
    pairs = len(call.args) // 2
    keys, items = call.common(*range(0, len(call.args), 2)), call.common(*range(1, len(call.args), 2))
    kind = pa.map_(keys[0].type, items[0].type)

    def run(*values: Value) -> tuple[Value, Bad]:
        n = rows(*values)
        columns = [as_array(v, n) for v in values]
        flat_keys, flat_items = interleaved(columns[:pairs], n), interleaved(columns[pairs:], n)
        found = Lists(np.full(n, pairs), flat_keys, np.ones(n, dtype=bool))
        return map_array(found, flat_keys, flat_items, kind)

    return examined(kind, call.text, f"a key of {call.text} is null or comes twice", run, *keys, *items)


@function("map_from_arrays", args=2)
def _map_from_arrays(call: Call) -> Node:
    key, item = (element(n, "map_from_arrays()", call.text) for n in call.args)
    kind = pa.map_(key, item)

    def run(a: Value, b: Value) -> tuple[Value, Bad]:
        n = rows(a, b)
        left, right = lists_of(a, n), lists_of(b, n)
        valid = left.valid & right.valid
        uneven = (left.lengths != right.lengths) & valid
        good = valid & ~uneven
        left, right = left.kept(good[left.parents]), right.kept(good[right.parents])
        left.valid = good
        out, bad = map_array(left, left.flat, right.flat, kind)
        return out, some(uneven if bad is None else uneven | bad)

    reason = f"the arrays of {call.text} differ in length, or a key is null or comes twice"
    return fallible(kind, call.text, reason, run, *call.args)


@function("map_from_entries", args=1)
def _map_from_entries(call: Call) -> Node:
    inner = element(call.args[0], "map_from_entries()", call.text)
    if not (t.is_struct(inner) and inner.num_fields == 2):
        raise call.mismatch("an ARRAY of STRUCTs with two fields")
    kind = pa.map_(inner.field(0).type, inner.field(1).type)

    def run(value: Value) -> tuple[Value, Bad]:
        found = lists_of(value, rows(value))
        holes = found.some(~is_valid(found.flat, len(found.flat)))
        found = found.kept(~holes[found.parents])
        found.valid = found.valid & ~holes
        return map_array(found, *halves(found), kind)

    return fallible(kind, call.text, f"a key of {call.text} is null or comes twice", run, call.args[0])


@function("map_concat", args=(0, None))
def _map_concat(call: Call) -> Node:
    if not call.args:
        return constant(pa.scalar([], pa.map_(t.STRING, t.STRING)), call.text)
    for node in call.args:
        map_type(node, "map_concat()", call.text)
    kind = t.common_of([n.type for n in call.args], "map_concat()", call.text)
    nodes = [cast(n, kind).spelled(n.text) for n in call.args]
    entries = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
    join = joined_lists(entries)

    def run(*values: Value) -> tuple[Value, Bad]:
        n = rows(*values)
        found = lists_of(join(*(_entries(as_array(v, n), entries) for v in values)), n)
        return map_array(found, *halves(found), kind)

    return fallible(kind, call.text, f"a key of {call.text} comes twice", run, *nodes)


def _entries(value: pa.Array, kind: pa.DataType) -> pa.Array:
    found = lists_of(value, len(value))
    found.flat = pa.StructArray.from_arrays(list(halves(found)), fields=list(kind))
    return found.array(kind)


@function("map_keys", "map_values", "map_entries", args=1)
def _map_parts(call: Call) -> Node:
    kind = map_type(call.args[0], f"{call.name}()", call.text)
    entries = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
    inner = {"map_keys": kind.key_type, "map_values": kind.item_type, "map_entries": entries}[call.name]

    def run(value: Value) -> Value:
        array = as_array(value, 1)
        if call.name == "map_entries":
            return _entries(array, entries)
        found = lists_of(array, len(array))
        found.flat = halves(found)[call.name == "map_values"]
        return found.array(inner)

    return strict(pa.list_(inner), call.text, run, call.args[0])


def _key(call_text: str, node: Node, key: Node, what: str) -> Node:
    kind = map_type(node, what, call_text)
    if t.common_type(kind.key_type, key.type) is None:
        raise TypeMismatch(f"{what} takes a key of {t.spark_name(kind.key_type)} in {call_text!r}.")
    return implicit(key, kind.key_type, what, call_text)


def _places(value: Value, key: Value) -> tuple[Lists, pa.Array]:
    """The maps, and for each row the place of the key's entry among all entries; null if it has none."""
    n = rows(value, key)
    found, wanted = lists_of(value, n), as_array(key, n)
    keys = halves(found)[0]
    code = codes(pa.concat_arrays([keys, wanted]))
    match = np.flatnonzero(code[: len(keys)] == code[len(keys) :][found.parents])
    place = np.full(n, -1)
    place[found.parents[match]] = match
    return found, pa.array(np.maximum(place, 0), mask=place < 0)


def entry(node: Node, key: Node, text: str) -> Node:
    """The value of a key, null if the map lacks it: ``map[key]`` and ``element_at``."""
    key = _key(text, node, key, "[ ]")

    def run(value: Value, wanted: Value) -> Value:
        found, place = _places(value, wanted)
        return halves(found)[1].take(place)

    return strict(node.type.item_type, text, run, node, key)


@function("map_contains_key", args=2)
def _contains_key(call: Call) -> Node:
    key = _key(call.text, call.args[0], call.args[1], "map_contains_key()")
    if call.args[1].type == t.NULL:
        raise call.mismatch("a MAP and a key that is not NULL")

    def run(value: Value, wanted: Value) -> Value:
        found, place = _places(value, wanted)
        n = len(place)
        return from_numbers(is_valid(place, n), t.BOOLEAN, found.valid & is_valid(wanted, n))

    return strict(t.BOOLEAN, call.text, run, call.args[0], key)


@function("str_to_map", args=(1, 3))
def _str_to_map(call: Call) -> Node:
    given = [call.constant(i, t.STRING, "delimiter").as_py() for i in range(1, len(call.args))]
    between, within = (given + [",", ":"][len(given) :])[:2]
    patterns = [to_re2(p, call.text) for p in (between, within)]
    kind = pa.map_(t.STRING, t.STRING)

    def run(value: Value) -> tuple[Value, Bad]:
        array = as_array(value, 1)
        found = lists_of(pc.split_pattern_regex(array, patterns[0]), len(array))
        parts = lists_of(pc.split_pattern_regex(found.flat, patterns[1], max_splits=1), len(found.flat))
        keys = parts.flat.take(pa.array(parts.starts))
        second = parts.lengths > 1
        items = parts.flat.take(pa.array(np.where(second, parts.starts + 1, 0), mask=~second))
        return map_array(found, keys, items, kind)

    if any(not p or re.search(p.replace(r"\z", r"\Z"), "") for p in patterns):
        raise ExpressionError(f"A delimiter that matches the empty string is not supported in {call.text!r}.")
    return fallible(kind, call.text, f"a key of {call.text} comes twice", run, call.cast(0, t.STRING))
