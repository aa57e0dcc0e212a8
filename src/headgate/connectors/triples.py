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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from headgate.checkpoint.places import local_path
from headgate.connectors.sorted_runs import Longs, SortedRuns, Tally, pieces
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
            if not self.path.is_dir():
                raise SourceError(f"data: there is no folder '{self.path}'. {_HINT}") from None
            raise SourceError(f"data: there are no triples in '{self.path}'. {_HINT}") from None
        except (OSError, ValueError) as error:
            raise SourceError(f"data: '{self.path}/store.json' cannot be read: {error}.") from error
        if isinstance(found, dict) and found.get("format", _FORMAT) != _FORMAT:
            raise SourceError(
                f"data: '{self.path}' was written by another version of Headgate (format {found['format']}, "
                f"this one reads {_FORMAT}). Write it again: {_HINT}"
            )
        try:
            self.kinds: list[int] = found["kinds"]
            self.predicates = {p["number"]: Predicate(**p) for p in found["predicates"]}
            self.all = Predicate(**found["all"])
        except (KeyError, TypeError):
            raise SourceError(f"data: '{self.path}/store.json' is damaged. Write it again: {_HINT}") from None
        files = ["terms.parquet", "triples.parquet"]
        files += [f"by_{by}/{number}.parquet" for number in self.predicates for by in ("subject", "object")]
        missing = [file for file in files if not (self.path / file).is_file()]
        if missing:
            raise SourceError(f"data: '{self.path / missing[0]}' is missing. Write it again: {_HINT}")
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

    Whatever the number of triples, it holds a few chunks of them at a time; the others wait in files.
    """

    def __init__(self, path: Path, kinds: Sequence[int]) -> None:
        for folder in ("by_subject", "by_object"):
            (path / folder).mkdir(parents=True, exist_ok=True)
        self._path, self._kinds = path, list(kinds)
        self._terms = pq.ParquetWriter(path / "terms.parquet", _TERM, compression="zstd")
        self._waiting: list[pa.RecordBatch] = []
        self._predicates: list[Predicate] = []
        self._triples = SortedRuns(path / "triples.waiting")
        self._objects = SortedRuns(path / "objects.waiting")
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

    def predicate(self, number: int, chunks: Iterable[tuple[Longs, Longs]]) -> None:
        """The triples of one predicate: chunks of subjects and objects, in any order."""
        rank = len(self._predicates)
        files = {by: SortedRuns(self._path / f"{number}.{by}.waiting") for by in ("subject", "object")}
        for s, o in chunks:
            if max(int(s.max()), int(o.max())) >> _TERM_BITS or rank >> _PREDICATE_BITS:
                raise SourceError(f"A store holds at most {1 << _TERM_BITS:,} terms and 512 predicates.")
            files["subject"].add((s << 32) | o)
            files["object"].add((o << 32) | s)
        subjects, objects = Tally(), Tally()

        def triples() -> Iterator[Longs]:
            for s, o in self._index("subject", number, files["subject"].read()):
                subjects.new(s)
                yield (s << (_TERM_BITS + _PREDICATE_BITS)) | (rank << _TERM_BITS) | o

        self._triples.add_sorted(triples())
        by_object = self._index("object", number, files["object"].read())
        self._objects.add_sorted(objects.new(o) for o, _ in by_object)
        known = (subjects.rows, subjects.different, objects.different, objects.low, objects.high)
        self._predicates.append(Predicate(number, *known))
        self.rows += subjects.rows

    def _index(self, by: str, number: int, pairs: Iterator[Longs]) -> Iterator[tuple[Longs, Longs]]:
        """Write an index in its order, and hand each part out: the sorted column, and the other one."""
        file = self._path / f"by_{by}" / f"{number}.parquet"
        with pq.ParquetWriter(file, PAIR, use_dictionary=False) as writer:
            for part in pieces(pairs, _GROUP):
                first, second = part >> 32, part & 0xFFFF_FFFF
                s, o = (first, second) if by == "subject" else (second, first)
                columns = [s.astype(np.int32), o.astype(np.int32)]
                writer.write_table(pa.table(columns, schema=PAIR), row_group_size=_GROUP)
                yield first, second

    def all_triples(self, rows: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Write all triples in order, and hand each batch out, with how many there are so far."""
        numbers = np.array([p.number for p in self._predicates], dtype=np.int32)
        subjects, objects = Tally(), Tally()
        with pq.ParquetWriter(self._path / "triples.parquet", TRIPLE, use_dictionary=False) as writer:
            for part in pieces(self._triples.read(), rows):
                s, o = part >> (_TERM_BITS + _PREDICATE_BITS), part & ((1 << _TERM_BITS) - 1)
                predicates = numbers[(part >> _TERM_BITS) & ((1 << _PREDICATE_BITS) - 1)]
                batch = pa.record_batch([s.astype(np.int32), predicates, o.astype(np.int32)], schema=TRIPLE)
                writer.write_batch(batch)
                subjects.new(s)
                yield subjects.rows, batch
        for part in self._objects.read():
            objects.new(part)
        self._all = Predicate(
            None, subjects.rows, subjects.different, objects.different, objects.low, objects.high
        )

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
