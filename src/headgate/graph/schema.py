"""Schemas as Spark sees them: the few types that every operator may meet, and columns found by name.

Rows of a source are converted to these types once, at the edge, so that no operator has to ask whether a
string is large, a timestamp in milliseconds or a column dictionary-encoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headgate.errors import PipelineError, UnknownColumn, nearest
from headgate.sql.names import places

_PLAIN = {
    pa.bool_(): pa.bool_(),
    pa.int8(): pa.int8(),
    pa.int16(): pa.int16(),
    pa.int32(): pa.int32(),
    pa.int64(): pa.int64(),
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.float32(): pa.float32(),
    pa.float64(): pa.float64(),
    pa.string(): pa.string(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.binary(): pa.binary(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date32(): pa.date32(),
    pa.date64(): pa.date32(),
    # A column that never had a value is a string to Spark's readers.
    pa.null(): pa.string(),
}


_LISTS = (pt.is_list, pt.is_large_list, pt.is_fixed_size_list, pt.is_list_view, pt.is_large_list_view)


def normalise(schema: Any) -> pa.Schema:
    """``schema`` with the types that Spark would give it, every field nullable, no metadata.

    Also takes what ``pyarrow.schema`` takes: a list of (name, type) or a mapping.
    """
    if not isinstance(schema, pa.Schema):
        try:
            schema = pa.schema(schema if isinstance(schema, Mapping) else list(schema))
        except (TypeError, ValueError, pa.ArrowException):
            raise PipelineError(
                f"{schema!r} is not a schema; give a pyarrow schema, "
                "e.g. pa.schema([('user_id', pa.int64()), ('name', pa.string())])."
            ) from None
    names = schema.names
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise PipelineError(f"Column '{twice}' occurs twice in the schema; give each column its own name.")
    return pa.schema([pa.field(f.name, normal_type(f.type, f.name)) for f in schema])


def normal_type(type_: pa.DataType, column: str) -> pa.DataType:
    """The type that ``type_`` becomes; ``column`` names it in errors."""
    plain = _PLAIN.get(type_)
    if plain is not None:
        return plain
    if pt.is_timestamp(type_):
        return pa.timestamp("us", tz="UTC" if type_.tz else None)
    if pt.is_dictionary(type_) or pt.is_run_end_encoded(type_):
        return normal_type(type_.value_type, column)
    if pt.is_fixed_size_binary(type_):
        return pa.binary()
    if pt.is_duration(type_):
        return pa.duration("us")
    if pt.is_decimal(type_) and type_.precision <= 38:
        return pa.decimal128(type_.precision, type_.scale)
    if pt.is_map(type_):
        return pa.map_(normal_type(type_.key_type, column), normal_type(type_.item_type, column))
    if pt.is_struct(type_):
        return pa.struct([pa.field(f.name, normal_type(f.type, f"{column}.{f.name}")) for f in type_.fields])
    if any(is_kind(type_) for is_kind in _LISTS):
        return pa.list_(normal_type(type_.value_type, column))
    raise PipelineError(
        f"Column '{column}' has type {type_}, which Headgate does not support; "
        "cast it to a number, string, date or timestamp first."
    )


def normalise_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """``batch`` with the columns and types of ``schema``, which is the normal form of its own."""
    if batch.schema is schema or batch.schema.equals(schema):
        return batch if batch.schema.metadata is None else batch.replace_schema_metadata(None)
    return pa.RecordBatch.from_arrays(
        [_normal_array(batch.column(field.name), field.type) for field in schema], schema=schema
    )


def _normal_array(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if array.type == type_:
        return array
    if pt.is_dictionary(array.type):
        return _normal_array(array.dictionary_decode(), type_)
    if pt.is_run_end_encoded(array.type):
        return _normal_array(pc.run_end_decode(array), type_)
    # Nanoseconds are cut to microseconds, as Spark does.
    return array.cast(type_, safe=not _has_nanoseconds(array.type))


def _has_nanoseconds(type_: pa.DataType) -> bool:
    if pt.is_timestamp(type_) or pt.is_duration(type_):
        return bool(type_.unit == "ns")
    return any(_has_nanoseconds(type_.field(i).type) for i in range(type_.num_fields))


def require_columns(schema: pa.Schema, names: Iterable[str], what: str) -> list[str]:
    """``names`` as ``schema`` spells them; ``what`` says in errors who asked.

    Names are found as Spark finds them: the exact one, or the only one that differs in case.
    """
    return [_find(schema, name, what) for name in names]


def _find(schema: pa.Schema, name: str, what: str) -> str:
    if not isinstance(name, str):
        raise PipelineError(f"{what}: {name!r} is not a column name; give names as strings.")
    same = [schema.field(place).name for place in places(schema).get(name.lower(), ())]
    if name in same:
        return name
    if len(same) == 1:
        return str(same[0])
    if same:
        raise UnknownColumn(f"{what}: '{name}' could be {_listed(same)}; write it as the stream does.")
    raise UnknownColumn(
        f"{what}: there is no column '{name}'.{nearest(name, schema.names)} "
        f"Available: {_listed(schema.names)}."
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) if names else "no columns"


def row_bytes(schema: pa.Schema) -> float:
    """About how large a row is: by its types, where no rows have been seen."""
    return sum([_type_bytes(field.type) for field in schema]) or 1.0


def _type_bytes(type_: pa.DataType) -> float:
    try:
        return max(int(type_.bit_width), 8) / 8
    except ValueError:  # strings, lists: no fixed width
        return 16.0
