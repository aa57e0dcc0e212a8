"""Row groups of parquet files: only the columns and groups that are needed, each decoded once.

A file is a sequence of row groups.  A few of them are decoded ahead by threads of the scan's own while the
engine works on those before; Arrow holds no lock of the interpreter's meanwhile.  What waits is bounded in
bytes.  Batches leave in order, cut out of their row groups without a copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from headgate.connectors import formats
from headgate.errors import SourceError
from headgate.graph.needs import Needs
from headgate.graph.schema import normal_type, normalise_batch, row_bytes
from headgate.sql.ranges import Bound

READERS = 2
"""Threads that decode."""
AHEAD = 3
"""Row groups that are decoded before they are asked for, at most."""
AHEAD_BYTES = 256 << 20
"""Bytes of them; one that is larger goes alone."""
_NULLS = 1 << 17
"""Null values that are made at a time."""


def decode(opened: pq.ParquetFile, group: int, needs: Needs) -> list[pa.RecordBatch]:
    """The rows of a row group in the types of ``needs.schema``; what is not needed is null."""
    rows = opened.metadata.row_group(group).num_rows
    stored = opened.schema_arrow.names  # an older file may lack columns that came later
    names = [name for name in needs.names if name in stored] if wanted(opened, group, needs) else []
    if not names:
        return _filled({}, rows, needs.schema)
    table = opened.read_row_group(group, columns=names, use_threads=False)
    narrow = pa.schema([needs.schema.field(name) for name in names])
    batches = [normalise_batch(batch, narrow) for batch in table.to_batches()]
    if len(names) == len(needs.schema):
        return batches
    filled = []
    for batch in batches:
        filled += _filled(dict(zip(names, batch.columns, strict=True)), batch.num_rows, needs.schema)
    return filled


def _filled(columns: dict[str, pa.Array], rows: int, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Batches of the whole schema; absent columns are null.

    All null columns share a few values, so that a group of a million rows does not need a million nulls for
    every column that no box reads.
    """
    batches = []
    for first in range(0, rows, _NULLS):
        count = min(_NULLS, rows - first)
        arrays = [
            columns[field.name].slice(first, count) if field.name in columns else nulls(field.type, count)
            for field in schema
        ]
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return batches


def nulls(type_: pa.DataType, rows: int) -> pa.Array:
    """``rows`` nulls, at most ``_NULLS``; the values are shared."""
    return _all_nulls(type_).slice(0, rows)


@lru_cache(maxsize=64)
def _all_nulls(type_: pa.DataType) -> pa.Array:
    return pa.nulls(_NULLS, type_)


# --- which row groups -----------------------------------------------------------------------------------


def wanted(opened: pq.ParquetFile, group: int, needs: Needs) -> bool:
    """Whether some row of a row group can pass one of the filters that stand before everything else."""
    if not needs.filters:
        return True
    asked = frozenset[str]().union(*(ranges.columns for ranges in needs.filters))
    bounds = _bounds(opened, group, asked, needs.schema)
    return any(ranges.possible(bounds) for ranges in needs.filters)


def _bounds(opened: pq.ParquetFile, group: int, names: frozenset[str], schema: pa.Schema) -> dict[str, Bound]:
    """What the file says of some columns of a row group."""
    found: dict[str, Bound] = {}
    metadata = opened.metadata.row_group(group)
    stored = opened.schema_arrow
    for place in range(metadata.num_columns):
        column = metadata.column(place)
        name = column.path_in_schema
        if name not in names or not _as_stored(stored.field(name).type, schema.field(name).type):
            continue
        known = column.statistics
        if known is not None:
            ends = (known.min, known.max) if known.has_min_max else (None, None)
            found[name] = Bound(metadata.num_rows, known.null_count if known.has_null_count else None, *ends)
    return found


def _as_stored(stored: pa.DataType, type_: pa.DataType) -> bool:
    """Whether the ends that a file states are those of the values that are read.

    Not so for nanoseconds, which are cut to microseconds, and for unsigned and wide numbers.
    """
    if pt.is_timestamp(stored):
        return bool(stored.unit in ("us", "ms")) and normal_type(stored, "") == type_
    return bool(stored == type_ or pt.is_large_string(stored))


# --- reading ahead --------------------------------------------------------------------------------------


class _Group(NamedTuple):
    """A row group that is being decoded."""

    bytes: int
    skip: int
    """Rows of it that are passed over."""
    rows: Future[list[pa.RecordBatch]]


class Scan:
    """One pass over the row groups of some files, from a row on.

    ``check`` is called with every file's name and schema before it is read.
    """

    def __init__(
        self, files: Sequence[str], needs: Needs, check: Callable[[str, pa.Schema], None], skip: int = 0
    ) -> None:
        """``skip``: rows that are passed over."""
        self._needs = needs
        self._check = check
        self._tasks = self._listed(files, skip)
        self._next: tuple[int, int, Callable[[], list[pa.RecordBatch]]] | None = None
        self._ahead: deque[_Group] = deque()
        self._pool: ThreadPoolExecutor | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, in order; what is wrong with a file is raised where its rows would come."""
        try:
            self._read_ahead()
            while self._ahead:
                group = self._ahead.popleft()
                batches = group.rows.result()
                self._read_ahead()
                skip = group.skip
                for batch in batches:
                    passed = min(skip, batch.num_rows)
                    skip -= passed
                    if passed < batch.num_rows:
                        yield batch.slice(passed)
        finally:
            self.close()

    def _listed(
        self, files: Sequence[str], skip: int
    ) -> Iterator[tuple[int, int, Callable[[], list[pa.RecordBatch]]]]:
        """Every row group: the bytes that it will take, the rows of it to pass over, and how to decode it."""
        for file in files:
            try:
                mapped = pa.memory_map(file)
                opened = pq.ParquetFile(mapped, pre_buffer=False)
                self._check(file, opened.schema_arrow)
            except Exception as error:
                yield 0, 0, partial(_fail, file, error)
                return
            metadata = opened.metadata
            for group in range(opened.num_row_groups):
                rows = metadata.row_group(group).num_rows
                passed = min(skip, rows)
                skip -= passed
                if passed < rows:
                    task = partial(_decoded, file, mapped, metadata, group, self._needs)
                    yield _size(opened, group, self._needs), passed, task

    def _read_ahead(self) -> None:
        while len(self._ahead) < AHEAD:
            self._next = self._next or next(self._tasks, None)
            if self._next is None:
                return
            size, skip, task = self._next
            if self._ahead and size + sum(group.bytes for group in self._ahead) > AHEAD_BYTES:
                return
            self._next = None
            if self._pool is None:
                self._pool = ThreadPoolExecutor(READERS, "headgate-reader")
            self._ahead.append(_Group(size, skip, self._pool.submit(task)))

    def close(self) -> None:
        """Forget what was read ahead."""
        self._ahead.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _decoded(file: str, mapped: pa.MemoryMappedFile, metadata: Any, group: int, needs: Needs) -> list[Any]:
    """A reader of its own for every group: two threads may be at one file."""
    try:
        return decode(pq.ParquetFile(mapped, metadata=metadata, pre_buffer=False), group, needs)
    except Exception as error:
        return _fail(file, error)


def _fail(file: str, error: Exception) -> list[pa.RecordBatch]:
    if isinstance(error, OSError | pa.ArrowException):
        raise SourceError(formats.explain(file, error)) from error
    raise error


def _size(opened: pq.ParquetFile, group: int, needs: Needs) -> int:
    """About how many bytes the needed columns of a row group take: as stored, or by their types."""
    metadata: Any = opened.metadata.row_group(group)
    columns = [metadata.column(place) for place in range(metadata.num_columns)]
    needed = [column for column in columns if column.path_in_schema.split(".")[0] in needs.columns]
    stored = sum(int(column.total_uncompressed_size) for column in needed)
    typed = row_bytes(pa.schema([needs.schema.field(name) for name in needs.names])) * metadata.num_rows
    return int(max(stored, typed))
