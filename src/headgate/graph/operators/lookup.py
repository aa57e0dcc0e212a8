"""``stream.lookup(table, on="item_id")``: columns from a table that is small and changes seldom."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.errors import OperatorError, PipelineError, TypeMismatch
from headgate.graph.columns import check_key
from headgate.graph.durations import Duration, parse_period
from headgate.graph.keys import KeyIndex
from headgate.graph.operator import Operator
from headgate.graph.packet import Packet
from headgate.graph.schema import normalise, normalise_batch, require_columns


class _Loaded:
    """One version of the table: the row of every key, and the columns to add."""

    def __init__(self, keys: Sequence[pa.Array], columns: pa.RecordBatch, since: float | None) -> None:
        self.columns = columns
        self.since = since
        """Arrival of the first tuple that met it; None until one has."""
        self._index = KeyIndex([key.type for key in keys])
        self._index.slots(keys, len(keys[0]))
        slots = self._index.find(keys)
        rows = np.flatnonzero(slots >= 0)
        # One more than there are slots: the last one, which is -1, stands for no key.
        self._rows = np.full(len(self._index) + 1, -1, dtype=np.int64)
        self._rows[slots[rows[::-1]]] = rows[::-1]
        again = rows[self._rows[slots[rows]] != rows]
        self.again = int(again[0]) if len(again) else None
        """A row whose key an earlier row has."""

    def rows(self, keys: Sequence[pa.Array]) -> pa.Array:
        """The row of each key, null where there is none.  Many workers may ask at once."""
        rows = self._rows[self._index.find(keys)]
        return pa.array(rows, mask=rows < 0)


class _Dimension:
    """The newest of the tables that workers have read.

    A worker draws a ticket before it reads, and a table with a lower ticket never replaces one with a higher.
    No worker waits for another: every step is one operation on a dict or a counter, which is atomic.  A lock
    would save the second of two reads at once, but operators know no threads.
    """

    def __init__(self) -> None:
        self._tickets = count()
        self._held: dict[int, _Loaded] = {}

    def ticket(self) -> int:
        return next(self._tickets)

    def put(self, ticket: int, table: _Loaded) -> None:
        self._held[ticket] = table
        newest = max(list(self._held))
        for older in [held for held in list(self._held) if held < newest]:
            self._held.pop(older, None)

    @property
    def newest(self) -> _Loaded | None:
        return max(list(self._held.items()), default=(0, None), key=lambda item: item[0])[1]

    def __reduce__(self) -> tuple[type[_Dimension], tuple[()]]:
        # Hash tables do not pickle; the process that unpickles builds or reads them when it needs them.
        return _Dimension, ()


class Lookup(Operator):
    """A left join: null where the table has no row for the key, and where the key is null.

    ``table`` is a table or a function that returns one.  With ``refresh`` the function is called again when a
    tuple arrives that much later than the first tuple that met the present table, and that tuple is the
    first to meet the new one.  Workers that run ahead may show a tuple a newer table, never an older one.
    """

    def __init__(
        self,
        schema: pa.Schema,
        table: pa.Table | Callable[[], pa.Table],
        on: str | Sequence[str] | Mapping[str, str],
        refresh: Duration | None = None,
    ) -> None:
        names = [on] if isinstance(on, str) else list(on)
        self._keys_there = list(on.values()) if isinstance(on, Mapping) else names
        """The table's names of the key columns."""
        if not names:
            raise PipelineError("lookup: on= names no column.")
        if not callable(table) and not isinstance(table, (pa.Table, pa.RecordBatch)):
            raise PipelineError(
                f"lookup: a {type(table).__name__} is not a table; "
                "give a pyarrow Table, a pandas DataFrame, a file, or a function that returns a table."
            )
        if refresh is not None and not callable(table):
            raise PipelineError("lookup: refresh= needs a function that reads the table again, not a table.")
        self.on = tuple(require_columns(schema, names, "lookup: on"))
        self._load = table if callable(table) else None
        micros = parse_period(refresh, "lookup", "refresh")
        self._refresh = None if micros is None else micros / 1_000_000
        first: Any = self._read() if self._load else table
        self._fixed = None if self._refresh is not None else first
        self._table_schema = normalise(first.schema)
        self._dimension = _Dimension()
        self._dimension.put(self._dimension.ticket(), self._index(first, None))
        super().__init__([schema], [self._output(schema)])

    def _output(self, schema: pa.Schema) -> pa.Schema:
        table = self._table_schema
        self._table_keys = require_columns(table, self._keys_there, "lookup: the table's key")
        for mine, other in zip(self.on, self._table_keys, strict=True):
            check_key(schema.field(mine), "lookup: on")
            if schema.field(mine).type != table.field(other).type:
                raise TypeMismatch(
                    f"lookup: '{mine}' is {schema.field(mine).type} in the stream, but "
                    f"{table.field(other).type} in the table; CAST it with .with_columns first."
                )
        added = [field for field in table if field.name not in self._table_keys]
        for field in added:
            if field.name in schema.names:
                raise PipelineError(
                    f"lookup: both the stream and the table have a column '{field.name}'; rename one of them."
                )
        return pa.schema([*schema, *added])

    @property
    def label(self) -> str:
        return f"lookup({', '.join(self.on)})"

    def needed(self, wanted: Sequence[frozenset[str]]) -> tuple[frozenset[str], ...]:
        return (wanted[0].intersection(self.inputs[0].names).union(self.on),)

    def _read(self) -> Any:
        assert self._load is not None
        try:
            table = self._load()
        except Exception as error:
            raise OperatorError(
                f"{self.label}: the table could not be read: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(table, (pa.Table, pa.RecordBatch)):
            raise OperatorError(
                f"{self.label}: the function gave a {type(table).__name__}, not a pyarrow Table."
            )
        return table

    def _index(self, table: pa.Table | pa.RecordBatch, since: float | None) -> _Loaded:
        if not normalise(table.schema).equals(self._table_schema):
            raise OperatorError(
                f"{self.label}: the table had the columns {_described(self._table_schema)} at first, but now "
                f"{_described(table.schema)}; it must not change them."
            )
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        rows = normalise_batch(_one_batch(table), self._table_schema)
        names = require_columns(self._table_schema, self._keys_there, "lookup: the table's key")
        for name in names:
            check_key(self._table_schema.field(name), "lookup: the table's key")
        keys = [rows.column(name) for name in names]
        added = rows.select([name for name in rows.schema.names if name not in names])
        dimension = _Loaded(keys, added, since)
        if dimension.again is not None:
            key = ", ".join(
                f"{name} = {k[dimension.again].as_py()!r}" for name, k in zip(names, keys, strict=True)
            )
            raise PipelineError(f"lookup: the table has more than one row with {key}; keys must be unique.")
        return dimension

    def process(self, packets: Sequence[Packet], state: Any) -> list[Packet]:
        packet = packets[0]
        if self._refresh is None or not len(packet):
            return [packet.with_batch(self._enrich(packet.batch, self._current(None)))]
        arrivals = packet.order.arrival_array()
        done, pieces = 0, []
        while done < len(packet):
            dimension = self._current(float(arrivals[done]))
            assert dimension.since is not None
            later = np.flatnonzero(arrivals[done:] >= dimension.since + self._refresh)
            end = done + int(later[0]) if len(later) else len(packet)
            pieces.append(self._enrich(packet.batch.slice(done, end - done), dimension))
            done = end
        return [packet.with_batch(pa.concat_batches(pieces))]

    def _current(self, arrival: float | None) -> _Loaded:
        """The table that a tuple of this arrival meets."""
        loaded = self._dimension.newest
        if loaded is None:
            return self._renewed(arrival)
        if arrival is not None and self._refresh is not None:
            if loaded.since is None:
                loaded.since = arrival
            elif arrival >= loaded.since + self._refresh:
                return self._renewed(arrival)
        return loaded

    def _renewed(self, arrival: float | None) -> _Loaded:
        """The table read again; if another worker has read a newer one meanwhile, that one."""
        ticket = self._dimension.ticket()
        table = self._read() if self._fixed is None else self._fixed
        self._dimension.put(ticket, self._index(table, arrival))
        newest = self._dimension.newest
        assert newest is not None
        if arrival is not None:
            newest.since = arrival if newest.since is None else max(newest.since, arrival)
        return newest

    def _enrich(self, batch: pa.RecordBatch, dimension: _Loaded) -> pa.RecordBatch:
        rows = dimension.rows([batch.column(name) for name in self.on])
        found = [column.take(rows) for column in dimension.columns.columns]
        return pa.RecordBatch.from_arrays([*batch.columns, *found], schema=self.outputs[0])


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
