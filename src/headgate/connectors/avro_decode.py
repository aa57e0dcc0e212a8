"""Avro values to record batches, a field of all values at a time.

Avro's bytes say neither where a field begins nor how long it is, so a value has to be read from its start.
Here every step reads one field of all values at once: an array holds the place that each value has been read
to.  No library for Python does this: fastavro makes a dict of each value (7 µs, and 1 µs more to Arrow),
Rust's readers want files, and one broken value breaks those around it.  Here a value that is broken is known
by its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from headgate.connectors.avro_schema import MISSING, Avro, AvroError
from headgate.errors import BadRow

Places = npt.NDArray[np.int64]
_PADDING = 16
"""Bytes behind the last value, so that a number that has no end can be looked at before it is refused."""
_DIGITS = np.arange(_PADDING)
_SCALES = {"millis": 1_000, "micros": 1}


def decode(values: pa.Array, writer: Avro, reader: Avro, *, skip: int = 0) -> pa.RecordBatch:
    """A row of ``reader`` for each value, which ``writer`` describes from its byte ``skip`` on.

    Raises BadRow for the first value that is not one of ``writer``; nothing may be left over.
    """
    reading = _Reading(values, skip)
    rows = np.arange(len(values))
    columns = [reading.read(part, rows) for part in writer.parts]
    reading.check_ends()
    if reading.bad.any():
        at = int(reading.bad.argmax())
        raise BadRow(f"it is no Avro value of the schema: {reading.reasons[at]}", at)
    found = pa.StructArray.from_arrays(columns, fields=list(writer.arrow))
    if writer is not reader:
        found = _fitted(found, reader, "")
    return pa.RecordBatch.from_arrays(found.flatten(), schema=reader.schema)


class _Reading:
    """Values, and how far each has been read."""

    def __init__(self, values: pa.Array, skip: int) -> None:
        _, offsets, data = values.buffers()
        whole = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
        bytes_ = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        self.data = np.concatenate([bytes_, np.zeros(_PADDING, np.uint8)])
        self.buffer = pa.py_buffer(self.data)
        self.ends = whole[1:].astype(np.int64)
        self.at = np.minimum(whole[:-1] + skip, self.ends)
        self.bad = np.zeros(len(values), dtype=bool)
        self.reasons: dict[int, str] = {}

    def read(self, type_: Avro, rows: Places) -> pa.Array:
        """This field of these values, which are in order."""
        if not len(rows):
            return pa.array([], type_.arrow)
        return _READ[type_.kind](self, type_, rows)

    def check_ends(self) -> None:
        """Values with bytes behind their last field are bad."""
        left = self.ends - self.at
        self._fail(np.arange(len(left)), left > 0, "bytes are left over behind its last field")

    def _fail(self, rows: Places, which: npt.NDArray[np.bool_], reason: str) -> None:
        if not which.any():
            return
        for row in rows[which].tolist():
            if not self.bad[row]:
                self.bad[row] = True
                self.reasons[row] = reason
            self.at[row] = self.ends[row]

    def _take(self, rows: Places, sizes: Places | int) -> Places:
        """Where so many bytes of each value begin; they are read now, and 0 where there are not so many."""
        starts = self.at[rows]
        short = (self.ends[rows] - starts < sizes) | (np.asarray(sizes) < 0)
        self.at[rows] = starts + np.where(short, 0, sizes)
        self._fail(rows, short, "it ends too early")
        return starts

    def _numbers(self, rows: Places) -> Places:
        """Whole numbers: seven bits a byte, the lowest first, the sign in the lowest."""
        at = self.at[rows]
        byte = self.data[at]
        value = (byte & 127).astype(np.uint64)
        at += 1
        more = np.flatnonzero(byte >= 128)
        for shift in range(7, 70, 7):
            if not len(more):
                break
            byte = self.data[at[more]]
            value[more] |= (byte & 127).astype(np.uint64) << np.uint64(shift)
            at[more] += 1
            more = more[byte >= 128 if shift < 63 else byte > 1]
        ends = self.ends[rows]
        self.at[rows] = np.minimum(at, ends)
        self._fail(rows, at > ends, "it ends too early")
        if len(more):
            self._fail(rows[more], np.ones(len(more), dtype=bool), "a number has more than 64 bits")
        signs = (value & np.uint64(1)).astype(np.int64)
        return (value >> np.uint64(1)).astype(np.int64) ^ -signs

    def _null(self, type_: Avro, rows: Places) -> pa.Array:
        return pa.nulls(len(rows), type_.arrow)

    def _boolean(self, type_: Avro, rows: Places) -> pa.Array:
        byte = self.data[self._take(rows, 1)]
        self._fail(rows, byte > 1, "a boolean is neither 0 nor 1")
        return pa.array(byte == 1)

    def _int(self, type_: Avro, rows: Places) -> pa.Array:
        found = self._numbers(rows)
        cut = found.astype(np.int32)
        self._fail(rows, cut != found, "an int has more than 32 bits")
        return pa.array(cut).cast(type_.arrow)

    def _long(self, type_: Avro, rows: Places) -> pa.Array:
        found = self._numbers(rows)
        unit = type_.logical.rpartition("-")[2]
        if unit == "nanos":
            found //= 1_000
        elif unit == "millis":
            scaled = found * _SCALES[unit]
            self._fail(rows, scaled // _SCALES[unit] != found, "a time is out of range")
            found = scaled
        return pa.array(found).cast(type_.arrow)

    def _real(self, type_: Avro, rows: Places) -> pa.Array:
        width = type_.arrow.bit_width // 8
        places = np.minimum(self._take(rows, width), len(self.data) - width)
        found = self.data[places[:, None] + np.arange(width)]
        return pa.array(found.view(f"<f{width}")[:, 0])

    def _bytes(self, type_: Avro, rows: Places) -> pa.Array:
        sizes = self._numbers(rows)
        return self._texts(type_, rows, self._take(rows, sizes))

    def _fixed(self, type_: Avro, rows: Places) -> pa.Array:
        return self._texts(type_, rows, self._take(rows, type_.size))

    def _texts(self, type_: Avro, rows: Places, starts: Places) -> pa.Array:
        """What lies between ``starts`` and where each value has been read to."""
        stops = np.maximum(self.at[rows], starts)
        starts = np.where(self.bad[rows], stops, starts)
        if pt.is_decimal(type_.arrow):
            return self._decimals(type_.arrow, rows, starts, stops)
        # Begins and ends in turn are offsets: each second element is ours, the others are what lies between.
        offsets = np.stack([starts, stops], axis=1).astype(np.int32).reshape(-1)
        buffers = [None, pa.py_buffer(offsets), self.buffer]
        pieces = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
        found = pieces.take(pa.array(np.arange(0, len(offsets), 2)))
        if not pt.is_string(type_.arrow):
            return found
        try:
            return found.cast(pa.string())
        except pa.ArrowInvalid:
            wrong = np.array([not _is_text(value.as_py()) for value in found])
            self._fail(rows, wrong, "a string is not UTF-8")
            return pa.array([None if w else v.as_py().decode() for w, v in zip(wrong, found, strict=True)])

    def _decimals(self, type_: pa.DataType, rows: Places, starts: Places, stops: Places) -> pa.Array:
        sizes = stops - starts
        self._fail(rows, sizes > _PADDING, "a decimal has more than 16 bytes")
        sizes = np.minimum(sizes, _PADDING)
        sign = np.where((sizes > 0) & (self.data[starts] >= 128), 255, 0).astype(np.uint8)
        digits = self.data[np.maximum(stops[:, None] - 1 - _DIGITS, 0)]
        found = np.where(sizes[:, None] > _DIGITS, digits, sign[:, None])

        def made() -> pa.Array:
            return pa.Array.from_buffers(type_, len(rows), [None, pa.py_buffer(found.copy())])

        array = made()
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            wrong = np.array([not _is_valid(array.slice(at, 1)) for at in range(len(rows))])
            self._fail(rows, wrong, f"a decimal has more than {type_.precision} digits")
            found[wrong] = 0
            array = made()
        return array

    def _enum(self, type_: Avro, rows: Places) -> pa.Array:
        found = self._numbers(rows)
        wrong = (found < 0) | (found >= len(type_.names))
        self._fail(rows, wrong, "an enum has no such symbol")
        return pa.array(type_.names, pa.string()).take(pa.array(np.where(wrong, 0, found)))

    def _record(self, type_: Avro, rows: Places) -> pa.Array:
        arrays = [self.read(part, rows) for part in type_.parts]
        return pa.StructArray.from_arrays(arrays, fields=list(type_.arrow))

    def _union(self, type_: Avro, rows: Places) -> pa.Array:
        branch = self._numbers(rows)
        wrong = (branch < 0) | (branch >= len(type_.parts))
        self._fail(rows, wrong, "a union has no such branch")
        members = []
        for at in type_.values:
            mine = np.flatnonzero((branch == at) & ~self.bad[rows])
            places = np.zeros(len(rows), dtype=np.int64)
            places[mine] = np.arange(len(mine))
            absent = np.ones(len(rows), dtype=bool)
            absent[mine] = False
            values = self.read(type_.parts[at], rows[mine])
            members.append(values.take(pa.array(places, mask=absent)))
        if len(members) == 1:
            return members[0]
        if pt.is_struct(type_.arrow):
            null = None if type_.nulls is None else pa.array(branch == type_.nulls)
            return pa.StructArray.from_arrays(members, fields=list(type_.arrow), mask=null)
        first, second = (member.cast(type_.arrow) for member in members)
        return pa.compute.coalesce(first, second)

    def _array(self, type_: Avro, rows: Places) -> pa.Array:
        offsets, (items,) = self._items(rows, [type_.parts[0]])
        return pa.ListArray.from_arrays(offsets, items, type=type_.arrow)

    def _map(self, type_: Avro, rows: Places) -> pa.Array:
        offsets, (keys, items) = self._items(rows, [Avro("string", pa.string()), type_.parts[0]])
        return pa.MapArray.from_arrays(offsets, keys, items, type=type_.arrow)

    def _items(self, rows: Places, parts: list[Avro]) -> tuple[pa.Array, list[pa.Array]]:
        """Offsets and elements; the first element of all values is read at once, then the second."""
        read: list[list[pa.Array]] = [[pa.array([], part.arrow)] for part in parts]
        owners = [np.zeros(0, dtype=np.int64)]
        blocks = np.arange(len(rows))
        while len(blocks := blocks[~self.bad[rows[blocks]]]):
            counts = self._numbers(rows[blocks])
            sized = np.flatnonzero(counts < 0)
            if len(sized):
                self._numbers(rows[blocks[sized]])  # the bytes of the block, for readers that skip it
                counts[sized] *= -1
            # An element has a byte at least.
            mine = rows[blocks]
            self._fail(mine, (counts < 0) | (counts > self.ends[mine] - self.at[mine]), "it ends too early")
            alive = (counts > 0) & ~self.bad[mine]
            blocks, counts = blocks[alive], counts[alive]
            at, left = blocks, counts
            while len(at):
                for array, part in zip(read, parts, strict=True):
                    array.append(self.read(part, rows[at]))
                owners.append(at)
                on = (left > 1) & ~self.bad[rows[at]]
                at, left = at[on], left[on] - 1
        owner = np.concatenate(owners)
        order = pa.array(np.argsort(owner, kind="stable"))
        offsets = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(rows)))])
        return pa.array(offsets, pa.int32()), [pa.concat_arrays(arrays).take(order) for arrays in read]


_READ: dict[str, Callable[[_Reading, Avro, Places], pa.Array]] = {
    "null": _Reading._null,
    "boolean": _Reading._boolean,
    "int": _Reading._int,
    "long": _Reading._long,
    "float": _Reading._real,
    "double": _Reading._real,
    "bytes": _Reading._bytes,
    "string": _Reading._bytes,
    "fixed": _Reading._fixed,
    "enum": _Reading._enum,
    "record": _Reading._record,
    "union": _Reading._union,
    "array": _Reading._array,
    "map": _Reading._map,
}


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_valid(array: pa.Array) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


_WIDER = {
    pa.int32(): (pa.int64(), pa.float32(), pa.float64()),
    pa.int64(): (pa.float32(), pa.float64()),
    pa.float32(): (pa.float64(),),
    pa.string(): (pa.binary(),),
    pa.binary(): (pa.string(),),
}


def _fitted(array: pa.Array, reader: Avro, path: str) -> pa.Array:
    """Values of another writer as ``reader`` wants them, by the names of fields, as Avro resolves schemas."""
    wanted = reader.arrow
    if array.type == wanted:
        return array
    if reader.kind == "union" and len(reader.values) == 1:
        return _fitted(array, reader.parts[reader.values[0]], path)
    if reader.kind == "record" and pt.is_struct(array.type):
        fields = zip(reader.names, reader.parts, reader.defaults, strict=True)
        columns = [_field(array, name, part, default, path) for name, part, default in fields]
        return pa.StructArray.from_arrays(columns, fields=list(wanted), mask=array.is_null())
    if reader.kind == "array" and pt.is_list(array.type):
        items = _fitted(array.values, reader.parts[0], path)
        return pa.ListArray.from_arrays(array.offsets, items, type=wanted, mask=array.is_null())
    if reader.kind == "map" and pt.is_map(array.type):
        items = _fitted(array.items, reader.parts[0], path)
        return pa.MapArray.from_arrays(array.offsets, array.keys, items, type=wanted, mask=array.is_null())
    if wanted in _WIDER.get(array.type, ()):
        return array.cast(wanted, safe=False) if pt.is_floating(wanted) else array.cast(wanted)
    raise AvroError(f"field '{path}' is {array.type} there, and {wanted} in the schema of the source")


def _field(array: pa.StructArray, name: str, part: Avro, default: Any, path: str) -> pa.Array:
    full = f"{path}.{name}" if path else name
    at = array.type.get_field_index(name)
    if at >= 0:
        # Not flatten: a null record's fields keep their places, and its mask is set again.
        return _fitted(array.field(at), part, full)
    if default is MISSING:
        raise AvroError(f"there is no field '{full}' there, and the schema of the source gives it no default")
    if pt.is_binary(part.arrow) and isinstance(default, str):
        default = default.encode("latin-1")
    return pa.repeat(pa.scalar(default, part.arrow), len(array))
