"""Numbers of terms as their texts: the last box of a request over triples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa

from headgate.graph.operator import Operator
from headgate.graph.packet import Packet


class Dictionary(Protocol):
    """Where texts are looked up."""

    def texts(self, numbers: pa.Array) -> pa.Array:
        """The text of every number; null where there is none."""


class Decode(Operator):
    """Every column's numbers as texts."""

    def __init__(self, schema: pa.Schema, terms: Dictionary) -> None:
        super().__init__([schema], [pa.schema([(name, pa.string()) for name in schema.names])])
        self._terms = terms

    def process(self, packets: Sequence[Packet], state: Any) -> list[Packet]:
        packet = packets[0]
        columns = [self._terms.texts(column) for column in packet.batch.columns]
        return [packet.with_batch(pa.RecordBatch.from_arrays(columns, schema=self.outputs[0]))]
