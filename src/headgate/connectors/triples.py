"""A store of RDF triples: a dictionary of terms, and indices by predicate, all of them sorted parquet files.

A term's number is its place in the order in which SPARQL sorts terms: blank nodes, IRIs, integers by value,
strings by their characters.  So numbers are compared where terms should be, and a result is looked up in
the dictionary only when it leaves.

    store.json                 how many there are of what, by predicate: what plans are made by
    terms.parquet              kind and text of every term; row groups hold one kind
    by_subject/PREDICATE.parquet   subjects and objects of a predicate, sorted by subject
    by_object/PREDICATE.parquet    the same, sorted by object
    triples.parquet            all triples, sorted by subject, predicate and object
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from headgate.checkpoint.places import local_path
from headgate.errors import SourceError

BLANK, IRI, INTEGER, STRING = range(4)
"""Kinds of terms, in their order."""
PAIR = pa.schema([("s", pa.int32()), ("o", pa.int32())])
TRIPLE = pa.schema([("s", pa.int32()), ("p", pa.int32()), ("o", pa.int32())])
_TERM = pa.schema([("kind", pa.int8()), ("text", pa.string())])
_FORMAT = 1
_GROUP = 131_072
_TERMS_GROUP = 65_536
_TERM_BITS, _PREDICATE_BITS = 27, 9
_HINT = "'headgate generate sp2bench DIR --triples 100000' writes one."

Numbers = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Predicate:
    """What is known of the triples of one predicate; of all triples if ``number`` is None."""

    number: int | None
    rows: int
    subjects: int
    objects: int
    """Different ones."""
    low: int
    high: int
    """The least and the greatest object."""


class Store:
    """Triples in a folder, to be read."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(local_path(path, "data", SourceError))
        try:
            found = json.loads((self.path / "store.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise SourceError(f"data: there are no triples in '{self.path}'. {_HINT}") from None
        except (OSError, ValueError) as error:
            raise SourceError(f"data: '{self.path}/store.json' cannot be read: {error}.") from error
        if found.get("format") != _FORMAT:
            raise SourceError(f"data: '{self.path}' was written by another version of Headgate. {_HINT}")
        self.kinds: list[int] = found["kinds"]
        self.predicates = {p["number"]: Predicate(**p) for p in found["predicates"]}
        self.all = Predicate(**found["all"])
        self.terms = Terms(str(self.path / "terms.parquet"))

    def file(self, number: int | None, by: str) -> str:
        """The index of a predicate that is sorted by subject or object: ``by`` is "s" or "o"."""
        if number is None:
            return str(self.path / "triples.parquet")
        return str(self.path / {"s": "by_subject", "o": "by_object"}[by] / f"{number}.parquet")

    def kind(self, number: int) -> int:
        return int(np.searchsorted(self.kinds, number, side="right")) - 1

    def place(self, kind: int, text: str) -> tuple[int, bool]:
        """Where a term is, or where it would stand if it were there; and whether it is."""
        return self.terms.place(kind, text, self.kinds[kind])

    def count(self, number: int, by: str, value: int) -> int:
        """How many triples of a predicate have this subject or object."""
        column = pq.read_table(self.file(number, by), columns=[by]).column(by).to_numpy()
        low, high = np.searchsorted(column, [value, value + 1])
        return int(high - low)


_cached: dict[tuple[str, int, int], pa.Array] = {}
"""Row groups of dictionaries that this process has looked terms up in: by file, its age, and group."""
_MOST = 1_024


class Terms:
    """The dictionary.  It pickles as its file's name; what was read stays in the process."""

    def __init__(self, file: str) -> None:
        self.file = file

    @cached_property
    def _parquet(self) -> tuple[pq.ParquetFile, npt.NDArray[np.int64], int]:
        opened = pq.ParquetFile(self.file)
        meta = opened.metadata
        rows = [meta.row_group(group).num_rows for group in range(meta.num_row_groups)]
        return opened, np.concatenate([[0], np.cumsum(rows)]), Path(self.file).stat().st_mtime_ns

    def __reduce__(self) -> tuple[type[Terms], tuple[str]]:
        return Terms, (self.file,)

    def _group(self, group: int) -> pa.Array:
        age = self._parquet[2]
        key = (self.file, age, group)
        found = _cached.get(key)
        if found is None:
            # A reader of its own: several workers look terms up at once.
            read = pq.ParquetFile(self.file).read_row_group(group, columns=["text"])
            found = read.column("text").combine_chunks()
            if len(_cached) > _MOST:
                _cached.clear()
            _cached[key] = found
        return found

    def texts(self, numbers: pa.Array) -> pa.Array:
        """The text of every number; null where there is none."""
        _, begins, _ = self._parquet
        ids = numbers.fill_null(0).to_numpy() if numbers.null_count else numbers.to_numpy()
        groups = np.searchsorted(begins, ids, side="right") - 1
        needed = np.flatnonzero(np.bincount(groups, minlength=len(begins))) if len(ids) else groups
        if not len(needed):
            return pa.array([], pa.string())
        parts = [self._group(int(group)) for group in needed]
        # Where each group begins once those that are needed stand one after the other.
        offsets = np.zeros(len(begins), dtype=np.int64)
        offsets[needed] = (
            np.concatenate([[0], np.cumsum([len(part) for part in parts[:-1]])]) - begins[needed]
        )
        places = pa.array(ids + offsets[groups])
        if numbers.null_count:
            places = pa.compute.if_else(numbers.is_valid(), places, pa.scalar(None, pa.int64()))
        found = pa.chunked_array(parts).take(places)
        return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found

    def place(self, kind: int, text: str, begin: int) -> tuple[int, bool]:
        """Where a term of ``kind`` is or would stand; terms of its kind begin at ``begin``."""
        opened, begins, _ = self._parquet
        place = begin
        for group in range(int(np.searchsorted(begins, begin)), len(begins) - 1):
            meta = opened.metadata.row_group(group)
            if meta.column(0).statistics.min != kind:
                break
            if kind != INTEGER and meta.column(1).statistics.max.encode() < text.encode():
                place = int(begins[group + 1])
                continue
            terms = self._group(group).to_pylist()
            keys = [int(t) for t in terms] if kind == INTEGER else [t.encode() for t in terms]
            wanted: Any = int(text) if kind == INTEGER else text.encode()
            found = int(np.searchsorted(np.array(keys, dtype=object), wanted))
            place = int(begins[group]) + found
            if found < len(keys):
                return place, keys[found] == wanted
        return place, False


class StoreWriter:
    """Writes a store: first all terms in order, then each predicate's triples, then the whole.

    The numbers of all triples are held until the end, in 16 bytes each.
    """

    def __init__(self, path: Path, kinds: Sequence[int]) -> None:
        for folder in ("by_subject", "by_object"):
            (path / folder).mkdir(parents=True, exist_ok=True)
        self._path, self._kinds = path, list(kinds)
        self._terms = pq.ParquetWriter(path / "terms.parquet", _TERM, compression="zstd")
        self._waiting: list[pa.RecordBatch] = []
        self._predicates: list[Predicate] = []
        self._keys: list[npt.NDArray[np.int64]] = []
        self._last = b""
        self.rows = 0

    def terms(self, batch: pa.RecordBatch) -> None:
        """The next terms, all of one kind."""
        kind = batch.column("kind")[0].as_py()
        if self._waiting and self._waiting[0].column("kind")[0].as_py() != kind:
            self._write_terms()
        self._waiting.append(batch.cast(_TERM))
        if sum(each.num_rows for each in self._waiting) >= _TERMS_GROUP:
            self._write_terms()

    def _write_terms(self) -> None:
        if self._waiting:
            self._terms.write_table(pa.Table.from_batches(self._waiting), row_group_size=_TERMS_GROUP)
        self._waiting = []

    def predicate(self, number: int, s: Numbers, o: Numbers) -> None:
        """The triples of one predicate, in any order."""
        rank = len(self._predicates)
        if max(int(s.max()), int(o.max())) >> _TERM_BITS or rank >> _PREDICATE_BITS:
            raise SourceError(f"A store holds at most {1 << _TERM_BITS:,} terms and 512 predicates.")
        pairs = np.sort((s.astype(np.int64) << 32) | o)
        self._index("by_subject", number, pairs >> 32, pairs & 0xFFFF_FFFF)
        subjects = _distinct(pairs >> 32)
        self._keys.append(
            ((pairs >> 32) << (_TERM_BITS + _PREDICATE_BITS)) | (rank << _TERM_BITS) | (pairs & 0xFFFF_FFFF)
        )
        pairs = np.sort((o.astype(np.int64) << 32) | s)
        self._index("by_object", number, pairs & 0xFFFF_FFFF, pairs >> 32)
        low, high = int(pairs[0] >> 32), int(pairs[-1] >> 32)
        self._predicates.append(Predicate(number, len(s), subjects, _distinct(pairs >> 32), low, high))
        self.rows += len(s)

    def _index(self, folder: str, number: int, s: npt.NDArray[np.int64], o: npt.NDArray[np.int64]) -> None:
        table = pa.table([s.astype(np.int32), o.astype(np.int32)], schema=PAIR)
        _write(self._path / folder / f"{number}.parquet", table)

    def all_triples(self, rows: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Write all triples in order, and hand each batch out, with how many there are so far."""
        keys = np.concatenate(self._keys)
        self._keys = []
        keys.sort()
        numbers = np.array([p.number for p in self._predicates], dtype=np.int32)
        mask = (1 << _TERM_BITS) - 1
        objects = np.zeros(self._kinds[-1], dtype=bool)
        with pq.ParquetWriter(self._path / "triples.parquet", TRIPLE, use_dictionary=False) as writer:
            for begin in range(0, len(keys), rows):
                part = keys[begin : begin + rows]
                predicates = numbers[(part >> _TERM_BITS) & ((1 << _PREDICATE_BITS) - 1)]
                columns = [part >> (_TERM_BITS + _PREDICATE_BITS), predicates, part & mask]
                objects[columns[2]] = True
                batch = pa.record_batch([c.astype(np.int32) for c in columns], schema=TRIPLE)
                writer.write_batch(batch)
                yield begin + len(part), batch
        subjects = _distinct(keys >> (_TERM_BITS + _PREDICATE_BITS))
        there = np.flatnonzero(objects)
        self._all = Predicate(None, len(keys), subjects, len(there), int(there[0]), int(there[-1]))

    def close(self) -> None:
        self._write_terms()
        self._terms.close()
        found = {
            "format": _FORMAT,
            "kinds": self._kinds,
            "predicates": [asdict(predicate) for predicate in self._predicates],
            "all": asdict(self._all),
        }
        (self._path / "store.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _distinct(values: npt.NDArray[np.int64]) -> int:
    """Of sorted values."""
    return 1 + int(np.count_nonzero(values[1:] != values[:-1])) if len(values) else 0


def _write(file: Path, table: pa.Table) -> None:
    pq.write_table(table, file, row_group_size=_GROUP, use_dictionary=False)
