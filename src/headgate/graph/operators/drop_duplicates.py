"""``stream.drop_duplicates("id", within="1 hour", on="ts")``: the first row of every key.

A key that has passed is remembered.  With ``within``, it is forgotten once event time (of the whole stream,
up to and including the row at hand) has moved on by more than that since it passed; its next row passes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headgate.errors import PipelineError
from headgate.graph.aggregates.scans import stable_order
from headgate.graph.columns import Ints, Mask, key_columns
from headgate.graph.durations import Duration, parse_period
from headgate.graph.operators._user import refuse_far_times
from headgate.graph.operators.running import Remembering, RunningState
from headgate.graph.packet import Packet


class DropDuplicates(Remembering):
    """Lets a row pass if no row of its key has passed before, or within ``within``.  Null is a value."""

    def __init__(
        self,
        schema: pa.Schema,
        columns: Sequence[str],
        within: Duration | None = None,
        on: str | None = None,
    ) -> None:
        what = "drop_duplicates"
        self._named = bool(columns)
        named = key_columns(schema, columns or schema.names, what)
        period = parse_period(within, what, "within")
        if (period is None) is not (on is None):
            raise PipelineError(
                f"{what}: within= and on= go together: how long a row is remembered, and the time column."
            )
        super().__init__(schema, schema, named, (), period, on, what)

    @property
    def label(self) -> str:
        return f"drop_duplicates({', '.join(self.keys) if self._named else ''})"

    def process(self, packets: Sequence[Packet], state: RunningState) -> list[Packet]:
        packet = packets[0]
        refuse_far_times(self, packets)
        slots = state.keys.slots([packet.batch.column(c) for c in self._key_columns], len(packet))
        state.grow()
        order = stable_order(slots)
        ordered = slots[order]
        first = np.ones(len(order), dtype=np.bool_)
        first[1:] = ordered[1:] != ordered[:-1]
        if self._time_column is None or self.expire is None:
            passing = order[first & ~state.present[ordered]]
            state.meet(slots[passing], None)
        else:
            passage = state.clock.pass_by(packet, self._time_column)
            times = np.maximum(passage.before, passage.times)[order]
            chosen = self._passing(state, ordered, first, times, self.expire)
            last = chosen[np.append(ordered[chosen][1:] != ordered[chosen][:-1], True)[: len(chosen)]]
            state.meet(ordered[last], times[last])
            state.clock.maximum = passage.maximum
            state.forget()
            passing = order[chosen]
        mask = np.zeros(len(order), dtype=np.bool_)
        mask[passing] = True
        return [packet.filter(pa.array(mask))]

    @staticmethod
    def _passing(state: RunningState, slots: Ints, first: Mask, times: Ints, within: int) -> Ints:
        """The sorted places of the rows that pass; of one key, times do not decrease."""
        count = len(slots)
        starts = np.flatnonzero(first)
        ends = np.append(starts[1:], count)
        segment = np.cumsum(first) - 1
        # One ascending number for (key, time): times of a packet as ranks, and room for one behind the last.
        ranks = np.unique(times)
        rank = np.searchsorted(ranks, times)
        codes = segment * (len(ranks) + 1) + rank

        def after(which: Ints, passed: Ints) -> Ints:
            """The first place in each of the segments ``which`` whose time is beyond ``passed`` + within."""
            beyond = np.searchsorted(ranks, passed + within, side="right")
            found: Ints = np.minimum(codes.searchsorted(which * (len(ranks) + 1) + beyond), ends[which])
            return found

        known = state.present[slots[starts]]
        begin = starts.copy()
        begin[known] = after(np.flatnonzero(known), state.seen[slots[starts[known]]])
        following = np.append(after(segment, times), count)
        following[:count][following[:count] == ends[segment]] = count
        reached = np.zeros(count + 1, dtype=np.bool_)
        reached[np.where(begin < ends, begin, count)] = True
        # Every row leads to the next that may pass after it.  Jumps of doubled length reach them all.
        more = True
        while more:
            before = np.count_nonzero(reached)
            reached[following[np.flatnonzero(reached)]] = True
            more = bool(np.count_nonzero(reached) > before)
            following = following[following]
        return np.flatnonzero(reached[:count])
