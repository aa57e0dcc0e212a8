"""Rows that wait before a node between steps: files of the checkpoint that a commit record names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.checkpoint import checks
from headgate.checkpoint.position import QueueFile
from headgate.checkpoint.storage import Storage
from headgate.engines.spark.messages import OutputPart, WorkOrder
from headgate.graph.packet import Order, Packet

CUTS = 64
"""Places at which a queue file can be divided."""
SERIAL, ARRIVAL = "__serial", "__arrival"


def stream(batch: pa.RecordBatch) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return memoryview(sink.getvalue())


def write_queue(storage: Storage, name: str, packet: Packet) -> QueueFile:
    """Rows that wait before a node, with their order."""
    file, data = queue_file(name, packet)
    storage.write(name, [data])
    return file


def queue_file(name: str, packet: Packet) -> tuple[QueueFile, memoryview]:
    """Rows that wait before a node, with their order, as a file that is still to be written."""
    serials = packet.order.serials
    columns = [*packet.batch.columns, pa.array(serials), pa.array(packet.order.arrival_array())]
    schema = packet.schema.append(pa.field(SERIAL, pa.int64())).append(pa.field(ARRIVAL, pa.float64()))
    data = stream(pa.RecordBatch.from_arrays(columns, schema=schema))
    # It can be divided only between serials.
    starts = np.flatnonzero(np.diff(serials, prepend=serials[0] - 1))
    chosen = starts[np.unique(np.linspace(0, len(starts) - 1, min(CUTS, len(starts))).astype(np.int64))]
    cuts = [(int(serials[row]), int(row)) for row in chosen]
    arrival = float(packet.order.arrival_array().mean())
    check = checks.checksum(data)
    return QueueFile(name, len(packet), int(serials[0]), int(serials[-1]), cuts, arrival, check), data


def read_queue(storage: Storage, name: str, check: int | None, schema: pa.Schema) -> Iterator[Packet]:
    """The rows of a queue file, with their order."""
    for batch in pa.ipc.open_stream(checks.opened(storage, name, "queue", check)):
        serials = batch.column(SERIAL).to_numpy()
        arrivals = batch.column(ARRIVAL).to_numpy()
        rows = pa.RecordBatch.from_arrays(batch.columns[:-2], schema=schema)
        yield Packet(rows, Order(serials, arrivals, batch.num_rows))


def keep_for_later(
    order: WorkOrder, place: int, schema: pa.Schema, parts: Sequence[OutputPart]
) -> dict[str, Any]:
    """Rows that a sink refused, as queue files before it: what the log is to say of that node.

    Some of them may have waited there already.  Their files go, since all rows of the step are in the new
    ones; rows of theirs behind the step are copied.
    """
    member = order.members[place]
    names = sorted({name for waiting in member.queues.values() for name, _ in waiting})
    files = [part.queue for part in parts if part.queue is not None]
    if not files:
        packets = [
            Packet(batch, Order(part.serials, part.arrivals, batch.num_rows))
            for part in parts
            for batch in pa.ipc.open_stream(part.payload)
        ]
        files = [_written(order, place, "held", packets)]
    behind = [
        rest
        for waiting in member.queues.values()
        for name, check in waiting
        for packet in read_queue(order.storage, name, check, schema)
        if len(rest := between(packet, member.high, 1 << 62))
    ]
    if behind:
        files.append(_written(order, place, "behind", [Packet.merge(behind)]))
    found: dict[str, Any] = {"queued": {"0": [asdict(file) for file in files]}}
    return found | ({"unqueued": names} if names else {})


def _written(order: WorkOrder, place: int, what: str, packets: Sequence[Packet]) -> QueueFile:
    name = f"queues/{order.name}-{place}-{what}.arrow"
    return write_queue(order.storage, name, Packet.concat(packets))


def between(packet: Packet, low: int, high: int) -> Packet:
    """The rows with serials from ``low`` up to ``high``."""
    order = packet.order
    if not order.length or (order.first_serial >= low and order.last_serial < high):
        return packet
    start, end = order.span(low, high)
    return packet.slice(start, end - start)
