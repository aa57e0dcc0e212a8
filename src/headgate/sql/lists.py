"""Arrays as offsets and elements: what every function of arrays, maps and lambdas is built from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import TypeMismatch
from headgate.sql import types as t
from headgate.sql.node import Node
from headgate.sql.values import Bad, Mask, Numbers, Value, as_array, is_valid, some


@dataclass(slots=True)
class Lists:
    """The arrays (or maps) of a column: how many elements each row has, and all elements in one array."""

    lengths: Numbers
    flat: pa.Array
    valid: Mask

    @property
    def parents(self) -> Numbers:
        """The row of each element."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def starts(self) -> Numbers:
        """Where each row's elements begin."""
        return np.cumsum(self.lengths) - self.lengths

    @property
    def positions(self) -> Numbers:
        """The place of each element in its row, from 0."""
        places: Numbers = np.arange(len(self.flat)) - np.repeat(self.starts, self.lengths)
        return places

    def some(self, marked: Mask) -> Mask:
        """The rows that have a marked element."""
        out = np.zeros(len(self.lengths), dtype=bool)
        out[self.parents[marked]] = True
        return out

    def kept(self, chosen: Mask) -> Lists:
        """The same rows with only the chosen elements."""
        lengths = np.bincount(self.parents[chosen], minlength=len(self.lengths))
        return Lists(lengths, self.flat.filter(pa.array(chosen)), self.valid)

    def ordered(self, order: Numbers) -> Lists:
        """The same rows with elements taken in another order, which must keep rows together."""
        return Lists(self.lengths, self.flat.take(pa.array(order)), self.valid)

    def array(self, element: pa.DataType) -> pa.Array:
        flat = self.flat if self.flat.type == element else self.flat.cast(element)
        mask = None if self.valid.all() else pa.array(~self.valid)
        return pa.ListArray.from_arrays(offsets(self.lengths), flat, type=pa.list_(element), mask=mask)


def offsets(lengths: Numbers) -> pa.Array:
    out = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=out[1:])
    return pa.array(out)


def lists_of(value: Value, length: int) -> Lists:
    """The arrays or maps of an operand; a map's elements are structs of key and value."""
    array = as_array(value, length)
    valid = is_valid(array, length)
    lengths = sizes(array, valid)
    if not t.is_map(array.type):
        return Lists(lengths, array.flatten(), valid)
    # Arrow flattens no maps.
    first = array.offsets.to_numpy()[:-1]
    index = np.arange(int(lengths.sum())) + np.repeat(first - np.cumsum(lengths) + lengths, lengths)
    return Lists(lengths, array.values.take(pa.array(index)), valid)


def sizes(array: pa.Array, valid: Mask) -> Numbers:
    """How many elements each row of an array or map has; Arrow's kernel knows no maps."""
    return np.where(valid, np.diff(array.offsets.to_numpy()).astype(np.int64), 0)


def map_array(lists: Lists, keys: pa.Array, items: pa.Array, type_: pa.DataType) -> tuple[pa.Array, Bad]:
    """A map array; a row with a null key or the same key twice is bad."""
    code = codes(keys)
    wrong = np.zeros(len(lists.lengths), dtype=bool)
    wrong |= lists.some(~is_valid(keys, len(keys)))
    wrong |= lists.some(~first_of_row(lists.parents, code))
    wrong &= lists.valid
    if wrong.any():
        good = ~wrong[lists.parents]
        lists = Lists(
            np.where(wrong, 0, lists.lengths), lists.flat.filter(pa.array(good)), lists.valid & ~wrong
        )
        keys, items = keys.filter(pa.array(good)), items.filter(pa.array(good))
    mask = None if lists.valid.all() else pa.array(~lists.valid)
    if keys.type != type_.key_type:
        keys = keys.cast(type_.key_type)
    if items.type != type_.item_type:
        items = items.cast(type_.item_type)
    return pa.MapArray.from_arrays(offsets(lists.lengths), keys, items, type=type_, mask=mask), some(wrong)


def codes(flat: pa.Array) -> Numbers:
    """A number for each element; equal ones have the same, also null, NaN and both zeros."""
    if t.is_nested(flat.type):
        # No kernel numbers nested values.
        known: dict[str, int] = {}
        return np.array([known.setdefault(repr(v), len(known)) for v in flat.to_pylist()], dtype=np.int64)
    if t.is_fractional(flat.type):
        flat = pc.add(flat, pa.scalar(0.0, flat.type))
        flat = pc.if_else(pc.is_nan(flat), pa.scalar(float("nan"), flat.type), flat)
    if flat.type == t.NULL:
        return np.zeros(len(flat), dtype=np.int64)
    encoded = flat.dictionary_encode(null_encoding="encode")
    found: Numbers = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def first_of_row(parents: Numbers, code: Numbers) -> Mask:
    """Which elements are the first with their code in their row."""
    out = np.zeros(len(code), dtype=bool)
    if len(code):
        _, first = np.unique(parents * (int(code.max()) + 1) + code, return_index=True)
        out[first] = True
    return out


def ranks(flat: pa.Array) -> Numbers:
    """The order of elements as numbers, NaN the greatest; a null's number means nothing."""
    if t.is_fractional(flat.type):
        plain = flat.fill_null(0).to_numpy(zero_copy_only=False) + 0.0
        return np.unique(plain, return_inverse=True)[1].astype(np.int64)
    if flat.type == t.NULL or not len(flat):
        return np.zeros(len(flat), dtype=np.int64)
    ranked: Numbers = pc.rank(flat, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    return ranked


def element(node: Node, what: str, text: str) -> pa.DataType:
    """The element type of an array."""
    if not t.is_array(node.type):
        raise TypeMismatch(f"{what} takes an ARRAY, not {node.type_name} ({node.text}), in {text!r}.")
    return node.type.value_type
