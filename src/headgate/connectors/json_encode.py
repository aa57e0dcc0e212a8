"""Record batches to JSON objects without a loop over the rows: columns become text, texts are joined.

The objects are those of Spark's ``to_json``: null fields are left out, dates and timestamps are ISO 8601
strings, NaN and infinities are strings.  Timestamps keep their microseconds.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headgate.errors import SinkError

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_CONTROL = [chr(code) for code in range(0x20)]


def check_types(schema: pa.Schema, what: str) -> None:
    """Raise SinkError for a column that JSON cannot hold; ``what`` names the connector."""
    for field in schema:
        problem = _unwritable(field.type)
        if problem:
            raise SinkError(f"{what}: column '{field.name}' is {field.type}, but {problem}.")


def encode(batch: pa.RecordBatch) -> pa.Array:
    """One JSON object per row, as strings."""
    return _object(batch.schema.names, batch.columns, batch.num_rows)


def _object(names: list[str], columns: list[pa.Array], rows: int) -> pa.Array:
    if not names:
        return pa.repeat(pa.scalar("{}"), rows)
    members = []
    for name, column in zip(names, columns, strict=True):
        member = pc.binary_join_element_wise(json.dumps(name, ensure_ascii=False), _text(column), ":")
        members.append(pc.fill_null(pc.binary_join_element_wise(member, "", ","), ""))
    # Not by null_handling="skip": pyarrow 25 loses a row all of whose values are null.
    inside = pc.utf8_rtrim(pc.binary_join_element_wise(*members, ""), ",")
    return _enclosed("{", inside, "}")


def _text(column: pa.Array) -> pa.Array:
    """Each value as JSON text; null stays null."""
    type_ = column.type
    if pt.is_string(type_):
        return _quoted(_escaped(column))
    if pt.is_floating(type_):
        # Not numbers to JSON, so they are strings.
        odd = pc.invert(pc.is_finite(column))
        text = column.cast(pa.string())
        if not pc.any(odd).as_py():
            return text
        names = pc.if_else(
            pc.is_nan(column), "NaN", pc.if_else(pc.greater(column, 0), "Infinity", "-Infinity")
        )
        return pc.if_else(odd, _quoted(names), text)
    if pt.is_timestamp(type_):
        return _quoted(pc.strftime(column, "%Y-%m-%dT%H:%M:%SZ" if type_.tz else "%Y-%m-%dT%H:%M:%S"))
    if pt.is_date(type_):
        return _quoted(column.cast(pa.string()))
    if pt.is_struct(type_):
        names = [field.name for field in type_.fields]
        inside = _object(names, column.flatten(), len(column))
        return pc.if_else(column.is_valid(), inside, pa.scalar(None, pa.string()))
    if pt.is_list(type_):
        return _enclosed("[", _joined(column, pc.fill_null(_text(column.flatten()), "null")), "]")
    if pt.is_map(type_):
        return _map(column)
    return column.cast(pa.string())


def _map(column: pa.MapArray) -> pa.Array:
    entries = column.cast(
        pa.list_(pa.struct([("key", column.type.key_type), ("value", column.type.item_type)]))
    )
    pairs = entries.flatten()
    keys = _quoted(_escaped(pc.struct_field(pairs, 0).cast(pa.string())))
    values = pc.fill_null(_text(pc.struct_field(pairs, 1)), "null")
    return _enclosed("{", _joined(entries, pc.binary_join_element_wise(keys, values, ":")), "}")


def _joined(lists: pa.ListArray, texts: pa.Array) -> pa.Array:
    """The texts of each list's elements with commas between; ``texts`` are those of the flat elements."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    ends = pc.cumulative_sum(lengths)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends.cast(pa.int32())])
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, texts), ",")
    return pc.if_else(lists.is_valid(), joined, pa.scalar(None, pa.string()))


def _enclosed(opening: str, inside: pa.Array, closing: str) -> pa.Array:
    return pc.binary_join_element_wise(opening, inside, closing, "")


def _quoted(texts: pa.Array) -> pa.Array:
    return _enclosed('"', texts, '"')


def _escaped(texts: pa.Array) -> pa.Array:
    texts = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    if not pc.any(pc.match_substring_regex(texts, "[\\x00-\\x1f]")).as_py():
        return texts
    for control in _CONTROL:
        texts = pc.replace_substring(texts, control, _SHORT.get(control) or f"\\u{ord(control):04x}")
    return texts


def _unwritable(type_: pa.DataType) -> str | None:
    if pt.is_struct(type_):
        return next((problem for field in type_.fields if (problem := _unwritable(field.type))), None)
    if pt.is_map(type_):
        return _unwritable(type_.item_type) or _unwritable(type_.key_type)
    if pt.is_list(type_):
        return _unwritable(type_.value_type)
    if pt.is_binary(type_):
        return "JSON has no bytes; cast it to a string, or write it as it is with value='that column'"
    if pt.is_duration(type_):
        return "JSON has no durations; make it a number of seconds first"
    return None
