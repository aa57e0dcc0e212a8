"""The queue before a box or an output (Aurora's storage manager; worklists in ordered processing).

A ``Fifo`` serves one arrow.  A ``Merge`` serves several: arrows that were united into one port, and the
ports of a join.  It releases rows only when no arrow can bring an earlier one any more, so what leaves is
in serial order, whatever the schedule upstream was.  ``Arrivals`` serves the arrows of
``union(order="arrival")``: it releases rows at once.

On every arrow one thread puts at a time and one takes, which may be different ones, without a lock between
them: a deque is filled at one end and emptied at the other, and each side counts its own rows.  Methods that
only the taker calls say so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from headgate.graph.packet import Marker, Packet, Serials
from headgate.scheduling.events import QueueState

Round = tuple[Packet, ...]
"""One packet per port."""
SAMPLED = 16
"""Packets of a long queue whose ages stand for all of it: what it costs to look must not grow with it."""


class Spooling(Protocol):
    """Room for packets out of the way (``engines/spool.py``)."""

    written: int
    """Bytes that were ever put there."""

    @property
    def has_room(self) -> bool:
        """Whether one more packet finds room."""
        ...

    def keep(self, packet: Packet) -> Packet:
        """The same packet with its bytes out of the way."""
        ...


class Inbox:
    """What ``Fifo`` and ``Merge`` have in common: bounded by rows, measured for the policy."""

    def __init__(self, capacity: int, packet_rows: int) -> None:
        self.capacity = capacity
        self.packet_rows = packet_rows
        self.coming: dict[int, int] = {}
        """By arrow, rows that are kept free for the results of calls under way."""
        self.loose: deque[Marker] = deque()
        """Markers that came without a tuple, to travel with whatever is taken next."""
        self.spool: Spooling | None = None
        """Where packets wait beyond the bound, if the queue must not hold back what feeds others too."""

    @property
    def rows(self) -> int:
        """Rows that wait."""
        raise NotImplementedError

    def put(self, arrow: int, packet: Packet) -> None:
        raise NotImplementedError

    def available(self) -> int:
        """For the taker: rows that a call could take now."""
        raise NotImplementedError

    def take(self, rows: int) -> list[Round]:
        """For the taker: at most that many rows, in rounds of about a packet each."""
        raise NotImplementedError

    def packets(self) -> list[Packet]:
        raise NotImplementedError

    def ready(self) -> list[Packet]:
        """For the taker: packets whose rows a call could take now."""
        raise NotImplementedError

    def first_serial(self) -> int | None:
        """The smallest serial queued."""
        raise NotImplementedError

    # --- for trains, which say how much to take: the taker asks --------------------------------------

    def oldest(self) -> float:
        """When the first of the tuples that can be taken arrived."""
        return min([float(np.min(packet.order.arrivals)) for packet in self.ready()], default=0.0)

    def arrived_by(self, time: float) -> int:
        return sum([int(np.sum(packet.order.arrival_array() <= time)) for packet in self.ready()])

    def within(self, size: float) -> int:
        """Rows that fit into so many bytes, if the rows of a packet are equally large."""
        rows = 0
        for packet in self.ready():
            large = max(packet.batch.nbytes, 1)
            if large > size:
                return rows + int(len(packet) * size / large)
            rows += len(packet)
            size -= large
        return rows

    def take_loose(self) -> tuple[Marker, ...]:
        """For the taker: the markers that came without a tuple."""
        return tuple([self.loose.popleft() for _ in range(len(self.loose))])

    def clear(self) -> None:
        """For the taker: forget everything."""
        raise NotImplementedError

    def room(self, arrow: int) -> int:
        """Rows that this arrow finds room for.  Each has its own: one that waits must not shut others out."""
        return self._left(self.rows) - self.coming.get(arrow, 0)

    def _left(self, rows: int) -> int:
        """Room beside so many rows: always the whole of it, as long as what comes can be spooled."""
        spooled = self.spool is not None and self.spool.has_room
        return self.capacity if spooled else self.capacity - rows

    def full(self, arrow: int) -> bool:
        """A box is not called for less than a quarter of a packet: trains are cut to the room there is."""
        return self.room(arrow) <= self.packet_rows // 4

    def heads(self) -> list[Packet]:
        """The first packet of every arrow that has one."""
        raise NotImplementedError

    def measure(self, latency: bool, full: frozenset[int], head: bool = False) -> QueueState:
        """The queue as the policy sees it; ages only if asked for, as they cost a pass over order keys.

        ``head``: only the oldest, which is among the first, since tuples travel in the order of admission.
        """
        available = self.available()
        if not available or not (latency or head):
            return QueueState(available, full)
        if not latency:
            firsts = [packet.order.arrivals for packet in self.heads()]
            return QueueState(available, full, min([a if isinstance(a, float) else a.min() for a in firsts]))
        oldest, total, rows = np.inf, 0.0, 0
        for packet in _sampled(self.packets()):
            if not len(packet):
                continue
            arrivals = packet.order.arrivals
            if isinstance(arrivals, float):
                oldest = min(oldest, arrivals)
                total += arrivals * len(packet)
            else:
                oldest = min(oldest, float(arrivals.min()))
                total += float(arrivals.sum())
            rows += len(packet)
        return QueueState(available, full, float(oldest), total / rows)


def _sampled(packets: list[Packet]) -> list[Packet]:
    """All packets, or of many the first, the last, and some evenly between."""
    last = len(packets) - 1
    if last < 2 * SAMPLED:
        return packets
    return [packets[place * last // (SAMPLED - 1)] for place in range(SAMPLED)]


class Fifo(Inbox):
    """One arrow's packets, first in, first out."""

    def __init__(self, capacity: int, packet_rows: int) -> None:
        super().__init__(capacity, packet_rows)
        self._packets: deque[Packet] = deque()
        self._put = self._taken = 0

    @property
    def rows(self) -> int:
        return self._put - self._taken

    def put(self, arrow: int, packet: Packet) -> None:
        self._packets.append(packet)
        self._put += packet.order.length  # after the packet is there, so that no taker counts on it before

    def available(self) -> int:
        return self._put - self._taken

    def take(self, rows: int) -> list[Round]:
        there = self.available()
        if rows >= there:
            rows = there
        elif rows >= self.packet_rows:
            rows = self._whole(rows)
        taken = self.in_order(self.take_exactly(rows))
        return [(packet,) for packet in coalesce(taken, self.packet_rows // 2)]

    def in_order(self, packets: list[Packet]) -> list[Packet]:
        """For the taker: packets that were taken, with serials that do not fall."""
        return packets

    def _whole(self, rows: int) -> int:
        """As many rows as come in whole packets: a long train is not worth cutting one for."""
        total = 0
        for place in range(len(self._packets)):
            length = len(self._packets[place])
            if total + length > rows:
                break
            total += length
        return total or rows

    def take_exactly(self, rows: int) -> list[Packet]:
        """The first ``rows`` rows, wherever that cuts a packet."""
        taken: list[Packet] = []
        self._taken += rows
        while rows:
            packet = self._packets.popleft()
            if len(packet) > rows:
                self._packets.appendleft(packet.slice(rows, len(packet) - rows))
                packet = packet.slice(0, rows)
            rows -= len(packet)
            taken.append(packet)
        return taken

    def packets(self) -> list[Packet]:
        return [self._packets[place] for place in range(len(self._packets))]

    def ready(self) -> list[Packet]:
        return self.packets()

    def heads(self) -> list[Packet]:
        return [self._packets[0]] if self._packets else []

    def first_serial(self) -> int | None:
        return self._packets[0].order.first_serial if self._packets else None

    def clear(self) -> None:
        self.loose.clear()
        self.take_exactly(self.rows)


class Arrivals(Fifo):
    """The packets of several arrows, first in, first out: nothing waits for anything.

    Serials must not fall on the way to the boxes that follow, which put results together by them.  So a row
    that comes after one of a later serial takes that serial; ``Order.origins`` remembers its own.  No
    frontier downstream can have passed it: until it is taken, the queue's first serial is at most its own.
    """

    def __init__(self, arrows: int, capacity: int, packet_rows: int) -> None:
        super().__init__(capacity, packet_rows)
        self._puts = [0] * arrows
        """Each arrow counts its own rows, as several threads may put at a time."""
        self._last = 0

    @property
    def rows(self) -> int:
        return sum(self._puts) - self._taken

    def available(self) -> int:
        return self.rows

    def put(self, arrow: int, packet: Packet) -> None:
        self._packets.append(packet)
        self._puts[arrow] += packet.order.length

    def in_order(self, packets: list[Packet]) -> list[Packet]:
        taken = []
        for packet in packets:
            order = packet.order.not_before(self._last)
            self._last = order.last_serial
            taken.append(packet if order is packet.order else packet.with_order(order))
        return taken

    def pass_by(self, last: int) -> int:
        """For the taker: rows up to that serial go past the queue; the serial that they have at least."""
        before, self._last = self._last, max(self._last, last)
        return before

    def room(self, arrow: int) -> int:
        return self.capacity * len(self._puts) - self.rows

    def heads(self) -> list[Packet]:
        return self.packets()

    def first_serial(self) -> int | None:
        return min([packet.order.first_serial for packet in self.packets()], default=None)


class _Arrow:
    """One arrow into a merge: rows that may leave, and rows that wait for other arrows."""

    def __init__(self, capacity: int, packet_rows: int) -> None:
        self.ready = Fifo(capacity, packet_rows)
        self.waiting: deque[Packet] = deque()
        self._put = self._taken = 0

    @property
    def rows(self) -> int:
        return self._put - self._taken

    def put(self, packet: Packet) -> None:
        self.waiting.append(packet)
        self._put += len(packet)

    def release(self, bound: int) -> None:
        """Rows below ``bound`` may leave.  Bounds never fall, so every row is moved once."""
        waiting = self.waiting
        while waiting and waiting[0].order.first_serial < bound:
            packet = waiting.popleft()
            if packet.order.last_serial >= bound:
                below = packet.order.span(0, bound)[1]
                waiting.appendleft(packet.slice(below, len(packet) - below))
                packet = packet.slice(0, below)
            self.ready.put(0, packet)

    @property
    def stuck(self) -> bool:
        """Whether all rows have one serial and none may leave, as what boxes close at the end has."""
        try:
            first, last = self.waiting[0], self.waiting[-1]
        except IndexError:
            return False
        return not self.ready.rows and first.order.first_serial == last.order.last_serial

    def head(self, rows: int) -> Serials:
        """Serials of the first rows that may leave."""
        found, total = [np.empty(0, dtype=np.int64)], 0
        for packet in self.ready.packets():
            found.append(packet.order.serials)
            total += len(packet)
            if total >= rows:
                break
        return np.concatenate(found)[:rows]

    def take_below(self, bound: int) -> list[Packet]:
        count = 0
        for packet in self.ready.packets():
            if packet.order.last_serial >= bound:
                count += packet.order.span(0, bound)[1]
                break
            count += len(packet)
        self._taken += count
        return self.ready.take_exactly(count) if count else []

    def clear(self) -> None:
        self.ready.clear()
        while self.waiting:
            self.waiting.popleft()
        self._taken = self._put


class Merge(Inbox):
    """Several arrows into one or more ports, in serial order.

    ``bound()`` says below which serial none of the arrows can bring anything new.
    """

    def __init__(
        self,
        ports: Sequence[int],
        schemas: Sequence[pa.Schema],
        bound: Callable[[], int],
        capacity: int,
        packet_rows: int,
    ) -> None:
        super().__init__(capacity, packet_rows)
        self._ports = list(ports)
        self._schemas = list(schemas)
        self._bound = bound
        self._arrows = [_Arrow(capacity, packet_rows) for _ in ports]
        self.unbounded: frozenset[int] = frozenset()
        """Arrows from a union in the order of arrival.  A row that all others here wait for may be queued
        there behind rows that have no place here, so these always have one."""

    def add_arrows(self, ports: Sequence[int]) -> None:
        """Add arrows."""
        self._ports += ports
        self._arrows += [_Arrow(self.capacity, self.packet_rows) for _ in ports]

    @property
    def rows(self) -> int:
        return sum([arrow.rows for arrow in self._arrows])

    def put(self, arrow: int, packet: Packet) -> None:
        self._arrows[arrow].put(packet)

    def available(self) -> int:
        if not self.rows:
            return 0
        bound = self._bound()
        for arrow in self._arrows:
            arrow.release(bound)
        return sum(arrow.ready.rows for arrow in self._arrows)

    def take(self, rows: int) -> list[Round]:
        left = min(rows, self.available())
        rounds = []
        while left > 0:
            taken = self._round(min(left, self.packet_rows))
            left -= sum(len(packet) for packet in taken)
            rounds.append(taken)
        return rounds

    def _round(self, rows: int) -> Round:
        """All rows up to the serial at which ``rows`` of them are together."""
        heads = np.concatenate([arrow.head(rows) for arrow in self._arrows])
        cut = int(np.partition(heads, rows - 1)[rows - 1]) + 1
        parts: list[list[Packet]] = [[] for _ in self._schemas]
        for port, arrow in zip(self._ports, self._arrows, strict=True):
            taken = arrow.take_below(cut)
            if taken:
                parts[port].append(Packet.concat(taken))
        return tuple(
            Packet.merge(part) if part else Packet.empty(schema)
            for part, schema in zip(parts, self._schemas, strict=True)
        )

    def room(self, arrow: int) -> int:
        if arrow in self.unbounded:
            return self.capacity
        room = self._left(self._arrows[arrow].rows) - self.coming.get(arrow, 0)
        # Of one serial all rows must be there before the first can leave, however many there are.
        return max(room, 1) if room <= 0 and self._arrows[arrow].stuck else room

    def packets(self) -> list[Packet]:
        found: list[Packet] = []
        for arrow in self._arrows:
            found += arrow.ready.packets()
            found += [arrow.waiting[place] for place in range(len(arrow.waiting))]
        return found

    def ready(self) -> list[Packet]:
        return [packet for arrow in self._arrows for packet in arrow.ready.packets()]

    def heads(self) -> list[Packet]:
        found = []
        for arrow in self._arrows:
            found += arrow.ready.heads() or ([arrow.waiting[0]] if arrow.waiting else [])
        return found

    def first_serial(self) -> int | None:
        firsts = []
        for arrow in self._arrows:
            first = arrow.ready.first_serial()
            if first is None and arrow.waiting:
                first = arrow.waiting[0].order.first_serial
            if first is not None:
                firsts.append(first)
        return min(firsts) if firsts else None

    def clear(self) -> None:
        self.loose.clear()
        for arrow in self._arrows:
            arrow.clear()


def coalesce(packets: list[Packet], rows: int) -> list[Packet]:
    """Put neighbours together that are smaller than ``rows``: a call's own cost would outweigh theirs."""
    if len(packets) < 2 or all(len(p) >= rows for p in packets):
        return packets
    joined: list[Packet] = []
    small: list[Packet] = []
    total = 0
    for packet in packets:
        small.append(packet)
        total += len(packet)
        if total >= rows:
            joined.append(Packet.concat(small))
            small, total = [], 0
    if small:
        joined.append(Packet.concat(small))
    return joined
