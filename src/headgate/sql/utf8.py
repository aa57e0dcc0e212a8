"""Cutting strings by code points, each row at its own place, over Arrow's buffers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headgate.sql.values import Mask, Numbers


def parts(array: pa.Array) -> tuple[Numbers, Numbers]:
    """The bytes of a string array and the offsets of its rows in them."""
    _, offsets, data = array.buffers()
    places = np.frombuffer(offsets, dtype=np.int32)[array.offset : array.offset + len(array) + 1].astype(
        np.int64
    )
    raw = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, np.uint8)
    return raw, places


def code_points(raw: Numbers, places: Numbers) -> tuple[Numbers, Numbers]:
    """Where each code point starts, and for each row which of these is its first (with a final sentinel)."""
    low, high = (int(places[0]), int(places[-1])) if len(places) else (0, 0)
    starts = np.flatnonzero((raw[low:high] & 0xC0) != 0x80) + low
    return np.append(starts, high), np.searchsorted(starts, places)


def cut(array: pa.Array, start: Numbers, stop: Numbers, valid: Mask | None) -> pa.Array:
    """Code points ``start`` to ``stop`` of each row; both are clipped to the row."""
    raw, places = parts(array)
    starts, first = code_points(raw, places)
    size = np.diff(first)
    begin = np.clip(start, 0, size)
    end = np.maximum(np.clip(stop, 0, size), begin)
    return gather(raw, starts[first[:-1] + begin], starts[first[:-1] + end], array.type, valid)


def gather(raw: Numbers, begin: Numbers, end: Numbers, type_: pa.DataType, valid: Mask | None) -> pa.Array:
    """A string array of the byte ranges ``begin`` to ``end``."""
    if valid is not None:
        end = np.where(valid, end, begin)
    sizes = end - begin
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    index = np.arange(offsets[-1]) + np.repeat(begin - offsets[:-1], sizes)
    data = raw[index] if len(index) else np.empty(0, np.uint8)
    bits = None if valid is None or valid.all() else pa.array(valid).buffers()[1]
    buffers = [bits, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(type_, len(sizes), buffers)


def point_index(array: pa.Array, byte: Numbers) -> Numbers:
    """Byte positions within rows as positions in code points."""
    raw, places = parts(array)
    starts, first = code_points(raw, places)
    found: Numbers = np.searchsorted(starts[:-1], places[:-1] + byte) - first[:-1]
    return found


def is_ascii(array: pa.Array) -> bool:
    """Whether a string array holds only ASCII."""
    raw, places = parts(array)
    return not len(array) or not bool((raw[places[0] : places[-1]] & 0x80).any())
