"""How packets move from one task of a step to another.

A task puts parcels into an ``Outbox``, addressed to a task of a later level.  Spark carries one row for each
address.  Where all tasks run on the driver's machine, the rows of the packets themselves stay in one file of
the sender, which receivers map into memory: Spark then moves some hundred bytes, and nothing is copied twice.
On a cluster the packets travel inside Spark's shuffle.  Neither senders nor receivers know which it is.

Buffers go out of band (pickle protocol 5), so a packet is written as the memory that it is.  A slice of a
batch would take its whole parent along; it is compacted first.
"""

from __future__ import annotations

import mmap
import os
import pickle
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from headgate.checkpoint.private import opener
from headgate.graph.columns import shared_nulls
from headgate.graph.packet import Packet

ROWS = pa.schema([("task", pa.int32()), ("level", pa.int32()), ("payload", pa.binary())])
SCHEMA = "task int, level int, payload binary"
ANSWER = -1
"""The level of rows that are addressed to the driver."""
_ALIGN = 64
_LENGTH = struct.Struct("<q")
_WASTE = 1.25
"""A batch that refers to more than this many times its own bytes is a slice."""


@dataclass
class Parcel:
    """Packets of one node on their way to a task of a later level.

    ``call`` orders parcels of one arrow: the range of serials that they come from, and the round in it.
    """

    node: int
    call: tuple[int, int]
    packets: list[Any]
    arrow: int = 0
    shard: int = 0


@dataclass
class _Bundle:
    """All parcels of a task for one address; ``places`` says where in ``file`` their buffers are."""

    file: str
    places: list[tuple[int, int]] = field(default_factory=list)
    data: bytes = b""


class Outbox:
    """What one task sends.  ``file``: where receivers find the buffers; empty if Spark carries them."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._parcels: dict[tuple[int, int], list[Parcel]] = {}

    def add(self, level: int, task: int, parcel: Parcel) -> None:
        packed = replace(parcel, packets=[_packed(packet) for packet in parcel.packets])
        self._parcels.setdefault((level, task), []).append(packed)

    def rows(self) -> Iterator[pa.RecordBatch]:
        """One row of Spark's for each address; call it once, at the end."""
        if not self._file:
            for (level, task), parcels in self._parcels.items():
                yield row(task, level, _inline(parcels))
            return
        written: dict[int, tuple[int, int]] = {}  # what every shard gets (time's ticks) is written once
        at = 0
        bundles: list[tuple[tuple[int, int], _Bundle]] = []
        kept: list[memoryview] = []  # an address is known only while its buffer is alive
        with open(self._file, "wb", opener=opener) as file:
            for address, parcels in self._parcels.items():
                data, buffers = _pickled(parcels)
                bundle = _Bundle(self._file, data=data)
                for buffer in buffers:
                    kept.append(buffer)
                    place = written.get(key := _address(buffer))
                    if place is None or place[1] != buffer.nbytes:
                        gap = -at % _ALIGN
                        file.write(b"\0" * gap)
                        file.write(buffer)
                        place = written[key] = (at + gap, buffer.nbytes)
                        at += gap + buffer.nbytes
                    bundle.places.append(place)
                bundles.append((address, bundle))
        for (level, task), bundle in bundles:
            yield row(task, level, b"\1" + pickle.dumps(bundle, protocol=5))


def parcels_of(payloads: Iterable[bytes]) -> list[Parcel]:
    """The parcels of some rows, by node, shard and call."""
    files: dict[str, memoryview] = {}
    found: list[Parcel] = []
    for payload in payloads:
        if payload[0]:
            bundle: _Bundle = pickle.loads(memoryview(payload)[1:])
            view = files.get(bundle.file)
            if view is None:
                view = files[bundle.file] = _mapped(bundle.file)
            found += pickle.loads(bundle.data, buffers=[view[at : at + size] for at, size in bundle.places])
        else:
            found += _opened(memoryview(payload))
    for parcel in found:
        parcel.packets = [p.unpacked() if isinstance(p, _Packed) else p for p in parcel.packets]
    found.sort(key=lambda parcel: (parcel.node, parcel.call, parcel.shard))
    return found


def row(task: int, level: int, payload: bytes) -> pa.RecordBatch:
    """Anything of ours as a row of Spark's."""
    columns = [pa.array([task], pa.int32()), pa.array([level], pa.int32()), pa.array([payload], pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS)


@dataclass(slots=True)
class _Packed:
    """A packet without the columns that hold nothing."""

    schema: pa.Schema
    batch: pa.RecordBatch
    packet: Packet

    def unpacked(self) -> Packet:
        known = {
            field.name: column for field, column in zip(self.batch.schema, self.batch.columns, strict=True)
        }
        columns = [
            known[field.name] if field.name in known else shared_nulls(field.type, self.batch.num_rows)
            for field in self.schema
        ]
        self.packet.batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        return self.packet


def _packed(packet: Any) -> Any:
    if not isinstance(packet, Packet):
        return packet
    batch = packet.batch
    held = [place for place, column in enumerate(batch.columns) if column.null_count < len(column)]
    if len(held) == batch.num_columns or not held or not batch.num_rows:
        return _compact(packet, batch)
    full, batch = batch.schema, batch.select(held)
    bare = _compact(packet, batch)
    return _Packed(full, bare.batch, replace(bare, batch=None))


def _compact(packet: Packet, batch: pa.RecordBatch) -> Packet:
    if batch.num_rows and batch.get_total_buffer_size() > _WASTE * batch.nbytes + 1024:
        batch = pa.ipc.read_record_batch(batch.serialize(), batch.schema)
    return packet if batch is packet.batch else replace(packet, batch=batch)


def _pickled(parcels: Sequence[Parcel]) -> tuple[bytes, list[memoryview]]:
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(parcels, protocol=5, buffer_callback=buffers.append)
    return data, [buffer.raw() for buffer in buffers]


def _address(buffer: memoryview) -> int:
    return int(pa.py_buffer(buffer).address) if buffer.nbytes else 0


def _inline(parcels: Sequence[Parcel]) -> bytes:
    """A mark, the number and lengths of the buffers, the pickle, the buffers."""
    data, buffers = _pickled(parcels)
    sizes = [len(data), *(buffer.nbytes for buffer in buffers)]
    head = b"\0" + b"".join(_LENGTH.pack(number) for number in (len(sizes), *sizes))
    return b"".join([head, data, *buffers])


def _opened(payload: memoryview) -> list[Parcel]:
    count = _LENGTH.unpack_from(payload, 1)[0]
    sizes = [_LENGTH.unpack_from(payload, 1 + 8 * (1 + place))[0] for place in range(count)]
    at = 1 + 8 * (1 + count)
    parts = []
    for size in sizes:
        parts.append(payload[at : at + size])
        at += size
    found: list[Parcel] = pickle.loads(parts[0], buffers=parts[1:])
    return found


def _mapped(path: str) -> memoryview:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))


def answer(thing: Any) -> pa.RecordBatch:
    """A row for the driver."""
    return row(0, ANSWER, pickle.dumps(thing, protocol=5))
