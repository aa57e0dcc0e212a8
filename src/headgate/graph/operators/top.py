"""The best rows of each period, or of the whole stream, perhaps of each key: top n by an ordering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.errors import BadRow, PipelineError
from headgate.graph.columns import Ints, from_places, key_columns, least, lexical_order, sort_keys, taken
from headgate.graph.durations import Duration, parse_duration
from headgate.graph.operator import Kind, Operator, State
from headgate.graph.operators._user import located, refuse_far_times, set_apart
from headgate.graph.operators.snapshots import is_whole, marked, marks, tracked, whole
from headgate.graph.packet import Packet, empty_batch
from headgate.graph.time import LIMIT, NEVER, Clock, check_length, time_column
from headgate.sql import compile_ordering

_WORTH = 2
"""Choosing pays for windows with so many times the rows that are kept."""
_NO_ROWS: Ints = np.zeros(0, dtype=np.int64)


class TopState(State):
    """Candidates of the open windows: those chosen so far, and rows since."""

    def __init__(self, operator: Top) -> None:
        self._operator = operator
        self.seen = 0
        self.clock = Clock(operator.lateness)
        self.chosen = empty_batch(operator.candidates)
        self.rows: list[pa.RecordBatch] = []
        self.more = 0
        self.next_end = -NEVER
        """When the first open window ends."""
        self._untold: list[pa.RecordBatch] | None = None
        """Rows taken in since the last call of ``changes``; None: changes are not tracked."""
        self._ended = False
        """Whether the end of the stream has closed windows that time has not."""

    def add(self, rows: pa.RecordBatch) -> None:
        """Take candidates in; choose again once as many have come as are kept."""
        if not rows.num_rows:
            return
        self.rows.append(rows)
        self.more += rows.num_rows
        self.next_end = min(self.next_end, int(rows.column(self._operator.end).to_numpy().min()))
        if self.more > max(self.chosen.num_rows, self._operator.n):
            self.choose()

    def choose(self) -> None:
        """Keep the best of every window, in the order in which they will leave."""
        if self.rows:
            self.chosen = self._operator.best(pa.concat_batches([self.chosen, *self.rows]))
            self.rows, self.more = [], 0

    def close(self, now: int) -> pa.RecordBatch | None:
        """Take out the best rows of the windows that end at ``now`` or before; None if there are none."""
        if self.next_end > now:
            return None
        self.choose()
        ends = self.chosen.column(self._operator.end).to_numpy()
        due = int(np.searchsorted(ends, now, side="right"))
        closed, self.chosen = self.chosen.slice(0, due), self.chosen.slice(due)
        self.next_end = int(ends[due]) if due < len(ends) else -NEVER
        return closed

    def meet(self, rows: pa.RecordBatch) -> None:
        """Take in candidates of the stream."""
        self.add(rows)
        if self._untold is not None and rows.num_rows:
            self._untold.append(rows)

    def end(self) -> pa.RecordBatch | None:
        """Take out the best rows of all windows, because the stream has ended."""
        self._ended = True
        return self.close(-NEVER)

    def snapshot(self) -> pa.Table:
        self.choose()
        return self._table(self.chosen)

    def track(self) -> None:
        self._untold, self._ended = [], False

    def changes(self) -> pa.Table:
        """The best of the rows that have come, in the windows that are still open."""
        untold, ended = tracked(self._untold), self._ended
        self.track()
        if ended:
            return whole(self.snapshot())
        rows = self._operator.best(pa.concat_batches([self.chosen.slice(0, 0), *untold]))
        closed = int(
            np.searchsorted(rows.column(self._operator.end).to_numpy(), self.clock.now, side="right")
        )
        return self._table(rows.slice(closed))

    def apply(self, changes: pa.Table) -> None:
        self.clock.maximum, self.seen, self.late = marks([changes], NEVER)
        self.close(-NEVER if is_whole(changes) else self.clock.now)
        self.load(changes)

    def load(self, table: pa.Table) -> None:
        """Take in candidates that were written."""
        for batch in table.to_batches():
            self.add(pa.RecordBatch.from_arrays(batch.columns, schema=self._operator.candidates))

    def _table(self, rows: pa.RecordBatch) -> pa.Table:
        return marked(pa.Table.from_batches([rows]), self.clock.maximum, self.seen, self.late)


class Top(Operator):
    """The ``n`` best rows of every window of length ``every``, when it closes, best first.

    With ``every=None`` there is one window, which the end of the stream closes.  With ``keys``, windows are
    per key, and results of one tuple leave by key.  Rows that tie are in order of arrival.  Outputs: the
    rows, and late rows; both as they came.
    """

    kind = Kind.STATEFUL

    def __init__(
        self,
        schema: pa.Schema,
        n: int,
        by: str,
        every: Duration | None,
        on: str | None,
        lateness: Duration = 0,
        keys: Sequence[str] = (),
    ) -> None:
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise PipelineError(f"top: {n!r} is not a number of rows; give an integer of at least 1.")
        self.n = n
        self.by = by
        self.every = None
        if every is not None:
            self.every = check_length(parse_duration(every, "top: every"), every, "top: every")
            if not self.every:
                raise PipelineError("top: every= must be more than zero.")
        if (every is None) is not (on is None):
            raise PipelineError("top: every= and on= go together: how long a period is, and the time column.")
        late = parse_duration(lateness, "top: lateness")
        self.lateness = check_length(late, lateness, "top: lateness")
        self._time_column = None if on is None else time_column(schema, on, "top: on")
        self.ordering = compile_ordering(by, schema)
        self.keys, self.key_types = key_columns(schema, keys, "top: key")
        if self.keys:
            self.kind = Kind.KEYED  # type: ignore[misc]
            self.keys_by_input = (self.keys,)
            self.times_by_input = (None if on is None else schema.field(self._time_column).name,)
            self.ties_by_output = (self.keys, ())
        self.end = len(self.keys)
        """The candidates' column that has the end of the window; the next has their order of arrival."""
        extra = [pa.field(f"key.{place}", kind) for place, kind in enumerate(self.key_types)]
        extra += [pa.field("end", pa.int64()), pa.field("sequence", pa.int64())]
        extra += [pa.field(f"by.{place}", e.type) for place, (e, _, _) in enumerate(self.ordering)]
        self.candidates = pa.schema([*extra, *schema])
        """Rows with key, end of the window, order of arrival and what they are ordered by."""
        super().__init__([schema], [schema, schema])

    @property
    def label(self) -> str:
        return f"top {self.n} by {self.by}" + (f" per {', '.join(self.keys)}" if self.keys else "")

    def event_columns(self) -> tuple[str | None, ...]:
        return (None if self._time_column is None else self.inputs[0].field(self._time_column).name,)

    def open(self) -> TopState:
        return TopState(self)

    def restore(self, tables: Sequence[pa.Table]) -> TopState:
        state = self.open()
        state.clock.maximum, state.seen, state.late = marks(tables, NEVER)
        for table in tables:
            state.load(table)
        return state

    def best(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """At most ``n`` rows of each window, by window end, key and rank."""
        ends = rows.column(self.end).to_numpy()
        groups = [ends, *self._key_order(rows)]
        keys = []
        for place, (_, descending, nulls_first) in enumerate(self.ordering):
            keys += sort_keys(rows.column(self.end + 2 + place), descending, nulls_first)
        keys.append(rows.column(self.end + 1).to_numpy())
        enough = np.arange(len(ends)) if self.keys else self._enough(ends, keys)
        keys = [*groups, *keys]
        order = enough[lexical_order([key[enough] for key in keys])]
        begins = np.zeros(len(order), dtype=np.bool_)
        for group in groups:
            begins[1:] |= group[order][1:] != group[order][:-1]
        places = np.arange(len(order))
        rank = places - np.maximum.accumulate(np.where(begins, places, 0))
        return taken(rows, order[rank < self.n])

    def _enough(self, ends: Ints, keys: Sequence[npt.NDArray[Any]]) -> Ints:
        """The rows that are among the best of their windows, in any order: only these need sorting."""
        rows = np.arange(len(ends))
        if len(ends) <= _WORTH * self.n:
            return rows
        if bool((ends[1:] < ends[:-1]).any()):
            rows = np.argsort(ends, kind="stable")
        windows = np.split(rows, (np.diff(ends[rows]) != 0).nonzero()[0] + 1)
        if len(ends) <= _WORTH * self.n * len(windows):
            return rows
        return np.concatenate([least(keys, window, self.n) for window in windows])

    def _key_order(self, rows: pa.RecordBatch) -> list[Any]:
        return [key for place in range(self.end) for key in sort_keys(rows.column(place))]

    def process(self, packets: Sequence[Packet], state: TopState) -> list[Packet]:
        packet = packets[0]
        passage = None
        if self._time_column is None or self.every is None:
            ends = np.full(len(packet), LIMIT, dtype=np.int64)
            late = np.zeros(len(packet), dtype=np.bool_)
        else:
            refuse_far_times(self, packets)
            passage = state.clock.pass_by(packet, self._time_column)
            ends = (passage.times // self.every + 1) * self.every
            late = (passage.times == NEVER) | (ends <= passage.before)
        batch, rows, late_packet = set_apart(packet, late, self.nothing(1))
        try:
            by = [expression.evaluate(batch) for expression, _, _ in self.ordering]
        except BadRow as bad:
            raise located(bad, self.label, packet, rows) from bad
        state.late += len(late_packet)
        sequence = np.arange(state.seen, state.seen + len(packet), dtype=np.int64)
        if rows is not None:
            ends, sequence = ends[rows], sequence[rows]
        keys = [batch.column(name) for name in self.keys]
        arrays = [*keys, from_places(ends), from_places(sequence), *by, *batch.columns]
        candidates = pa.RecordBatch.from_arrays(arrays, schema=self.candidates)
        # No window has more rows than are kept: choosing can wait for more of them.
        state.meet(candidates if batch.num_rows <= self.n else self.best(candidates))
        state.seen += len(packet)
        closed = None
        if passage is not None:
            closed = state.close(passage.end(state.clock.now))
            state.clock.maximum = passage.maximum
        if closed is None or passage is None:
            return [packet.caused(self.nothing(), _NO_ROWS), late_packet]
        causes = passage.causes(closed.column(self.end).to_numpy())
        closed, causes = self._by_key(closed, causes)
        main = Packet(self._rows(closed), passage.order.take(causes), packet.markers, packet.request)
        return [main, late_packet]

    def _by_key(self, closed: pa.RecordBatch, causes: Ints) -> tuple[pa.RecordBatch, Ints]:
        """What leaves, by cause and key; what has one key stays in its order."""
        if not self.keys:
            return closed, causes
        order = lexical_order([causes, *self._key_order(closed), np.arange(len(causes))])
        return taken(closed, order), causes[order]

    def _rows(self, candidates: pa.RecordBatch) -> pa.RecordBatch:
        columns = candidates.columns[len(candidates.columns) - len(self.inputs[0]) :]
        return pa.RecordBatch.from_arrays(columns, schema=self.inputs[0])

    def finish(self, state: TopState, end: Packet) -> list[Packet]:
        closed = state.end()
        rows = self.nothing()
        if closed is not None:
            rows = self._rows(self._by_key(closed, np.zeros(len(closed), dtype=np.int64))[0])
        causes: Ints = np.zeros(rows.num_rows, dtype=np.int64)
        return [end.caused(rows, causes), end.caused(self.nothing(1), causes[:0])]
