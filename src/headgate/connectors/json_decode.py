"""JSON objects to record batches without a loop over the rows: Arrow's JSON reader on all of them at once.

Each value is wrapped as ``{"v":value}``, so that a broken value cannot lean on its neighbours: what is not
one whole JSON object breaks its own line, and the number of lines stays the number of values.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as json
import pyarrow.types as pt

from headgate.errors import BadRow, SourceError

_ROWS = 32_768
"""Values that are read at once; a bad one among them costs about as much again to find."""


def check_types(schema: pa.Schema, what: str) -> None:
    """Raise SourceError for a column whose type JSON does not give; ``what`` says who asked."""
    for field in schema:
        problem = _unreadable(field.type)
        if problem:
            raise SourceError(
                f"{what}: column '{field.name}' is {field.type}, but {problem}; change schema=, or read the "
                "values as they are with schema=None."
            )


def decode(values: pa.Array, schema: pa.Schema, what: str) -> pa.RecordBatch:
    """One row per value (binary or string): absent fields and null are null, other fields are ignored.

    A value that is null, or the JSON ``null``, gives a row of nulls, as Spark's ``from_json`` does.  A value
    that is not a JSON object of ``schema`` raises BadRow; ``what`` names the values in its message.
    """
    pieces = [_decode(values.slice(at, _ROWS), schema, what, at) for at in range(0, len(values), _ROWS)]
    if not pieces:
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    return pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)


def _decode(values: pa.Array, schema: pa.Schema, what: str, place: int) -> pa.RecordBatch:
    text = values.cast(pa.binary())
    try:
        return _read(text, schema)
    except (pa.ArrowException, _NotOneEach) as error:
        bad, why = _first_bad(text, schema, error)
        shown = text[bad].as_py()[:80].decode("utf-8", "backslashreplace")
        raise BadRow(
            f"{what}: value {shown!r} is not a JSON object of the schema: {why}", place + bad
        ) from error


class _NotOneEach(Exception):
    """The values hold more or fewer objects than there are values."""


def _read(values: pa.Array, schema: pa.Schema) -> pa.RecordBatch:
    whole = pc.fill_null(values, b"null")
    lines = pc.binary_join_element_wise(pa.scalar(b'{"v":'), whole, pa.scalar(b"}\n"), pa.scalar(b""))
    first, last = lines.offset, lines.offset + len(lines)
    offsets = pa.Array.from_buffers(pa.int32(), last + 1, [None, lines.buffers()[1]])
    start, end = offsets[first].as_py(), offsets[last].as_py()
    text = lines.buffers()[2].slice(start, end - start)
    fields = pa.struct([pa.field(field.name, _read_type(field.type)) for field in schema])
    read = json.read_json(
        pa.BufferReader(text),
        read_options=json.ReadOptions(use_threads=False, block_size=len(text) + 1),
        parse_options=json.ParseOptions(
            explicit_schema=pa.schema([pa.field("v", fields)]),
            unexpected_field_behavior="ignore",
            newlines_in_values=True,
        ),
    )
    if read.num_rows != len(values):
        raise _NotOneEach(f"{len(values)} values hold {read.num_rows} objects")
    objects = read.column("v").combine_chunks()
    arrays = [pc.struct_field(objects, index).cast(field.type) for index, field in enumerate(schema)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    # Arrow takes the bytes of strings as they are.
    batch.validate(full=True)
    return batch


def _first_bad(values: pa.Array, schema: pa.Schema, error: Exception) -> tuple[int, str]:
    """The first value that cannot be read and why: the longest readable beginning, by halving."""
    good, bad, why = 0, len(values), error
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            _read(values.slice(good, middle - good), schema)
            good = middle
        except (pa.ArrowException, _NotOneEach) as problem:
            bad, why = middle, problem
    try:
        _read(values.slice(good, 1), schema)
    except (pa.ArrowException, _NotOneEach) as problem:
        why = problem
    return good, str(why).replace("/v/", "/").removesuffix(" in row 0")


def _read_type(type_: pa.DataType) -> pa.DataType:
    """The type to read as: JSON's dates are strings."""
    if pt.is_date(type_):
        return pa.string()
    if pt.is_struct(type_):
        return pa.struct([pa.field(field.name, _read_type(field.type)) for field in type_.fields])
    if pt.is_list(type_):
        return pa.list_(_read_type(type_.value_type))
    return type_


def _unreadable(type_: pa.DataType) -> str | None:
    if pt.is_struct(type_):
        return next((problem for field in type_.fields if (problem := _unreadable(field.type))), None)
    if pt.is_list(type_):
        return _unreadable(type_.value_type)
    if pt.is_binary(type_):
        return "JSON has no bytes: declare a string (and unbase64 it if it is that)"
    if pt.is_map(type_):
        return "maps are not read: declare a struct of the fields that you need"
    if pt.is_duration(type_):
        return "JSON has no durations: declare a number"
    return None
