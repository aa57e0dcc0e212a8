"""The queue before a box or an output (Aurora's storage manager; worklists in ordered processing).

A ``Fifo`` serves one arrow.  A ``Merge`` serves several: arrows that were united into one port, and the
ports of a join.  It releases rows only when no arrow can bring an earlier one any more, so what leaves is
in serial order, whatever the schedule upstream was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from headgate.graph.packet import Packet, Serials
from headgate.scheduling.interface import QueueState

Round = tuple[Packet, ...]
"""One packet per port."""


class Inbox:
    """What ``Fifo`` and ``Merge`` have in common: bounded by rows, measured for the policy."""

    def __init__(self, capacity: int, packet_rows: int) -> None:
        self.capacity = capacity
        self.packet_rows = packet_rows
        self.rows = 0

    def put(self, arrow: int, packet: Packet) -> None:
        raise NotImplementedError

    def available(self) -> int:
        """Rows that a call could take now."""
        raise NotImplementedError

    def take(self, rows: int) -> list[Round]:
        """At most that many rows, in rounds of about a packet each."""
        raise NotImplementedError

    def packets(self) -> list[Packet]:
        raise NotImplementedError

    def first_serial(self) -> int | None:
        """The smallest serial queued."""
        raise NotImplementedError

    def attach(self, arrow: int, packet: Packet) -> bool:
        """Let the markers of an empty packet travel with the last packet queued; false if there is none."""
        raise NotImplementedError

    def clear(self) -> None:
        raise NotImplementedError

    def room(self, arrow: int) -> int:
        """Rows that this arrow finds room for.  Each has its own: one that waits must not shut others out."""
        return self.capacity - self.rows

    def full(self, arrow: int) -> bool:
        return self.room(arrow) <= 0

    def measure(self, latency: bool, full: frozenset[int]) -> QueueState:
        """The queue as the policy sees it; ages only if asked for, as they cost a pass over order keys."""
        available = self.available()
        if not latency or not available:
            return QueueState(available, full)
        oldest, total, rows = np.inf, 0.0, 0
        for packet in self.packets():
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


class Fifo(Inbox):
    """One arrow's packets, first in, first out."""

    def __init__(self, capacity: int, packet_rows: int) -> None:
        super().__init__(capacity, packet_rows)
        self._packets: deque[Packet] = deque()

    def put(self, arrow: int, packet: Packet) -> None:
        self._packets.append(packet)
        self.rows += len(packet)

    def available(self) -> int:
        return self.rows

    def take(self, rows: int) -> list[Round]:
        if rows >= self.rows:
            taken = self.packets()
            self.clear()
        else:
            taken = self.take_exactly(self._whole(rows) if rows >= self.packet_rows else rows)
        return [(packet,) for packet in coalesce(taken, self.packet_rows // 8)]

    def _whole(self, rows: int) -> int:
        """As many rows as come in whole packets: a long train is not worth cutting one for."""
        total = 0
        for packet in self._packets:
            if total + len(packet) > rows:
                break
            total += len(packet)
        return total or rows

    def take_exactly(self, rows: int) -> list[Packet]:
        """The first ``rows`` rows, wherever that cuts a packet."""
        taken: list[Packet] = []
        self.rows -= rows
        while rows:
            packet = self._packets.popleft()
            if len(packet) > rows:
                self._packets.appendleft(packet.slice(rows, len(packet) - rows))
                packet = packet.slice(0, rows)
            rows -= len(packet)
            taken.append(packet)
        return taken

    def packets(self) -> list[Packet]:
        return list(self._packets)

    def first_serial(self) -> int | None:
        for packet in self._packets:
            if len(packet):
                return packet.order.first_serial
        return None

    def attach(self, arrow: int, packet: Packet) -> bool:
        if not self._packets:
            return False
        self._packets[-1] = self._packets[-1].with_markers(packet.markers)
        return True

    def clear(self) -> None:
        self._packets.clear()
        self.rows = 0


class _Arrow:
    """One arrow into a merge: rows that may leave, and rows that wait for other arrows."""

    def __init__(self, capacity: int, packet_rows: int) -> None:
        self.ready = Fifo(capacity, packet_rows)
        self.waiting: deque[Packet] = deque()
        self.rows = 0

    def release(self, bound: int) -> None:
        """Rows below ``bound`` may leave.  Bounds never fall, so every row is moved once."""
        waiting = self.waiting
        while waiting and waiting[0].order.first_serial < bound:
            packet = waiting.popleft()
            if packet.order.last_serial >= bound:
                below = int(np.searchsorted(packet.order.serials, bound))
                waiting.appendleft(packet.slice(below, len(packet) - below))
                packet = packet.slice(0, below)
            self.ready.put(0, packet)

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
                count += int(np.searchsorted(packet.order.serials, bound))
                break
            count += len(packet)
        self.rows -= count
        return self.ready.take_exactly(count) if count else []


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

    def put(self, arrow: int, packet: Packet) -> None:
        self._arrows[arrow].waiting.append(packet)
        self._arrows[arrow].rows += len(packet)
        self.rows += len(packet)

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
                self.rows -= len(parts[port][-1])
        return tuple(
            Packet.merge(part) if part else Packet.empty(schema)
            for part, schema in zip(parts, self._schemas, strict=True)
        )

    def room(self, arrow: int) -> int:
        return self.capacity - self._arrows[arrow].rows

    def packets(self) -> list[Packet]:
        return [p for arrow in self._arrows for p in (*arrow.ready.packets(), *arrow.waiting)]

    def first_serial(self) -> int | None:
        firsts = []
        for arrow in self._arrows:
            first = arrow.ready.first_serial()
            if first is None and arrow.waiting:
                first = arrow.waiting[0].order.first_serial
            if first is not None:
                firsts.append(first)
        return min(firsts) if firsts else None

    def attach(self, arrow: int, packet: Packet) -> bool:
        queued = self._arrows[arrow]
        if queued.waiting:
            queued.waiting[-1] = queued.waiting[-1].with_markers(packet.markers)
            return True
        return queued.ready.attach(0, packet)

    def clear(self) -> None:
        for arrow in self._arrows:
            arrow.ready.clear()
            arrow.waiting.clear()
            arrow.rows = 0
        self.rows = 0


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
