"""State in a Python worker: kept from step to step, known by version, and written as changes.

A task takes an entry out of the cache before it changes it and puts it back under the new version, so that a
step which fails leaves no half-changed state behind: the next one finds no entry, or one of another version,
and reads the files that the commit log names.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headgate.checkpoint import checks
from headgate.checkpoint.layouts import fitted
from headgate.checkpoint.position import StatePart
from headgate.checkpoint.storage import Storage
from headgate.graph.operator import Operator
from headgate.graph.shards import buckets_of_state

Shard = tuple[int, int, int]
"""Buckets from the first to the second, out of the third."""

CACHE_BYTES = 1 << 30
"""What a worker keeps of states, by the size of their files; those used last stay."""

_cache: OrderedDict[tuple[str, str, Shard], tuple[str, Any, int]] = OrderedDict()
_lock = threading.Lock()


def take(
    storage: Storage, key: str, operator: Operator, parts: Sequence[StatePart], shard: Shard
) -> tuple[Any, bool]:
    """The state of one shard of a node as its files tell, and whether it was in memory.

    The task that takes it owns it until it is put back.
    """
    mine = [part for part in parts if covers(part) == shard or (_whole(covers(part)) and _whole(shard))]
    if parts and not mine:
        return _gathered(storage, operator, parts, shard), False
    with _lock:
        known, state, _ = _cache.pop((storage.root, key, shard), ("", None, 0))
    if state is not None and known == (mine[-1].version if mine else ""):
        return state, True
    missing = _since(mine, known) if state is not None else None
    found = missing is not None
    if missing is None:
        last = max((i for i, part in enumerate(mine) if part.full), default=-1)
        state = operator.restore([load(storage, mine[last], operator)]) if last >= 0 else operator.open()
        missing = mine[last + 1 :]
        assert state is not None
        state.track()
    for part in missing:
        state.apply(load(storage, part, operator))
    return state, found or not mine


def put(storage: Storage, key: str, shard: Shard, version: str, state: Any, size: int) -> None:
    """Keep a state of about ``size`` bytes under its new version; others may have to go."""
    with _lock:
        _cache[storage.root, key, shard] = (version, state, size)
        held = sum(entry[2] for entry in _cache.values())
        while held > CACHE_BYTES and len(_cache) > 1:
            held -= _cache.popitem(last=False)[1][2]


def covers(part: StatePart) -> Shard:
    return part.low, part.high, part.buckets


def _whole(shard: Shard) -> bool:
    return shard[0] == 0 and shard[1] == shard[2]


def _gathered(storage: Storage, operator: Operator, parts: Sequence[StatePart], shard: Shard) -> Any:
    """A shard's state from files that were cut in another way: of each, the keys that fall to it."""
    tables = [(part.full, _mine(operator, load(storage, part, operator), shard)) for part in parts]
    state = operator.restore([table for full, table in tables if full])
    assert state is not None
    state.track()
    for full, table in tables:
        if not full:
            state.apply(table)
    return state


def _mine(operator: Operator, table: pa.Table, shard: Shard) -> pa.Table:
    low, high, count = shard
    if not operator.keys_by_input or _whole(shard) or not table.num_rows:
        return table
    found = buckets_of_state(operator, table, count)
    return table.filter(pa.array((found >= low) & (found < high)))


def whole(storage: Storage, operator: Operator, parts: Sequence[StatePart]) -> Any:
    """The state of all keys, to be looked at."""
    return _gathered(storage, operator, parts, (0, 1, 1))


def _since(parts: Sequence[StatePart], version: str) -> Sequence[StatePart] | None:
    """The changes that a state of that version lacks; None if it cannot be brought up to date."""
    for place, part in enumerate(parts):
        if part.version == version:
            after = parts[place + 1 :]
            return None if any(p.full for p in after) else after
    return None


def load(storage: Storage, part: StatePart, operator: Operator) -> pa.Table:
    """A part as it was written; one of an earlier version of its box as the present one would have."""
    table = _read(storage, part)
    return table if part.layout is None else fitted(table, part.layout, part.full, operator)


def _read(storage: Storage, part: StatePart) -> pa.Table:
    path = storage.path(part.file)
    storage.require_private("states", part.file)
    try:
        data = storage.read_part(part.file, part.offset, part.length)
    except FileNotFoundError as error:
        raise checks.missing(path, "state") from error
    if len(data) != part.length:
        raise checks.damaged(path, "state", f"it ends after {len(data)} of {part.length} bytes")
    checks.verify(path, "state", data, part.check)
    try:
        table = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
        if part.check is None:  # version 0.3 wrote none, so whatever bytes are there were read
            table.validate(full=True)
        return table
    except (OSError, ValueError, pa.ArrowException) as error:
        raise checks.damaged(path, "state", str(error)) from error


class StateFile:
    """The one file of a task and step: the changes of every state that it touched."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.parts: list[pa.Buffer] = []
        self._at = 0

    def add(self, state: Any, full: bool, version: str, shard: Shard) -> StatePart:
        table = state.snapshot() if full else state.changes()
        if full:
            state.changes()  # what is in the snapshot is no longer new
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        data = sink.getvalue()
        self.parts.append(data)
        start, self._at = self._at, self._at + data.size
        return StatePart(self.name, start, data.size, full, *shard, version, checks.checksum(data))
