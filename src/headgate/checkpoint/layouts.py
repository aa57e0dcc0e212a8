"""States that an earlier version of a box has written, as the present one reads them.

Columns of aggregates are numbered by their places in the box, so they move with them.  An aggregate that is
new has seen no row yet: its columns are those of an aggregate over nothing.  Rows that are remembered have no
value in columns that are new, and lose those that are gone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headgate.checkpoint.graph import operator_data
from headgate.checkpoint.heirs import Layout
from headgate.checkpoint.heirs import layout as layout_of
from headgate.graph.aggregates import accumulator
from headgate.graph.aggregates.running_functions import running_state
from headgate.graph.operator import Operator
from headgate.graph.operators.window import WindowAggregate

_STATE = "state."


def fitted(table: pa.Table, layout: Layout, full: bool, operator: Operator) -> pa.Table:
    """A table of a state of an earlier version.  ``full``: a snapshot, not changes."""
    state = operator.open()
    assert state is not None
    aggregates: list[Any] = list(getattr(operator, "aggregates", ()))
    if not aggregates:
        return _filled(table, state.snapshot().schema)
    columns, parts = {}, dict[str, dict[str, Any]]()
    for name, column in zip(table.column_names, table.columns, strict=True):
        place, part = _place(name)
        if place is None:
            columns[name] = column
        else:
            parts.setdefault(place, {})[part] = column
    for number, each in enumerate(layout_of(operator_data(operator))):
        # Of two equal aggregates, which a box may have under two names, either state does.
        old = parts.get(str(layout.index(each))) if each in layout else None
        own = _nothing(operator, aggregates[number], table.num_rows, full) if old is None else old
        columns |= {f"{_STATE}{number}.{part}": values for part, values in own.items()}
    fit = pa.table(list(columns.values()), names=list(columns))
    return fit.replace_schema_metadata(table.schema.metadata)


def _place(name: str) -> tuple[str | None, str]:
    """The place of the aggregate whose column this is, and which of its columns."""
    if not name.startswith(_STATE):
        return None, name
    place, dot, part = name.removeprefix(_STATE).partition(".")
    return (place, part) if dot and place.isdigit() else (None, name)


def _nothing(operator: Operator, aggregate: Any, rows: int, full: bool) -> dict[str, pa.Array]:
    """What ``rows`` groups write of an aggregate that has seen nothing."""
    window = operator if isinstance(operator, WindowAggregate) else None
    part: Any = running_state(aggregate) if window is None else accumulator(aggregate)
    lasting = window is None or window.new_groups().lasting
    groups = np.arange(rows, dtype=np.int64)
    part.grow(rows)
    part.told()
    found: dict[str, pa.Array] = part.snapshot(groups) if full or not lasting else part.changes(groups)
    return found


def _filled(table: pa.Table, expected: pa.Schema) -> pa.Table:
    """The expected columns, and no others."""
    columns = []
    for field in expected:
        if field.name not in table.column_names:
            columns.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
        else:
            chunks = [_cast(chunk, field.type) for chunk in table.column(field.name).chunks]
            columns.append(pa.chunked_array(chunks, field.type))
    return pa.table(columns, names=expected.names).replace_schema_metadata(table.schema.metadata)


def _cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """A structure gets the fields that it lacks, as nulls; anything else is what is wanted."""
    if array.type == wanted or not pa.types.is_struct(wanted):
        return array
    fields = list(wanted)
    columns = [
        array.field(field.name)
        if array.type.get_field_index(field.name) >= 0
        else pa.nulls(len(array), field.type)
        for field in fields
    ]
    return pa.StructArray.from_arrays(columns, fields=fields, mask=array.is_null())
