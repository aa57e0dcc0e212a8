"""``hg.to_parquet("out/orders")``: a folder of Parquet files that is whole at any moment.

A part is written under a hidden temporary name and gets its own when it is complete, so a reader never sees
half a file; sorted by name, the parts of a query are in the order of its results.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.checkpoint.disk import make_folder, sync_folder
from headgate.checkpoint.places import local_path
from headgate.connectors.folder import give_name, next_number, part_name
from headgate.connectors.sink import Sink, Writer
from headgate.errors import SinkError

PART_ROWS = 1_000_000
PART_BYTES = 128 * 1024 * 1024
_METADATA = "_spark_metadata"
_HIDDEN = (".part-", ".staged-")
"""Parts that are not complete; a run that was killed leaves them."""


class ParquetSink(Sink):
    """Writes parts of about a million rows or 128 MB (in memory), whichever comes first."""

    def __init__(self, path: str, overwrite: bool, append: bool, order: str = "serial") -> None:
        self.path: str = path
        self.order = order
        self.overwrite = overwrite
        self.append = self.shares = append

    def open(self, query: str, schema: pa.Schema) -> Writer:
        first = self.claim(query)
        # Absolute, since Arrow would take a relative path with a colon as a URL.
        return ParquetWriter(query, Path(os.path.abspath(self.path)), schema, first, self.append)

    def claim(self, query: str, *, durable: bool = False) -> int:
        """Make the folder ready for the first part, or refuse it; the number of that part.

        ``durable``: a power cut does not bring back what was deleted.
        """
        try:
            make_folder(self.path, durable=durable)
            present = sorted(p for p in Path(self.path).iterdir() if not p.name.startswith("."))
            first = self._make_room(query, present)
            if durable:
                sync_folder(self.path)
        except OSError as error:
            raise _cannot(query, self.path, error) from error
        return first

    def _make_room(self, query: str, present: list[Path]) -> int:
        if self.append and any(p.name == _METADATA for p in present):
            raise SinkError(
                f"Query '{query}': Structured Streaming has written to '{self.path}'. Spark reads only the "
                f"files that its '{_METADATA}' there names, so it would not see those that are added. Choose "
                f"another folder, or move '{_METADATA}' away once no query of Spark's writes there."
            )
        if present and not (self.overwrite or self.append):
            raise SinkError(
                f"Query '{query}': the folder '{self.path}' is not empty (it holds '{present[0].name}'); "
                "choose another, or pass append=True to add to it or overwrite=True to replace its files."
            )
        if self.overwrite:
            foreign = [
                p for p in present if not (p.is_file() and (p.suffix == ".parquet" or p.name == "_SUCCESS"))
            ]
            if foreign:
                raise SinkError(
                    f"Query '{query}': '{self.path}' holds '{foreign[0].name}', which is not a Parquet file; "
                    "overwrite=True deletes only Parquet files. Move it away or choose another folder."
                )
            leftovers = [p for p in Path(self.path).iterdir() if p.name.startswith(_HIDDEN)]
            for part in (*present, *leftovers):
                part.unlink(missing_ok=True)
            return 0
        return next_number(p.name for p in present)


def with_dictionary(schema: pa.Schema) -> list[str]:
    """The columns whose values are likely to repeat.

    Floats and times seldom do, and looking for repetitions takes a third of the time of writing them.
    """
    rare = (pa.types.is_floating, pa.types.is_timestamp)
    return [field.name for field in schema if not any(is_rare(field.type) for is_rare in rare)]


class ParquetWriter(Writer):
    """One query's parts, one after the other."""

    def __init__(self, query: str, folder: Path, schema: pa.Schema, first: int, shared: bool) -> None:
        self._query = query
        self._folder = folder
        self._schema = schema
        self._first = self._number = first
        self._shared = shared
        """Others may add parts to the folder meanwhile."""
        self._writer: pq.ParquetWriter | None = None
        self._temporary: Path | None = None
        self._rows = self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        place = 0
        while place < batch.num_rows:
            piece = batch.slice(place, PART_ROWS - self._rows)
            try:
                self._open_part().write_batch(piece)
                self._rows += piece.num_rows
                self._bytes += piece.nbytes
                if self._rows >= PART_ROWS or self._bytes >= PART_BYTES:
                    self._finish_part()
            except (OSError, pa.ArrowException, SinkError) as error:
                self._discard()
                raise _cannot(self._query, str(self._folder), error) from error
            place += piece.num_rows

    def close(self, error: bool) -> None:
        """Make the last part visible; a query without results leaves one empty file, unless it failed."""
        try:
            if self._writer is None and self._number == self._first and not error:
                self._open_part()
            if self._writer is not None:
                self._finish_part()
        except (OSError, pa.ArrowException, SinkError) as problem:
            self._discard()
            raise _cannot(self._query, str(self._folder), problem) from problem

    def _open_part(self) -> pq.ParquetWriter:
        if self._writer is None:
            self._temporary = self._folder / f".part-{self._number:06d}-{uuid.uuid4().hex}.tmp"
            self._writer = pq.ParquetWriter(
                str(self._temporary), self._schema, use_dictionary=with_dictionary(self._schema)
            )
            self._rows = self._bytes = 0
        return self._writer

    def _finish_part(self) -> None:
        assert self._writer is not None
        assert self._temporary is not None
        self._writer.close()
        while not give_name(self._temporary, self._folder / part_name(self._number)):
            if not self._shared:
                raise SinkError(
                    f"'{part_name(self._number)}' was written by another query meanwhile; give each query "
                    "its own folder, or pass append=True for both."
                )
            self._number += 1
        with contextlib.suppress(FileNotFoundError):
            self._temporary.unlink()
        self._writer = self._temporary = None
        self._rows = self._bytes = 0
        self._number += 1

    def _discard(self) -> None:
        with contextlib.suppress(OSError, pa.ArrowException):
            if self._writer is not None:
                self._writer.close()
        with contextlib.suppress(OSError):
            if self._temporary is not None:
                self._temporary.unlink()
        self._writer = self._temporary = None


def _cannot(query: str, path: str, error: Exception) -> SinkError:
    return SinkError(f"Query '{query}': cannot write to '{path}': {error}")


def to_parquet(
    path: str | os.PathLike[str], *, overwrite: bool = False, append: bool = False, order: str = "serial"
) -> ParquetSink:
    """A sink that writes the folder ``path`` as Parquet files whose sorted names give the order.

    ``order="key"`` gives up the order of serial execution for that of each key: results of one key (of the
    ``key_by`` before) stay in order, and Spark need not put those of different keys together.

    A folder that is not empty is refused unless ``overwrite`` replaces its Parquet files or ``append``
    adds to them.  Several queries may write to one folder if all of them append.
    """
    if overwrite and append:
        raise SinkError("to_parquet: pass overwrite=True or append=True, not both.")
    if order not in ("serial", "key"):
        raise SinkError(f"to_parquet(order={order!r}): choose 'serial' or 'key'.")
    name = local_path(path, "to_parquet", SinkError)
    if os.path.exists(name) and not os.path.isdir(name):
        raise SinkError(f"to_parquet: '{name}' is a file; give a folder.")
    return ParquetSink(name, overwrite, append, order)
