"""md5, sha, crc32, and Spark's own hashes: Murmur3 (``hash``) and xxHash64 (``xxhash64``)."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.errors import ExpressionError
from headgate.sql import types as t
from headgate.sql import utf8
from headgate.sql.node import Node, evaluated_all
from headgate.sql.registry import Call, function, valued
from headgate.sql.values import Numbers, Value, as_array, is_valid, numbers, rows


@valued("md5", takes=(t.BINARY,), gives=t.STRING)
def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


@valued("sha", "sha1", takes=(t.BINARY,), gives=t.STRING)
def _sha1(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


@valued("sha2", takes=(t.BINARY, t.INT), gives=t.STRING)
def _sha2(data: bytes, bits: int) -> str | None:
    makers = {0: hashlib.sha256, 224: hashlib.sha224, 256: hashlib.sha256, 384: hashlib.sha384}
    make = makers.get(bits, hashlib.sha512 if bits == 512 else None)
    return None if make is None else make(data).hexdigest()


@valued("crc32", takes=(t.BINARY,), gives=t.BIGINT)
def _crc32(data: bytes) -> int:
    return zlib.crc32(data)


_U32, _U64 = np.uint32, np.uint64


def _rotated(x: Numbers, by: int) -> Numbers:
    bits = x.dtype.itemsize * 8
    kind = x.dtype.type
    turned: Numbers = (x << kind(by)) | (x >> kind(bits - by))
    return turned


def _murmur_mix(h: Numbers, k: Numbers) -> Numbers:
    k = _rotated(k * _U32(0xCC9E2D51), 15) * _U32(0x1B873593)
    return _rotated(h ^ k, 13) * _U32(5) + _U32(0xE6546B64)


def _murmur_end(h: Numbers, length: Any) -> Numbers:
    h = h ^ np.asarray(length).astype(_U32)
    h = (h ^ (h >> _U32(16))) * _U32(0x85EBCA6B)
    h = (h ^ (h >> _U32(13))) * _U32(0xC2B2AE35)
    mixed: Numbers = h ^ (h >> _U32(16))
    return mixed


def _murmur_int(data: Numbers, seed: Numbers) -> Numbers:
    return _murmur_end(_murmur_mix(seed, data.astype(np.int32).view(_U32)), 4)


def _murmur_long(data: Numbers, seed: Numbers) -> Numbers:
    bits = data.astype(np.int64).view(_U64)
    low, high = (bits & _U64(0xFFFFFFFF)).astype(_U32), (bits >> _U64(32)).astype(_U32)
    return _murmur_end(_murmur_mix(_murmur_mix(seed, low), high), 8)


def _words(raw: Numbers, start: Numbers, width: int) -> Numbers:
    """Little-endian words of ``width`` bytes at ``start``."""
    kind: Any = _U32 if width == 4 else _U64
    out: Numbers = np.zeros(len(start), dtype=kind)
    for i in range(width):
        out |= raw[start + i].astype(kind) << kind(8 * i)
    return out


def _murmur_bytes(raw: Numbers, places: Numbers, seed: Numbers) -> Numbers:
    h, start, size = seed.copy(), places[:-1], np.diff(places)
    for step in range(int(size.max(initial=0)) // 4):
        live = np.flatnonzero(size >= 4 * step + 4)
        h[live] = _murmur_mix(h[live], _words(raw, start[live] + 4 * step, 4))
    whole = size // 4 * 4
    for step in range(3):
        # Spark mixes the last bytes one by one, each with its sign.
        live = np.flatnonzero(size > whole + step)
        byte = raw[start[live] + whole[live] + step].view(np.int8).astype(np.int32).view(_U32)
        h[live] = _murmur_mix(h[live], byte)
    return _murmur_end(h, size)


_P1, _P2, _P3 = _U64(0x9E3779B185EBCA87), _U64(0xC2B2AE3D27D4EB4F), _U64(0x165667B19E3779F9)
_P4, _P5 = _U64(0x85EBCA77C2B2AE63), _U64(0x27D4EB2F165667C5)


def _xx_end(h: Numbers) -> Numbers:
    h = (h ^ (h >> _U64(33))) * _P2
    h = (h ^ (h >> _U64(29))) * _P3
    mixed: Numbers = h ^ (h >> _U64(32))
    return mixed


def _xx_round(h: Numbers, k: Numbers) -> Numbers:
    return _rotated(h + k * _P2, 31) * _P1


def _xx_long_step(h: Numbers, k: Numbers) -> Numbers:
    return _rotated(h ^ _xx_round(np.zeros_like(h), k), 27) * _P1 + _P4


def _xx_int_step(h: Numbers, k: Numbers) -> Numbers:
    return _rotated(h ^ (k * _P1), 23) * _P2 + _P3


def _xx_int(data: Numbers, seed: Numbers) -> Numbers:
    k = data.astype(np.int32).view(_U32).astype(_U64)
    return _xx_end(_xx_int_step(seed + _P5 + _U64(4), k))


def _xx_long(data: Numbers, seed: Numbers) -> Numbers:
    return _xx_end(_xx_long_step(seed + _P5 + _U64(8), data.astype(np.int64).view(_U64)))


def _xx_bytes(raw: Numbers, places: Numbers, seed: Numbers) -> Numbers:
    start, size = places[:-1], np.diff(places)
    h = seed + _P5
    long = np.flatnonzero(size >= 32)
    at = np.zeros(len(size), dtype=np.int64)
    if len(long):
        lanes = [seed[long] + _P1 + _P2, seed[long] + _P2, seed[long].copy(), seed[long] - _P1]
        for step in range(int(size.max()) // 32):
            live = np.flatnonzero(size[long] >= 32 * step + 32)
            for i in range(4):
                word = _words(raw, start[long[live]] + 32 * step + 8 * i, 8)
                lanes[i][live] = _xx_round(lanes[i][live], word)
        mixed = sum(_rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            mixed = (mixed ^ _xx_round(np.zeros_like(lane), lane)) * _P1 + _P4
        h[long] = mixed
        at[long] = size[long] // 32 * 32
    h += size.astype(_U64)
    for width, mix in ((8, _xx_long_step), (4, _xx_int_step)):
        while len(live := np.flatnonzero(size - at >= width)):
            h[live] = mix(h[live], _words(raw, start[live] + at[live], width).astype(_U64))
            at[live] += width
    while len(live := np.flatnonzero(size > at)):
        byte = raw[start[live] + at[live]].astype(_U64)
        h[live] = _rotated(h[live] ^ (byte * _P5), 11) * _P1
        at[live] += 1
    return _xx_end(h)


_Hashers = tuple[Callable[..., Numbers], Callable[..., Numbers], Callable[..., Numbers]]
_MURMUR: _Hashers = (_murmur_int, _murmur_long, _murmur_bytes)
_XX: _Hashers = (_xx_int, _xx_long, _xx_bytes)


def _folded_in(array: pa.Array, seed: Numbers, how: _Hashers) -> Numbers:
    """The hashes after one more column; a null leaves them as they were."""
    short, long, data = how
    kind = array.type
    if kind in (t.STRING, t.BINARY):
        found = data(*utf8.parts(array), seed)
    elif t.is_decimal(kind):
        found = _decimal(array, seed, how)
    elif kind == t.FLOAT:
        single = numbers(array) + np.float32(0)
        found = short(np.where(np.isnan(single), np.float32(np.nan), single).view(np.int32), seed)
    elif kind == t.DOUBLE:
        plain = numbers(array) + 0.0
        found = long(np.where(np.isnan(plain), np.nan, plain).view(np.int64), seed)
    else:
        wide = kind == t.BIGINT or t.is_timestamp(kind)
        found = (long if wide else short)(numbers(array).astype(np.int64), seed)
    return np.where(is_valid(array, len(array)), found, seed)


def _decimal(array: pa.Array, seed: Numbers, how: _Hashers) -> Numbers:
    digits = [int(d.scaleb(array.type.scale)) if d is not None else 0 for d in array.to_pylist()]
    if array.type.precision <= 18:
        return how[1](np.array(digits, dtype=np.int64), seed)
    texts = [d.to_bytes((d + (d < 0)).bit_length() // 8 + 1, "big", signed=True) for d in digits]
    return how[2](*utf8.parts(pa.array(texts, pa.binary())), seed)


@function("hash", "xxhash64", args=(1, None))
def _hash(call: Call) -> Node:
    if any(not t.is_atomic(n.type) and n.type != t.NULL for n in call.args):
        raise ExpressionError(f"{call.name}() of arrays, maps and structs is not supported in {call.text!r}.")
    how, kind, gives = (_MURMUR, _U32, t.INT) if call.name == "hash" else (_XX, _U64, t.BIGINT)

    def run(*values: Value) -> Value:
        n = rows(*values)
        seed = np.full(n, 42, dtype=kind)
        with np.errstate(over="ignore"):
            for value in values:
                if value.type != t.NULL:
                    seed = _folded_in(as_array(value, n), seed, how)
        return pa.array(seed.view(np.int32 if kind is _U32 else np.int64), type=gives)

    return evaluated_all(gives, call.text, run, *call.args)
