"""Files with a JSON object on each line, read block by block; a line that is no object keeps its place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from headgate.connectors.json_decode import Places, decode, sift, too_deep
from headgate.connectors.refused import Refusal, with_refused

BLOCK_BYTES = 4 * 1024 * 1024


class Lines(NamedTuple):
    """Lines of a file that are not blank, and their numbers, from 1."""

    text: pa.Array
    numbers: Places


def blocks(file: str) -> Iterator[Lines]:
    """The lines of a file, some megabytes of them at a time; compressed files are known by their names."""
    number = 1
    with pa.input_stream(file, compression="detect") as stream:
        rest = b""
        while block := stream.read(BLOCK_BYTES):
            data = rest + block
            end = data.rfind(b"\n") + 1
            rest = data[end:]
            if end:
                lines, number = _cut(data[:end], number)
                yield lines
        if rest:
            yield _cut(rest, number)[0]


def _cut(data: bytes, first: int) -> tuple[Lines, int]:
    """The lines of ``data`` that are not blank, and the number of the line behind them."""
    codes = np.frombuffer(data, dtype=np.uint8)
    ends = np.flatnonzero(codes == ord("\n")) + 1
    if not len(ends) or ends[-1] < len(data):
        ends = np.append(ends, len(data))
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    text = pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    numbers = np.arange(first, first + len(ends))
    # Lines with content hardly ever begin with a space.
    blank = [at for at in np.flatnonzero(codes[offsets[:-1]] <= 32).tolist() if not text[at].as_py().strip()]
    if blank:
        kept = np.delete(np.arange(len(ends)), blank)
        text, numbers = text.take(pa.array(kept)), numbers[kept]
    return Lines(text, numbers), first + len(ends)


def rows(lines: Lines, schema: pa.Schema, file: str) -> pa.RecordBatch:
    """A row for each line; those that are no objects of ``schema`` are refused, by file and line."""
    _, good, bad = sift(
        len(lines.numbers),
        lambda start, stop: decode(lines.text.slice(start, stop - start), schema, nulls=False),
    )
    whole = pa.concat_batches(good) if good else None
    if not bad:
        return decode(lines.text, schema) if whole is None else whole
    refusals = []
    for place, reason in bad:
        number, text = int(lines.numbers[place]), lines.text[place].as_py()
        shown: dict[str, Any] = {"file": file, "line": number}
        shown["text"] = text.decode("utf-8", "backslashreplace").rstrip("\r\n")
        row = json.dumps(shown, ensure_ascii=False)
        refusals.append(Refusal(place, f"File '{file}', line {number}: {reason}", row))
    return with_refused(whole, schema, refusals)


def guessed_schema(file: str) -> pa.Schema | None:
    """The schema that the objects in a file's first block suggest; None if there are no lines in it.

    Lines that are no objects suggest nothing: they are refused when they are read.
    """
    lines = next(blocks(file), None)
    if lines is None or not len(lines.numbers):
        return None
    text, deep = lines.text, too_deep(lines.text)
    if deep:
        text = text.take(pa.array(np.delete(np.arange(len(text)), deep)))
    if not len(text):
        return pa.schema([])
    try:
        return _schema(text)
    except pa.ArrowInvalid:
        whole = [line for line in text.to_pylist() if _is_object(line)]
        if not whole or len(whole) == len(text):
            raise
        return _schema(pa.array(whole, pa.binary()))


def _schema(lines: pa.Array) -> pa.Schema:
    """Each is wrapped, as ``json_decode`` does: Arrow crashes where the first of them is ``null``."""
    lines.cast(pa.string())  # Arrow takes any bytes for a name
    parts = [pa.scalar(part) for part in (b'{"v":', b"}\n", b"")]
    data = b"".join(pc.binary_join_element_wise(parts[0], lines, *parts[1:]).to_pylist())
    read = pyarrow.json.read_json(
        pa.BufferReader(data),
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pyarrow.json.ParseOptions(newlines_in_values=True),
    )
    found = read.schema.field("v").type if "v" in read.schema.names else pa.null()
    if not pa.types.is_struct(found):
        raise pa.ArrowInvalid("no line is a JSON object")
    schema = pa.schema(found.fields)
    try:
        read_names(schema)
    except UnicodeDecodeError as error:  # escapes can spell what is no text, too
        raise pa.ArrowInvalid(f"the name of a field is no text ({error})") from error
    return schema


def read_names(fields: Any) -> None:
    """Look at the names of a schema, and of what its columns consist of: UnicodeDecodeError for no text."""
    for field in fields:
        field.name  # noqa: B018, reading it decodes it
        if field.type.num_fields:
            read_names([field.type.field(place) for place in range(field.type.num_fields)])


def _is_object(text: bytes) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
