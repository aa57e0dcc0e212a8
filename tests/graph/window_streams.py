"""Random streams and random ways of cutting, splitting and interrupting them."""

from __future__ import annotations

import itertools
import math
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from headgate.graph.operator import Operator
from headgate.graph.packet import Order, Packet
from headgate.graph.partition import buckets
from headgate.graph.time import ticks_of

SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("s", pa.string()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("x", pa.int64()),
        ("f", pa.float64()),
    ]
)


WORDS = [None, "", "a", "b", "é"]
NUMBERS = [None, 0.0, -0.0, 1.5, -2.5, 1e9, math.nan]


def row_lists(max_size: int = 60, keys: int = 3) -> Any:
    """Rows with ties, nulls and disorder; times are microseconds near 0.

    Drawn from a seed: hypothesis by itself prefers lists too short for windows to close and keys to meet.
    """
    return st.builds(
        _rows,
        seed=st.integers(0, 2**32),
        size=st.sampled_from([max_size, max_size // 2]) | st.integers(0, max_size),
        keys=st.integers(1, keys),
        pace=st.sampled_from([0, 1, 3]),
        disorder=st.sampled_from([1, 4, 10, 40]),
        nulls=st.sampled_from([0.0, 0.1]),
    )


def _rows(seed: int, size: int, keys: int, pace: int, disorder: int, nulls: float) -> list[dict[str, Any]]:
    random = np.random.default_rng(seed)
    times = np.cumsum(random.integers(0, pace + 1, size)) + random.integers(-disorder, disorder, size)

    def perhaps(value: Any) -> Any:
        return None if random.random() < nulls else value

    return [
        {
            "k": perhaps(int(random.integers(keys))),
            "s": WORDS[random.integers(len(WORDS))],
            "ts": perhaps(int(time)),
            "x": perhaps(int(random.integers(-5, 6))),
            "f": NUMBERS[random.integers(len(NUMBERS))],
        }
        for time in times
    ]


def cuts(draw_from: list[int], length: int) -> list[int]:
    return sorted({0, length, *(c for c in draw_from if c < length)})


def batch_of(rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def packets_of(rows: list[dict[str, Any]], at: list[int], schema: pa.Schema = SCHEMA) -> list[Packet]:
    """The stream cut at ``at``; serials are the rows' places times 10, arrivals a tenth of them."""
    batch = batch_of(rows, schema)
    packets = []
    for start, end in itertools.pairwise(at):
        serials = np.arange(start, end, dtype=np.int64) * 10
        packets.append(Packet(batch.slice(start, end - start), Order(serials, serials / 10.0, end - start)))
    return packets


END = -1


def end_packet(schema: pa.Schema = SCHEMA) -> Packet:
    batch = batch_of([dict.fromkeys(schema.names)], schema)
    return Packet(batch, Order(10**9, 0.0, 1))


def run(
    operator: Operator, packets: list[Packet], interrupt: int | None = None, split: int = 1
) -> tuple[list[tuple[int | None, tuple[Any, ...]]], list[tuple[int, tuple[Any, ...]]]]:
    """(cause, values) of every result and late row; the state is revived before packet ``interrupt``."""
    operator = pickle.loads(pickle.dumps(operator))
    state = operator.open()
    outputs: list[list[Any]] = [[] for _ in operator.outputs]
    for place, packet in enumerate(packets):
        if place == interrupt:
            state = revived(operator, state, split)
        for kept, out in zip(outputs, operator.process([packet], state), strict=True):
            kept.append(out)
    for kept, out in zip(outputs, operator.finish(state, end_packet(operator.inputs[0])), strict=False):
        kept.append(out)
    return tuple(rows_of(kept, schema) for kept, schema in zip(outputs, operator.outputs, strict=True))  # type: ignore[return-value]


def revived(operator: Operator, state: Any, split: int) -> Any:
    """The state after a snapshot that was split by bucket, written out, read back and joined."""
    table = state.snapshot()
    keys = list(getattr(operator, "keys", ()))
    if split == 1 or not keys:
        return operator.restore([_through_ipc(table)])
    chunks = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
    bucket = buckets(chunks[0], keys, split)
    return operator.restore([_through_ipc(table.filter(pa.array(bucket == b))) for b in range(split)])


def _through_ipc(table: pa.Table) -> pa.Table:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return pa.ipc.open_stream(sink.getvalue()).read_all()


def rows_of(packets: list[Packet], schema: pa.Schema) -> list[tuple[int | None, tuple[Any, ...]]]:
    rows: list[tuple[int | None, tuple[Any, ...]]] = []
    for packet in packets:
        assert packet.batch.schema.equals(schema)
        serials = packet.order.serials
        assert len(serials) == packet.batch.num_rows
        assert (packet.order.arrival_array() == np.where(serials == 10**9, 0.0, serials / 10.0)).all()
        columns = [plain(c) for c in packet.batch.columns]
        values = zip(*columns, strict=True) if columns else []
        rows += [(None if s == 10**9 else s // 10, v) for s, v in zip(serials.tolist(), values, strict=True)]
    causes = [10**9 if cause is None else cause for cause, _ in rows]
    assert causes == sorted(causes)
    return rows


def plain(array: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(array.type):
        return array.cast(pa.int64()).to_pylist()
    return array.to_pylist()


def partitioned(operator: Operator, packets: list[Packet], count: int) -> list[list[Any]]:
    """The operator in ``count`` buckets, each told of time by ticks; outputs merged by cause."""
    column = operator.inputs[0].get_field_index("ts")
    found: list[list[Any]] = [[] for _ in operator.outputs]
    for bucket in range(count):
        state = operator.open()
        outputs: list[list[Packet]] = [[] for _ in operator.outputs]
        for packet in packets:
            mine = np.flatnonzero(buckets(packet.batch, list(operator.keys), count) == bucket)  # type: ignore[attr-defined]
            part = Packet(
                packet.batch.take(pa.array(mine)), packet.order.take(mine), ticks=ticks_of(packet, column)
            )
            for kept, out in zip(outputs, operator.process([part], state), strict=True):
                kept.append(out)
        for kept, out in zip(outputs, operator.finish(state, end_packet(operator.inputs[0])), strict=False):
            kept.append(out)
        for merged, kept, schema in zip(found, outputs, operator.outputs, strict=True):
            merged += rows_of(kept, schema)
    return found


def same(one: Any, other: Any) -> bool:
    """Equal, with floats to 1e-9 and NaN equal to NaN."""
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return bool(one == other)


def assert_same(found: Any, expected: Any) -> None:
    assert len(found) == len(expected), (found, expected)
    for place, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert same(one, other), f"at {place}: {one} instead of {other}"
