"""Dead letters: rows on which an operator raises are taken out and the others go on.

``process`` is ``operator.process`` that gives such rows back instead of raising; every engine calls it if
the user asked for dead letters, and never otherwise.  What counts as a bad row:

- an expression's row that raises ``BadRow``.  No operator has changed its state by then (a key it has not met
  may have got a slot, which holds nothing), so what is before and after the row is processed in its place;
- a row that its source refuses: a line of a file, a record of a topic that is not of the schema;
- a row whose event time is beyond what its operator can count with, found before the operator is called;
- a row for which a user's function of rows raises, or gives what its schema does not promise.  It is called
  once for every row.  What the function itself changed in its state before it raised stays changed.

A function of packets that raises cannot say which row is bad, and a sum over a window that overflows has no
row to blame: these fail the query as ever.

A row that an operator refused has still come: it moves event time as it would have, since other buckets of a
keyed operator have seen it move already.  A time beyond all counting moves nothing, in any bucket.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headgate.connectors.refused import split_refused
from headgate.errors import BadRow, HeadgateError
from headgate.graph.network import LETTERS
from headgate.graph.operator import Operator
from headgate.graph.operators._user import Row, batch_of_rows, rows_of
from headgate.graph.packet import Indices, Marker, Order, Packet, Ticks, empty_batch
from headgate.graph.time import beyond, ticks_of, too_far


class Letter(NamedTuple):
    """A row that was taken out: the serial and arrival of its tuple, why, and the row itself as JSON."""

    serial: int
    arrival: float
    reason: str
    row: str


Outcome = tuple[list[Packet], list[Letter]]


def process(operator: Operator, packets: Sequence[Packet], state: Any) -> Outcome:
    """``operator.process`` without the bad rows, and these as letters in the order of the rows."""
    packets, far = _without_far_times(operator, packets)
    results, letters = _process(operator, packets, state)
    return results, sorted(far + letters, key=lambda letter: letter.serial) if far else letters


def _process(operator: Operator, packets: Sequence[Packet], state: Any) -> Outcome:
    if operator.slow and operator.fn is not None:
        return _row_by_row(operator, packets[0], state)
    try:
        return operator.process(packets, state), []
    except BadRow as bad:
        if len(packets) != 1 or not 0 <= bad.index < len(packets[0]):
            raise
        return _Pieces(operator, packets[0], state).around(bad)


def _without_far_times(
    operator: Operator, packets: Sequence[Packet]
) -> tuple[Sequence[Packet], list[Letter]]:
    """The packets without rows whose event time the operator cannot count with, and those as letters."""
    columns, limit = operator.event_columns(), operator.time_limit
    if not any(columns):
        return packets, []
    kept, letters = list(packets), []
    for port, (packet, name) in enumerate(zip(packets, columns, strict=True)):
        column = None if name is None else packet.batch.column(name)
        far = None if column is None else beyond(column, limit)
        if name is None or far is None:
            continue
        letters += [
            _letter(packet, row, too_far(column, row, name, limit)) for row in far.nonzero()[0].tolist()
        ]
        near = packet.filter(pa.array(~far))
        kept[port] = Packet(near.batch, near.order, near.markers, near.request, packet.ticks)
    return kept, letters


def refused_letters(packet: Packet) -> tuple[Packet, list[Letter]]:
    """A source's packet without the rows that the source refused, and those as letters."""
    rows, places, refusals = split_refused(packet.batch)
    arrivals, serials = packet.order.arrival_array(), packet.order.serials
    letters = [
        Letter(int(serials[place]), float(arrivals[place]), reason, row) for place, reason, row in refusals
    ]
    order = packet.order.take(places)
    return Packet(rows, order, packet.markers, packet.request, packet.ticks), letters


def refusal(source: str, reason: str) -> BadRow:
    """The error of queries that read a row which its source refused, where there are no dead letters."""
    return BadRow(f"Source '{source}': {reason}", 0)


def as_packet(box: str, queries: Sequence[str], letters: Sequence[Letter]) -> Packet:
    """Letters of one box as rows for the dead-letter output."""
    columns = [
        pa.array([box] * len(letters), pa.string()),
        pa.array([",".join(queries)] * len(letters), pa.string()),
        pa.array([letter.serial for letter in letters], pa.int64()),
        pa.array([letter.reason for letter in letters], pa.string()),
        pa.array([letter.row for letter in letters], pa.string()),
    ]
    order = Order(
        np.array([letter.serial for letter in letters], dtype=np.int64),
        np.array([letter.arrival for letter in letters], dtype=np.float64),
        len(letters),
    )
    return Packet(pa.RecordBatch.from_arrays(columns, schema=LETTERS), order)


# --- expressions ----------------------------------------------------------------------------------------


class _Pieces:
    """A packet with bad rows, processed in pieces from the first row to the last.

    A call tells of one bad row, so the rows around it are tried in pieces of at most half the size: every row
    is tried at most as often as the packet can be halved, however many are bad.
    """

    def __init__(self, operator: Operator, packet: Packet, state: Any) -> None:
        self._operator = operator
        self._packet = packet
        self._state = state
        self._results: list[list[Packet]] = []
        self._letters: list[Letter] = []
        self._lost: tuple[Marker, ...] = ()
        self._todo: list[tuple[int, int, str | None]] = []
        """First row, end, and what is wrong with the row if it is a bad one; the next is the last of them."""

    def around(self, bad: BadRow) -> Outcome:
        self._split(0, len(self._packet), bad)
        while self._todo:
            start, stop, reason = self._todo.pop()
            if reason is not None:
                self._take_out(start, reason)
                continue
            try:
                self._results.append(self._operator.process([self._piece(start, stop)], self._state))
            except BadRow as another:
                self._split(start, stop, another)
        return self._joined(), self._letters

    def _split(self, start: int, stop: int, bad: BadRow) -> None:
        at, most = start + bad.index, max((stop - start) // 2, 1)
        pieces: list[tuple[int, int, str | None]] = [
            (place, min(place + most, at), None) for place in range(start, at, most)
        ]
        prefix = f"{self._operator.label}: tuple {self._serial(at)}: "
        pieces.append((at, at + 1, str(bad).removeprefix(prefix)))
        pieces += [(place, min(place + most, stop), None) for place in range(at + 1, stop, most)]
        self._todo += pieces[::-1]

    def _serial(self, row: int) -> int:
        return int(self._packet.order.serials[row])

    def _piece(self, start: int, stop: int) -> Packet:
        piece = self._packet.slice(start, stop - start)
        if self._packet.ticks is not None:
            piece = Packet(piece.batch, piece.order, piece.markers, piece.request, self._ticks(start, stop))
        return piece

    def _ticks(self, start: int, stop: int) -> Ticks:
        """The part of the packet's own ticks that falls to these rows, so that all parts make the whole."""
        packet, ticks = self._packet, self._packet.ticks
        assert ticks is not None
        at, rows = ticks.order.ordinals, packet.order.ordinals
        if at is None or rows is None:
            at, rows = ticks.order.serials, packet.order.serials
        first = 0 if start == 0 else int(np.searchsorted(at, rows[start]))
        last = len(at) if stop == len(packet) else int(np.searchsorted(at, rows[stop]))
        return Ticks(ticks.order.slice(first, last - first), ticks.times[first:last])

    def _take_out(self, row: int, reason: str) -> None:
        taken = self._piece(row, row + 1)
        self._letters.append(_letter(taken, 0, reason))
        self._lost += taken.markers
        ticks, columns = taken.ticks, self._operator.event_columns()
        if ticks is None and any(columns):
            ticks = ticks_of(taken, taken.batch.schema.get_field_index(columns[0]))
        if ticks is not None and len(ticks.times):
            passing = Packet(taken.batch.slice(0, 0), Order(0, 0.0, 0), (), taken.request, ticks)
            self._results.append(self._operator.process([passing], self._state))

    def _joined(self) -> list[Packet]:
        joined = []
        for place, schema in enumerate(self._operator.outputs):
            parts = [results[place] for results in self._results]
            whole = Packet.concat(parts) if parts else _nothing(schema, self._packet.request)
            joined.append(whole.with_markers(self._lost) if self._lost else whole)
        return joined


def _nothing(schema: pa.Schema, request: int) -> Packet:
    return Packet(empty_batch(schema), Order(0, 0.0, 0), (), request)


# --- functions of rows ----------------------------------------------------------------------------------

_PLACE = pa.schema([("place", pa.int64())])


class _Kept:
    """Stands in for a user's function: keeps what that gives for each row, or what is wrong with it.

    The operator gets the row's place for a result, so that it does with its state and its time what it always
    does, and whatever is wrong with the results shows when that is done.
    """

    def __init__(self, fn: Callable[..., Any], label: str, packet: Packet) -> None:
        self._fn = fn
        self._label = label
        self._serials = packet.order.serials
        self.rows: list[Sequence[Row]] = []
        self.wrong: dict[int, str] = {}

    def __call__(self, *given: Any) -> Row:
        place = len(self.rows)
        rows: Sequence[Row] = ()
        try:
            rows = rows_of(self._fn(*given), self._label, int(self._serials[place]))
        except Exception as error:
            self.wrong[place] = _reason(error, self._label)
        self.rows.append(rows)
        return {"place": place}


def _row_by_row(operator: Operator, packet: Packet, state: Any) -> Outcome:
    stand_in: Any = copy.copy(operator)
    kept = stand_in.fn = _Kept(stand_in.fn, operator.label, packet)
    stand_in.outputs = (_PLACE,)
    stand_in.process([packet], state)
    batch, causes = _promised(kept, operator, packet)
    letters = [_letter(packet, place, kept.wrong[place]) for place in sorted(kept.wrong)]
    return [packet.caused(batch, causes)], letters


def _promised(kept: _Kept, operator: Operator, packet: Packet) -> tuple[pa.RecordBatch, Indices]:
    """What the function gave as a batch of the promised schema, and the rows that caused it.

    Rows whose results do not keep the promise are found by halving, and noted.
    """
    schema, serials = operator.outputs[0], packet.order.serials
    batches, causes = [empty_batch(schema)], [np.empty(0, dtype=np.int64)]
    good = np.array([p for p in range(len(kept.rows)) if p not in kept.wrong], dtype=np.int64)
    todo = [good]
    while todo:
        places = todo.pop()
        cause = np.repeat(places, [len(kept.rows[place]) for place in places])
        rows = [row for place in places for row in kept.rows[place]]
        try:
            batches.append(batch_of_rows(rows, serials[cause].tolist(), schema, operator.label))
            causes.append(cause)
        except Exception as error:
            if len(places) == 1:
                kept.wrong[int(places[0])] = _reason(error, operator.label)
            else:
                half = len(places) // 2
                todo += [places[half:], places[:half]]
    return pa.concat_batches(batches), np.concatenate(causes)


def _reason(error: Exception, label: str) -> str:
    if isinstance(error, HeadgateError):
        return str(error).removeprefix(f"{label}: ")
    return f"{type(error).__name__}: {error}"


# --- rows as JSON ---------------------------------------------------------------------------------------


def _letter(packet: Packet, row: int, reason: str) -> Letter:
    arrivals = packet.order.arrivals
    arrival = arrivals if isinstance(arrivals, float) else float(arrivals[row])
    return Letter(int(packet.order.serials[row]), arrival, reason, _json(packet.batch.slice(row, 1)))


def _json(batch: pa.RecordBatch) -> str:
    row = {name: _value(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}
    return json.dumps(row, ensure_ascii=False)


def _value(column: pa.Array) -> Any:
    try:
        return json_value(column[0].as_py())
    except (ValueError, OverflowError):  # a time that Python has no date for
        return str(column.to_string(skip_new_lines=True, indent=0)).strip("[] ")


def json_value(value: Any) -> Any:
    """A value as JSON can say it: times in ISO form, exact decimals as text, bytes in hexadecimal."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(name): json_value(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(part) for part in value]
    return str(value)
