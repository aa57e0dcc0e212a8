"""Record batches to Avro values, a field of all rows at a time: fields become bytes, bytes are joined."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headgate.connectors.avro_schema import Avro, AvroError

_WIDTH = 16
_WIDER = {
    pa.int8(): (pa.int32(), pa.int64()),
    pa.int16(): (pa.int32(), pa.int64()),
    pa.int32(): (pa.int64(), pa.float64()),
    pa.float32(): (pa.float64(),),
}


def encode(batch: pa.RecordBatch, writer: Avro) -> pa.Array:
    """The value of each row; columns are the fields of their names."""
    return _joined([_bytes(batch.column(n), p, n) for n, p in zip(writer.names, writer.parts, strict=True)])


def check(schema: pa.Schema, writer: Avro) -> None:
    """Raise AvroError if rows of ``schema`` are no values of ``writer``."""
    _check(list(schema), writer, "")


def _check(fields: list[pa.Field], writer: Avro, path: str) -> None:
    given = {field.name: field.type for field in fields}
    for name in given:
        if name not in writer.names:
            raise AvroError(f"the Avro schema has no field '{path}{name}'; it has {', '.join(writer.names)}")
    for name, part in zip(writer.names, writer.parts, strict=True):
        if name not in given:
            raise AvroError(f"the Avro schema has a field '{path}{name}', but there is no such column")
        _check_type(given[name], part, f"{path}{name}")


def _check_type(given: pa.DataType, type_: Avro, path: str) -> None:
    if type_.kind == "null" or (type_.kind == "union" and len(type_.values) > 1):
        raise AvroError(f"the Avro schema's field '{path}' has no one type, so it is not written")
    if type_.kind == "union":
        _check_type(given, type_.parts[type_.values[0]], path)
    elif type_.kind == "record" and pt.is_struct(given):
        _check(given.fields, type_, f"{path}.")
    elif type_.kind == "array" and pt.is_list(given):
        _check_type(given.value_type, type_.parts[0], path)
    elif type_.kind == "map" and pt.is_map(given) and pt.is_string(given.key_type):
        _check_type(given.item_type, type_.parts[0], path)
    elif type_.arrow not in (given, *_WIDER.get(given, ())):
        raise AvroError(f"column '{path}' is {given}, but the Avro schema has {type_.arrow}; cast it")


def _bytes(array: pa.Array, type_: Avro, column: str) -> pa.Array:
    """Each value's bytes; a null where the schema has none is an AvroError."""
    if type_.kind == "union":
        return _optional(array, type_, column)
    if array.null_count:
        raise AvroError(f"column '{column}' has a null, but its field of the Avro schema cannot be null")
    if type_.kind == "record":
        children = [array.field(array.type.get_field_index(name)) for name in type_.names]
        parts = zip(children, type_.parts, type_.names, strict=True)
        return _joined([_bytes(child, part, f"{column}.{name}") for child, part, name in parts])
    if type_.kind in ("array", "map"):
        return _lists(array, type_, column)
    if type_.kind == "enum":
        found = pc.index_in(array, pa.array(type_.names, pa.string()))
        if found.null_count:
            raise AvroError(f"column '{column}' has a value that is no symbol of its enum in the Avro schema")
        return _numbers(_ints(found))
    return _plain(array, type_)


def _plain(array: pa.Array, type_: Avro) -> pa.Array:
    array = array.cast(type_.arrow)
    if pt.is_decimal(type_.arrow):
        return _decimals(array, type_)
    if type_.kind in ("bytes", "string"):
        return _joined([_numbers(_ints(pc.binary_length(array))), array.cast(pa.binary())])
    if type_.kind == "fixed":
        return array.cast(pa.binary(type_.size)).cast(pa.binary())
    if type_.kind == "boolean":
        return _fixed(array.cast(pa.uint8()).to_numpy(zero_copy_only=False).reshape(-1, 1))
    if type_.kind in ("float", "double"):
        width = type_.arrow.bit_width // 8
        values = array.to_numpy(zero_copy_only=False).astype(f"<f{width}")
        return _fixed(values.view(np.uint8).reshape(-1, width))
    if pt.is_timestamp(type_.arrow):
        unit = {"millis": "ms", "micros": "us", "nanos": "ns"}[type_.logical.rpartition("-")[2]]
        array = array.cast(pa.timestamp(unit, tz=type_.arrow.tz), safe=False)
        return _numbers(_ints(array.cast(pa.int64())))
    return _numbers(_ints(array.cast(pa.int32()) if pt.is_date(type_.arrow) else array))


def _optional(array: pa.Array, type_: Avro, column: str) -> pa.Array:
    there = array.is_valid()
    (branch,) = type_.values
    inside = _bytes(array.drop_null(), type_.parts[branch], column)
    tagged = _joined([pa.repeat(pa.scalar(bytes([2 * branch]), pa.binary()), len(inside)), inside])
    if not array.null_count:
        return tagged
    if type_.nulls is None:
        raise AvroError(f"column '{column}' has a null, but its field of the Avro schema cannot be null")
    places = np.cumsum(there.to_numpy(zero_copy_only=False)) - 1
    spread = tagged.take(pa.array(places, mask=~there.to_numpy(zero_copy_only=False)))
    return pc.fill_null(spread, pa.scalar(bytes([2 * type_.nulls]), pa.binary()))


def _lists(array: pa.Array, type_: Avro, column: str) -> pa.Array:
    if type_.kind == "map":
        pairs = pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])
        array = array.cast(pa.list_(pairs))
        flat = array.flatten()
        keys = _plain(flat.field(0), Avro("string", pa.string()))
        items = _joined([keys, _bytes(flat.field(1), type_.parts[0], column)])
    else:
        items = _bytes(array.flatten(), type_.parts[0], column)
    counts = _ints(pc.list_value_length(array))
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    inside = pc.binary_join(pa.ListArray.from_arrays(offsets, items), b"")
    head = pc.if_else(pa.array(counts > 0), _numbers(counts), pa.scalar(b"", pa.binary()))
    return _joined([head, inside, pa.repeat(pa.scalar(b"\0", pa.binary()), len(counts))])


def _decimals(array: pa.Array, type_: Avro) -> pa.Array:
    end = array.offset + len(array)
    data = np.frombuffer(array.buffers()[1], np.uint8)[: end * _WIDTH].reshape(-1, _WIDTH)
    digits = data[array.offset :, ::-1]  # the highest byte first
    if type_.kind == "fixed":
        if type_.size <= _WIDTH:
            return _fixed(digits[:, _WIDTH - type_.size :])
        sign = np.where(digits[:, :1] >= 128, 255, 0).astype(np.uint8)
        return _fixed(np.hstack([np.repeat(sign, type_.size - _WIDTH, axis=1), digits]))
    length = np.full((len(digits), 1), 2 * _WIDTH, np.uint8)
    return _fixed(np.hstack([length, digits]))


def _ints(array: pa.Array) -> npt.NDArray[np.int64]:
    return array.cast(pa.int64()).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _numbers(values: npt.NDArray[np.int64]) -> pa.Array:
    """Whole numbers: seven bits a byte, the lowest first, the sign in the lowest."""
    rest = ((values << 1) ^ (values >> 63)).astype(np.uint64)
    digits = np.zeros((len(values), 10), np.uint8)
    used = np.zeros((len(values), 10), dtype=bool)
    more = np.ones(len(values), dtype=bool)
    for place in range(10):
        used[:, place] = more
        digits[:, place] = rest & np.uint64(127)
        rest >>= np.uint64(7)
        more = more & (rest > 0)
        if not more.any():
            break
        digits[more, place] |= 128
    offsets = np.concatenate([[0], np.cumsum(used.sum(axis=1))]).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(digits[used])]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def _fixed(rows: npt.NDArray[np.uint8]) -> pa.Array:
    """Each row of bytes as one value."""
    offsets = (np.arange(len(rows) + 1) * rows.shape[1]).astype(np.int32)
    data = pa.py_buffer(np.ascontiguousarray(rows, dtype=np.uint8))
    return pa.Array.from_buffers(pa.binary(), len(rows), [None, pa.py_buffer(offsets), data])


def _joined(parts: list[pa.Array]) -> pa.Array:
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary())) if len(parts) > 1 else parts[0]
