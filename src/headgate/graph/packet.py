"""Packets: the unit that moves between boxes.

A packet is an Arrow record batch plus, for every row, its order key and the arrival time of the tuple
that caused it.  The order key is (serial, ordinal): the serial number of the source tuple that caused
the row, and the row's place among that tuple's results.  On one arrow of the network rows travel in
order, so the ordinal is the row's position and needs no storage, except where a packet is split and its
parts will be put together again.  Serials and arrivals are kept lazily: a filter only remembers its mask, and
order keys are computed when they are first used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headgate.graph import arrays

_filter = pc.get_function("filter").call
"""The kernel without its Python wrapper, which costs as much as filtering a small packet."""

_MANY = 1024
"""Rows from which on it pays to ask which columns are null."""

Serials = npt.NDArray[np.int64]
Seconds = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

_Base = tuple[Any, Any, Indices | None, int, tuple[Any, ...], Serials | None]
"""Serials, arrivals, ordinals, their number, the selections still to be applied to them, and origins."""


class Order:
    """Serial and arrival of every row of a packet, selected lazily.

    The base is what a source gave: consecutive serials from a start (an int) or an array, and one
    arrival time for all rows (a float) or one each.  ``filter`` and ``take`` stack selections on it,
    which are applied at the first use.  Rows of a split packet also have ordinals: their places in the
    whole of it, which tell rows of one serial apart.  Rows that came late to a union in the order of arrival
    have the serial of the row that went before them, and keep as ``origins`` what their sources gave.
    """

    __slots__ = ("_base", "length")

    def __init__(
        self,
        serials: int | Serials,
        arrivals: float | Seconds,
        length: int,
        ordinals: Indices | None = None,
        origins: Serials | None = None,
    ) -> None:
        self.length = length
        # One attribute, so that a worker that applies the selections swaps it whole under another that reads.
        self._base: _Base = (serials, arrivals, ordinals, length, (), origins)

    @property
    def _selections(self) -> tuple[Any, ...]:
        return self._base[4]

    def filter(self, mask: pa.BooleanArray, length: int) -> Order:
        """Keep the rows where ``mask`` is true (null counts as false); ``length`` of them."""
        return self._select(mask, length)

    def take(self, indices: Indices) -> Order:
        """The rows at ``indices``, which may repeat."""
        return self._select(indices, len(indices))

    def slice(self, offset: int, length: int) -> Order:
        if offset == 0 and length == self.length:
            return self
        serials, arrivals, ordinals, origins = self._selected()
        end = offset + length
        return Order(
            serials + offset if isinstance(serials, int) else serials[offset:end],
            arrivals if isinstance(arrivals, float) else arrivals[offset:end],
            length,
            None if ordinals is None else ordinals[offset:end],
            None if origins is None else origins[offset:end],
        )

    def with_ordinals(self, ordinals: Indices | None) -> Order:
        """The same rows at other places, or with none said."""
        order = _new(Order)
        order.length = self.length
        serials, arrivals, _, length, selections, origins = self._base
        if ordinals is None or not selections:
            order._base = (serials, arrivals, ordinals, length, selections, origins)
        else:
            serials, arrivals, _, origins = self._selected()
            order._base = (serials, arrivals, ordinals, self.length, (), origins)
        return order

    def not_before(self, serial: int) -> Order:
        """The same rows; those of an earlier serial get this one and remember their own as origins."""
        if self.first_serial >= serial:
            return self
        serials, (_, arrivals, ordinals, origins) = self.serials, self._selected()
        origins = serials if origins is None else origins
        return Order(np.maximum(serials, serial), arrivals, self.length, ordinals, origins)

    def moved(self, place: Callable[[Any], Any]) -> Order:
        """The same keys, with their arrays where ``place`` puts them."""
        keys: list[Any] = [place(key) if isinstance(key, np.ndarray) else key for key in self._selected()]
        return Order(keys[0], keys[1], self.length, keys[2], keys[3])

    def _select(self, selection: Any, length: int) -> Order:
        serials, arrivals, ordinals, base_length, selections, origins = self._base
        order = _new(Order)
        order.length = length
        order._base = (serials, arrivals, ordinals, base_length, (*selections, selection), origins)
        return order

    def _selected(self) -> tuple[int | Serials, float | Seconds, Indices | None, Serials | None]:
        """Serials, arrivals, ordinals and origins after all selections."""
        serials, arrivals, ordinals, base_length, selections, origins = self._base
        if not selections:
            return serials, arrivals, ordinals, origins
        if isinstance(serials, int):
            serials = arrays.arange(serials, serials + base_length)
        for selection in selections:
            if isinstance(selection, pa.Array):
                if selection.null_count:
                    selection = selection.fill_null(False)
                selection = selection.to_numpy(zero_copy_only=False)
            serials = arrays.selected(serials, selection)
            if not isinstance(arrivals, float):
                arrivals = arrays.selected(arrivals, selection)
            if ordinals is not None:
                ordinals = arrays.selected(ordinals, selection)
            if origins is not None:
                origins = arrays.selected(origins, selection)
        self._base = (serials, arrivals, ordinals, self.length, (), origins)
        return serials, arrivals, ordinals, origins

    @property
    def serials(self) -> Serials:
        """Serial of every row, not decreasing."""
        serials, arrivals, ordinals, origins = self._selected()
        if isinstance(serials, int):
            serials = arrays.arange(serials, serials + self.length)
            self._base = (serials, arrivals, ordinals, self.length, (), origins)
        return serials

    @property
    def origins(self) -> Serials:
        """The serial that the source gave to every row's cause, whatever unions it came through."""
        return self.serials if self._base[5] is None else cast(Serials, self._selected()[3])

    @property
    def arrivals(self) -> float | Seconds:
        """Arrival of every row: one float if they share it, an array otherwise."""
        arrivals = self._base[1]
        return arrivals if isinstance(arrivals, float) else self._selected()[1]

    def arrival_array(self) -> Seconds:
        """Arrival of every row as an array."""
        arrivals = self.arrivals
        if isinstance(arrivals, float):
            return np.full(self.length, arrivals)
        return arrivals

    @property
    def ordinals(self) -> Indices | None:
        """Place of every row, or of its cause, in the whole packet; None where there is no larger whole."""
        ordinals = self._base[2]
        return ordinals if ordinals is None else self._selected()[2]

    @property
    def first_serial(self) -> int:
        serials, _, _, _, selections, _ = self._base
        if isinstance(serials, int) and not selections:
            return serials
        return int(self.serials[0])

    @property
    def last_serial(self) -> int:
        serials, _, _, _, selections, _ = self._base
        if isinstance(serials, int) and not selections:
            return serials + self.length - 1
        return int(self.serials[-1])

    def span(self, low: int, high: int) -> tuple[int, int]:
        """Where the rows with serials from ``low`` up to ``high`` begin and end."""
        serials, _, _, _, selections, _ = self._base
        if isinstance(serials, int) and not selections:
            start = min(max(low - serials, 0), self.length)
            return start, min(max(high - serials, start), self.length)
        start, end = np.searchsorted(self.serials, [low, high]).tolist()
        return start, end

    @staticmethod
    def concat(orders: Sequence[Order]) -> Order:
        """The rows of several orders, one after the other; with ordinals if all of the rows have them."""
        if len(orders) == 1:
            return orders[0]
        length = sum(o.length for o in orders)
        bases = [o._base for o in orders]
        serials: int | Serials
        if all(isinstance(base[0], int) and not base[4] for base in bases) and all(
            int(bases[i][0]) + orders[i].length == bases[i + 1][0] for i in range(len(orders) - 1)
        ):
            serials = bases[0][0]
        else:
            serials = arrays.concatenated([o.serials for o in orders])
        arrivals: float | Seconds
        times = {o.arrivals if isinstance(o.arrivals, float) else None for o in orders}
        if len(times) == 1 and None not in times:
            arrivals = orders[0].arrivals
        else:
            arrivals = arrays.concatenated([o.arrival_array() for o in orders])
        ordinals = None
        if any(base[2] is not None for base in bases):
            places = [o.ordinals for o in orders if o.length or o.ordinals is not None]
            known = [p for p in places if p is not None]
            ordinals = np.concatenate(known) if len(known) == len(places) else None
        raised = any(base[5] is not None for base in bases)
        origins = np.concatenate([o.origins for o in orders]) if raised else None
        return Order(serials, arrivals, length, ordinals, origins)

    def __getstate__(self) -> tuple[Any, ...]:
        return (*self._selected(), self.length)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        serials, arrivals, ordinals, origins, self.length = state
        self._base = (serials, arrivals, ordinals, self.length, (), origins)


_new = object.__new__
"""An order without its constructor, which costs as much as the selection that it is made for."""


@dataclass(slots=True)
class Marker:
    """Travels with a tuple to measure it (ordered processing, section 7): entry, first processing, exit."""

    serial: int
    entry: float
    begin: float | None = None
    exits: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ticks:
    """How time moved while the packet's stream passed, for a packet that holds only some of its rows.

    When a keyed operator's input is split by bucket, every bucket must see time advance as the whole
    stream does: ``times`` are the event times (microseconds) of the rows at ``order``.  A packet with ticks
    is processed as it is: its slices and results have none.
    """

    order: Order
    times: npt.NDArray[np.int64]


@dataclass(slots=True)
class Packet:
    """A record batch with the order of its rows, and the markers that travel with it.

    A packet never changes once it is made.  It is not frozen, because freezing would triple the cost of one.
    """

    batch: pa.RecordBatch
    order: Order
    markers: tuple[Marker, ...] = ()
    request: int = 0
    ticks: Ticks | None = None

    @staticmethod
    def empty(schema: pa.Schema, markers: tuple[Marker, ...] = ()) -> Packet:
        """No rows; perhaps markers that have lost theirs."""
        return Packet(empty_batch(schema), Order(0, 0.0, 0), markers)

    def __len__(self) -> int:
        return self.order.length

    @property
    def schema(self) -> pa.Schema:
        return self.batch.schema

    def with_batch(self, batch: pa.RecordBatch) -> Packet:
        """The same rows with other columns."""
        return Packet(batch, self.order, self.markers, self.request)

    def with_order(self, order: Order) -> Packet:
        """The same rows with other order keys."""
        return Packet(self.batch, order, self.markers, self.request)

    def with_markers(self, markers: tuple[Marker, ...]) -> Packet:
        """The same packet with further markers on it."""
        return Packet(self.batch, self.order, (*self.markers, *markers), self.request, self.ticks)

    def filter(self, mask: pa.BooleanArray) -> Packet:
        """The rows where ``mask`` is true."""
        kept = _filtered(self.batch, mask)
        return Packet(kept, self.order.filter(mask, kept.num_rows), self.markers, self.request)

    def caused(self, batch: pa.RecordBatch, causes: Indices) -> Packet:
        """``batch`` as results of this packet's rows: row i was caused by row ``causes[i]``.

        ``causes`` must not decrease: results leave in the order of their causes.
        """
        return Packet(batch, self.order.take(causes), self.markers, self.request)

    def slice(self, offset: int, length: int) -> Packet:
        """``length`` rows from ``offset``; markers go with the slice that holds their serial's place."""
        if offset == 0 and length == len(self):
            return self
        order = self.order.slice(offset, length)
        markers = self.markers
        if markers:
            if offset + length >= len(self):
                low = self.order.slice(offset, 1).first_serial if offset else -1
                markers = tuple(m for m in markers if m.serial >= low)
            else:
                high = self.order.slice(offset + length, 1).first_serial
                low = self.order.slice(offset, 1).first_serial if offset else -1
                markers = tuple(m for m in markers if low <= m.serial < high)
        return Packet(self.batch.slice(offset, length), order, markers, self.request)

    @staticmethod
    def concat(packets: Sequence[Packet]) -> Packet:
        """Several packets of one arrow as one."""
        if len(packets) == 1:
            return packets[0]
        batch = pa.concat_batches([p.batch for p in packets])
        markers = tuple(m for p in packets for m in p.markers)
        return Packet(batch, Order.concat([p.order for p in packets]), markers, packets[0].request)

    @staticmethod
    def merge(packets: Sequence[Packet]) -> Packet:
        """Packets of several arrows as one, by serial; rows of one serial in the order of the arrows."""
        both = Packet.concat(packets)
        if len(packets) == 1:
            return both
        serials = both.order.serials
        if bool(np.all(serials[:-1] <= serials[1:])):
            return both
        by_serial = np.argsort(serials, kind="stable")
        batch = both.batch.take(pa.array(by_serial))
        return Packet(batch, both.order.take(by_serial), both.markers, both.request)


def _filtered(batch: pa.RecordBatch, mask: pa.BooleanArray) -> pa.RecordBatch:
    """The rows where ``mask`` is true.

    A scan leaves columns that no box reads null.  Of an array of nulls any part is as good as any other,
    and Arrow would take longer over it than over values.
    """
    if batch.num_rows < _MANY:
        return _filter((batch, mask))
    columns = batch.columns
    full = [place for place, column in enumerate(columns) if column.null_count < batch.num_rows]
    if len(full) == len(columns):
        return _filter((batch, mask))
    kept = _filter((batch.select(full), mask)).columns if full else []
    rows = len(kept[0]) if kept else mask.true_count
    columns = [column.slice(0, rows) for column in columns]
    for place, column in zip(full, kept, strict=True):
        columns[place] = column
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], type=f.type) for f in schema], schema=schema)
