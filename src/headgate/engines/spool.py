"""Where packets wait for queries that are behind, out of the memory that queues are bounded by.

A source that keeps coming feeds queries with tight goals and loose ones.  If the full queue of a loose query
stopped the source, tight ones would wait for it.  So beyond its bound a queue before which a stream divides
gets packets whose bytes are in files of the system's temporary folder.  A packet is written once, however
many queues it is in, and mapped: a box reads it where it is.  When nothing reads a file any more its space is
free.  There are no names to clean up: a file has none once it is open.
"""

from __future__ import annotations

import logging
import mmap
import os
import tempfile
import threading
import weakref
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.errors import PipelineError
from headgate.graph.packet import Packet

LIMIT = 1 << 30
"""Bytes that wait there by default at the most."""
SEGMENT = 8 << 20
"""Bytes of a file: so much stays taken while one of its packets is still wanted."""
ALIGNED = 64
_log = logging.getLogger(__name__)


class _Segment:
    """One file, filled from the front."""

    def __init__(self, size: int, in_memory: bool) -> None:
        made = getattr(os, "memfd_create", None) if in_memory else None
        if made is not None:
            self._file: Any = os.fdopen(made("headgate"), "w+b", buffering=0)
        else:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed when the mapping is
        self._file.truncate(size)
        self.mapping = mmap.mmap(self._file.fileno(), size, access=mmap.ACCESS_READ)
        self._bytes = pa.py_buffer(self.mapping)
        self._end, self._size = 0, size

    def put(self, data: pa.Buffer, length: int) -> pa.Buffer | None:
        """Bytes at their new place; None if there is no room for them."""
        start = -(-self._end // ALIGNED) * ALIGNED
        if start + length > self._size:
            return None
        # Written, not stored through the mapping: a full disk is then an error and no signal.
        written = 0
        while written < length:
            written += os.pwrite(self._file.fileno(), memoryview(data)[written:], start + written)
        self._end = start + length
        return self._bytes.slice(start, length)


class Spool:
    """At most ``limit`` bytes of packets; ``in_memory``: for a simulation, which writes no files."""

    def __init__(self, limit: int, *, in_memory: bool = False) -> None:
        self.limit = limit
        self.written = 0
        """Bytes that were ever put there."""
        self.used = 0
        """Bytes of the files that are still read."""
        self._in_memory = in_memory
        self._lock = threading.RLock()
        self._segment: _Segment | None = None
        self._failed = False

    @property
    def has_room(self) -> bool:
        """Whether one more packet finds room."""
        return not self._failed and self.used < self.limit

    def keep(self, packet: Packet) -> Packet:
        """The same packet with its bytes out of the way; the packet itself if that cannot be."""
        if not self.has_room:
            return packet
        try:
            batch = self._put(_written(packet.batch))
            order = packet.order.moved(self._moved)
        except OSError as error:
            self._failed = True  # sources feel the pressure again
            _log.warning("queries that are behind hold their source back: nothing can be spooled: %s", error)
            return packet
        return packet.with_batch(pa.ipc.open_stream(batch).read_next_batch()).with_order(order)

    def _moved(self, values: Any) -> Any:
        place = self._put(pa.py_buffer(np.ascontiguousarray(values)))
        return np.frombuffer(place, dtype=values.dtype)

    def _put(self, data: pa.Buffer) -> pa.Buffer:
        length = data.size
        with self._lock:
            place = None if self._segment is None else self._segment.put(data, length)
            if place is None and length > SEGMENT // 2:  # a file of its own
                place = self._begin(length).put(data, length)
            elif place is None:
                self._segment = self._begin(SEGMENT)
                place = self._segment.put(data, length)
            assert place is not None
            self.written += length
        return place

    def _begin(self, size: int) -> _Segment:
        segment = _Segment(size, self._in_memory)
        self.used += size
        weakref.finalize(segment.mapping, self._freed, size).atexit = False
        return segment

    def _freed(self, size: int) -> None:
        with self._lock:
            self.used -= size

    def close(self) -> None:
        """Nothing more is put there; files go when their last packet does."""
        self._segment, self._failed = None, True


def check_spool(engine: str, given: int) -> None:
    """An error if that is no number of bytes."""
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise PipelineError(f"{engine}(spool={given!r}): give bytes, a whole number; 0 spools nothing.")


def _written(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()
