"""``stream.lookup(table, on="item_id")``: columns from a table that is small and changes seldom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import OperatorError, PipelineError, TypeMismatch
from headgate.graph.columns import Ints, check_key
from headgate.graph.durations import parse_duration
from headgate.graph.operator import Operator
from headgate.graph.packet import Packet
from headgate.graph.schema import normalise, normalise_batch, require_columns


@dataclass(frozen=True)
class _Dimension:
    """A loaded table: for each key column its distinct values, and the row of every combination there is."""

    words: list[pa.Array]
    codes: pa.Array
    rows: Ints
    columns: pa.RecordBatch
    since: float | None
    """Arrival of the first tuple that met it; None until one has."""


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
        on: str | Sequence[str],
        refresh: str | float | None = None,
    ) -> None:
        names = [on] if isinstance(on, str) else list(on)
        if not names:
            raise PipelineError("lookup: on= names no column.")
        if not callable(table) and not isinstance(table, (pa.Table, pa.RecordBatch)):
            raise PipelineError(
                f"lookup: a {type(table).__name__} is not a table; "
                "give a pyarrow Table or a function that returns one."
            )
        if refresh is not None and not callable(table):
            raise PipelineError("lookup: refresh= needs a function that reads the table again, not a table.")
        self.on = tuple(require_columns(schema, names, "lookup: on"))
        self._load = table if callable(table) else None
        self._refresh = None if refresh is None else parse_duration(refresh, "lookup: refresh") / 1_000_000
        if self._refresh == 0:
            raise PipelineError("lookup: refresh= must be more than zero.")
        first: Any = self._read() if self._load else table
        self._table_schema = normalise(first.schema)
        self._dimension: _Dimension | None = self._index(first, None)
        super().__init__([schema], [self._output(schema)])

    def _output(self, schema: pa.Schema) -> pa.Schema:
        table = self._table_schema
        self._table_keys = require_columns(table, self.on, "lookup: the table's key")
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

    def _index(self, table: pa.Table | pa.RecordBatch, since: float | None) -> _Dimension:
        if not normalise(table.schema).equals(self._table_schema):
            raise OperatorError(
                f"{self.label}: the table had the columns {_described(self._table_schema)} at first, but now "
                f"{_described(table.schema)}; it must not change them."
            )
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        rows = normalise_batch(_one_batch(table), self._table_schema)
        keys = require_columns(self._table_schema, self.on, "lookup: the table's key")
        present = np.ones(rows.num_rows, dtype=bool)
        words: list[pa.Array] = []
        for name in keys:
            column = rows.column(name)
            words.append(column.drop_null().unique())
            present &= column.is_valid().to_numpy(zero_copy_only=False)
        usable = np.flatnonzero(present)
        codes = _codes([rows.column(name).take(pa.array(usable)) for name in keys], words)
        distinct, first = np.unique(codes, return_index=True)
        if len(distinct) < len(codes):
            again = np.setdiff1d(np.arange(len(codes)), first)[0]
            key = ", ".join(f"{name} = {rows.column(name)[usable[again]].as_py()!r}" for name in keys)
            raise PipelineError(f"lookup: the table has more than one row with {key}; keys must be unique.")
        added = rows.select([name for name in rows.schema.names if name not in keys])
        return _Dimension(words, pa.array(distinct), usable[first], added, since)

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

    def _current(self, arrival: float | None) -> _Dimension:
        """The table that a tuple of this arrival meets."""
        dimension = self._dimension
        if dimension is None:
            dimension = self._dimension = self._index(self._read(), arrival)
        elif arrival is not None and self._refresh is not None:
            if dimension.since is None:
                dimension = _Dimension(
                    dimension.words, dimension.codes, dimension.rows, dimension.columns, arrival
                )
                self._dimension = dimension
            elif arrival >= dimension.since + self._refresh:
                dimension = self._dimension = self._index(self._read(), arrival)
        return dimension

    def _enrich(self, batch: pa.RecordBatch, dimension: _Dimension) -> pa.RecordBatch:
        codes = _codes([batch.column(name) for name in self.on], dimension.words)
        place = pc.index_in(pa.array(codes, mask=codes < 0), value_set=dimension.codes)
        rows = pa.array(dimension.rows).take(place)
        found = [column.take(rows) for column in dimension.columns.columns]
        return pa.RecordBatch.from_arrays([*batch.columns, *found], schema=self.outputs[0])

    def __getstate__(self) -> dict[str, Any]:
        # A table that is read again anyway is not shipped: whoever unpickles reads it when needed.
        return {**self.__dict__, "_dimension": None} if self._refresh is not None else self.__dict__


def _codes(columns: Sequence[pa.Array], words: Sequence[pa.Array]) -> Ints:
    """One integer per row for its combination of words; -1 where a column's value is not among its words."""
    codes = np.zeros(len(columns[0]), dtype=np.int64)
    known = np.ones(len(codes), dtype=bool)
    for column, vocabulary in zip(columns, words, strict=True):
        place = pc.index_in(column, value_set=vocabulary, skip_nulls=True).fill_null(-1).to_numpy()
        known &= place >= 0
        codes = codes * (len(vocabulary) + 1) + place
    return np.where(known, codes, -1)


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
