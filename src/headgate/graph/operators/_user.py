"""What operators that run a user's text or function share: errors that name the tuple, promised schemas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from headgate.errors import BadRow, OperatorError, PipelineError, nearest
from headgate.graph.columns import Mask, taken
from headgate.graph.operator import Operator
from headgate.graph.packet import Indices, Packet, empty_batch
from headgate.graph.rows import each_row
from headgate.graph.time import beyond, too_far

Row = dict[str, Any]


def located(bad: BadRow, label: str, packet: Packet, rows: Indices | None = None) -> BadRow:
    """``bad`` with the operator and the tuple's serial in its message; it was found among ``rows``."""
    index = bad.index if rows is None else int(rows[bad.index])
    serial = packet.order.serials[index]
    return BadRow(f"{label}: tuple {serial}: {bad}", index)


def refuse_far_times(operator: Operator, packets: Sequence[Packet]) -> None:
    """BadRow for the first row whose event time ``operator`` cannot count with."""
    for packet, name in zip(packets, operator.event_columns(), strict=True):
        if name is None:
            continue
        column = packet.batch.column(name)
        far = beyond(column, operator.time_limit)
        if far is not None:
            row = int(far.argmax())
            bad = BadRow(too_far(column, row, name, operator.time_limit), row)
            raise located(bad, operator.label, packet)


def set_apart(
    packet: Packet, late: Mask, nothing: pa.RecordBatch
) -> tuple[pa.RecordBatch, Indices | None, Packet]:
    """The rows that are not late, which these are (None: all), and the packet of the late ones."""
    late_rows = late.nonzero()[0]
    if not len(late_rows):
        return packet.batch, None, packet.caused(nothing, late_rows)
    rows = (~late).nonzero()[0]
    return taken(packet.batch, rows), rows, packet.caused(taken(packet.batch, late_rows), late_rows)


def function_name(fn: Callable[..., Any]) -> str:
    """What the user calls ``fn``."""
    while isinstance(fn, partial):
        fn = fn.func
    name = getattr(fn, "__name__", None) or type(fn).__name__
    return "lambda" if name == "<lambda>" else str(name)


def require_function(fn: Any, what: str) -> None:
    if not callable(fn):
        raise PipelineError(f"{what}: {fn!r} is not a function.")


def span(packet: Packet) -> str:
    """Which tuples a packet holds, for errors."""
    return f"tuples {packet.order.first_serial} to {packet.order.last_serial}"


def failed(label: str, where: str, error: BaseException) -> OperatorError:
    """The error to raise ``from error`` when the user's function raised it."""
    return OperatorError(f"{label}: failed on {where}: {type(error).__name__}: {error}")


def fit_batch(result: Any, schema: pa.Schema, label: str, packet: Packet) -> pa.RecordBatch:
    """What a user's function returned for ``packet``, as a batch of the promised schema."""
    if isinstance(result, pa.RecordBatch) and result.schema.equals(schema):
        return result
    where = span(packet)
    if isinstance(result, pa.Table):
        batches = result.combine_chunks().to_batches()
        result = batches[0] if batches else result.schema.empty_table().to_batches()[0]
    if not isinstance(result, pa.RecordBatch):
        raise OperatorError(
            f"{label}: returned a {type(result).__name__} on {where}; return a pyarrow RecordBatch or Table."
        )
    _same_names(result.schema.names, schema, label, where)
    arrays = [_fit_array(result.column(f.name), f, label, where) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _fit_array(array: pa.Array, field: pa.Field, label: str, where: str) -> pa.Array:
    given, promised = array.type, field.type
    if given == promised:
        return array
    harmless = (
        pt.is_null(given)
        or (pt.is_large_string(given) and pt.is_string(promised))
        or (pt.is_timestamp(given) and pt.is_timestamp(promised) and bool(given.tz) == bool(promised.tz))
    )
    if harmless:
        try:
            return array.cast(promised)
        except pa.ArrowInvalid as lossy:
            raise OperatorError(
                f"{label}: column '{field.name}' was promised as {promised}, but on {where} came as {given} "
                f"and would lose digits ({lossy})."
            ) from lossy
    raise OperatorError(
        f"{label}: column '{field.name}' was promised as {promised}, but on {where} came as {given}; "
        "cast it in the function or change schema=."
    )


def _same_names(names: Iterable[str], schema: pa.Schema, label: str, where: str) -> None:
    given = list(names)
    for name in schema.names:
        if name not in given:
            raise OperatorError(
                f"{label}: column '{name}' was promised, but the result for {where} has only "
                f"{', '.join(map(repr, given)) or 'no columns'}."
            )
    for name in given:
        if name not in schema.names:
            raise OperatorError(
                f"{label}: the result for {where} has a column '{name}' that schema= does not promise."
                f"{nearest(name, schema.names)}"
            )
    if len(given) > len(schema.names):
        twice = next(name for i, name in enumerate(given) if name in given[:i])
        raise OperatorError(f"{label}: the result for {where} has column '{twice}' twice.")


def caused(packet: Packet, batch: pa.RecordBatch, indices: Any, label: str) -> Packet:
    """``batch`` as results of ``packet``: by ``indices``, row by row, or all by its last row."""
    rows = batch.num_rows
    if indices is None:
        if rows == len(packet):
            return packet.with_batch(batch)
        return packet.caused(batch, np.full(rows, len(packet) - 1, dtype=np.int64))
    causes = np.asarray(indices)
    complaint = None
    if causes.ndim != 1 or len(causes) != rows:
        complaint = f"there are {causes.size} of them for {rows} rows"
    elif rows and not np.issubdtype(causes.dtype, np.integer):
        complaint = f"they are {causes.dtype}, not integers"
    elif rows and (causes.min() < 0 or causes.max() >= len(packet)):
        complaint = f"they must be between 0 and {len(packet) - 1}"
    elif rows and bool(np.any(causes[1:] < causes[:-1])):
        complaint = "they decrease, but results leave in the order of their causes"
    if complaint:
        raise OperatorError(f"{label}: the indices returned for {span(packet)} are wrong: {complaint}.")
    return packet.caused(batch, causes.astype(np.int64, copy=False))


def map_batch(packet: Packet, call: Callable[[pa.RecordBatch], Any], schema: pa.Schema, label: str) -> Packet:
    """``call(batch)`` for the whole packet, and what it returned as results of its rows."""
    if not len(packet):
        return packet.with_batch(empty_batch(schema))
    try:
        result = call(packet.batch)
    except Exception as error:
        raise failed(label, span(packet), error) from error
    rows, indices = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    return caused(packet, fit_batch(rows, schema, label, packet), indices, label)


def rows_of(result: Any, label: str, serial: int) -> Sequence[Row]:
    """What a row function returned (a dict, several, or None) as a list of dicts."""
    if result is None:
        return ()
    if isinstance(result, Mapping):
        return (dict(result),)
    if isinstance(result, (str, bytes)) or not isinstance(result, Iterable):
        raise OperatorError(
            f"{label}: returned a {type(result).__name__} for tuple {serial}; "
            "return a dict, several, or None."
        )
    rows = list(result)
    for row in rows:
        if not isinstance(row, Mapping):
            raise OperatorError(
                f"{label}: gave a {type(row).__name__} among the results of tuple {serial}; "
                "every result must be a dict."
            )
    return rows


def batch_of_rows(
    rows: Sequence[Row], serials: Sequence[int], schema: pa.Schema, label: str
) -> pa.RecordBatch:
    """Dicts as a batch of the promised schema; ``serials[i]`` is the tuple that gave ``rows[i]``."""
    promised = set(schema.names)
    for row, serial in zip(rows, serials, strict=True):
        if row.keys() != promised:
            _same_names(row, schema, label, f"tuple {serial}")
    arrays = []
    for field in schema:
        values = [row[field.name] for row in rows]
        try:
            arrays.append(_array(values, field.type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise _culprit(values, serials, field, label, error) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(values: list[Any], type_: pa.DataType) -> pa.Array:
    array = pa.array(values, type=type_)
    if pt.is_integer(type_) and any(isinstance(v, (float, np.floating)) for v in values):
        # Arrow would cut the fraction without a word.
        raise TypeError("a fraction is not an integer")
    return array


def _culprit(
    values: list[Any], serials: Sequence[int], field: pa.Field, label: str, error: Exception
) -> OperatorError:
    for value, serial in zip(values, serials, strict=True):
        try:
            _array([value], field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return OperatorError(
                f"{label}: column '{field.name}' was promised as {field.type}, but tuple {serial} gave "
                f"{value!r} ({type(value).__name__})."
            )
    return OperatorError(f"{label}: column '{field.name}' was promised as {field.type}: {error}")


def map_rows(packet: Packet, call: Callable[[int, Row], Any], schema: pa.Schema, label: str) -> Packet:
    """``call(place, row)`` for every row of ``packet``, and what it returned as results of that row."""
    results: list[Row] = []
    counts: list[int] = []
    serials = packet.order.serials
    for place, row in enumerate(each_row(packet.batch)):
        try:
            result = call(place, row)
            if result is None:
                counts.append(0)
                continue
            rows = rows_of(result, label, int(serials[place]))
        except OperatorError:
            raise
        except Exception as error:
            raise failed(label, f"tuple {serials[place]}", error) from error
        results.extend(rows)
        counts.append(len(rows))
    causes: Indices = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    batch = batch_of_rows(results, serials[causes].tolist(), schema, label)
    return packet.caused(batch, causes)
