"""Which bucket a row belongs to.

The hash is our own, so that a key is in the same bucket in every process, on every machine and in every
version: splitmix64 (Steele, Lea and Flood, 2014) over the key's values.  Equal keys have equal buckets, also
if their types have different widths.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.errors import PipelineError
from headgate.graph.columns import integers, invalid, is_narrow, lexical_order, limbs, value_keys

Hashes = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E37_79B9_7F4A_7C15)
_NULL = np.uint64(0x5851_F42D_4C95_7F2D)
_WORD = 8


def splitmix64(bits: Hashes) -> Hashes:
    """64 well-mixed bits of each value."""
    bits = bits + _GOLDEN
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return bits ^ (bits >> np.uint64(31))


def seed_of(name: str, purpose: bytes = b"") -> np.uint64:
    """A seed that follows from a name; another one for each purpose."""
    digest = hashlib.blake2b(name.encode(), digest_size=8, person=purpose).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def chosen(serials: npt.NDArray[np.int64], seed: np.uint64, share: float) -> npt.NDArray[np.bool_]:
    """A share of the serials: always the same ones, and with a larger share the same ones and more."""
    mixed = splitmix64(splitmix64(serials.astype(np.uint64)) ^ seed)
    # 53 bits, so that the comparison with a float is exact.
    return (mixed >> np.uint64(11)) < np.uint64(round(share * 2**53))


def hashes(array: pa.Array) -> Hashes:
    """A 64-bit hash of every value."""
    kind = array.type
    null = invalid(array)
    if pa.types.is_null(kind):
        return np.full(len(array), _NULL)
    if pa.types.is_decimal(kind):
        words = limbs(array)
        mixed = splitmix64(splitmix64(words[:, 0].view(np.uint64)) ^ words[:, 1].view(np.uint64))
    elif is_narrow(kind):
        mixed = splitmix64(integers(array).view(np.uint64))
    else:
        encoded = array.dictionary_encode()
        mixed = np.append(_text_hashes(encoded.dictionary), _NULL)
        return mixed[encoded.indices.fill_null(len(mixed) - 1).to_numpy()]  # type: ignore[no-any-return]
    return mixed if null is None else np.where(null, _NULL, mixed)


def _text_hashes(words: pa.Array) -> Hashes:
    """Hashes of byte strings, eight bytes of all of them at a time."""
    large = pa.types.is_large_string(words.type) or pa.types.is_large_binary(words.type)
    _, offsets, data = words.buffers()
    if not len(words):
        return np.zeros(0, dtype=np.uint64)
    bounds = np.frombuffer(offsets, dtype=np.int64 if large else np.int32)
    bounds = bounds[words.offset : words.offset + len(words) + 1].astype(np.int64)
    starts, lengths = bounds[:-1], np.diff(bounds)
    padded = np.zeros((data.size if data is not None else 0) + 2 * _WORD, dtype=np.uint8)
    if data is not None:
        padded[: data.size] = np.frombuffer(data, dtype=np.uint8)
    # Eight bytes from every byte on, so that a word can be read where a string starts.
    at = np.ndarray((len(padded) - _WORD + 1,), dtype="<u8", buffer=padded, strides=(1,))
    mixed = splitmix64(lengths.astype(np.uint64))
    active = np.flatnonzero(lengths)
    done = 0
    while len(active):
        left = np.minimum(lengths[active] - done, _WORD)
        chunk = at[starts[active] + done].astype(np.uint64)
        chunk &= np.uint64(0xFFFF_FFFF_FFFF_FFFF) >> ((_WORD - left) * 8).astype(np.uint64)
        mixed[active] = splitmix64(mixed[active] ^ chunk)
        done += _WORD
        active = active[lengths[active] > done]
    return mixed


def buckets(batch: pa.RecordBatch, keys: Sequence[str], count: int) -> npt.NDArray[np.int32]:
    """The bucket of every row, from 0 to ``count`` - 1, by the columns ``keys``."""
    if not keys:
        return np.zeros(batch.num_rows, dtype=np.int32)
    mixed = hashes(batch.column(keys[0]))
    for key in keys[1:]:
        mixed = splitmix64(mixed ^ (hashes(batch.column(key)) * _GOLDEN))
    if count & (count - 1):
        return (mixed % np.uint64(count)).astype(np.int32)
    return (mixed & np.uint64(count - 1)).astype(np.int32)  # the same remainder, without a division


def range_buckets(batch: pa.RecordBatch, key: str, boundaries: Sequence[Any]) -> npt.NDArray[np.int32]:
    """The range of every row: how many of the ascending ``boundaries`` its key has reached; 0 for null."""
    array = batch.column(key)
    limits = pa.array(boundaries, type=array.type)
    both = value_keys(pa.concat_arrays([limits, array]))
    count = len(limits)
    # Words of several parts become one by their place in sorted order.
    order = lexical_order(both)
    changes = np.zeros(len(order), dtype=np.bool_)
    for part in both:
        changes[1:] |= part[order][1:] != part[order][:-1]
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.cumsum(changes)
    ranges = np.searchsorted(rank[:count], rank[count:], side="right").astype(np.int32)
    null = invalid(array)
    return ranges if null is None else np.where(null, np.int32(0), ranges)


def check_ranges(schema: pa.Schema, columns: Sequence[str], ranges: Sequence[Any]) -> None:
    """Boundaries that are none of the key's are an error when the pipeline is built."""
    if len(columns) != 1:
        raise PipelineError(f"key_by(ranges=…): ranges are of one column, not of {', '.join(columns)}.")
    kind = schema.field(columns[0]).type
    try:
        given = pa.array(ranges, type=kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        raise PipelineError(
            f"key_by(ranges={ranges!r}): give boundaries of column '{columns[0]}', which is {kind}."
        ) from None
    ascending = lexical_order(value_keys(given)).tolist() == list(range(len(given)))
    if given.null_count or not ascending or len(given.unique()) < len(given):
        raise PipelineError(f"key_by(ranges={ranges!r}): give each boundary once, in ascending order.")
