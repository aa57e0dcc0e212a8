"""Streams, as people chain them: every method returns a new stream and raises where it is misused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.api.extensions import check_own
from headgate.api.pipeline import Pipeline
from headgate.connectors.sink import Sink
from headgate.errors import PipelineError, SourceError
from headgate.graph.network import Arrow, Port
from headgate.graph.operator import Operator
from headgate.graph.operators.filter import Filter
from headgate.graph.operators.flat_map_rows import FlatMapRows
from headgate.graph.operators.join import Join
from headgate.graph.operators.lookup import Lookup
from headgate.graph.operators.map_packets import MapPackets
from headgate.graph.operators.process import KeyedProcess, Process
from headgate.graph.operators.process_packets import KeyedPackets
from headgate.graph.operators.running import Running
from headgate.graph.operators.select import Select, WithColumns
from headgate.graph.operators.top import Top
from headgate.graph.operators.universal import Universal
from headgate.graph.operators.window import WindowAggregate
from headgate.graph.partition import check_ranges
from headgate.graph.qos import QoS
from headgate.graph.schema import require_columns
from headgate.graph.windows import Window

Duration = str | float


class Stream:
    """Tuples on their way.  Using one stream twice shares all the work before it."""

    def __init__(self, pipeline: Pipeline, port: Port) -> None:
        self._pipeline = pipeline
        self._port = port

    @property
    def schema(self) -> pa.Schema:
        """Its columns and their types."""
        return self._port[0].schema

    def _box(self, verb: str, operator: Operator, name: str | None, *ports: Port) -> Stream:
        box = self._pipeline.add_box(name or self._pipeline.next_name(verb), operator, ports or (self._port,))
        return Stream(self._pipeline, (Arrow(box),))

    # --- stateless ----------------------------------------------------------------------------------

    def filter(self, predicate: str, *, name: str | None = None) -> Stream:
        """The rows for which a Spark SQL condition is true: ``clicks.filter("user_id IS NOT NULL")``."""
        return self._box("filter", Filter(self.schema, predicate), name)

    def select(self, *expressions: str, name: str | None = None) -> Stream:
        """Only these columns: ``sales.select("item", "price * quantity AS revenue")``."""
        return self._box("select", Select(self.schema, expressions), name)

    def with_columns(self, *expressions: str, name: str | None = None) -> Stream:
        """These columns besides the others: ``sales.with_columns("price * quantity AS revenue")``."""
        return self._box("with_columns", WithColumns(self.schema, expressions), name)

    def map_packets(
        self, fn: Callable[[pa.RecordBatch], Any], *, schema: pa.Schema, name: str | None = None
    ) -> Stream:
        """A function of record batches.

        It returns a batch of the promised schema, or ``(batch, causes)`` where ``causes[i]`` is the input
        row that caused row i.  It must work on rows independently: packets can be cut anywhere.
        """
        return self._box("map_packets", MapPackets(self.schema, fn, schema), name)

    def flat_map_rows(
        self, fn: Callable[[dict[str, Any]], Any], *, schema: pa.Schema, name: str | None = None
    ) -> Stream:
        """A function of one row that returns any number of rows.  Slow: Python runs for every tuple."""
        return self._box("flat_map_rows", FlatMapRows(self.schema, fn, schema), name)

    def union(self, *others: Stream) -> Stream:
        """The rows of several streams of one schema, in order; of one tuple's results, ours first."""
        port = self._port
        for other in others:
            if not isinstance(other, Stream) or other._pipeline is not self._pipeline:
                raise PipelineError("union: both streams must belong to the same app.")
            if other.schema != self.schema:
                raise PipelineError(
                    f"union: the schemas differ: {_columns(self.schema)} here, {_columns(other.schema)} "
                    "there; bring them together with select."
                )
            port = (*port, *other._port)
        return Stream(self._pipeline, port)

    def lookup(
        self,
        table: pa.Table | str | Path | Callable[[], pa.Table],
        *,
        on: str | Sequence[str],
        refresh: Duration | None = None,
        name: str | None = None,
    ) -> Stream:
        """The columns of a small table, looked up by key; null where it has no such key.

        ``table`` is a table, a parquet file, or a function that returns a table; the last two are read
        again every ``refresh``.
        """
        if isinstance(table, (str, Path)):
            path = str(table)

            def read() -> pa.Table:
                return pq.read_table(path)

            if not Path(path).exists():
                raise SourceError(f"lookup: there is no file {path}.")
            return self._box("lookup", Lookup(self.schema, read, on, refresh), name)
        return self._box("lookup", Lookup(self.schema, table, on, refresh), name)

    def universal(
        self, *, cost: float, selectivity: float = 1.0, tuple_bytes: int = 0, name: str | None = None
    ) -> Stream:
        """The papers' synthetic box: seconds of work per tuple, and how many tuples it makes of one."""
        label = name or self._pipeline.next_name("universal")
        return self._box("universal", Universal(self.schema, label, cost, selectivity, tuple_bytes), label)

    def apply(self, operator: Operator, *others: Stream, name: str | None = None) -> Stream:
        """An operator of your own, derived from ``hg.extend.Operator``: ``rows.apply(Delta(rows.schema))``.

        ``others`` are the streams of its further inputs.
        """
        streams = (self, *others)
        for other in others:
            if not isinstance(other, Stream) or other._pipeline is not self._pipeline:
                raise PipelineError("apply: all streams must belong to the same app.")
        check_own(operator, [stream.schema for stream in streams])
        return self._box(
            type(operator).__name__.lower(), operator, name, *[stream._port for stream in streams]
        )

    # --- stateful -----------------------------------------------------------------------------------

    def process(
        self,
        fn: Callable[..., Any],
        *,
        schema: pa.Schema,
        state: Any = None,
        packets: bool = False,
        name: str | None = None,
    ) -> Stream:
        """A function with a memory: ``fn(row, state)`` returns rows and changes ``state`` in place.

        ``state`` is the initial value or a function that makes it.  Slow, unless ``packets=True``: then
        ``fn(batch, state)`` returns ``(batch, causes)`` for whole packets.
        """
        return self._box("process", Process(self.schema, fn, schema, state, packets=packets), name)

    def top(
        self,
        n: int,
        *,
        by: str,
        every: Duration,
        on: str,
        lateness: Duration = 0,
        name: str | None = None,
    ) -> Stream:
        """The first ``n`` rows of every period: ``counts.top(100, by="n DESC", every="1 hour", on="ts")``."""
        return self._box("top", Top(self.schema, n, by, every, on, lateness), name)

    def window(self, window: Window) -> WindowedStream:
        """Windows over all rows, whatever their key."""
        return WindowedStream(self, (), window)

    def key_by(self, *columns: str, ranges: Sequence[Any] | None = None) -> KeyedStream:
        """Rows of one key belong together: ``clicks.key_by("user_id")``.

        Where several threads share the keys they do so by a hash, or by ``ranges`` of the one key column,
        whose ascending boundaries are given: ``key_by("age", ranges=[20, 40, 60])``.
        """
        if not columns:
            raise PipelineError("key_by: name at least one column.")
        require_columns(self.schema, columns, "key_by")
        if ranges is not None:
            check_ranges(self.schema, columns, ranges)
        return KeyedStream(self, columns, ranges)

    # --- leaving ------------------------------------------------------------------------------------

    def to(
        self,
        name: str,
        sink: Sink,
        *,
        qos: QoS | None = None,
        keep: str | None = None,
        start: str | int = "earliest",
        importance: str | None = None,
        query_class: int = 0,
    ) -> Stream:
        """Let results leave as query ``name``; ``qos`` says what they are worth at which latency.

        Queries of a higher ``query_class`` go first under policies that know classes (``multi_class``).
        On Spark, ``keep="7 days"`` keeps what the query gave for ``headgate query``, and ``start`` says where
        a query begins that is added to an application under way: with the "earliest" tuple there ever was
        (an error that counts them if some are gone), "now", or at a serial.

        ``importance="amount * 2"`` says how much a tuple matters if some must be dropped, which happens only
        under ``hg.policies.shedding(strategy="semantic")``.
        """
        self._pipeline.add_output(name, self._port, sink, qos, keep, start, importance, query_class)
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_columns(self.schema)})"


class KeyedStream:
    """A stream whose rows belong to keys; what follows has a state per key."""

    def __init__(self, stream: Stream, keys: Sequence[str], ranges: Sequence[Any] | None = None) -> None:
        self._stream = stream
        self._keys = tuple(keys)
        self._ranges = None if ranges is None else tuple(ranges)

    def _box(self, kind: str, operator: Operator, name: str | None, *ports: Port) -> Stream:
        operator.ranges = self._ranges
        return self._stream._box(kind, operator, name, *ports)

    @property
    def schema(self) -> pa.Schema:
        return self._stream.schema

    def window(self, window: Window) -> WindowedStream:
        """Windows per key: ``hg.tumbling(…)``, ``hg.sliding(…)`` or ``hg.session(…)``."""
        return WindowedStream(self._stream, self._keys, window, self._ranges)

    def running(
        self, *aggregates: str, expire: Duration | None = None, on: str | None = None, name: str | None = None
    ) -> Stream:
        """Every row with its key's aggregates so far: ``sales.key_by("item").running("sum(n) AS n")``."""
        return self._box("running", Running(self.schema, self._keys, aggregates, expire, on), name)

    def process(
        self,
        fn: Callable[..., Any],
        *,
        schema: pa.Schema,
        state: Any = None,
        packets: bool = False,
        expire: Duration | None = None,
        on: str | None = None,
        name: str | None = None,
    ) -> Stream:
        """``fn(row, state)`` with a state per key, changed in place.  Slow: Python for every tuple.

        With ``packets=True`` it is ``fn(batch, state)`` for whole packets.  ``state=`` then gives each part's
        value for a new key, e.g. ``{"count": 0}``; ``state["count"]`` is an array with a row per key, and
        ``state.slots`` says for every row of the batch which of them is its key's.
        """
        make = KeyedPackets if packets else KeyedProcess
        return self._box("process", make(self.schema, self._keys, fn, schema, state, expire, on), name)

    def join(
        self, other: KeyedStream, *, within: Duration, on: str | tuple[str, str], name: str | None = None
    ) -> Stream:
        """Pairs of rows of equal key whose times are at most ``within`` apart."""
        if not isinstance(other, KeyedStream):
            raise PipelineError(
                "join: the other side must be keyed too, e.g. a.key_by('id').join(b.key_by('id'), …)."
            )
        if other._stream._pipeline is not self._stream._pipeline:
            raise PipelineError("join: both streams must belong to the same app.")
        operator = Join(self.schema, other.schema, self._keys, other._keys, within, on)
        return self._box("join", operator, name, self._stream._port, other._stream._port)

    def universal(
        self, *, cost: float, selectivity: float = 1.0, state_bytes: int = 0, name: str | None = None
    ) -> Stream:
        """The synthetic box with a state per key."""
        label = name or self._stream._pipeline.next_name("universal")
        operator = Universal(self.schema, label, cost, selectivity, 0, self._keys, state_bytes)
        return self._box("universal", operator, label)

    def __repr__(self) -> str:
        return f"KeyedStream(by {', '.join(self._keys)}: {_columns(self.schema)})"


class WindowedStream:
    """Windows of a stream, to be aggregated."""

    def __init__(
        self, stream: Stream, keys: Sequence[str], window: Window, ranges: tuple[Any, ...] | None = None
    ) -> None:
        if not isinstance(window, Window):
            raise PipelineError("window: give hg.tumbling(…), hg.sliding(…) or hg.session(…).")
        require_columns(stream.schema, [window.on], f"{window.kind} window")
        self._stream = stream
        self._keys = tuple(keys)
        self._window = window
        self._ranges = ranges
        self._late: Stream | None = None

    def agg(self, *aggregates: str, early: Duration | None = None, name: str | None = None) -> Stream:
        """One row per window that closes: keys, ``window_start``, ``window_end`` and the aggregates.

        ``early`` also gives what an open window holds so far, every so often in event time, marked by a
        column ``early``.
        """
        operator = WindowAggregate(self._stream.schema, self._keys, self._window, aggregates, early)
        operator.ranges = self._ranges
        result = self._stream._box(self._window.kind, operator, name)
        box = result._port[0].node
        self._late = Stream(self._stream._pipeline, (Arrow(box, 1),))
        return result

    def late(self) -> Stream:
        """The rows that came after their window had closed; ask after ``agg``."""
        if self._late is None:
            raise PipelineError(
                "late(): call agg(…) on these windows first; keep the windowed stream in a variable."
            )
        return self._late


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{f.name} {f.type}" for f in schema)
