"""A keyed box as several shards that together give exactly what one gives.

A shard has the state of the keys whose buckets fall to it and sees the rows of those keys only.  What it
must know of the others' rows travels with its packets: each row's place in the whole input (ordinals), and
how event time moved there (ticks).  A call of the box is then::

    parts = split(operator, packets, shards, buckets)
    results = [operator.process(part, state) for part, state in zip(parts, states)]
    outputs = merge(operator, results)

and likewise at the end: ``merge(operator, [operator.finish(state, end) for state in states])``.  The results
of one cause may come from several shards, and only their columns say in which order they leave; so shards
are merged right after the keyed box, before anything else is done with its results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.errors import PipelineError
from headgate.graph.columns import Ints, lexical_order, shared_nulls, sort_keys, taken
from headgate.graph.gathered import Gathered
from headgate.graph.operator import Kind, Operator, State
from headgate.graph.packet import Order, Packet
from headgate.graph.partition import buckets as buckets_of
from headgate.graph.time import ticks_of

BucketOf = Callable[[pa.RecordBatch, Sequence[str], int], npt.NDArray[np.int32]]
"""The bucket of every row: of a batch, by its key columns, out of so many."""
Shard = range | tuple[int, int]
"""The buckets of a shard: from the first to, not including, the second."""


def split(
    operator: Operator,
    packets: Sequence[Packet],
    shards: Sequence[Shard],
    buckets: int,
    bucket_of: BucketOf = buckets_of,
) -> list[list[Packet]]:
    """One call's packets, one per input, for each of ``shards``, which share out ``buckets`` buckets.

    Every shard has to process its packets, also those without rows: time may have moved in them.  Markers
    go with the first shard.
    """
    owners = _owners(operator, shards, buckets)
    if len(shards) == 1:
        return [list(packets)]
    split_inputs = [
        _parts(operator, port, packet, places, owners, len(shards), buckets, bucket_of)
        for port, (packet, places) in enumerate(zip(packets, _places(packets), strict=True))
    ]
    return [list(parts) for parts in zip(*split_inputs, strict=True)]


def split_gathered(
    operator: Operator, gathered: Gathered, shards: Sequence[Shard], buckets: int
) -> list[Gathered]:
    """What was gathered, for each of ``shards``; each has to absorb its part, as time may have moved."""
    keys = gathered.groups.schema.names[: len(operator.keys_by_input[0])]
    owner = _owners(operator, shards, buckets)[buckets_of(gathered.groups, keys, buckets)]
    return gathered.parted(
        [taken(gathered.groups, places) for places in _places_by_owner(owner, len(shards))]
    )


def merge(operator: Operator, results: Sequence[Sequence[Packet]]) -> list[Packet]:
    """What the shards gave for one call of ``process``, or for ``finish``, as the unsharded box gives it."""
    ties = operator.ties_by_output
    return [
        _merged(parts, ties[output] if ties else ())
        for output, parts in enumerate(zip(*results, strict=True))
    ]


def buckets_of_state(
    operator: Operator, table: pa.Table, buckets: int, bucket_of: BucketOf = buckets_of
) -> npt.NDArray[np.int32]:
    """The bucket of every row of a keyed state's table, whose first columns are the key."""
    names = [str(place) for place in range(len(operator.keys_by_input[0]))]
    columns = [table.column(place).combine_chunks() for place in range(len(names))]
    return bucket_of(pa.RecordBatch.from_arrays(columns, names=names), names, buckets)


def split_state(
    operator: Operator,
    state: State,
    shards: Sequence[tuple[int, int]],
    buckets: int,
    bucket_of: BucketOf = buckets_of,
) -> list[State]:
    """A keyed box's state as one state per shard."""
    table = state.snapshot()
    found = buckets_of_state(operator, table, buckets, bucket_of)
    states = [
        operator.restore([table.filter(pa.array((found >= low) & (found < high)))]) for low, high in shards
    ]
    found_states = [found_state for found_state in states if found_state is not None]
    found_states[0].late = state.late
    return found_states


def _owners(operator: Operator, shards: Sequence[Shard], buckets: int) -> npt.NDArray[np.int16]:
    """The shard of every bucket."""
    if operator.kind is not Kind.KEYED and len(shards) > 1:
        raise PipelineError(
            f"{operator.label}: only a keyed box can be split by key, and this one is {operator.kind.value}; "
            "run it as one shard."
        )
    owners = np.full(buckets, -1, dtype=np.int16)
    for number, shard in enumerate(shards):
        mine = np.array(shard if isinstance(shard, range) else range(*shard), dtype=np.int64)
        if ((mine < 0) | (mine >= buckets)).any() or (owners[mine] >= 0).any():
            raise PipelineError(
                f"{operator.label}: shard {number} has buckets {mine[0]} to {mine[-1]}; some are another "
                f"shard's or not among the {buckets} that there are. Give every bucket to one shard."
            )
        owners[mine] = number
    if (owners < 0).any():
        raise PipelineError(
            f"{operator.label}: bucket {int(np.argmin(owners))} of {buckets} falls to no shard; "
            "give every bucket to one shard."
        )
    return owners


def _places(packets: Sequence[Packet]) -> list[Ints]:
    """Each packet's rows, numbered in the order in which a box takes those of all its inputs."""
    if len(packets) == 1:
        return [np.arange(len(packets[0]), dtype=np.int64)]
    serials = np.concatenate([packet.order.serials for packet in packets])
    places = np.empty(len(serials), dtype=np.int64)
    places[np.argsort(serials, kind="stable")] = np.arange(len(serials), dtype=np.int64)
    return np.split(places, np.cumsum([len(packet) for packet in packets])[:-1])


def _parts(
    operator: Operator,
    port: int,
    packet: Packet,
    places: Ints,
    owners: npt.NDArray[np.int16],
    shards: int,
    buckets: int,
    bucket_of: BucketOf,
) -> list[Packet]:
    """One input's packet for every shard."""
    order = packet.order.with_ordinals(places)
    column = operator.times_by_input[port]
    ticks = None
    if column is not None:
        index = packet.schema.get_field_index(column)
        ticks = ticks_of(Packet(packet.batch, order), index, operator.time_limit, operator.time_grain)
    owner = owners[bucket_of(packet.batch, operator.keys_by_input[port], buckets)]
    parts = []
    for number, places_of in enumerate(_places_by_owner(owner, shards)):
        columns = [
            shared_nulls(column.type, len(places_of))  # what no box needs was not read
            if column.null_count == len(column)
            else taken(column, places_of)
            for column in packet.batch.columns
        ]
        rows = pa.RecordBatch.from_arrays(columns, schema=packet.schema)
        markers = packet.markers if number == 0 else ()
        parts.append(Packet(rows, order.take(places_of), markers, packet.request, ticks))
    return parts


_FEW = 16
"""Shards up to which looking for each one's rows is faster than sorting all rows by shard."""


def _places_by_owner(owner: npt.NDArray[np.int16], shards: int) -> list[Ints]:
    """For each shard the rows that are its own, in order."""
    if shards <= _FEW:
        return [np.flatnonzero(owner == number) for number in range(shards)]
    ends = np.cumsum(np.bincount(owner, minlength=shards))
    return np.split(np.argsort(owner, kind="stable"), ends[:-1])


def _merged(parts: Sequence[Packet], ties: Sequence[str]) -> Packet:
    """Shards' results of one output by cause, and by ``ties`` among those of one cause."""
    markers = tuple(marker for part in parts for marker in part.markers)
    request = parts[0].request
    full = [part for part in parts if len(part)]
    if len(full) <= 1:
        [only] = full or parts[:1]
        return Packet(only.batch, only.order.with_ordinals(None), markers, request)
    batch = pa.concat_batches([part.batch for part in full])
    order = Order.concat([part.order for part in full])
    # At the end of the stream there is one cause, which is no row of an input.
    causes = order.serials if order.ordinals is None else order.ordinals
    by_cause = _order_by(causes, [key for name in ties for key in sort_keys(batch.column(name))])
    columns = [taken(column, by_cause) for column in batch.columns]
    rows = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
    return Packet(rows, order.with_ordinals(None).take(by_cause), markers, request)


def _order_by(causes: Ints, ties: Sequence[npt.NDArray[Any]]) -> Ints:
    """The order by cause; results of one cause by ``ties``, then as they stand."""
    size = int(causes.max()) - (low := int(causes.min())) + 1
    if size <= 4 * len(causes):
        # One result for most causes: each is put at its place, which takes a tenth of the time of sorting.
        there = np.full(size, -1, dtype=np.int64)
        there[causes - low] = np.arange(len(causes))
        found = there[there >= 0]
        if len(found) == len(causes):
            return found
    if ties:
        return lexical_order([causes, *ties, np.arange(len(causes))])
    return np.argsort(causes, kind="stable")
