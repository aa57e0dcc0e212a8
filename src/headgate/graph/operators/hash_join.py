"""A join of two finite inputs by key: one side in a table, the other asks it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headgate.errors import PipelineError
from headgate.graph.columns import Ints, taken
from headgate.graph.operators.gathering import Gathered, Gathering
from headgate.graph.operators.pairing import Index, Pairing, check_keys, keys

HOWS = ("inner", "left", "semi", "anti")


class HashJoin(Gathering):
    """Pairs of equal keys for which ``where`` holds, in the order of the left rows.

    ``how="left"`` also keeps left rows without such a partner, with nulls; "anti" keeps only these, "semi"
    those with one, once.  Without key columns every left row meets every right one.
    """

    def __init__(
        self,
        left: pa.Schema,
        right: pa.Schema,
        on: Sequence[tuple[str, str]],
        keep: Sequence[str],
        *,
        how: str = "inner",
        where: str | None = None,
    ) -> None:
        if how not in HOWS:
            raise PipelineError(f"hash join: how={how!r}: use {', '.join(HOWS)}.")
        check_keys((left, right), on, "hash join")
        self.on, self.how = tuple(on), how
        self._pairing = Pairing(left, right, where, keep, "hash join")
        super().__init__([left, right], [self._pairing.schema])

    @property
    def label(self) -> str:
        by = ", ".join(a if a == b else f"{a} = {b}" for a, b in self.on) or "all"
        where = f" where {self._pairing.where}" if self._pairing.where else ""
        return f"{'hash' if self.how == 'inner' else self.how} join({by}{where})"

    def result(self, state: Gathered) -> pa.RecordBatch:
        left, right = state.rows(0), state.rows(1)
        one, two = self._keys(left, right)
        found = []
        for start, stop, mine, other in Index(two).pairs(one):
            rows, partners = self._pairing.rows(left, right, mine, other)
            if self.how == "inner":
                found.append(rows)
                continue
            met = np.zeros(stop - start, dtype=bool)
            met[partners - start] = True
            if self.how == "semi":
                found.append(self._pairing.alone(left, start + np.flatnonzero(met)))
                continue
            lonely = start + np.flatnonzero(~met)
            alone = self._pairing.alone(left, lonely)
            found.append(alone if self.how == "anti" else _in_order(rows, partners, alone, lonely))
        return pa.concat_batches(found) if found else self.nothing()

    def _keys(self, left: pa.RecordBatch, right: pa.RecordBatch) -> tuple[Ints, Ints]:
        if not self.on:
            return np.zeros(left.num_rows, dtype=np.int64), np.zeros(right.num_rows, dtype=np.int64)
        return keys([left.column(a) for a, _ in self.on], [right.column(b) for _, b in self.on])


def _in_order(rows: pa.RecordBatch, of: Ints, more: pa.RecordBatch, of_more: Ints) -> pa.RecordBatch:
    """Rows of left rows and more of others, all in the order of the left rows."""
    if not more.num_rows or not rows.num_rows:
        return rows if rows.num_rows else more
    order = np.argsort(np.concatenate([of, of_more]), kind="stable")
    return taken(pa.concat_batches([rows, more]), order)
