"""``hg.to_console()``: results on the screen, only as many as a person can read."""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa
from rich.console import Console
from rich.text import Text

from headgate.connectors.sink import Sink, Writer
from headgate.errors import SinkError, printable


class ConsoleSink(Sink):
    """Prints at most so many rows per second and says how many it left out."""

    def __init__(self, rows_per_second: int) -> None:
        self.rows_per_second = rows_per_second

    def open(self, query: str, schema: pa.Schema) -> Writer:
        return ConsoleWriter(query, self.rows_per_second, Console(), time.monotonic)


class ConsoleWriter(Writer):
    """Counts rows per second of ``clock``; one line per row: the query, then column=value."""

    def __init__(self, query: str, limit: int, console: Console, clock: Callable[[], float]) -> None:
        self._query = query
        self._limit = limit
        self._console = console
        self._clock = clock
        self._second = -1
        self._printed = 0
        self._left_out = 0

    def write(self, batch: pa.RecordBatch) -> None:
        second = int(self._clock())
        if second != self._second:
            self._note()
            self._second, self._printed = second, 0
        rows = batch.slice(0, max(0, self._limit - self._printed))
        for row in rows.to_pylist():
            line = Text(printable(self._query), style="bold")
            for name, value in row.items():
                line.append(f"  {printable(name)}=", style="dim").append(printable(value), style="none")
            self._console.print(line, soft_wrap=True)
        self._printed += rows.num_rows
        self._left_out += batch.num_rows - rows.num_rows

    def close(self, error: bool) -> None:
        self._note()

    def _note(self) -> None:
        if self._left_out:
            rows = "1 row" if self._left_out == 1 else f"{self._left_out:,} rows"
            self._console.print(
                Text(f"{printable(self._query)}  ... {rows} left out", style="dim italic"), soft_wrap=True
            )
            self._left_out = 0


def to_console(rows_per_second: int = 20) -> ConsoleSink:
    """A sink that prints results, at most ``rows_per_second`` of them, and notes how many it left out."""
    if isinstance(rows_per_second, bool) or not isinstance(rows_per_second, int) or rows_per_second < 1:
        raise SinkError(f"to_console: rows_per_second must be at least 1, not {rows_per_second!r}.")
    return ConsoleSink(rows_per_second)
