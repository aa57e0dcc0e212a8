"""``hg.from_batches(record_batches)``: rows that are already in memory and all arrive at time 0."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from headgate.connectors.source import BatchReader, Reader, Source
from headgate.errors import SourceError
from headgate.graph.schema import normalise


class BatchSource(Source):
    """Record batches of one schema."""

    finite = True

    def __init__(self, batches: list[pa.RecordBatch], schema: pa.Schema) -> None:
        self.batches = batches
        self.schema = schema

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    def open(self) -> Reader:
        return BatchReader(iter(self.batches), self.schema)


def from_batches(
    record_batches: Iterable[pa.RecordBatch] | pa.Table | pa.RecordBatch, *, schema: pa.Schema | None = None
) -> BatchSource:
    """A source of the rows of ``record_batches``: a finite iterable of batches of one schema, or a table.

    All rows arrive at time 0.  An iterator is read to its end here, so that the source can be run again.
    ``schema`` is only needed if there may be no batch at all.

    >>> import pyarrow as pa
    >>> from_batches(pa.table({"a": [1, 2]})).schema.names
    ['a']
    """
    batches: list[Any]
    if isinstance(record_batches, pa.Table):
        schema = record_batches.schema if schema is None else schema
        batches = record_batches.to_batches()
    elif isinstance(record_batches, pa.RecordBatch):
        batches = [record_batches]
    else:
        try:
            batches = list(record_batches)
        except TypeError:
            raise SourceError(
                f"from_batches: a {type(record_batches).__name__} is not an iterable of record batches; "
                "give a list of pyarrow RecordBatch or a Table."
            ) from None
    for index, batch in enumerate(batches):
        if not isinstance(batch, pa.RecordBatch):
            raise SourceError(
                f"from_batches: item {index} is a {type(batch).__name__}, not a pyarrow RecordBatch; "
                "pa.RecordBatch.from_pylist([...]) makes one from dicts."
            )
    if schema is None:
        if not batches:
            raise SourceError(
                "from_batches: there is no batch, so the schema is unknown; pass schema= as well."
            )
        schema = batches[0].schema
    for index, batch in enumerate(batches):
        if not batch.schema.equals(schema):
            raise SourceError(f"from_batches: batch {index} {_difference(batch.schema, schema)}.")
    return BatchSource(batches, normalise(schema))


def _difference(given: pa.Schema, expected: pa.Schema) -> str:
    for field in expected:
        if field.name not in given.names:
            return f"has no column '{field.name}', which the first batch or schema= has"
        if given.names.count(field.name) == 1 and not given.field(field.name).type.equals(field.type):
            return (
                f"has column '{field.name}' as {given.field(field.name).type}, but it should be {field.type}"
            )
    extra = [name for name in given.names if name not in expected.names]
    if extra:
        return f"has a column '{extra[0]}' that the first batch or schema= does not have"
    for mine, theirs in zip(given, expected, strict=False):
        if not mine.equals(theirs):
            what = (
                "has its columns in another order" if mine.name != theirs.name else "differs in nullability"
            )
            return f"{what}: '{mine.name}' where '{theirs.name}' should be"
    return "has another schema than the first batch"
