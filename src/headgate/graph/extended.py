"""Rows that a box only adds columns to need not go where its state is.

Shards get the columns that the box reads and tell what it adds; the rows wait where they will be needed, and
what was added is put beside them by place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.graph.columns import shared_nulls, taken
from headgate.graph.operator import Operator
from headgate.graph.packet import Packet


@dataclass(slots=True)
class Added:
    """What a shard adds to its rows, and the places of these in the whole packet."""

    columns: pa.RecordBatch
    places: npt.NDArray[np.int32]


def bare(packet: Packet, operator: Operator) -> Packet:
    """The packet with only the columns that the operator reads; the others are null."""
    read = operator.needed([frozenset() for _ in operator.outputs])[0]
    columns = [
        column if name in read else shared_nulls(column.type, len(packet))
        for name, column in zip(packet.schema.names, packet.batch.columns, strict=True)
    ]
    return packet.with_batch(pa.RecordBatch.from_arrays(columns, schema=packet.schema))


def added(result: Packet, operator: Operator) -> Added:
    """What a shard's call has added to a part of a packet that was split."""
    places = result.order.ordinals
    assert places is not None
    known = len(operator.inputs[0])
    columns = result.batch.select(list(range(known, result.batch.num_columns)))
    return Added(columns, places.astype(np.int32))


def extended(rows: Packet, parts: Sequence[Added], schema: pa.Schema) -> Packet:
    """The rows with what all shards have added to them."""
    places = np.concatenate([part.places for part in parts])
    there = np.empty(len(places), dtype=np.int64)
    there[places] = np.arange(len(places))
    columns = [
        taken(pa.concat_arrays([part.columns.column(place) for part in parts]), there)
        for place in range(parts[0].columns.num_columns)
    ]
    return rows.with_batch(pa.RecordBatch.from_arrays([*rows.batch.columns, *columns], schema=schema))
