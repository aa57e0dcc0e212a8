"""A keyed box with several workers inside: its state by bucket, its packets split and put together again.

What a call takes is a unit, with a ticket.  The first worker that comes splits units, in order, into parts:
one for each bucket that has rows in it, or for every bucket if time moves the state.  The partitioning scheme
gives the parts to workers.  The worker that finishes a unit's last part puts its results into tuple order,
and they leave by the unit's ticket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from headgate.atomics import Counter, Flag, Queue
from headgate.errors import HeadgateError
from headgate.graph.operator import Operator, State
from headgate.graph.packet import Marker, Packet
from headgate.graph.partition import buckets as hash_buckets
from headgate.graph.partition import range_buckets
from headgate.graph.shards import BucketOf, merge, split, split_state
from headgate.runtime.ordered.partitioning import IN_TURNS, SCHEMES, Partitioning, SharedInTurns


class Splittable(Protocol):
    """What a call takes: rounds of packets that are split, and the results that are put together again."""

    rounds: list[tuple[Packet, ...]]
    results: list[list[Packet]]
    markers: tuple[Marker, ...]
    error: HeadgateError | None


U = TypeVar("U", bound=Splittable)


class Part(Generic[U]):
    """The rows of a unit that fall to one bucket: some of the unit's rounds, known by their numbers."""

    __slots__ = ("bucket", "results", "rounds", "rows", "whole")

    def __init__(self, whole: _Whole[U], bucket: int, rounds: dict[int, Sequence[Packet]]) -> None:
        self.whole = whole
        self.bucket = bucket
        self.rounds = rounds
        self.rows = sum([len(packet) for packets in rounds.values() for packet in packets])
        self.results: dict[int, list[Packet]] = {}

    @property
    def unit(self) -> U:
        return self.whole.unit


class _Whole(Generic[U]):
    """A unit and its parts that are done."""

    __slots__ = ("done", "left", "unit")

    def __init__(self, unit: U, parts: int) -> None:
        self.unit = unit
        self.left = Counter(parts)
        self.done: Queue[Part[U]] = Queue()


class Buckets(Generic[U]):
    """The state of a keyed box by bucket, and what waits for each."""

    def __init__(self, operator: Operator, state: State, scheme: str, buckets: int, workers: int) -> None:
        self.operator = operator
        self._bucket_of: BucketOf = hash_buckets
        if operator.ranges is not None:
            self._bucket_of, buckets = _by_range(operator.ranges), len(operator.ranges) + 1
        # With a queue per worker finer parts gain nothing: the worker that has the queue has all of them.
        places = min(workers, buckets) if scheme == "partitioned" else buckets
        self._buckets = buckets
        self._shards = [(n * buckets // places, (n + 1) * buckets // places) for n in range(places)]
        self.states = split_state(operator, state, self._shards, buckets, self._bucket_of)
        self._everywhere = any(column is not None for column in operator.times_by_input)
        make = SharedInTurns if scheme == IN_TURNS else SCHEMES[scheme]
        self._scheme: Partitioning[Part[U]] = make(places, workers)
        self._unsplit: Queue[U] = Queue()
        self._splitting = Flag()
        self._rows_of_part = 1.0

    @property
    def waiting(self) -> int:
        """About how many tuples a worker that comes now could work on."""
        parts = self._scheme.waiting()
        rows = max(1, round(parts * self._rows_of_part)) if parts else 0
        if self._splitting.is_set():
            return rows
        return rows + sum(_rows(unit) for unit in self._unsplit.items())

    def take(self, unit: U) -> None:
        """Queue a unit to be split; units come one at a time, in the order of their tickets."""
        self._unsplit.enqueue(unit)

    def split(self) -> None:
        """Split the units that wait for it, unless another worker does."""
        while len(self._unsplit) and not self._splitting.test_and_set():
            while (unit := self._unsplit.try_dequeue()) is not None:
                self._split(unit)
            self._splitting.clear()

    def _split(self, unit: U) -> None:
        rounds = [
            split(self.operator, packets, self._shards, self._buckets, self._bucket_of)
            for packets in unit.rounds
        ]
        chosen: dict[int, dict[int, Sequence[Packet]]] = {}
        for number, by_bucket in enumerate(rounds):
            for bucket, packets in enumerate(by_bucket):
                if self._everywhere or any(len(packet) for packet in packets):
                    chosen.setdefault(bucket, {})[number] = packets
                elif packets[0].markers:
                    unit.markers += packets[0].markers
        whole = _Whole(unit, len(chosen))
        for bucket in sorted(chosen):
            part = Part(whole, bucket, chosen[bucket])
            self._rows_of_part += 0.1 * (part.rows - self._rows_of_part)
            self._scheme.add(bucket, part)

    def consume(self, enough: Callable[[], bool]) -> Iterator[Part[U] | None]:
        """Parts for a worker; each is its own, with its bucket's state, until it asks for the next.

        None: in a simulation, the worker has to wait for another one.
        """
        for found in self._scheme.consume(enough):
            yield None if found is None else found[1]

    def complete(self, part: Part[U]) -> U | None:
        """A part is done.  Returns the unit with its results if that was the last part."""
        whole = part.whole
        whole.done.enqueue(part)
        if whole.left.fetch_add(-1) > 1:
            return None
        unit = whole.unit
        if unit.error is None:
            parts = whole.done.items()
            unit.results = [
                merge(self.operator, [part.results[number] for part in parts if number in part.results])
                for number in range(len(unit.rounds))
            ]
        unit.rounds = []
        return unit

    def finish(self, end: Packet) -> list[Packet]:
        """What all buckets close at the end."""
        return merge(self.operator, [self.operator.finish(state, end) for state in self.states])


def _rows(unit: Splittable) -> int:
    return sum([len(packet) for packets in unit.rounds for packet in packets])


def _by_range(boundaries: Sequence[object]) -> BucketOf:
    return lambda batch, keys, count: range_buckets(batch, keys[0], boundaries)
