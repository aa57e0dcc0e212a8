"""Keys as dense integers, so that keyed state is an array and finding it is one lookup.

A ``KeyIndex`` gives every distinct key (any number of columns; a null is a value of its own) a slot, packet
by packet.  Each column has a code per distinct value, kept in a hash table that survives packets; codes of
several columns are paired and numbered again.  Two columns of numbers that fit one word need one table only:
nearly all pairs of keys are such.  The cost of a packet does not grow with the number of keys.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headgate.graph.columns import Ints, from_integers, integers, invalid, is_narrow
from headgate.graph.numbering import Numbering, grown

_SMALL = 1024
_encode = pc.get_function("dictionary_encode").call


class _Narrow:
    """Codes of a column whose values fit 64 bits: 0 for null, number + 1 otherwise."""

    def __init__(self, kind: pa.DataType) -> None:
        self.type = kind
        self._numbering = Numbering()

    @property
    def count(self) -> int:
        return self._numbering.count + 1

    def codes(self, array: pa.Array) -> Ints:
        null = invalid(array)
        if null is None:
            return self._numbering.number(integers(array)) + 1
        if null.all():
            return np.zeros(len(array), dtype=np.int64)
        # In place of null any value will do that is there: to take nulls out and put them back costs more.
        values = integers(array)
        codes = self._numbering.number(np.where(null, values[null.argmin()], values)) + 1
        codes[null] = 0
        return codes

    def find(self, array: pa.Array) -> Ints:
        """The codes of known values; 0 for null and for values that never came."""
        codes = self._numbering.find(integers(array)) + 1
        null = invalid(array)
        return codes if null is None else np.where(null, 0, codes)

    def values(self, codes: Ints) -> pa.Array:
        return from_integers(self._numbering.values[codes - 1], codes == 0, self.type)

    def retain(self, codes: Ints) -> tuple[_Narrow, Ints]:
        """An encoder of only these codes' values; and by old code, the new one."""
        smaller, kept = _Narrow(self.type), _without_null(codes, self.count)
        smaller._numbering = Numbering.of(self._numbering.values[kept - 1])
        return smaller, moved(kept, np.arange(1, len(kept) + 1))


class _Wide:
    """Codes of a column of text, bytes or wide decimals; only a packet's distinct values are looked up."""

    def __init__(self, kind: pa.DataType) -> None:
        self.type = kind
        self._stored = pa.binary(16) if pa.types.is_decimal(kind) else kind
        self._codes: defaultdict[Any, int] = defaultdict(itertools.count(1).__next__)
        self._values = np.full(_SMALL, None, dtype=object)

    @property
    def count(self) -> int:
        return len(self._codes) + 1

    def codes(self, array: pa.Array) -> Ints:
        words, indices = self._words(array)
        before = len(self._codes)
        codes = np.fromiter(map(self._codes.__getitem__, words), dtype=np.int64, count=len(words))
        if len(self._codes) > before:
            fresh = codes > before
            self._values = grown(self._values, len(self._codes) + 1, None)
            self._values[codes[fresh]] = words[fresh]
        return np.append(codes, 0)[indices]

    def find(self, array: pa.Array) -> Ints:
        words, indices = self._words(array)
        codes = np.fromiter((self._codes.get(word, 0) for word in words), dtype=np.int64, count=len(words))
        return np.append(codes, 0)[indices]

    def _words(self, array: pa.Array) -> tuple[npt.NDArray[Any], Ints]:
        """The distinct values of a packet, and each row's place among them; null's is behind the last."""
        if pa.types.is_decimal(self.type):
            array = array.view(self._stored)
        encoded = _encode((array,))
        words = encoded.dictionary.to_numpy(zero_copy_only=False)
        indices = encoded.indices
        return words, (indices.fill_null(len(words)) if indices.null_count else indices).to_numpy()

    def values(self, codes: Ints) -> pa.Array:
        stored = pa.array(self._values[codes], type=self._stored)
        return stored.view(self.type) if pa.types.is_decimal(self.type) else stored

    def retain(self, codes: Ints) -> tuple[_Wide, Ints]:
        smaller, kept = _Wide(self.type), _without_null(codes, self.count)
        words, own = self._values[kept], np.arange(1, len(kept) + 1)
        known = zip(words, own.tolist(), strict=True)
        smaller._codes = defaultdict(itertools.count(len(kept) + 1).__next__, known)
        smaller._values = grown(smaller._values, len(kept) + 1, None)
        smaller._values[own] = words
        return smaller, moved(kept, own)


class _Null:
    """Codes of a column of type NULL: there is one value."""

    count = 1

    def __init__(self, kind: pa.DataType) -> None:
        self.type = kind

    def codes(self, array: pa.Array) -> Ints:
        return np.zeros(len(array), dtype=np.int64)

    find = codes

    def values(self, codes: Ints) -> pa.Array:
        return pa.nulls(len(codes))

    def retain(self, codes: Ints) -> tuple[_Null, Ints]:
        return self, np.zeros(1, dtype=np.int64)


def moved(numbers: Ints, places: Ints) -> Ints:
    """By number, its place; 0 for those in between."""
    found = np.zeros(int(numbers[-1]) + 1 if len(numbers) else 1, dtype=np.int64)
    found[numbers] = places
    return found


def _without_null(codes: Ints, count: int) -> Ints:
    """The distinct codes of values, ascending, without null's."""
    kept = sorted_distinct(codes, count)
    return kept[1:] if len(kept) and not kept[0] else kept


def sorted_distinct(numbers: Ints, count: int) -> Ints:
    """The distinct numbers among numbers below ``count``, ascending."""
    there = np.zeros(count, dtype=np.bool_)
    there[numbers] = True
    return there.nonzero()[0]


def _encoder(kind: pa.DataType) -> _Narrow | _Wide | _Null:
    if pa.types.is_null(kind):
        return _Null(kind)
    return _Narrow(kind) if is_narrow(kind) else _Wide(kind)


class KeyIndex:
    """Slots of keys.  Without key columns there is one slot, 0."""

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self.types = tuple(types)
        self._columns = [_encoder(kind) for kind in self.types]
        self._pairs = [Numbering() for _ in self.types[1:]]
        both = len(self.types) == 2 and all(is_narrow(kind) for kind in self.types)
        self._words: Numbering | None = Numbering() if both else None
        """Slots by both values in one word, while no value is null, negative or above 31 bits."""

    def _packed(self, columns: Sequence[pa.Array]) -> Ints | None:
        """Both columns in one word, if they fit."""
        first, second = columns
        if first.null_count or second.null_count:
            return None
        high, low = integers(first), integers(second)
        if len(high) and int((high | low).view(np.uint64).max()) >> 31:
            return None
        return (high << 32) | low

    def _unpack(self) -> None:
        """A key came that does not fit: number the columns by themselves.  Slots stay as they are."""
        assert self._words is not None
        known = self.keys(np.arange(self._words.count))
        self._words = None
        self.slots(known, len(known[0]))

    def __len__(self) -> int:
        """One more than the highest slot that was ever given."""
        if self._words is not None:
            return self._words.count
        if self._pairs:
            return self._pairs[-1].count
        return self._columns[0].count if self._columns else 1

    def slots(self, columns: Sequence[pa.Array], rows: int) -> Ints:
        """The slot of the key of each of ``rows`` rows."""
        if not columns:
            return np.zeros(rows, dtype=np.int64)
        if self._words is not None:
            words = self._packed(columns)
            if words is not None:
                return self._words.number(words)
            self._unpack()
        slots = self._columns[0].codes(columns[0])
        for column, encoder, pairs in zip(columns[1:], self._columns[1:], self._pairs, strict=True):
            slots = pairs.number((slots << 32) | encoder.codes(column))
        return slots

    def find(self, columns: Sequence[pa.Array]) -> Ints:
        """The slot of each row's key; -1 if it never came or a part of it is null.  Changes nothing."""
        if self._words is not None:
            high, low = map(integers, columns)
            unknown = ((high | low).view(np.uint64) >> np.uint64(31)) > 0  # such a key never came
            for null in map(invalid, columns):
                unknown |= False if null is None else null
            return np.where(unknown, -1, self._words.find(np.where(unknown, 0, (high << 32) | low)))
        slots = self._columns[0].find(columns[0])
        unknown = slots == 0
        for column, encoder, pairs in zip(columns[1:], self._columns[1:], self._pairs, strict=True):
            codes = encoder.find(column)
            slots = pairs.find((slots << 32) | codes)
            unknown |= (codes == 0) | (slots < 0)
        return np.where(unknown, -1, slots)

    def keys(self, slots: Ints) -> list[pa.Array]:
        """The key columns of ``slots``."""
        if self._words is not None:
            words, none = self._words.values[slots], np.zeros(len(slots), dtype=np.bool_)
            parts = (words >> 32, words & 0xFFFF_FFFF)
            return [from_integers(part, none, kind) for part, kind in zip(parts, self.types, strict=True)]
        keys: list[pa.Array] = []
        for encoder, pairs in zip(reversed(self._columns[1:]), reversed(self._pairs), strict=True):
            paired = pairs.values[slots]
            keys.append(encoder.values(paired & 0xFFFF_FFFF))
            slots = paired >> 32
        if self._columns:
            keys.append(self._columns[0].values(slots))
        return keys[::-1]

    def retain(self, slots: Ints) -> tuple[KeyIndex, Ints]:
        """An index of only these distinct slots, and their new slots: it forgets dead keys."""
        index = KeyIndex(self.types)
        if self._words is not None:
            index._words = Numbering.of(self._words.values[slots])
            return index, np.arange(len(slots))
        index._words = None
        return index, index._take(self, len(self._pairs), slots) if self._columns else slots

    def _take(self, index: KeyIndex, level: int, slots: Ints) -> Ints:
        """Take over these slots of another index, for its columns up to ``level``; their new places."""
        if not level:
            self._columns[0], places = index._columns[0].retain(slots)
            return places[slots]
        paired = index._pairs[level - 1].values[slots]
        before, codes = paired >> 32, paired & 0xFFFF_FFFF
        known = sorted_distinct(
            before, index._pairs[level - 2].count if level > 1 else index._columns[0].count
        )
        there = moved(known, self._take(index, level - 1, known))
        self._columns[level], places = index._columns[level].retain(codes)
        self._pairs[level - 1] = Numbering.of((there[before] << 32) | places[codes])
        return np.arange(len(slots))
