"""Numbers written in other ways: hexadecimal, binary and other bases, bits, buckets, thousands."""

from __future__ import annotations

import decimal as py
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import ExpressionError
from headgate.sql import types as t
from headgate.sql import utf8
from headgate.sql.node import Node, fallible, null_of, strict
from headgate.sql.registry import Call, function, valued
from headgate.sql.values import (
    Bad,
    Mask,
    Numbers,
    Value,
    as_array,
    both_valid,
    checked,
    computed,
    from_numbers,
    numbers,
    per_value,
    rows,
)

_HEX = np.frombuffer(b"0123456789ABCDEF", dtype=np.uint8)
_SIGNED = 2**63


def _strings(places: Numbers, raw: Numbers, valid: Mask | None, type_: pa.DataType = t.STRING) -> pa.Array:
    """A string array over bytes and the offsets of its rows."""
    bits = None if valid is None or valid.all() else pa.array(valid).buffers()[1]
    buffers = [bits, pa.py_buffer(places.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(raw))]
    return pa.Array.from_buffers(type_, len(places) - 1, buffers)


def hex_of_bytes(value: Value) -> pa.Array:
    """Two upper-case digits for every byte."""
    array = as_array(value, 1)
    raw, places = utf8.parts(array)
    used = raw[places[0] : places[-1]]
    digits = np.column_stack([_HEX[used >> 4], _HEX[used & 15]]).reshape(-1)
    return _strings((places - places[0]) * 2, digits, both_valid(len(array), array))


def _in_base(bits: int) -> Any:
    """The kernel that writes whole numbers, unsigned, with digits of so many bits."""
    width = 64 // bits
    shifts = np.arange(width - 1, -1, -1, dtype=np.uint64) * np.uint64(bits)

    def run(value: Value) -> Value:
        array = as_array(value, 1)
        data = numbers(array).astype(np.int64).view(np.uint64)
        digits = (data[:, None] >> shifts) & np.uint64((1 << bits) - 1)
        size = width - np.argmax(digits != 0, axis=1)
        size[data == 0] = 1
        kept = np.arange(width) >= (width - size)[:, None]
        places = np.concatenate([[0], np.cumsum(size)])
        return _strings(places, _HEX[digits[kept].astype(np.intp)], both_valid(len(array), array))

    return run


@function("hex", args=1)
def _hex(call: Call) -> Node:
    node = call.args[0]
    if node.type in (t.STRING, t.BINARY):
        return strict(t.STRING, call.text, hex_of_bytes, node)
    return strict(t.STRING, call.text, _in_base(4), call.cast(0, t.BIGINT))


function("bin", args=1)(lambda call: strict(t.STRING, call.text, _in_base(1), call.cast(0, t.BIGINT)))


def from_hex(text: str) -> bytes:
    """The bytes that hexadecimal digits spell; an odd one out comes first, as in Spark."""
    if not all(c in "0123456789abcdefABCDEF" for c in text):
        raise ValueError(text)
    return bytes.fromhex(text.zfill(len(text) + len(text) % 2))


@function("unhex", args=1, per_row=True)
def _unhex(call: Call) -> Node:
    run = per_value(_hex_or_null, t.BINARY)
    return fallible(t.BINARY, call.text, f"{call.text} is not hexadecimal", run, call.cast(0, t.STRING))


def _hex_or_null(text: str) -> bytes | None:
    try:
        return from_hex(text)
    except ValueError:
        return None


@valued("conv", takes=(t.STRING, t.INT, t.INT), gives=t.STRING)
def _conv(text: str, source: int, target: int) -> str | None:
    if not (2 <= source <= 36 and 2 <= abs(target) <= 36):
        return None
    text = text.strip(" ")
    if not text:
        return None
    negative = text.startswith("-")
    number = 0
    for char in text[negative:]:
        digit = int(char, 36) if char.isascii() and char.isalnum() else 99
        if digit >= source:
            break
        number = number * source + digit
    if number >= 2**64:
        raise ValueError("overflow")
    if negative:
        # Unsigned 64 bits, as Hive does it.
        number = 2**64 - 1 if target > 0 and number >= _SIGNED else (-number) % 2**64
    sign = ""
    if target < 0 and number >= _SIGNED:
        sign, number = "-", 2**64 - number
    digits = ""
    while number:
        number, digit = divmod(number, abs(target))
        digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[digit] + digits
    return sign + (digits or "0")


@function("bit_get", "getbit", args=2)
def _bit_get(call: Call) -> Node:
    node = call.args[0]
    if not t.is_integral(node.type):
        raise call.mismatch("a whole number and a position")
    width = node.type.bit_width

    def run(value: Value, place: Value) -> tuple[Value, Bad]:
        n = rows(value, place)
        data = np.broadcast_to(numbers(value), n).astype(np.int64)
        at = np.broadcast_to(numbers(place), n).astype(np.int64)
        outside = (at < 0) | (at >= width)
        return checked((data >> np.where(outside, 0, at)) & 1, outside, t.TINYINT, value, place)

    reason = f"the position of {call.text} is outside 0 to {width - 1}"
    return fallible(t.TINYINT, call.text, reason, run, node, call.cast(1, t.INT))


_BITMAP = 32768


@function("bitmap_bit_position", "bitmap_bucket_number", args=1)
def _bitmap(call: Call) -> Node:
    def position(data: Numbers) -> Numbers:
        return np.where(data > 0, (data - 1) % _BITMAP, np.negative(data) % _BITMAP)

    def bucket(data: Numbers) -> Numbers:
        whole = np.trunc(data / _BITMAP).astype(np.int64)
        return np.where(data > 0, 1 + (data - 1) // _BITMAP, whole)

    run = computed(t.BIGINT, position if call.name == "bitmap_bit_position" else bucket)
    return strict(t.BIGINT, call.text, run, call.cast(0, t.BIGINT))


@valued("bitmap_count", takes=(t.BINARY,), gives=t.BIGINT)
def _bitmap_count(bitmap: bytes) -> int:
    return int.from_bytes(bitmap, "big").bit_count()


@function("factorial", args=1)
def _factorial(call: Call) -> Node:
    table = np.array([math.factorial(i) for i in range(21)], dtype=np.int64)

    def run(value: Value) -> Value:
        array = as_array(value, 1)
        data = numbers(array)
        inside = (data >= 0) & (data <= 20)
        valid = both_valid(len(array), array)
        known = inside if valid is None else inside & valid
        return from_numbers(table[np.where(inside, data, 0)], t.BIGINT, known)

    return strict(t.BIGINT, call.text, run, call.cast(0, t.INT))


@function("width_bucket", args=4)
def _width_bucket(call: Call) -> Node:
    def run(*values: Value) -> Value:
        n = rows(*values)
        value, low, high, count = (np.broadcast_to(numbers(v), n) for v in values)
        with np.errstate(all="ignore"):
            odd = (count <= 0) | (count == 2**63 - 1) | np.isnan(value) | (low == high)
            odd |= ~np.isfinite(low) | ~np.isfinite(high)
            up = low < high
            below = np.where(up, value < low, value > low)
            above = np.where(up, value >= high, value <= high)
            share = (value - low) / (high - low)
            bucket = np.where(below, 0.0, np.where(above, count + 1.0, np.floor(count * share) + 1))
        good = ~odd
        valid = both_valid(n, *values)
        return from_numbers(
            np.where(good, bucket, 0).astype(np.int64), t.BIGINT, good if valid is None else good & valid
        )

    nodes = [*(call.cast(i, t.DOUBLE) for i in range(3)), call.cast(3, t.BIGINT)]
    return strict(t.BIGINT, call.text, run, *nodes)


@function("format_number", args=2, per_row=True)
def _format_number(call: Call) -> Node:
    if call.args[1].type == t.STRING:
        raise ExpressionError(f"format_number() takes a number of decimals, not a pattern, in {call.text!r}.")
    places = call.constant(1, t.INT, "number of decimals").as_py()
    if places is None or places < 0:
        return null_of(t.STRING, call.text)
    node = call.numeric()
    context = py.Context(prec=400, rounding=py.ROUND_HALF_EVEN)

    def written(value: Any) -> str:
        if isinstance(value, float) and not math.isfinite(value):
            return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
        number = py.Decimal(repr(value) if isinstance(value, float) else value)
        rounded = number.quantize(py.Decimal(1).scaleb(-places), context=context)
        negative = math.copysign(1, value) < 0 if isinstance(value, float) else value < 0
        return ("-" if negative else "") + f"{rounded.copy_abs():,f}"

    run = per_value(written, t.STRING)
    return fallible(t.STRING, call.text, "", run, node)


@function("bit_length", args=1)
def _bit_length(call: Call) -> Node:
    node = call.args[0] if call.args[0].type == t.BINARY else call.cast(0, t.STRING)
    return strict(t.INT, call.text, lambda v: pc.multiply(pc.binary_length(v), pa.scalar(8, t.INT)), node)
