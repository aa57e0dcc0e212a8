"""What every windowed state writes besides its groups: the time, and how many rows it has seen.

It goes into the schema's metadata, which survives splitting a table by key, also into parts without rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

_TIME, _SEEN, _LATE = b"headgate.time", b"headgate.seen", b"headgate.late"


def marked(table: pa.Table, time: int, seen: int, late: int) -> pa.Table:
    return table.replace_schema_metadata({_TIME: str(time), _SEEN: str(seen), _LATE: str(late)})


def marks(tables: Sequence[pa.Table], never: int) -> tuple[int, int, int]:
    """(time, rows seen, late rows) of a state that is made of ``tables``: the furthest of each."""
    notes = [t.schema.metadata or {} for t in tables]
    time = max((int(n.get(_TIME, never)) for n in notes), default=never)
    seen = max((int(n.get(_SEEN, 0)) for n in notes), default=0)
    late = max((int(n.get(_LATE, 0)) for n in notes), default=0)
    return time, seen, late


def column(table: pa.Table, name: str) -> pa.Array:
    """One column as one array."""
    chunks = table.column(name)
    return chunks.combine_chunks() if chunks.num_chunks != 1 else chunks.chunk(0)
