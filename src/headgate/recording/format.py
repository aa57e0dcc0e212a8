"""The file of a recording: one Arrow stream of batches, so that what was written before a kill can be read.

The schema's metadata says what was recorded (``headgate`` → JSON: version, network, policy, machine).  A row
is one thing that happened:

- ``ARRIVAL``: a packet was admitted at ``at``.  ``who`` is the source; ``rows``; ``out``: its bytes;
  ``seconds`` and ``overhead``: arrivals of its first and its last row; ``values``: of all rows, if exact.
- ``CALL``: of a box (``who``), begun at ``at``.  ``rows`` and ``out``: tuples in and out; ``seconds`` inside
  the operator and ``overhead`` apart from it; ``values``: if exact, by tuple the number of its results; else,
  of few results, between which shares of the call their causes lie.  Calls of one superbox follow each other;
  the first has the overhead of all.
- ``WAKE``: a parked worker took ``seconds`` to begin a call at ``at``.
- ``STEP``: on Spark, begun at ``at``; ``text`` has its phases.
- ``NETWORK``, ``CHANGE``, ``SAMPLE``, ``END``: ``text``, as JSON.

``more`` is what leaves by a box's second output, ``packets`` counts a call's packets, -1 marks the call that
closes a box at the end.  On threads, ``cpu`` is the processor time of what ``seconds`` lasted, ``own`` that
of the ``overhead``; of an arrival, ``cpu`` is the feeder's since the last and ``own`` when it was read.
Elsewhere they are 0.
"""

from __future__ import annotations

import json
import threading
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.errors import PipelineError

VERSION = 2
ARRIVAL, CALL, WAKE, STEP, NETWORK, CHANGE, SAMPLE, END = range(8)
_NUMBERS = (
    *("kind", "at", "who", "worker", "rows", "out", "more", "packets"),
    *("seconds", "overhead", "cpu", "own"),
)
_TYPES = (pa.int8(), pa.float64(), *[pa.int32()] * 2, *[pa.int64()] * 3, pa.int32(), *[pa.float64()] * 4)
SCHEMA = pa.schema(
    [*zip(_NUMBERS, _TYPES, strict=True), ("values", pa.list_(pa.float64())), ("text", pa.string())]
)
_KEY = b"headgate"
FLUSH_EVERY = 0.5
"""Seconds between two batches; a kill loses no more than these."""
MOST_ROWS = 50_000
"""Rows that wait at most before a batch is written at once."""
Column = npt.NDArray[np.float64]


class Writer:
    """Writes rows in batches from a thread of its own; ``add`` is what a run pays."""

    def __init__(self, path: str | Path, about: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.error: Exception | None = None
        self._schema = SCHEMA.with_metadata({_KEY: json.dumps({"version": VERSION, **about}).encode()})
        try:
            self._file = self.path.open("wb")
        except OSError as error:
            raise PipelineError(f"The recording cannot be written to '{path}': {error.strerror}.") from None
        self._stream = pa.ipc.new_stream(
            self._file, self._schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
        )
        self._file.flush()
        self._lock = threading.Lock()
        self._begin()
        self._wanted = threading.Event()
        self._over = False
        self._thread = threading.Thread(target=self._work, name="headgate-recorder", daemon=True)
        self._thread.start()

    def _begin(self) -> None:
        self._numbers = array("d")
        self._count = 0
        self._values: dict[int, Sequence[float] | Column] = {}
        self._texts: dict[int, str] = {}

    def add(
        self,
        numbers: tuple[float, ...],
        values: Sequence[float] | Column | None = None,
        text: str | None = None,
    ) -> None:
        """One row: kind, at, who, worker, rows, out, more, packets, seconds, overhead, cpu, own."""
        with self._lock:
            if values is not None:
                self._values[self._count] = values
            if text is not None:
                self._texts[self._count] = text
            self._numbers.extend(numbers)
            self._count += 1
        if self._count >= MOST_ROWS:
            self._wanted.set()

    def note(self, kind: int, at: float, what: Any, who: int = -1) -> None:
        """A row of text."""
        self.add((kind, at, who, -1, 0, 0, 0, 0, *[0.0] * 4), None, json.dumps(what))

    def _work(self) -> None:
        while not self._over:
            self._wanted.wait(FLUSH_EVERY)
            self._wanted.clear()
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            numbers, count = self._numbers, self._count
            values, texts = self._values, self._texts
            self._begin()
        if not count or self.error is not None:
            return
        try:
            self._stream.write_batch(_batch(numbers, count, values, texts))
            self._file.flush()
        except (OSError, pa.ArrowException) as error:  # the run goes on without its recording
            self.error = error

    def close(self) -> None:
        """Write what is left; an error says why the recording is not complete."""
        self._over = True
        self._wanted.set()
        self._thread.join()
        self._flush()
        try:
            self._stream.close()
            self._file.close()
        except (OSError, pa.ArrowException) as error:
            self.error = self.error or error


def _batch(
    numbers: array[float], count: int, values: Mapping[int, Any], texts: Mapping[int, str]
) -> pa.RecordBatch:
    table = np.frombuffer(numbers, dtype=np.float64).reshape(count, len(_NUMBERS))
    columns: list[pa.Array] = []
    for place, kind in enumerate(_TYPES):
        column = np.ascontiguousarray(table[:, place])
        columns.append(
            pa.array(column if pa.types.is_floating(kind) else column.astype(kind.to_pandas_dtype()))
        )
    columns.append(_lists(values, count))
    columns.append(
        pa.array([texts.get(row) for row in range(count)] if texts else [None] * count, pa.string())
    )
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _lists(values: Mapping[int, Any], count: int) -> pa.Array:
    if not values:
        return pa.nulls(count, SCHEMA.field("values").type)
    lengths = np.zeros(count + 1, dtype=np.int64)
    for row, own in values.items():
        lengths[row + 1] = len(own)
    offsets = np.cumsum(lengths).astype(np.int32)
    missing = np.ones(count, dtype=bool)
    missing[list(values)] = False
    flat = np.concatenate([np.asarray(values[row], dtype=np.float64) for row in sorted(values)])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat), mask=pa.array(missing))


@dataclass
class Recording:
    """A recording as it was read."""

    about: dict[str, Any]
    rows: pa.Table
    whole: bool
    """It has its end: the run was not killed."""

    def of(self, kind: int) -> Rows:
        """The rows of one kind, in the order in which they were written."""
        return Rows(self.rows.filter(pa.array(self.rows["kind"].to_numpy() == kind)))


class Rows:
    """Rows of one kind: ``rows["at"]`` is a column as numbers."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table.combine_chunks()
        self._numbers: dict[str, npt.NDArray[Any]] = {}

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        if name not in self._numbers:
            self._numbers[name] = self._table[name].to_numpy()
        return self._numbers[name]

    def where(self, name: str, value: int) -> Rows:
        """Those of one source, box or worker."""
        return Rows(self._table.filter(pa.array(self[name] == value)))

    def ordered(self, name: str) -> Rows:
        """By a column, equal ones as they were."""
        return Rows(self._table.take(pa.array(np.argsort(self[name], kind="stable"))))

    @property
    def values(self) -> list[Column | None]:
        """By row, the list of numbers, if it has one."""
        column = self._table["values"]
        if column.null_count == len(column):
            return [None] * len(column)
        return [None if one is None else np.asarray(one) for one in column.to_pylist()]

    @property
    def timed_texts(self) -> list[dict[str, Any]]:
        """By row, what its JSON says, and when."""
        return [{"at": at, **text} for at, text in zip(self["at"].tolist(), self.texts, strict=True)]

    @property
    def texts(self) -> list[Any]:
        """By row, what its JSON says."""
        return [None if text is None else json.loads(text) for text in self._table["text"].to_pylist()]


def read(path: str | Path) -> Recording:
    """A recording; an error says what the file is if it is none."""
    where = f"'{path}'"
    if not Path(path).is_file():
        raise PipelineError(f"There is no file {where}; `headgate run --record FILE` writes a recording.")
    try:
        with pa.OSFile(str(path)) as file:
            return _read(file, where)
    except pa.ArrowInvalid as error:
        raise PipelineError(
            f"{where} is not a recording of a run; `headgate run --record FILE` writes one. ({error})"
        ) from None


def _read(file: Any, where: str) -> Recording:
    stream = pa.ipc.open_stream(file)
    about = (stream.schema.metadata or {}).get(_KEY)
    if about is None:
        raise PipelineError(
            f"{where} is an Arrow stream, but not a recording of a run; `headgate run --record FILE` writes "
            "one."
        )
    described = json.loads(about)
    if described.get("version") != VERSION:
        raise PipelineError(
            f"{where} is a recording of version {described.get('version')}; this Headgate reads version "
            f"{VERSION}. Record the run again with it."
        )
    batches: list[pa.RecordBatch] = []
    try:
        batches += iter(stream.read_next_batch, None)
    except StopIteration:
        pass
    except (pa.ArrowInvalid, OSError):
        pass  # the writer was killed in the middle of a batch: those before it are whole
    table = pa.Table.from_batches(batches, SCHEMA) if batches else SCHEMA.empty_table()
    whole = bool(np.any(table["kind"].to_numpy() == END))
    return Recording(described, table, whole)
