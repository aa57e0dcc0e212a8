"""Tables as people have them: Arrow, pandas, files, any finite source, or a function that gives one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from headgate.connectors.files import from_files
from headgate.connectors.source import Chunk, Source
from headgate.errors import PipelineError, SourceError


class _All:
    """All rows of a finite source, each time it is called."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __call__(self) -> pa.Table:
        reader, batches = self._source.open(), []
        try:
            while isinstance(chunk := reader.poll(0.0, 1 << 20), Chunk):
                batches.append(chunk.batch)
        finally:
            reader.close()
        if chunk is not None:
            raise SourceError(f"{self._source!r} has no rows yet, so it cannot be looked up.")
        return pa.Table.from_batches(batches, schema=self._source.schema)


class _Converted:
    """A user's function whose result may be a pandas DataFrame."""

    def __init__(self, read: Callable[[], Any]) -> None:
        self._read = read

    def __call__(self) -> Any:
        return _arrow(self._read())


def as_table(given: Any, what: str) -> Any:
    """A table, or a function that reads it; what is neither is given back."""
    if isinstance(given, (str, Path)):
        if not any(letter in str(given) for letter in "*?[") and not Path(given).exists():
            raise SourceError(f"{what}: there is no file {given}.")
        return _All(from_files(given))
    if isinstance(given, Source):
        if not given.finite or type(given).open is Source.open:
            raise PipelineError(f"{what}: a table must end; {given!r} goes on. Join it as a stream instead.")
        return _All(given)
    if callable(given):
        return _Converted(given)
    return _arrow(given)


def _arrow(given: Any) -> Any:
    """A pandas DataFrame as an Arrow table, without its index."""
    if type(given).__module__.startswith("pandas.") and hasattr(given, "columns"):
        return pa.Table.from_pandas(given, preserve_index=False)
    return given
