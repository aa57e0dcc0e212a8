"""Streams, as people chain them: every method returns a new stream and raises where it is misused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any, Literal, NoReturn

import pyarrow as pa

from headgate.api import habits
from headgate.api.extensions import check_own
from headgate.api.pipeline import Pipeline
from headgate.connectors.any_table import as_table
from headgate.connectors.sink import Sink
from headgate.errors import PipelineError, nearest
from headgate.graph.durations import Duration
from headgate.graph.network import Arrow, Port
from headgate.graph.operator import Operator
from headgate.graph.operators.drop_duplicates import DropDuplicates
from headgate.graph.operators.explode import Explode
from headgate.graph.operators.filter import Filter
from headgate.graph.operators.flat_map_rows import FlatMapRows
from headgate.graph.operators.join import Join
from headgate.graph.operators.limit import Limit
from headgate.graph.operators.lookup import Lookup
from headgate.graph.operators.map_packets import MapPackets
from headgate.graph.operators.pick import Pick
from headgate.graph.operators.process import KeyedProcess, Process
from headgate.graph.operators.process_packets import KeyedPackets
from headgate.graph.operators.running import Running
from headgate.graph.operators.select import Select, WithColumns
from headgate.graph.operators.side import MAIN, Sided, Unpack, sided_schema
from headgate.graph.operators.top import Top
from headgate.graph.operators.top_per_key import TopPerKey
from headgate.graph.operators.universal import Universal
from headgate.graph.operators.window import WindowAggregate
from headgate.graph.partition import check_ranges
from headgate.graph.qos import QoS
from headgate.graph.schema import require_columns
from headgate.graph.windows import Window
from headgate.sql import compile_expression
from headgate.sql.names import quoted

_ALL = 1 << 40
"""More rows than a state holds."""


class Stream:
    """Tuples on their way.  Using one stream twice shares all the work before it."""

    def __init__(self, pipeline: Pipeline, port: Port) -> None:
        self._pipeline = pipeline
        self._port = port
        self._sides: dict[str, Stream] = {}

    def __getattr__(self, name: str) -> NoReturn:
        if name[0] != "_" and name not in habits.STREAM and name in self.schema.names:
            raise habits.is_column(name)
        raise habits.no_attribute("A Stream", name, habits.STREAM, _names(self))

    def __getitem__(self, column: object) -> NoReturn:
        habits.no_items("columns to take out of it")

    def __iter__(self) -> NoReturn:
        habits.no_items("rows to go through")

    def __len__(self) -> NoReturn:
        habits.no_items("length")

    def __bool__(self) -> bool:
        return True

    @property
    def schema(self) -> pa.Schema:
        """Its columns and their types."""
        return self._port[0].schema

    def _box(self, verb: str, operator: Operator, name: str | None, *ports: Port) -> Stream:
        if len(ports) > 1:
            # Ports of one box meet by serial, so each of them must bring its rows in one order.
            ports = tuple(Stream(self._pipeline, p)._alone() if not p[0].in_order else p for p in ports)
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

    def drop(self, *columns: str, name: str | None = None) -> Stream:
        """All columns but these: ``clicks.drop("agent")``."""
        gone = require_columns(self.schema, columns, "drop")
        kept = [(column, column) for column in self.schema.names if column not in gone]
        return self._box("drop", Pick(self.schema, kept, f"drop({', '.join(gone)})"), name)

    def rename(
        self, names: Mapping[str, str] | None = None, *, name: str | None = None, **more: str
    ) -> Stream:
        """Other names for some columns: ``clicks.rename(ts="time")``, or a dict, old name to new."""
        given = {**(names or {}), **more}
        new = dict(zip(require_columns(self.schema, given, "rename"), given.values(), strict=True))
        pairs = [(column, new.get(column, column)) for column in self.schema.names]
        label = f"rename({', '.join(f'{old} = {n}' for old, n in new.items())})"
        return self._box("rename", Pick(self.schema, pairs, label), name)

    def cast(self, types: Mapping[str, str] | None = None, *, name: str | None = None, **more: str) -> Stream:
        """Columns as other types, named as in Spark SQL: ``sales.cast(price="DECIMAL(10, 2)")``."""
        given = {**(types or {}), **more}
        columns = [quoted(column) for column in require_columns(self.schema, given, "cast")]
        texts = [f"CAST({c} AS {type_}) AS {c}" for c, type_ in zip(columns, given.values(), strict=True)]
        return self._box("cast", WithColumns(self.schema, texts), name)

    def explode(
        self, expression: str, *, outer: bool = False, position: str | None = None, name: str | None = None
    ) -> Stream:
        """One row for every element of a list: ``orders.explode("items AS item")``.

        A map gives two columns: ``explode("tags AS (tag, value)")``.  Rows without elements are left out, or
        have a null element with ``outer=True``.  ``position="place"`` adds the element's place, from 0.
        """
        return self._box("explode", Explode(self.schema, expression, outer, position), name)

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

    def union(self, *others: Stream, order: Literal["serial", "arrival"] = "serial") -> Stream:
        """The rows of several streams of one schema, in order; of one tuple's results, ours first.

        With ``order="arrival"`` rows leave as they come, and no row waits for an earlier one of another
        stream.  Each stream's own order is kept.  Answers are those of some interleaving of the streams.
        """
        if order not in ("serial", "arrival"):
            raise PipelineError(f"union: order={order!r}: use 'serial' or 'arrival'.")
        port = self._into_union(order == "serial")
        for other in others:
            if not isinstance(other, Stream) or other._pipeline is not self._pipeline:
                raise PipelineError("union: both streams must belong to the same app.")
            if other.schema != self.schema:
                raise PipelineError(
                    f"union: the schemas differ: {_columns(self.schema)} here, {_columns(other.schema)} "
                    "there; bring them together with select."
                )
            port = (*port, *other._into_union(order == "serial"))
        return Stream(self._pipeline, port)

    def _into_union(self, in_order: bool) -> Port:
        """Our arrows for a union of that order."""
        port = self._port if self._port[0].in_order == in_order else self._alone()
        return tuple(replace(arrow, in_order=in_order) for arrow in port)

    def _alone(self) -> Port:
        """One arrow with our rows: a union of another order gets a box, which costs a call."""
        if len(self._port) == 1:
            return self._port
        return self._box("union", Select(self.schema, [f"`{n}`" for n in self.schema.names]), None)._port

    def lookup(
        self,
        table: Any,
        *,
        on: str | Sequence[str] | Mapping[str, str],
        refresh: Duration | None = None,
        name: str | None = None,
    ) -> Stream:
        """The columns of a small table, looked up by key; null where it has no such key.

        ``table`` is an Arrow table, a pandas DataFrame, a file or folder (Parquet, CSV, JSON), a finite
        source, or a function that returns a table.  All but the first two are read again every ``refresh``,
        on Spark by the tasks.  Where the table calls its key otherwise: ``on={"item_id": "id"}``.
        """
        given = as_table(table, "lookup")
        return self._box("lookup", Lookup(self.schema, given, on, refresh), name)

    def universal(
        self,
        *,
        cost: float | None = None,
        selectivity: float = 1.0,
        tuple_bytes: int = 0,
        state_bytes: int = 0,
        matrix: int = 0,
        name: str | None = None,
    ) -> Stream:
        """The papers' synthetic box: seconds of work per tuple, and how many tuples it makes of one.

        ``tuple_bytes`` adds a column ``payload`` of that size.  ``state_bytes`` give it a state of that size,
        which every call changes.  ``matrix=n`` in place of ``cost``: it multiplies each tuple's values,
        spread over n numbers, by a matrix, and adds the result as a column ``product``.
        """
        label = name or self._pipeline.next_name("universal")
        operator = Universal(self.schema, label, cost, selectivity, tuple_bytes, (), state_bytes, matrix)
        return self._box("universal", operator, label)

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

    def drop_duplicates(
        self,
        *columns: str,
        within: Duration | None = None,
        on: str | None = None,
        name: str | None = None,
    ) -> Stream:
        """The first row of every key: ``clicks.drop_duplicates("id", within="1 hour", on="ts")``.

        Without columns, rows that are equal in all of them are duplicates.  With ``within``, a key that
        comes more than that much event time after it last passed passes again.  Without it, every key is
        remembered for ever.
        """
        return self._box("drop_duplicates", DropDuplicates(self.schema, columns, within, on), name)

    def process(
        self,
        fn: Callable[..., Any],
        *,
        schema: pa.Schema,
        state: Any = None,
        packets: bool = False,
        side: Mapping[str, pa.Schema] | None = None,
        name: str | None = None,
    ) -> Stream:
        """A function with a memory: ``fn(row, state)`` returns rows and changes ``state`` in place.

        ``state`` is the initial value or a function that makes it.  Slow, unless ``packets=True``: then
        ``fn(batch, state)`` returns ``(batch, causes)`` for whole packets.  ``side={"alerts": schema}`` lets
        it give ``hg.Side("alerts", row)`` too; these are the rows of ``.side("alerts")``.
        """
        if side is None:
            return self._box("process", Process(self.schema, fn, schema, state, packets=packets), name)
        if packets:
            raise PipelineError("process: side= is for functions of rows; leave packets=True out.")
        every = sided_schema(schema, side)
        box = self._box("process", Process(self.schema, Sided(fn, every), every, state), name)
        return box._unpacked(list(side))

    def side(self, name: str) -> Stream:
        """The rows that a function gave as ``hg.Side(name, row)``."""
        if name not in self._sides:
            raise PipelineError(
                f"side: there is no side output '{name}'.{nearest(name, self._sides)} Declare it where the "
                f"rows come from: process(…, side={{'{name}': schema}})."
            )
        return self._sides[name]

    def _unpacked(self, sides: Sequence[str]) -> Stream:
        """The main output of a box with side outputs."""
        main, *others = [self._box("output", Unpack(self.schema, name), None) for name in (MAIN, *sides)]
        main._sides = dict(zip(sides, others, strict=True))
        return main

    def top(
        self,
        n: int,
        *,
        by: str,
        every: Duration | None = None,
        on: str | None = None,
        lateness: Duration = 0,
        name: str | None = None,
    ) -> Stream:
        """The first ``n`` rows of every period: ``counts.top(100, by="n DESC", every="1 hour", on="ts")``.

        Without ``every`` and ``on``, those of the whole stream, when it ends.
        """
        return self._box("top", Top(self.schema, n, by, every, on, lateness), name)

    def sort(self, by: str, *, limit: int | None = None, name: str | None = None) -> Stream:
        """The rows of a finite stream, or the first of them, when it ends: ``sort("n DESC", limit=9)``."""
        return self._box("sort", Top(self.schema, _ALL if limit is None else limit, by, None, None), name)

    def limit(self, n: int, *, name: str | None = None) -> Stream:
        """The first ``n`` rows that come."""
        return self._box("limit", Limit(self.schema, n), name)

    def window(self, window: Window) -> WindowedStream:
        """Windows over all rows, whatever their key."""
        return WindowedStream(self, (), window)

    def key_by(self, *columns: str, ranges: Sequence[Any] | None = None) -> KeyedStream:
        """Rows of one key belong together: ``clicks.key_by("user_id")``, or ``key_by("hour(ts) AS hour")``.

        Where several threads share the keys they do so by a hash, or by ``ranges`` of the one key column,
        whose ascending boundaries are given: ``key_by("age", ranges=[20, 40, 60])``.
        """
        if not columns:
            raise PipelineError("key_by: name at least one column.")
        stream, names = self._computed(columns, "key_by")
        if ranges is not None:
            check_ranges(stream.schema, names, ranges)
        return KeyedStream(stream, names, ranges)

    def _computed(self, texts: Sequence[str], what: str) -> tuple[Stream, list[str]]:
        """A stream with a column for each of ``texts``, columns or expressions, and the columns' names."""
        new = [t for t in texts if isinstance(t, str) and t not in self.schema.names and not t.isidentifier()]
        stream = self.with_columns(*new) if new else self
        named = {text: compile_expression(text, self.schema).name for text in new}
        return stream, require_columns(stream.schema, [named.get(text, text) for text in texts], what)

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
        was: str | None = None,
    ) -> Stream:
        """Let results leave as query ``name``; ``qos`` says what they are worth at which latency.

        Queries of a higher ``query_class`` go first under policies that know classes (``multi_class``).
        ``keep="7 days"`` keeps what the query gave for ``headgate query``, on Spark and threads.  On Spark,
        ``start`` says where a query begins that is added to an application under way: with the "earliest"
        tuple that its sources still have, "now", or at a serial.  ``was`` is the query's name in an earlier
        version of the application: it goes on under its new one.

        ``importance="amount * 2"`` says how much a tuple matters if some must be dropped, which happens only
        under ``hg.policies.shedding(strategy="semantic")``.
        """
        self._pipeline.add_output(name, self._port, sink, qos, keep, start, importance, query_class, was)
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_columns(self.schema)})"

    def _repr_html_(self) -> str:
        """Its columns as a table, for a notebook."""
        return _table(self, self.schema)


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
        side: Mapping[str, pa.Schema] | None = None,
        name: str | None = None,
    ) -> Stream:
        """``fn(row, state)`` with a state per key, changed in place.  Slow: Python for every tuple.

        With ``packets=True`` it is ``fn(batch, state)`` for whole packets.  ``state=`` then gives each part's
        value for a new key, e.g. ``{"count": 0}``; ``state["count"]`` is an array with a row per key, and
        ``state.slots`` says for every row of the batch which of them is its key's.  ``side`` declares side
        outputs of a function of rows, as for ``stream.process``.
        """
        if side is not None:
            if packets:
                raise PipelineError("process: side outputs are of functions of rows; leave packets=True out.")
            every = sided_schema(schema, side)
            operator = KeyedProcess(self.schema, self._keys, Sided(fn, every), every, state, expire, on)
            return self._box("process", operator, name)._unpacked(list(side))
        make = KeyedPackets if packets else KeyedProcess
        return self._box("process", make(self.schema, self._keys, fn, schema, state, expire, on), name)

    def top(
        self,
        n: int,
        *,
        by: str,
        every: Duration | Literal["end"] | None = None,
        on: str | None = None,
        lateness: Duration = 0,
        rank: str | None = None,
        name: str | None = None,
    ) -> Stream:
        """The best ``n`` rows of every key: ``bids.key_by("auction").top(3, by="price DESC", rank="place")``.

        A row leaves at once if it is among the best of its key so far; ``rank`` adds its place at that
        moment.  With ``every`` and ``on`` the best of every period leave when it is over, and with
        ``every="end"`` those of the whole stream when it ends.
        """
        if every is None and on is None:
            return self._box("top", TopPerKey(self.schema, self._keys, n, by, rank), name)
        if rank is not None:
            raise PipelineError("top: rank= is for rows that leave at once; leave every= out.")
        period = None if every == "end" else every
        return self._box("top", Top(self.schema, n, by, period, on, lateness, self._keys), name)

    def join(
        self,
        other: KeyedStream,
        *,
        within: Duration | tuple[Duration, Duration] | None = None,
        on: str | tuple[str, str] | None = None,
        how: str = "inner",
        lateness: Duration = 0,
        name: str | None = None,
    ) -> Stream:
        """Pairs of rows of equal key whose times are at most ``within`` apart.

        ``within=("-5 minutes", "10 minutes")``: the other row is at most 5 minutes earlier and 10 minutes
        later than ours.  ``how``: "inner", "left", "right" or "full" (rows without partner leave once they
        can have none any more, with nulls), "semi" or "anti" (our rows that have a partner, or none).
        ``lateness`` keeps rows so much longer for partners that come late.  Without ``within`` and ``on``
        every row is remembered, and rows without partner leave at the end.
        """
        if not isinstance(other, KeyedStream):
            raise PipelineError(
                "join: the other side must be keyed too, e.g. a.key_by('id').join(b.key_by('id'), …)."
            )
        if other._stream._pipeline is not self._stream._pipeline:
            raise PipelineError("join: both streams must belong to the same app.")
        operator = Join(self.schema, other.schema, self._keys, other._keys, within, on, how, lateness)
        return self._box("join", operator, name, self._stream._port, other._stream._port)

    def universal(
        self,
        *,
        cost: float | None = None,
        selectivity: float = 1.0,
        tuple_bytes: int = 0,
        state_bytes: int = 0,
        matrix: int = 0,
        name: str | None = None,
    ) -> Stream:
        """The synthetic box with ``state_bytes`` of state per key."""
        label = name or self._stream._pipeline.next_name("universal")
        operator = Universal(
            self.schema, label, cost, selectivity, tuple_bytes, self._keys, state_bytes, matrix
        )
        return self._box("universal", operator, label)

    def __getattr__(self, name: str) -> NoReturn:
        raise habits.no_attribute("A KeyedStream", name, habits.KEYED, _names(self))

    def __repr__(self) -> str:
        return f"KeyedStream(by {', '.join(self._keys)}: {_columns(self.schema)})"

    def _repr_html_(self) -> str:
        """Its columns as a table, for a notebook."""
        return _table(self, self.schema, f" by {', '.join(self._keys)}")


class WindowedStream:
    """Windows of a stream, to be aggregated."""

    def __init__(
        self, stream: Stream, keys: Sequence[str], window: Window, ranges: tuple[Any, ...] | None = None
    ) -> None:
        if not isinstance(window, Window):
            raise PipelineError("window: give hg.tumbling(…), hg.sliding(…) or hg.session(…).")
        stream, [on] = stream._computed([window.on], f"{window.kind} window")
        window = replace(window, on=on)
        self._stream = stream
        self._keys = tuple(keys)
        self._window = window
        self._ranges = ranges
        self._late: Stream | None = None

    def __getattr__(self, name: str) -> NoReturn:
        raise habits.no_attribute("A WindowedStream", name, habits.WINDOWED, _names(self))

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


def _table(stream: object, schema: pa.Schema, of: str = "") -> str:
    rows = "".join(f"<tr><td>{escape(f.name)}</td><td>{escape(str(f.type))}</td></tr>" for f in schema)
    head = f"<caption>{type(stream).__name__}{escape(of)}</caption><tr><th>column</th><th>type</th></tr>"
    return f"<table>{head}{rows}</table>"


def _names(thing: object) -> list[str]:
    """The public names of a thing's class."""
    return [name for name in dir(type(thing)) if name[0] != "_"]
