"""``stream.flat_map_rows(fn, schema=)``: a user's function of one row at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from headgate.graph.operator import Operator
from headgate.graph.operators._user import Row, function_name, map_rows, require_function
from headgate.graph.packet import Packet
from headgate.graph.schema import normalise


class FlatMapRows(Operator):
    """``fn(row)`` takes a dict and gives a dict, several, or None; results keep the row's place."""

    slow = True

    def __init__(self, schema: pa.Schema, fn: Callable[[Row], Any], out_schema: pa.Schema) -> None:
        require_function(fn, "flat_map_rows")
        super().__init__([schema], [normalise(out_schema)])
        self.fn = fn

    @property
    def label(self) -> str:
        return f"flat_map_rows({function_name(self.fn)})"

    def process(self, packets: Sequence[Packet], state: Any) -> list[Packet]:
        fn = self.fn
        return [map_rows(packets[0], lambda _, row: fn(row), self.outputs[0], self.label)]
