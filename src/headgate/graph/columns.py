"""Arrow columns as numpy integers: what key indices, buckets, sorts and time need of a column.

Two values of one column are equal as SQL groups them if and only if their integers are equal: -0.0 is
0.0, and NaN is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import PipelineError, TypeMismatch
from headgate.graph.schema import require_columns

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_NARROW_DECIMAL = 18

_WORDS: dict[int, Any] = {
    kind.id: np.dtype(bits)
    for bits, kinds in (
        (np.int8, [pa.int8()]),
        (np.int16, [pa.int16()]),
        (np.int32, [pa.int32(), pa.date32(), pa.time32("s")]),
        (np.int64, [pa.int64(), pa.date64(), pa.time64("us"), pa.timestamp("us"), pa.duration("us")]),
        (np.float32, [pa.float32()]),
        (np.float64, [pa.float64()]),
    )
    for kind in kinds
}
"""What the values of a type look like in memory, by the type's id, where that is a number of numpy's."""
_FLOATS = (pa.float32().id, pa.float64().id)
_FEW = 512

_take = pc.get_function("take").call
"""The kernel without its Python wrapper, which costs as much as taking a few rows."""


def refuse_duplicates(names: Sequence[str], what: str) -> None:
    """An output must not have two columns of one name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise PipelineError(
                f"{what}: two columns would be called '{name}'; give one of them another name."
            )
        seen.add(name)


def is_narrow(kind: pa.DataType) -> bool:
    """Whether every value of the type fits one 64-bit integer."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_temporal(kind)
        or (pa.types.is_decimal128(kind) and kind.precision <= _NARROW_DECIMAL)
    )


def is_wide(kind: pa.DataType) -> bool:
    """Whether values are byte strings, or as long as such: text, binary and wide decimals."""
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_decimal128(kind)
    )


def check_key(field: pa.Field, what: str) -> None:
    """A key column must be of a type that can be compared for equality."""
    if not (is_narrow(field.type) or is_wide(field.type) or pa.types.is_null(field.type)):
        raise TypeMismatch(
            f"{what}: column '{field.name}' is {field.type}, which cannot be a key; use numbers, text, "
            "dates, timestamps or booleans."
        )


def key_columns(
    schema: pa.Schema, names: Sequence[str], what: str
) -> tuple[tuple[str, ...], list[pa.DataType]]:
    """Key columns as ``schema`` spells them, and their types, which must be a key's."""
    found = tuple(require_columns(schema, names, what))
    for name in found:
        check_key(schema.field(name), what)
    return found, [schema.field(name).type for name in found]


def invalid(array: pa.Array) -> Mask | None:
    """Which values are null; None if there are none."""
    if not array.null_count:
        return None
    bitmap, start, end = array.buffers()[0], array.offset, array.offset + len(array)
    if bitmap is None:
        return np.ones(len(array), dtype=np.bool_)
    octets = np.frombuffer(bitmap, dtype=np.uint8, count=(end + 7) // 8)
    valid = np.unpackbits(octets[start // 8 :], bitorder="little")[start % 8 :][: end - start]
    null: Mask = valid == 0
    return null


def words(array: pa.Array) -> npt.NDArray[Any] | None:
    """The values as they are in memory, anything where they are null; None if the type is no number there."""
    dtype = _WORDS.get(array.type.id)
    if dtype is None or not len(array):
        return None if dtype is None else np.zeros(0, dtype)
    data = array.buffers()[1]
    return np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize)


def from_words(values: npt.NDArray[Any], kind: pa.DataType, null: Mask | None = None) -> pa.Array:
    """The column that looks like ``values`` in memory; they must not change any more."""
    bitmap = None if null is None else pa.py_buffer(np.packbits(~null, bitorder="little"))
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [bitmap, data])


_INT64 = pa.int64()


def from_places(values: Ints) -> pa.Array:
    """Integers as a column."""
    return from_words(values, _INT64)


def taken(rows: Any, places: Ints) -> Any:
    """The rows of a batch, or the values of an array, at ``places``."""
    if isinstance(rows, pa.Array) and not rows.null_count:
        plain = words(rows)
        if plain is not None:
            return from_words(plain[places], rows.type)
    return _take((rows, from_words(places, _INT64)))


_nulls: dict[pa.DataType, pa.Array] = {}


def shared_nulls(kind: pa.DataType, rows: int) -> pa.Array:
    """A column of nulls; columns of one type share their memory."""
    found = _nulls.get(kind)
    if found is None or len(found) < rows:
        found = _nulls[kind] = pa.nulls(max(rows, 1 << 16), kind)
    return found.slice(0, rows)


def limbs(array: pa.Array) -> npt.NDArray[np.int64]:
    """The unscaled values of a decimal128 array as rows of (low, high) 64 bits."""
    raw = np.frombuffer(array.buffers()[1], dtype=np.int64).reshape(-1, 2)
    return raw[array.offset : array.offset + len(array)]


def decimals(low: Ints, high: Ints, null: Mask | None, kind: pa.DataType) -> pa.Array:
    """A decimal128 array from its unscaled values."""
    data = np.column_stack([low, high])
    bitmap = None if null is None else pa.array(~null).buffers()[1]
    return pa.Array.from_buffers(kind, len(low), [bitmap, pa.py_buffer(np.ascontiguousarray(data))])


def integers(array: pa.Array) -> Ints:
    """One 64-bit integer per value of a narrow type; nulls give 0."""
    kind = array.type
    plain = words(array)
    if plain is not None:
        null = invalid(array)
        if kind.id in _FLOATS:
            floats = plain.astype(np.float64) + 0.0
            floats[np.isnan(floats)] = np.nan
            plain = floats.view(np.int64)
        bits: Ints = plain.astype(np.int64, copy=False)
        return bits if null is None else np.where(null, 0, bits)
    if pa.types.is_decimal(kind):
        low: Ints = limbs(array)[:, 0]
        null = invalid(array)
        return low if null is None else np.where(null, 0, low)
    if pa.types.is_boolean(kind):
        array = array.cast(pa.int8())
    if array.null_count:
        array = array.fill_null(0)
    values: Any = array.to_numpy(zero_copy_only=False)
    if pa.types.is_floating(kind):
        values = values.astype(np.float64) + 0.0
        values[np.isnan(values)] = np.nan
        return values.view(np.int64)  # type: ignore[no-any-return]
    return values.astype(np.int64, copy=False)  # type: ignore[no-any-return]


def from_integers(values: Ints, null: Mask | None, kind: pa.DataType) -> pa.Array:
    """The column whose ``integers`` are ``values``."""
    if null is not None and not null.any():
        null = None
    dtype = _WORDS.get(kind.id)
    if dtype is not None:
        plain: Any = values.view(np.float64) if kind.id in _FLOATS else values
        return from_words(plain.astype(dtype, copy=False), kind, null)
    if pa.types.is_decimal(kind):
        return decimals(values, values >> 63, null, kind)
    if pa.types.is_boolean(kind):
        return pa.array(values != 0, type=kind, mask=null)
    if pa.types.is_floating(kind):
        floats: Any = values.view(np.float64).astype(kind.to_pandas_dtype())
        return pa.array(floats, type=kind, mask=null, from_pandas=False)
    return pa.array(values.astype(kind.to_pandas_dtype()), type=kind, mask=null)


def sortable(array: pa.Array) -> Ints:
    """Integers that compare as the (narrow) values do; NaN is the greatest, nulls tie."""
    bits = integers(array)
    return flipped(bits) if pa.types.is_floating(array.type) else bits


def flipped(bits: Ints) -> Ints:
    """The bits of doubles as integers of the same order, and back."""
    return np.where(bits < 0, bits ^ np.int64(0x7FFF_FFFF_FFFF_FFFF), bits)


def value_keys(array: pa.Array) -> list[npt.NDArray[Any]]:
    """Arrays that sort as SQL sorts the column's values ascending, the most significant first; nulls tie."""
    kind = array.type
    if pa.types.is_null(kind):
        return []
    if is_narrow(kind):
        return [sortable(array)]
    null = invalid(array)
    keys: list[npt.NDArray[Any]]
    if pa.types.is_decimal(kind):
        unscaled = limbs(array)
        keys = [unscaled[:, 1], unscaled[:, 0].view(np.uint64)]
    else:
        keys = [pc.rank(array, sort_keys="ascending", tiebreaker="dense").to_numpy()]
    return keys if null is None else [np.where(null, np.zeros(1, dtype=key.dtype), key) for key in keys]


def sort_keys(array: pa.Array, descending: bool = False, nulls_first: bool = True) -> list[npt.NDArray[Any]]:
    """Arrays that sort the column as SQL does, the most significant first."""
    null = invalid(array)
    keys = value_keys(array)
    if descending:
        # Flipping every bit reverses the order of integers of either sign and cannot overflow.
        keys = [~key for key in keys]
    if null is None:
        return keys
    return [~null if nulls_first else null, *keys]


def lexical_order(keys: Sequence[npt.NDArray[Any]]) -> Ints:
    """The permutation that sorts by several keys, the most significant first; ties in any order.

    Integers whose ranges together fit one word are sorted as one, which is several times faster.
    """
    if len(keys[0]) < _FEW:
        return np.lexsort(tuple(reversed(keys)))
    packed, span = None, 1
    for key in keys if len(keys[0]) else ():
        low, high = int(key.min()), int(key.max())
        span *= high - low + 1
        if span >= 1 << 62:
            break
        if high > low:
            part = key.astype(np.int64) - low
            packed = part if packed is None else packed * (high - low + 1) + part
    else:
        return np.arange(len(keys[0])) if packed is None else np.argsort(packed)
    return np.lexsort(tuple(reversed(keys)))


def least(keys: Sequence[npt.NDArray[Any]], rows: Ints, count: int) -> Ints:
    """Those of ``rows`` that are the first ``count`` by several keys, the most significant first.

    They are in any order, as no row is sorted.  Each key decides about the rows that tie by the keys before
    it; ties by all keys stay.
    """
    chosen = []
    for key in keys:
        if len(rows) <= count:
            break
        values = key[rows]
        last = np.partition(values, count - 1)[count - 1]
        chosen.append(rows[values < last])
        rows = rows[values == last]
        count -= len(chosen[-1])
    return np.concatenate([*chosen, rows])
