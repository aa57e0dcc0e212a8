"""Rows that a source refuses: a line that is no JSON, a record of another shape.

A refused row arrived like any other: it takes its turn and has a serial.  So it keeps its place in the batch,
as a row of nulls, and one more column says what is wrong with it.  Only batches with such rows have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_KIND = pa.struct([("reason", pa.string()), ("row", pa.string())])
COLUMN = pa.field("__refused", _KIND)


class Refusal(NamedTuple):
    """A row that was refused: its place in the batch, the reason, and the row itself as JSON."""

    place: int
    reason: str
    row: str


def has_refused(batch: pa.RecordBatch) -> bool:
    """Whether rows of ``batch`` may have been refused."""
    fields = batch.schema
    return len(fields) > 0 and fields.names[-1] == COLUMN.name and fields.types[-1] == _KIND


def with_refused(
    good: pa.RecordBatch | None, schema: pa.Schema, refusals: Sequence[Refusal]
) -> pa.RecordBatch:
    """The good rows with the refused ones at their places."""
    rows = len(refusals) + (0 if good is None else good.num_rows)
    bad = np.zeros(rows, dtype=np.bool_)
    bad[[refusal.place for refusal in refusals]] = True
    if good is None:
        columns = [pa.nulls(rows, field.type) for field in schema]
    else:
        columns = good.take(pa.array(np.cumsum(~bad) - 1, mask=bad)).columns
    fields = [pa.array([getattr(r, name) for r in refusals], pa.string()) for name in ("reason", "row")]
    notes = pa.StructArray.from_arrays(fields, fields=list(_KIND))
    notes = notes.take(pa.array(np.cumsum(bad) - 1, mask=~bad))
    return pa.RecordBatch.from_arrays([*columns, notes], schema=schema.append(COLUMN))


def split_refused(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, npt.NDArray[np.int64], list[Refusal]]:
    """The good rows, their places among all of them, and the refused ones."""
    notes = batch.column(batch.num_columns - 1)
    refused = notes.is_valid().to_numpy(zero_copy_only=False)
    places = np.flatnonzero(~refused)
    rows = pa.RecordBatch.from_arrays(batch.columns[:-1], schema=pa.schema(list(batch.schema)[:-1]))
    refusals = [
        Refusal(place, value["reason"], value["row"])
        for place, value in zip(np.flatnonzero(refused).tolist(), notes.drop_null().to_pylist(), strict=True)
    ]
    return rows.take(pa.array(places)), places, refusals


def together(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Batches of one source as one, whether or not rows of some were refused."""
    if len(batches) == 1:
        return batches[0]
    if any(map(has_refused, batches)):
        batches = [batch if has_refused(batch) else none_refused(batch) for batch in batches]
    return pa.concat_batches(batches)


def none_refused(batch: pa.RecordBatch) -> pa.RecordBatch:
    """``batch`` with the column, all of whose rows are good."""
    return batch.append_column(COLUMN, pa.nulls(batch.num_rows, _KIND))
