"""Fields of structs and elements of arrays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import TypeMismatch, UnknownColumn, nearest
from headgate.sql import types as t
from headgate.sql.casts import implicit
from headgate.sql.comparison import comparison_kernel
from headgate.sql.lists import lists_of, sizes
from headgate.sql.maps import entry
from headgate.sql.node import FallibleKernel, Node, fallible, null_of, strict
from headgate.sql.registry import Call, function
from headgate.sql.values import (
    Bad,
    Value,
    as_array,
    both_valid,
    from_numbers,
    is_true,
    is_valid,
    kernel,
    numbers,
    rows,
    some,
)


def field(node: Node, name: str, text: str) -> Node:
    """``struct.name``; of an array of structs, the array of that field."""
    if t.is_array(node.type) and t.is_struct(node.type.value_type):
        return _field_of_each(node, name, text)
    if not pa.types.is_struct(node.type):
        raise TypeMismatch(
            f"{node.text!r} is {node.type_name}, not a struct, so it has no field {name!r}, in {text!r}."
        )
    names = [f.name for f in node.type]
    found = [i for i, known in enumerate(names) if known.lower() == name.lower()]
    if len(found) != 1:
        problem = "is ambiguous" if found else "does not exist"
        raise UnknownColumn(
            f"The field {name!r} of {node.text!r} {problem} in {text!r}.{nearest(name, names)} "
            f"Fields: {', '.join(names)}."
        )
    type_ = node.type.field(found[0]).type
    if t.stored_as(type_) != type_:
        raise TypeMismatch(
            f"The field {text!r} has the Arrow type {type_}, which Spark lacks; convert it in the source."
        )
    return strict(type_, text, kernel("struct_field", pc.StructFieldOptions(found)), node)


def _field_of_each(node: Node, name: str, text: str) -> Node:
    inner = node.type.value_type
    one = field(null_of(inner, node.text), name, text)
    place = [f.name.lower() for f in inner].index(name.lower())

    def run(value: Value) -> Value:
        found = lists_of(value, rows(value))
        found.flat = pc.struct_field(found.flat, place)
        return found.array(one.type)

    return strict(pa.list_(one.type), text, run, node)


def _element_type(node: Node, what: str, text: str) -> pa.DataType:
    if not t.is_array(node.type):
        raise TypeMismatch(f"{what} takes an ARRAY, not {node.type_name} ({node.text}), in {text!r}.")
    return node.type.value_type


def subscript(node: Node, index: Node, text: str) -> Node:
    """``array[i]``, counted from 0; outside the array is a bad row."""
    if t.is_map(node.type):
        return entry(node, index, text)
    type_ = _element_type(node, "[ ]", text)
    if not t.is_integral(index.type):
        raise TypeMismatch(f"An array index must be a whole number, not {index.type_name}, in {text!r}.")
    index = implicit(index, t.INT, "[ ]", text)
    return fallible(type_, text, f"the index of {text} is outside the array", _elements(0), node, index)


def _elements(base: int, *, outside_is_null: bool = False) -> FallibleKernel:
    """The kernel of an element by its place, counted from ``base``; place 0 is bad if that is 1."""

    def run(array: Value, index: Value) -> tuple[Value, Bad]:
        n = rows(array, index)
        lists = as_array(array, n)
        sizes = numbers(pc.list_value_length(lists)).astype(np.int64)
        position = np.broadcast_to(numbers(index), n).astype(np.int64)
        valid = both_valid(n, array, index)
        if base:
            place = np.where(position > 0, position - 1, sizes + position)
            outside = (position == 0) | (place < 0) | (place >= sizes)
        else:
            place = position
            outside = (place < 0) | (place >= sizes)
        wrong = position == 0 if outside_is_null else outside
        bad = some(wrong if valid is None else wrong & valid)
        usable = ~outside if valid is None else ~outside & valid
        starts = lists.offsets.to_numpy()[:-1].astype(np.int64)
        return lists.values.take(pa.array(np.where(usable, starts + place, 0), mask=~usable)), bad

    return run


@function("element_at", "try_element_at", args=2)
def _element_at(call: Call) -> Node:
    if t.is_map(call.args[0].type):
        return entry(call.args[0], call.args[1], call.text)
    type_ = _element_type(call.args[0], "element_at()", call.text)
    index = call.args[1]
    if not t.is_integral(index.type):
        raise call.mismatch("an ARRAY and a whole number")
    reason = f"the index of {call.text} is 0 or outside the array"
    kernel_ = _elements(1, outside_is_null=call.name == "try_element_at")
    return fallible(type_, call.text, reason, kernel_, call.args[0], call.cast(1, t.INT))


@function("size", "cardinality", "array_size", args=1)
def _size(call: Call) -> Node:
    if not (t.is_map(call.args[0].type) and call.name != "array_size"):
        _element_type(call.args[0], f"{call.name}()", call.text)

    def run(value: Value) -> Value:
        array = as_array(value, 1)
        valid = is_valid(array, len(array))
        return from_numbers(sizes(array, valid), t.INT, valid)

    return strict(t.INT, call.text, run, call.args[0])


@function("array_contains", args=2)
def _array_contains(call: Call) -> Node:
    type_ = _element_type(call.args[0], "array_contains()", call.text)
    if call.args[1].type == t.NULL:
        raise call.mismatch("an ARRAY and a value that is not NULL")
    wanted = call.args[1]
    if t.common_type(type_, wanted.type, strings=False) != type_:
        raise call.mismatch("an ARRAY and a value of its element type")
    wanted = implicit(wanted, type_, "array_contains()", call.text)
    equal = comparison_kernel("=", null_of(type_), null_of(type_))

    def run(array: Value, value: Value) -> Value:
        n = rows(array, value)
        lists = as_array(array, n)
        parents = pc.list_parent_indices(lists)
        flat = lists.flatten()
        match = equal(flat, as_array(value, n).take(parents))
        owner = parents.to_numpy()
        found = np.zeros(n, dtype=bool)
        found[owner[is_true(match, len(flat))]] = True
        has_null = np.zeros(n, dtype=bool)
        has_null[owner[is_true(flat.is_null(), len(flat))]] = True
        valid = both_valid(n, array, value)
        unknown = has_null & ~found if valid is None else (has_null & ~found) | ~valid
        return pa.array(found, mask=unknown if unknown.any() else None)

    return strict(t.BOOLEAN, call.text, run, call.args[0], wanted)
