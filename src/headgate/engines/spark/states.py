"""State in a Python worker: kept from step to step, known by version, and written as changes.

A task takes an entry out of the cache before it changes it and puts it back under the new version, so that a
step which fails leaves no half-changed state behind: the next one finds no entry, or one of another version,
and reads the files that the commit log names.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headgate.engines.spark.position import StatePart
from headgate.errors import RunError
from headgate.graph.operator import Operator

_cache: dict[tuple[str, str], tuple[str, Any]] = {}


def take(root: str, key: str, operator: Operator, version: str, parts: Sequence[StatePart]) -> Any:
    """The state of a node at a version; nobody else has it until it is put back."""
    known, state = _cache.pop((root, key), ("", None))
    if state is not None and known == version:
        return state
    missing = _since(parts, known) if state is not None else None
    if missing is None:
        last = max((i for i, part in enumerate(parts) if part.full), default=-1)
        state = operator.restore([load(root, parts[last])]) if last >= 0 else operator.open()
        missing = parts[last + 1 :]
        assert state is not None
        state.track()
    for part in missing:
        state.apply(load(root, part))
    return state


def put(root: str, key: str, version: str, state: Any) -> None:
    _cache[root, key] = (version, state)


def _since(parts: Sequence[StatePart], version: str) -> Sequence[StatePart] | None:
    """The changes that a state of that version lacks; None if it cannot be brought up to date."""
    for place, part in enumerate(parts):
        if part.version == version:
            after = parts[place + 1 :]
            return None if any(p.full for p in after) else after
    return None


def load(root: str, part: StatePart) -> pa.Table:
    path = os.path.join(root, part.file)
    try:
        with open(path, "rb") as file:
            file.seek(part.offset)
            data = file.read(part.length)
    except FileNotFoundError as error:
        raise RunError(
            f"checkpoint '{root}': state file {part.file} is missing; restore the folder, or start with a "
            "new checkpoint."
        ) from error
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all()


class StateFile:
    """The one file of a task and step: the changes of every state that it touched."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._sink = pa.BufferOutputStream()
        self._at = 0

    def add(self, state: Any, full: bool, version: str, buckets: int) -> StatePart:
        table = state.snapshot() if full else state.changes()
        if full:
            state.changes()  # what is in the snapshot is no longer new
        with pa.ipc.new_stream(self._sink, table.schema) as writer:
            writer.write_table(table)
        start, self._at = self._at, self._sink.tell()
        return StatePart(self.name, start, self._at - start, full, 0, buckets, buckets, version)

    def bytes(self) -> memoryview | None:
        return memoryview(self._sink.getvalue()) if self._at else None
