"""What every state with a clock writes in addition to its rows, and how a state tracks changes.

The time, how many rows were seen and how many were late go into the schema's metadata, which survives
splitting a table by key, also into parts without rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.graph.columns import Ints
from headgate.graph.numbering import grown

_TIME, _SEEN, _LATE = b"headgate.time", b"headgate.seen", b"headgate.late"
_WHOLE = b"headgate.whole"
_Told = TypeVar("_Told")


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


def whole(snapshot: pa.Table) -> pa.Table:
    """A snapshot as changes that replace all there was."""
    return snapshot.replace_schema_metadata({**(snapshot.schema.metadata or {}), _WHOLE: b"1"})


def is_whole(changes: pa.Table) -> bool:
    return _WHOLE in (changes.schema.metadata or {})


def tracked(told: _Told | None) -> _Told:
    """What a state has kept for ``changes``."""
    if told is None:
        raise RuntimeError("changes() of a state that does not track; call track() first")
    return told


class Touched:
    """Slots or groups that have changed since the last ``take``, each once.

    The cost grows with the rows that touch slots, not with the number of slots.
    """

    def __init__(self) -> None:
        self._place: npt.NDArray[np.int32] = np.full(0, -1, dtype=np.int32)
        """By slot: -1 if it is not touched."""
        self._slots: list[Ints] = []

    def add(self, slots: Ints) -> None:
        """Note ``slots``, which may repeat."""
        if not len(slots):
            return
        self._place = grown(self._place, int(slots.max()) + 1, -1)
        fresh = slots[self._place[slots] < 0]
        if len(fresh):
            # If rows share a slot, the last write stays, so each slot is kept once.
            rows = np.arange(len(fresh), dtype=np.int32)
            self._place[fresh] = rows
            self._slots.append(fresh[self._place[fresh] == rows])

    def take(self) -> Ints:
        """The slots, which from now on are not touched."""
        slots = np.concatenate([np.zeros(0, dtype=np.int64), *self._slots])
        self._place[slots] = -1
        self._slots.clear()
        return slots

    def move(self, places: Ints) -> None:
        """Slot s becomes ``places[s]``, and is forgotten where that is negative."""
        moved = places[self.take()]
        self.add(moved[moved >= 0])
