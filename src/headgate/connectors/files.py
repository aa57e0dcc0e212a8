"""``hg.from_files("data/clicks")``: files in a folder, read one after the other in bounded memory."""

from __future__ import annotations

import glob
import os
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.checkpoint.places import local_path
from headgate.connectors import formats
from headgate.connectors.parquet_scan import Scan
from headgate.connectors.refused import has_refused
from headgate.connectors.source import Chunk, Cutter, Reader, Source, Wait
from headgate.errors import PipelineError, SourceError, nearest
from headgate.graph.needs import Needs, everything
from headgate.graph.schema import normalise, normalise_batch

_CHECK_AHEAD = 1_000
"""Parquet files whose footers are checked when the pipeline is built; the others when they are opened."""
ENOUGH = 32_768
"""Rows of a row group that make a packet of their own: fewer are copied together with the next group's."""


class FileSource(Source):
    """A file, a folder (with its subfolders, sorted by path) or a glob."""

    path: str

    def __init__(
        self,
        path: str,
        format: formats.Format,
        schema: pa.Schema,
        follow: bool,
        added: frozenset[str] = frozenset(),
    ) -> None:
        self.path: str = path
        self.format = format
        self.schema = schema
        self.added = added
        """Columns that came later: older files lack them, and their rows have null there."""
        self.finite = not follow
        self.live = follow

    @property
    def refuses(self) -> bool:  # type: ignore[override]
        return self.format.refuses

    def files(self) -> list[str]:
        """The files there are now, sorted by path."""
        return _list(self.path)

    def expected(self, found: pa.Schema) -> pa.Schema:
        """The columns that a file which has those of ``found`` must have."""
        return _without(self.schema, self.added.difference(found.names))

    @property
    def rows(self) -> int:
        """How many rows the files' footers promise; 0 where a format has none."""
        files = self.files()[:_CHECK_AHEAD] if self.format.name == "parquet" else []
        return sum(pq.read_metadata(file).num_rows for file in files)

    def batches(self, file: str) -> Iterator[pa.RecordBatch]:
        """The rows of one file, in the types of ``schema``."""
        try:
            for batch in self.format.batches(file, self.schema):
                yield batch if has_refused(batch) else normalise_batch(batch, self.schema)
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            raise SourceError(formats.explain(file, error)) from error

    def open(self) -> Reader:
        return _FileReader(self) if self.finite else _FollowReader(self)


class _Files:
    """The rows of some files, one file after the other."""

    def __init__(self, source: FileSource, files: Sequence[str], needs: Needs, skip: int = 0) -> None:
        self._source, self._files = source, files
        self._given = skip
        self._scans = source.format.has_footer
        self._batches = self._scan(needs, skip) if self._scans else self._in_turn()
        self._cutter = Cutter(self._batches)

    def _scan(self, needs: Needs, skip: int) -> Any:
        expected = self._source.expected

        def check(file: str, found: pa.Schema) -> None:
            formats.check_schema(file, found, expected(found))

        return Scan(self._files, needs, check, skip).batches()

    def _in_turn(self) -> Any:
        return (batch for file in self._files for batch in self._source.batches(file))

    def take(self, rows: int) -> pa.RecordBatch | None:
        """Some rows; fewer than were asked for if more would have to be copied.  None: there are no more."""
        batch = self._cutter.take(rows, min(rows, ENOUGH) if self._scans else rows)
        self._given += 0 if batch is None else batch.num_rows
        return batch

    def narrowed(self, needs: Needs, back: int) -> _Files:
        """The same from here on, or from some rows before, with other columns."""
        self.close()
        return _Files(self._source, self._files, needs, self._given - back)

    def close(self) -> None:
        self._batches.close()


class _FileReader(Reader):
    def __init__(self, source: FileSource) -> None:
        self.selective = source.format.has_footer
        self._files = _Files(source, source.files(), everything(source.schema))

    def poll(self, now: float, max_rows: int) -> Chunk | Wait | None:
        batch = self._files.take(max_rows)
        return None if batch is None else Chunk(batch, float(now))

    def narrow(self, needs: Needs, back: int) -> None:
        self._files = self._files.narrowed(needs, back)

    def close(self) -> None:
        self._files.close()


class _FollowReader(Reader):
    """Each file once, in the order of (modification time, path) as files appear."""

    def __init__(self, source: FileSource) -> None:
        self.selective = source.format.has_footer
        self._source = source
        self._needs = everything(source.schema)
        self._seen: set[str] = set()
        self._files: _Files | None = None

    def poll(self, now: float, max_rows: int) -> Chunk | Wait | None:
        while True:
            if self._files is None:
                new = self._new_files()
                if not new:
                    return Wait(None)
                self._seen.update(new)
                self._files = _Files(self._source, new, self._needs)
            batch = self._files.take(max_rows)
            if batch is not None:
                return Chunk(batch, float(now))
            self._files = None

    def _new_files(self) -> list[str]:
        dated = []
        for file in self._source.files():
            if file not in self._seen:
                try:
                    dated.append((os.stat(file).st_mtime_ns, file))
                except FileNotFoundError:
                    continue  # removed or renamed since it was listed
        return [file for _, file in sorted(dated)]

    def narrow(self, needs: Needs, back: int) -> None:
        self._needs = needs
        if self._files is not None:
            self._files = self._files.narrowed(needs, back)

    def close(self) -> None:
        if self._files is not None:
            self._files.close()


def from_files(
    path: str | os.PathLike[str],
    format: str | None = None,
    schema: pa.Schema | None = None,
    follow: bool = False,
) -> FileSource:
    """A source of the rows in the file, folder or glob ``path``.

    ``format`` is ``parquet``, ``json`` (one object per line) or ``csv`` (with a header line); by default it
    is guessed from the files' names.  ``schema`` is by default that of the first file.  With ``follow`` the
    folder is watched and each new file read once; move files into it, since a file is read as soon as its
    name appears, and put new rows into new files.  Files that were read may be removed.  Names that begin
    with ``.`` or ``_`` are left out.  A column of ``schema`` that the last parquet file has may be missing in
    others, whose rows have null there.

    A line of JSON that is no object of the schema (broken, of another type, not UTF-8, more than 1,000 levels
    deep) goes to the application's dead letters with its file and number; without dead letters it stops the
    queries that read the source.
    """
    name = local_path(path, "from_files", SourceError)
    files = _list(name)
    if follow and os.path.isfile(name):
        raise SourceError(f"from_files: '{name}' is a file; follow=True watches a folder or a glob.")
    if not files and not follow:
        raise SourceError(f"from_files: there are no files in '{name}'.")
    chosen = _format(name, files, format)
    if schema is None:
        if not files:
            raise SourceError(
                f"from_files: there is no file in '{name}' yet to take the schema from; pass schema=."
            )
        promised = _file_schema(chosen, files[0])
    else:
        promised = normalise(schema)
    added = frozenset[str]()
    for file in files[: _CHECK_AHEAD if chosen.has_footer else 1]:
        try:
            if schema is not None and chosen.has_footer:
                added |= set(promised.names).difference(chosen.schema(file).names)
                # The last file tells whether a column came later, or is a mistake.
                added -= set(promised.names).difference(chosen.schema(files[-1]).names)
            chosen.check(file, _without(promised, added))
        except (OSError, pa.ArrowException) as error:
            raise SourceError(formats.explain(file, error)) from error
    return FileSource(name, chosen, promised, follow, added)


def _file_schema(format: formats.Format, file: str) -> pa.Schema:
    try:
        return normalise(format.schema(file))
    except (OSError, pa.ArrowException) as error:
        raise SourceError(formats.explain(file, error)) from error
    except PipelineError as error:
        raise SourceError(f"File '{file}': {error}") from error


def _without(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    return pa.schema([field for field in schema if field.name not in names]) if names else schema


def _list(path: str) -> list[str]:
    if os.path.isfile(path):
        return [path]
    if os.path.isdir(path):
        found = []
        for folder, subfolders, names in os.walk(path):
            subfolders[:] = [s for s in subfolders if not s.startswith((".", "_"))]
            found += [os.path.join(folder, name) for name in names if not name.startswith((".", "_"))]
        return sorted(found)
    if glob.has_magic(path):
        return sorted(f for f in glob.glob(path, recursive=True) if os.path.isfile(f))
    parent = os.path.dirname(path) or "."
    siblings = sorted(os.listdir(parent)) if os.path.isdir(parent) else []
    hint = nearest(os.path.basename(path.rstrip(os.sep)), siblings)
    raise SourceError(f"from_files: there is no file or folder '{path}'.{hint}")


def _format(path: str, files: Sequence[str], name: str | None) -> formats.Format:
    if name is not None:
        known = formats.BY_NAME.get(name.lower()) if isinstance(name, str) else None
        if known is None:
            raise SourceError(
                f"from_files: unknown format {name!r}.{nearest(str(name), formats.BY_NAME)} "
                f"Known: {', '.join(formats.BY_NAME)}."
            )
        return known
    guesses: dict[str, tuple[formats.Format, str]] = {}
    for file in files or [path]:
        guess = formats.guess(file)
        if guess is None:
            raise SourceError(
                f"from_files: cannot tell the format of '{file}' from its name; "
                f"pass format= ({', '.join(formats.BY_NAME)})."
            )
        guesses.setdefault(guess.name, (guess, file))
    if len(guesses) > 1:
        (_, one), (_, other) = list(guesses.values())[:2]
        raise SourceError(
            f"from_files: '{path}' holds files of several formats ('{one}', '{other}'); "
            "name a glob such as '*.csv'."
        )
    return next(iter(guesses.values()))[0]
