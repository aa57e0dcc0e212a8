"""The state of a query's boxes as tables that people can read: by key, with the names that they gave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headgate.checkpoint import state_store
from headgate.checkpoint.graph import Nodes
from headgate.checkpoint.position import Position
from headgate.checkpoint.storage import Storage
from headgate.graph.operator import Operator
from headgate.graph.operators.window import WindowAggregate
from headgate.graph.operators.window_state import WindowState
from headgate.graph.time import NEVER, time_array

_STATE = "state."
_TIMES = frozenset({"seen", "first", "last", "due"})
"""Columns of states that are times, in microseconds."""


@dataclass
class BoxState:
    """What one box of a query remembers."""

    box: str
    does: str
    at: int
    """The serial up to which it has taken its rows in."""
    table: pa.Table


def states(storage: Storage, nodes: Nodes, position: Position, query: str) -> list[BoxState]:
    """The states of a query's boxes, in the network's order."""
    found = []
    for node in nodes.boxes:
        if not node.stateful or query not in node.queries:
            continue
        own = position.nodes[node.key]
        assert node.operator is not None
        state = state_store.whole(storage, node.operator, own.state)
        found.append(BoxState(node.name, node.operator.label, own.cursor, _readable(node.operator, state)))
    return found


def _readable(operator: Operator, state: Any) -> pa.Table:
    if isinstance(operator, WindowAggregate) and isinstance(state, WindowState):
        return _open_windows(operator, state)
    table: pa.Table = state.snapshot()
    aggregates = [each.name for each in getattr(operator, "aggregates", ())]
    columns: dict[str, Any] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        columns[_named(name, aggregates)] = _as_time(column) if _is_time(name, column) else column
    for name in [name.removesuffix(".low") for name in columns if name.endswith(".low")]:
        if f"{name}.high" in columns:  # one number of 128 bits
            low, high = columns.pop(f"{name}.low"), columns.pop(f"{name}.high")
            whole = zip(high.to_pylist(), low.to_pylist(), strict=True)
            columns[name] = pa.array([str((up << 64) + (down & (1 << 64) - 1)) for up, down in whole])
    return pa.table(columns)


def _open_windows(operator: WindowAggregate, state: WindowState) -> pa.Table:
    """Keys, bounds and the aggregates as they are now; of sliding windows, by the pane that they share."""
    groups, _ = state.groups.snapshot()
    starts, ends = state.groups.bounds(groups)
    kind = operator.outputs[0].field("window_start").type
    columns = [
        *state.keys.keys(state.groups.slots(groups)),
        time_array(starts, kind),
        time_array(ends, kind),
        *state.accumulators.results(groups),
    ]
    return pa.table(columns, names=operator.outputs[0].names[: len(columns)])


def _named(name: str, aggregates: list[str]) -> str:
    place, dot, part = name.removeprefix(_STATE).partition(".")
    return f"{aggregates[int(place)]}.{part}" if dot and place.isdigit() else name.removeprefix(_STATE)


def _is_time(name: str, column: Any) -> bool:
    return name.removeprefix(_STATE) in _TIMES and name.startswith(_STATE) and pa.types.is_int64(column.type)


def _as_time(column: pa.ChunkedArray) -> pa.Array:
    return pa.array([None if v == NEVER else v for v in column.to_pylist()], pa.timestamp("us", "UTC"))
