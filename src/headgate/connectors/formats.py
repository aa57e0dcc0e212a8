"""File formats: the schema of a file, and its rows batch by batch in bounded memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pyarrow.types as pt

from headgate.connectors import json_lines
from headgate.errors import SourceError, nearest
from headgate.graph.schema import normal_type

BATCH_ROWS = 65_536
BLOCK_BYTES = 4 * 1024 * 1024
_CSV_COLUMN = re.compile(r"CSV column #(\d+)")


class Format:
    """One way to store rows.  Errors of Arrow and of the file system pass through; callers name the file."""

    name: str
    suffixes: tuple[str, ...]
    has_footer = False
    """The schema is known without reading rows."""
    refuses = False
    """A row that cannot be read does not fail the file: it is refused by itself (``sources.refused``)."""

    def schema(self, file: str) -> pa.Schema:
        """The schema as the file states it or as its first block suggests."""
        raise NotImplementedError

    def check(self, file: str, schema: pa.Schema) -> None:
        """Raise SourceError if ``file`` cannot be read as ``schema``."""
        raise NotImplementedError

    def batches(self, file: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The columns of ``schema``, in types whose normal form ``schema`` has."""
        raise NotImplementedError


class Parquet(Format):
    name = "parquet"
    suffixes = (".parquet", ".pq")
    has_footer = True

    def schema(self, file: str) -> pa.Schema:
        return pq.read_schema(file)

    def check(self, file: str, schema: pa.Schema) -> None:
        check_schema(file, self.schema(file), schema)

    def batches(self, file: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(file) as opened:
            check_schema(file, opened.schema_arrow, schema)
            yield from opened.iter_batches(batch_size=BATCH_ROWS, columns=schema.names, use_threads=False)


class Csv(Format):
    """Comma-separated, with a header line; an empty field is null, as in Spark."""

    name = "csv"
    suffixes = (".csv", ".csv.gz", ".csv.zst")

    def _open(self, file: str, convert: csv.ConvertOptions) -> csv.CSVStreamingReader:
        if os.path.getsize(file) == 0:
            raise SourceError(f"File '{file}' is an empty csv file: it has not even a header line.")
        return csv.open_csv(
            file,
            read_options=csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=convert,
        )

    def schema(self, file: str) -> pa.Schema:
        with self._open(file, csv.ConvertOptions(strings_can_be_null=True)) as reader:
            return _readable(file, reader.schema)

    def check(self, file: str, schema: pa.Schema) -> None:
        # Types show when rows are read; as strings, every file has a schema.
        anything = csv.ConvertOptions(column_types={name: pa.string() for name in schema.names})
        with self._open(file, anything) as reader:
            _check_names(file, _readable(file, reader.schema), schema)

    def batches(self, file: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        self.check(file, schema)
        convert = csv.ConvertOptions(
            column_types=schema,
            include_columns=schema.names,
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        try:
            with self._open(file, convert) as reader:
                yield from reader
        except pa.ArrowInvalid as error:
            raise SourceError(self._explain(file, schema, error)) from error

    def _explain(self, file: str, schema: pa.Schema, error: Exception) -> str:
        place = _CSV_COLUMN.search(str(error))
        if place is None:
            return explain(file, error)
        column = self.schema(file).names[int(place[1])]
        return (
            f"File '{file}': column '{column}' should be {schema.field(column).type}, but {error}. "
            "If the schema was taken from the first rows, pass schema= with the type that fits all of them."
        )


class Json(Format):
    """One object per line; an absent field is null, as in Spark."""

    name = "json"
    suffixes = (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz")

    refuses = True

    def schema(self, file: str) -> pa.Schema:
        found = json_lines.guessed_schema(file)
        if found is None:
            raise SourceError(f"File '{file}' is an empty json file: there is nothing to take a schema from.")
        if not len(found):
            raise SourceError(
                f"File '{file}': its first lines hold no JSON object with a field, so there is nothing to "
                "take a schema from; pass schema=."
            )
        return found

    def check(self, file: str, schema: pa.Schema) -> None:
        try:
            found = json_lines.guessed_schema(file)
        except pa.ArrowInvalid:
            return  # whatever is wrong with its lines is told line by line
        if found is not None and not set(found.names) & set(schema.names):
            _check_names(file, found, schema)

    def batches(self, file: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        self.check(file, schema)
        for lines in json_lines.blocks(file):
            yield json_lines.rows(lines, schema, file)


class Text(Format):
    """Lines, each a row of one text column."""

    name = "text"
    suffixes = (".txt", ".log")

    def schema(self, file: str) -> pa.Schema:
        return pa.schema([("value", pa.string())])

    def check(self, file: str, schema: pa.Schema) -> None:
        if [field.type for field in schema] != [pa.string()]:
            raise SourceError(f"File '{file}': a text file has one column of text, not {schema.names}.")

    def batches(self, file: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with open(file, encoding="utf-8", newline="\n") as opened:
            while lines := opened.readlines(BLOCK_BYTES):
                text = pa.array(["".join(lines).replace("\r\n", "\n").removesuffix("\n")])
                yield pa.RecordBatch.from_arrays([pc.split_pattern(text, "\n").flatten()], schema=schema)


def explain(file: str, error: Exception) -> str:
    """An error of Arrow or of the file system, with the file's name."""
    if isinstance(error, FileNotFoundError):
        return f"File '{file}' is gone; it was there when the folder was listed."
    return f"File '{file}' cannot be read: {error}"


def _readable(file: str, schema: pa.Schema) -> pa.Schema:
    """The schema, if the names in it are text: Arrow takes any bytes for one."""
    try:
        json_lines.read_names(schema)
    except UnicodeDecodeError as error:
        raise SourceError(f"File '{file}': the name of a column is not UTF-8 ({error}).") from error
    return schema


def _check_names(file: str, found: pa.Schema, schema: pa.Schema) -> None:
    for name in schema.names:
        if name not in found.names:
            raise SourceError(
                f"File '{file}' has no column '{name}', which the source's schema has."
                f"{nearest(name, found.names)} It has: {', '.join(map(repr, found.names))}."
            )


def check_schema(file: str, found: pa.Schema, schema: pa.Schema) -> None:
    """Raise SourceError if the columns of ``file`` are not those of ``schema``."""
    _check_names(file, found, schema)
    for field in schema:
        given = found.field(field.name).type
        if not pt.is_null(given) and normal_type(given, field.name) != field.type:
            raise SourceError(
                f"File '{file}': column '{field.name}' is {given}, but the source's schema has {field.type}."
            )


_FORMATS: tuple[Format, ...] = (Parquet(), Json(), Csv(), Text())
BY_NAME = {format.name: format for format in _FORMATS}


def guess(file: str) -> Format | None:
    """The format that a file's name suggests."""
    return next((f for f in _FORMATS if file.lower().endswith(f.suffixes)), None)
