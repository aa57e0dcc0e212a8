"""``stream.map_packets(fn, schema=)``: a user's function of whole record batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from headgate.graph.operator import Operator
from headgate.graph.operators._user import function_name, map_batch, require_function
from headgate.graph.packet import Packet
from headgate.graph.schema import normalise


class MapPackets(Operator):
    """``fn(batch)`` gives a batch or table, or (batch, indices): row ``indices[i]`` caused result i.

    Without indices, results as many as the rows keep the rows' order keys; otherwise all of them belong
    to the packet's last row, because the operator cannot tell which row caused which.
    """

    def __init__(self, schema: pa.Schema, fn: Callable[[pa.RecordBatch], Any], out_schema: pa.Schema) -> None:
        require_function(fn, "map_packets")
        super().__init__([schema], [normalise(out_schema)])
        self.fn = fn
        self._label = f"map_packets({function_name(fn)})"

    @property
    def label(self) -> str:
        return self._label

    def process(self, packets: Sequence[Packet], state: Any) -> list[Packet]:
        return [map_batch(packets[0], self.fn, self.outputs[0], self.label)]
