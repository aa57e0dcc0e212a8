"""``hg.to_parquet("out/orders")``: a folder of Parquet files that is whole at any moment.

A part is written under a hidden temporary name and renamed when it is complete, so a reader never sees
half a file; sorted by name, the parts are in the order of the results.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.connectors.sink import Sink, Writer
from headgate.errors import SinkError

PART_ROWS = 1_000_000
PART_BYTES = 128 * 1024 * 1024
_PART = re.compile(r"part-(\d+)\.parquet")


class ParquetSink(Sink):
    """Writes parts of about a million rows or 128 MB (in memory), whichever comes first."""

    def __init__(self, path: str, overwrite: bool, append: bool) -> None:
        self.path: str = path
        self.overwrite = overwrite
        self.append = append

    def open(self, query: str, schema: pa.Schema) -> Writer:
        folder = Path(self.path)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            present = sorted(p for p in folder.iterdir() if not p.name.startswith("."))
            first = self._make_room(query, present)
        except OSError as error:
            raise _cannot(query, self.path, error) from error
        return ParquetWriter(query, folder, schema, first)

    def _make_room(self, query: str, present: list[Path]) -> int:
        """Number of the first part to write."""
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
            for part in present:
                part.unlink()
            return 0
        numbers = [int(match[1]) for p in present if (match := _PART.fullmatch(p.name))]
        return max(numbers, default=-1) + 1


class ParquetWriter(Writer):
    """One query's parts, one after the other."""

    def __init__(self, query: str, folder: Path, schema: pa.Schema, first: int) -> None:
        self._query = query
        self._folder = folder
        self._schema = schema
        self._first = self._number = first
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
            self._writer = pq.ParquetWriter(str(self._temporary), self._schema)
            self._rows = self._bytes = 0
        return self._writer

    def _finish_part(self) -> None:
        assert self._writer is not None
        assert self._temporary is not None
        self._writer.close()
        part = self._folder / f"part-{self._number:06d}.parquet"
        if part.exists():
            raise SinkError(
                f"'{part.name}' was written by somebody else meanwhile; give each query its own folder."
            )
        os.rename(self._temporary, part)
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


def to_parquet(path: str | os.PathLike[str], *, overwrite: bool = False, append: bool = False) -> ParquetSink:
    """A sink that writes the folder ``path`` as Parquet files whose sorted names give the order.

    A folder that is not empty is refused unless ``overwrite`` replaces its Parquet files or ``append``
    adds to them.
    """
    if overwrite and append:
        raise SinkError("to_parquet: pass overwrite=True or append=True, not both.")
    name = os.fspath(path)
    if os.path.exists(name) and not os.path.isdir(name):
        raise SinkError(f"to_parquet: '{name}' is a file; give a folder.")
    return ParquetSink(name, overwrite, append)
