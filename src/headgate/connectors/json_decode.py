"""JSON objects to record batches without a loop over the rows: Arrow's JSON reader on all of them at once.

Each value is wrapped as ``{"v":value}``, so that a broken value cannot lean on its neighbours: what is not
one whole JSON object breaks its own line, and the number of lines stays the number of values.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as json
import pyarrow.types as pt

from headgate.errors import BadRow, SourceError

_ROWS = 32_768
"""Values that are read at once; a bad one among them costs about as much again to find."""
DEEPEST = 1_000
"""Objects and lists inside each other, as in Spark's own reader.  Arrow's calls itself for each level, and a
value of 20,000 levels, even in a field that is ignored, takes the whole process with it."""
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_COLUMN = re.compile(r"Column\(/v/([^/)]+)")

Places = npt.NDArray[np.int64]


def check_types(schema: pa.Schema, what: str) -> None:
    """Raise SourceError for a column whose type JSON does not give; ``what`` names the connector."""
    for field in schema:
        problem = _unreadable(field.type)
        if problem:
            raise SourceError(
                f"{what}: column '{field.name}' is {field.type}, but {problem}; change schema=, or read the "
                "values as they are with schema=None."
            )


def decode(values: pa.Array, schema: pa.Schema, *, nulls: bool = True) -> pa.RecordBatch:
    """One row per value (binary or string): absent fields and null are null, other fields are ignored.

    A value that is not a JSON object of ``schema`` raises BadRow.  With ``nulls``, one that is null, or the
    JSON ``null``, gives a row of nulls, as Spark's ``from_json`` does; without, it is bad too.
    """
    pieces = [_decode(values.slice(at, _ROWS), schema, nulls, at) for at in range(0, len(values), _ROWS)]
    if not pieces:
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    return pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)


def sift(
    rows: int, read: Callable[[int, int], pa.RecordBatch]
) -> tuple[Places, list[pa.RecordBatch], list[tuple[int, str]]]:
    """All good rows of ``rows``, with their places, and the places of bad ones with the reason.

    ``read(start, stop)`` gives rows or raises BadRow for one of them.  One bad row is found at a time, so
    what is around it is tried in pieces of half the size.
    """
    places: list[Places] = [np.zeros(0, dtype=np.int64)]
    good: list[pa.RecordBatch] = []
    bad: list[tuple[int, str]] = []
    todo = [(0, rows)] if rows else []
    while todo:
        start, stop = todo.pop()
        try:
            good.append(read(start, stop))
            places.append(np.arange(start, stop))
        except BadRow as error:
            at, most = start + error.index, max((stop - start) // 2, 1)
            bad.append((at, str(error)))
            pieces = [(p, min(p + most, at)) for p in range(start, at, most)]
            pieces += [(p, min(p + most, stop)) for p in range(at + 1, stop, most)]
            todo += pieces[::-1]
    return np.concatenate(places), good, sorted(bad)


def _decode(values: pa.Array, schema: pa.Schema, nulls: bool, place: int) -> pa.RecordBatch:
    text = values.cast(pa.binary())
    try:
        return _read(text, schema, nulls)
    except (pa.ArrowException, _Unreadable) as error:
        bad, why = _first_bad(text, schema, nulls, error)
        value = b"null" if text[bad].as_py() is None else text[bad].as_py()
        shown = value[:80].decode("utf-8", "backslashreplace").strip()
        raise BadRow(
            f"{shown!r} is not a JSON object of the schema: {_named(why, schema)}", place + bad
        ) from why


class _Unreadable(Exception):
    """Values that Arrow must not or does not read as one object each."""


def too_deep(values: pa.Array) -> list[int]:
    """The places of values with too many objects and lists inside each other.

    A value with so many levels has as many bytes, so short ones need no look.
    """
    lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
    return [at for at in np.flatnonzero(lengths > DEEPEST).tolist() if depth(values[at].as_py()) > DEEPEST]


def depth(value: bytes) -> int:
    """How many objects and lists are inside each other, or at least as many."""
    if value.count(b"{") + value.count(b"[") <= DEEPEST:
        return 0
    # "{" and "[" differ in the letter-case bit only, and so do "}" and "]".
    bare = np.frombuffer(_STRING.sub(b"", value), dtype=np.uint8) | 0x20
    levels = (bare == ord("{")).astype(np.int32) - (bare == ord("}"))
    return int(levels.cumsum(dtype=np.int64).max(initial=0))


def _read(values: pa.Array, schema: pa.Schema, nulls: bool) -> pa.RecordBatch:
    # Arrow does not check bytes, and does not even look at those of ignored fields.
    values.cast(pa.string())
    if too_deep(values):
        raise _Unreadable(f"objects and lists are more than {DEEPEST:,} levels deep")
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
        raise _Unreadable(f"{len(values)} values hold {read.num_rows} objects")
    objects = read.column("v").combine_chunks()
    if objects.null_count and not nulls:
        raise _Unreadable("it is null")
    arrays = [pc.struct_field(objects, index).cast(field.type) for index, field in enumerate(schema)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    # Escapes can spell what is no text.
    batch.validate(full=True)
    return batch


def _first_bad(values: pa.Array, schema: pa.Schema, nulls: bool, error: Exception) -> tuple[int, Exception]:
    """The first value that cannot be read and why: the longest readable beginning, by halving."""
    good, bad, why = 0, len(values), error
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            _read(values.slice(good, middle - good), schema, nulls)
            good = middle
        except (pa.ArrowException, _Unreadable) as problem:
            bad, why = middle, problem
    try:
        _read(values.slice(good, 1), schema, nulls)
    except (pa.ArrowException, _Unreadable) as problem:
        why = problem
    return good, why


def _named(why: Exception, schema: pa.Schema) -> str:
    """Arrow's reason, with the column that it speaks of."""
    text = str(why).removesuffix(" in row 0")
    place = _COLUMN.search(text)
    text = text.replace("/v/", "/")
    if place is None or place[1] not in schema.names:
        return text
    return f"column '{place[1]}' should be {schema.field(place[1]).type} ({text})"


def _read_type(type_: pa.DataType) -> pa.DataType:
    """The type to read: JSON's dates are strings."""
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
