"""Admission: sources' tuples are put into one order and get their serials.

Finite sources take turns of 1,024 rows in the order of their declaration; what that order is does not
depend on how much is read at a time.  Live sources are admitted as their tuples arrive, by arrival time.
Once a tuple is admitted, everything that happens to it follows from its serial.

Requests bring sources of their own (``Group``): they take turns among themselves only, and one whose queues
are full holds back no other request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.connectors.refused import has_refused, together
from headgate.connectors.source import Chunk, Reader, Wait, fitted, source_error
from headgate.graph import turns
from headgate.graph.needs import Needs, everything
from headgate.graph.network import Request, Source
from headgate.graph.packet import Marker, Order, Packet
from headgate.runtime.dead_letters import Letter, refused_letters
from headgate.runtime.idle_inputs import Idle, idle_inputs

MARKER_EVERY = 16_384
"""A marker travels with every so many tuples."""
POLL = 0.02
"""Seconds between looks at a source that cannot say when it will have more."""


@dataclass
class Entry:
    """A source as admission sees it."""

    source: Source
    reader: Reader
    live: bool
    ended: bool = False
    error: BaseException | None = None
    rows: int = 0
    """Rows admitted."""
    told: int = 0
    """Rows of them that the core knows of."""
    lag: float = 0.0
    """Seconds from arrival to admission, of all rows together."""
    last: float = 0.0
    """When it last had something."""
    idle: bool = False
    until: float = 0.0
    """The time before which it has nothing more, as it said."""
    reading: bool = False
    """Its reader is at work."""
    ended_at: int | None = None
    """The serial from which on it is known to have ended."""
    letters: list[Letter] = field(default_factory=list)
    """Rows that it has refused since the engine last looked."""
    opened: bool = False
    """Its reader is there; the reading thread opens it."""
    newest: Packet | None = None
    """What it brought last: a query that may join is tried on it."""
    joined: float = 0.0
    """When it joined: its reader counts time from then on."""


@dataclass(eq=False)
class Group:
    """Sources that end together, with all that they feed: the application's own, or those of a request."""

    request: Request | None
    entries: dict[int, Entry]
    """By number of the source."""
    drain: bool
    """Whether boxes close what is open at its end; a request's do, whatever ends the run."""
    noticed: bool = False
    """The core knows that all sources have ended."""
    last: int = 0
    """Then the serial of the final punctuation."""
    void: bool = False
    """The request has failed or was cancelled: its sources are read no further."""
    closing: bool = False
    """Nothing is left of the request but its sinks, which are being closed."""

    @property
    def ended(self) -> bool:
        """Every source is at its end."""
        return all(e.ended for e in self.entries.values())


class Admission:
    """Reads sources and hands out packets with serials.  Not thread-safe; one caller at a time."""

    def __init__(
        self,
        sources: Sequence[Source],
        packet_rows: int,
        marker_every: int = MARKER_EVERY,
        *,
        needs: Sequence[Needs] | None = None,
        drain: bool = True,
    ) -> None:
        """``needs``: what must be read of every source; by default everything."""
        self.entries: list[Entry] = []
        self.packet_rows = packet_rows
        self.next_serial = 0
        self.read = 0.0
        """When rows were last read."""
        self._marker_every = marker_every
        self._buffers: list[_Buffer] = []
        self._reading: list[Needs] = []
        self._wanted: list[Needs] = []
        self.version, self.wanted_version = 0, 1
        """Of what is read, and of what is wanted by now: a number that grows."""
        self.own = Group(None, {}, drain)
        """The application's own sources."""
        self.groups = [self.own]
        """All, in the order in which they came."""
        for place, source in enumerate(sources):
            self._put(place, source, self.own)
            self._open(self.entries[place])
        if needs is not None:
            self._wanted = list(needs)

    # --- requests -----------------------------------------------------------------------------------

    def join(
        self, request: Request, sources: Mapping[int, Source], needs: Sequence[Needs], now: float
    ) -> Group:
        """Let the sources of a request join, by number.  Any thread: the reading one opens them."""
        group = Group(request, {}, drain=True)
        for place, source in sources.items():
            self._put(place, source, group)
            self.entries[place].joined = now
        self._wanted = list(needs)
        self.wanted_version += 1
        self.groups = [*self.groups, group]
        return group

    def release(self, group: Group) -> None:
        """Forget the sources of a request that has ended."""
        self.groups = [other for other in self.groups if other is not group]
        for place in group.entries:
            vacant = Entry(_NO_SOURCE, _NOTHING, live=False, ended=True, opened=True)
            self.entries[place], self._buffers[place] = vacant, _Buffer()
            self._reading[place] = self._wanted[place] = everything(_NO_SOURCE.schema)

    def _put(self, place: int, source: Source, group: Group) -> None:
        entry = Entry(source, _NOTHING, source.origin.live)
        needs = everything(source.schema)
        self._buffers[place : place + 1] = [_Buffer()]
        self._reading[place : place + 1], self._wanted[place : place + 1] = [needs], [needs]
        self.entries[place : place + 1] = [entry]
        group.entries[place] = entry

    def _open(self, entry: Entry) -> None:
        try:
            entry.reader = entry.source.origin.open()
        except Exception as error:  # a source that cannot be opened fails its queries, not the run
            entry.error, entry.ended = source_error(entry.source.name, error), True
        entry.opened = True

    # --- what is read of them -----------------------------------------------------------------------

    def want(self, more: Mapping[int, Needs]) -> None:
        """Ask for what is needed of some sources too.  Any thread: the reading one catches up.

        What was admitted by then has other columns: it is not for queries that need the new ones.
        """
        if not all(self._wanted[place].covers(needs) for place, needs in more.items()):
            both = {place: self._wanted[place].together_with(needs) for place, needs in more.items()}
            self._wanted = [both.get(place, wanted) for place, wanted in enumerate(self._wanted)]
            self.wanted_version += 1

    def catch_up(self) -> None:
        """Open what has joined, and let readers read what is wanted now.

        What they gave and is not admitted yet comes again.
        """
        for group in self.groups[1:]:
            for place, entry in group.entries.items():
                if group.void:
                    self.end(place)
                    self._buffers[place], entry.opened = _Buffer(), True
                elif not entry.opened:
                    self._open(entry)
        if self.version == self.wanted_version:
            return
        self.version, wanted = self.wanted_version, self._wanted
        for place, (entry, needs) in enumerate(zip(self.entries, wanted, strict=False)):
            selective = isinstance(entry.reader, Reader) and entry.reader.selective
            if not selective or needs == self._reading[place] or self._drained(place):
                continue
            try:
                entry.reader.narrow(needs, self._buffers[place].rows)
            except Exception as error:
                entry.error = source_error(entry.source.name, error)
                self.end(place)
                continue
            self._buffers[place] = _Buffer()
            entry.ended = False
            self._reading[place] = needs

    @property
    def ended(self) -> bool:
        """Every source is at its end, those of requests too."""
        return all(group.ended for group in self.groups)

    @property
    def news(self) -> bool:
        """Sources have ended together, or one has failed, and the core does not know it yet."""
        if any(group.ended and not group.noticed for group in self.groups):
            return True
        return any(entry.error is not None for entry in self.entries)

    def held(self, room: Callable[[int], int]) -> frozenset[int] | None:
        """The sources whose next packet finds no room; None if those are all that have any more.

        Finite sources of a group have a common order, so one that finds none holds all of them back.
        """
        found: set[int] = set()
        count = 0
        for group in self.groups:
            held: set[int] = set()
            finite: list[int] = []
            for place, entry in group.entries.items():
                if entry.ended if entry.live else self._drained(place):
                    continue
                count += 1
                if not entry.live:
                    finite.append(place)
                if not group.void and room(place) < self.packet_rows:
                    held.add(place)
            if not held.isdisjoint(finite):
                held.update(finite)
            found |= held
        return None if count and len(found) == count and not self.news else frozenset(found)

    def idle_inputs(self, ports: Sequence[Sequence[int]]) -> Idle:
        """Which inputs of a join do not hold its time back; ``ports``: the sources that feed each."""
        entries = self.entries
        return idle_inputs(ports, lambda p: entries[p].ended_at, lambda p: entries[p].idle)

    def poll(
        self, now: float, packets: int = 1, held: frozenset[int] = frozenset()
    ) -> list[tuple[int, Packet]] | Wait:
        """The next packets, by source, or when to ask again.  Empty when all sources have ended.

        ``packets``: how many may come at a time, where that makes reading cheaper.  ``held``: sources that
        are not read.
        """
        admitted: list[tuple[int, Packet]] = []
        live: list[int] = []
        some = False
        for group in self.groups:
            ready = {p: e for p, e in group.entries.items() if e.opened and p not in held}
            live += [p for p, e in ready.items() if e.live and not e.ended]
            finite = [p for p, e in ready.items() if not e.live and not self._drained(p)]
            if finite:
                some = True
                admitted += self._finite(finite, now, packets, alone=len(group.entries) == 1)
        waits: list[float | None] = []
        admitted += self._live(live, now, waits)
        for place, entry in enumerate(self.entries):
            if place in held:
                entry.last = now  # it is kept waiting: that is not idling
            elif entry.source.idle_after is not None:
                self._note_idle(entry, any(p == place for p, _ in admitted), now)
        if admitted:
            self.read = now
        if admitted or self.ended or self.news:
            return admitted
        if some:
            return Wait(now)
        return Wait(min((now + POLL if w is None else w for w in waits), default=now + POLL))

    def _drained(self, place: int) -> bool:
        return self.entries[place].ended and not self._buffers[place].rows

    def _note_idle(self, entry: Entry, had: bool, now: float) -> None:
        if had:
            entry.last, entry.idle = now, False
        elif now - entry.last >= (entry.source.idle_after or 0.0):
            entry.idle = True

    def _read(self, place: int, now: float, rows: int) -> Chunk | Wait | None:
        entry = self.entries[place]
        entry.reading = True
        try:
            polled = _later(entry.reader.poll(now - entry.joined, rows), entry.joined)
            found = fitted(polled, entry.source.name, entry.source.schema)
        except Exception as error:
            entry.error = source_error(entry.source.name, error)
            found = None
        entry.reading = False
        if found is None:
            self.end(place)
        return found

    def end(self, place: int) -> None:
        """A source brings nothing more, or nothing that a query still reads."""
        entry = self.entries[place]
        if entry.ended:
            return
        entry.ended = True
        if entry.live or any(place in g.entries and len(g.entries) == 1 for g in self.groups):
            entry.ended_at = self.next_serial
        entry.reader.close()

    def _live(self, places: list[int], now: float, waits: list[float | None]) -> list[tuple[int, Packet]]:
        chunks: list[tuple[int, Chunk]] = []
        for place in places:
            entry = self.entries[place]
            if now < entry.until:
                waits.append(entry.until)
                continue
            found = self._read(place, now, self.packet_rows)
            if isinstance(found, Chunk):
                chunks.append((place, found))
            elif isinstance(found, Wait):
                waits.append(found.until)
                entry.until = found.until or 0.0
        if not chunks:
            return []
        if len(chunks) == 1:
            return [self._next_packet(*chunks[0])]
        arrivals = [
            np.full(c.batch.num_rows, c.arrivals) if isinstance(c.arrivals, float) else c.arrivals
            for _, c in chunks
        ]
        by_arrival = np.argsort(np.concatenate(arrivals), kind="stable")
        serials = np.empty(len(by_arrival), dtype=np.int64)
        serials[by_arrival] = np.arange(self.next_serial, self.next_serial + len(by_arrival))
        self.next_serial += len(by_arrival)
        admitted, start = [], 0
        for (place, chunk), times in zip(chunks, arrivals, strict=True):
            end = start + chunk.batch.num_rows
            admitted.append((place, self._packet(place, chunk.batch, serials[start:end], times)))
            start = end
        return admitted

    def _finite(
        self, places: list[int], now: float, packets: int, *, alone: bool
    ) -> list[tuple[int, Packet]]:
        """One packet of each, in rounds of turns; a source that ends leaves the rounds.

        ``alone``: the only source of its group.
        """
        if alone:
            found = self._read(places[0], now, self.packet_rows * packets)
            return self._cut(places[0], found) if isinstance(found, Chunk) else []
        wanted = max(self.packet_rows // turns.TURN, 1) * turns.TURN
        for place in places:
            self._fill(place, now, wanted)
        counts = dict.fromkeys(places, 0)
        starts: dict[int, list[int]] = {p: [] for p in places}
        lengths: dict[int, list[int]] = {p: [] for p in places}
        for _ in range(wanted // turns.TURN):
            for place in places:
                rows = min(turns.TURN, self._buffers[place].rows - counts[place])
                if rows < turns.TURN and self.entries[place].ended_at is None:
                    # Known at its own turn, so that it does not depend on how much is read at a time.
                    self.entries[place].ended_at = self.next_serial + rows
                if rows:
                    starts[place].append(self.next_serial)
                    lengths[place].append(rows)
                    counts[place] += rows
                    self.next_serial += rows
        admitted = []
        for place in places:
            if counts[place]:
                batch, arrivals = self._buffers[place].take(counts[place])
                serials = _ranges(starts[place], lengths[place])
                admitted.append((place, self._packet(place, batch, serials, arrivals)))
        return admitted

    def _fill(self, place: int, now: float, wanted: int) -> None:
        """Read until the buffer holds ``wanted`` rows or the source has ended."""
        buffer, entry = self._buffers[place], self.entries[place]
        while buffer.rows < wanted and not entry.ended:
            found = self._read(place, now, wanted - buffer.rows)
            if isinstance(found, Chunk):
                buffer.add(found)

    def _cut(self, place: int, chunk: Chunk) -> list[tuple[int, Packet]]:
        """The rows of a source that takes no turns, as packets."""
        rows, size = chunk.batch.num_rows, self.packet_rows
        return [self._next_packet(place, chunk.slice(start, size)) for start in range(0, rows, size)]

    def _next_packet(self, place: int, chunk: Chunk) -> tuple[int, Packet]:
        """A chunk that is admitted as a whole, with the next serials."""
        serial = self.next_serial
        self.next_serial += chunk.batch.num_rows
        return place, self._packet(place, chunk.batch, serial, _arrivals(chunk))

    def _packet(self, place: int, batch: pa.RecordBatch, serials: Any, arrivals: Any) -> Packet:
        entry = self.entries[place]
        markers = []
        for row in range(-entry.rows % self._marker_every, batch.num_rows, self._marker_every):
            serial = serials + row if isinstance(serials, int) else int(serials[row])
            markers.append(Marker(serial, arrivals if isinstance(arrivals, float) else float(arrivals[row])))
        entry.rows += batch.num_rows
        packet = entry.newest = Packet(batch, Order(serials, arrivals, batch.num_rows), tuple(markers))
        if has_refused(batch):
            packet, letters = refused_letters(packet)
            entry.letters += letters
        return packet

    def close(self) -> None:
        """Close the readers, except one that has not come back from reading."""
        for entry in self.entries:
            entry.newest = None
            if not entry.ended and not entry.reading:
                entry.reader.close()


class _Buffer:
    """Rows read from a finite source and not yet admitted."""

    def __init__(self) -> None:
        self.rows = 0
        self._chunks: list[Chunk] = []

    def add(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self.rows += chunk.batch.num_rows

    def take(self, rows: int) -> tuple[pa.RecordBatch, Any]:
        self.rows -= rows
        parts: list[Chunk] = []
        while rows:
            chunk = self._chunks.pop(0)
            length = chunk.batch.num_rows
            if length > rows:
                self._chunks.insert(0, chunk.slice(rows, length - rows))
                chunk = chunk.slice(0, rows)
            parts.append(chunk)
            rows -= chunk.batch.num_rows
        if len(parts) == 1:
            return parts[0].batch, _arrivals(parts[0])
        batch = together([part.batch for part in parts])
        times = {part.arrivals if isinstance(part.arrivals, float) else None for part in parts}
        if len(times) == 1 and None not in times:
            return batch, parts[0].arrivals
        return batch, np.concatenate([np.full(part.batch.num_rows, part.arrivals) for part in parts])


class _Nothing(Reader):
    def poll(self, now: float, max_rows: int) -> None:
        return None

    def close(self) -> None:
        pass


_NOTHING = _Nothing()
_NO_SOURCE = Source("", pa.schema([]))


def _later(polled: Chunk | Wait | None, seconds: float) -> Chunk | Wait | None:
    """What a reader gave that began so many seconds after the run."""
    if not seconds or polled is None:
        return polled
    if isinstance(polled, Wait):
        return Wait(None if polled.until is None else polled.until + seconds)
    return replace(polled, arrivals=polled.arrivals + seconds)


def _arrivals(chunk: Chunk) -> Any:
    times = chunk.arrivals
    return times if isinstance(times, float) else np.asarray(times, dtype=np.float64)


def _ranges(starts: list[int], lengths: list[int]) -> Any:
    """``[s, s+1, …)`` for every start and length, one after the other; an int if they are one range."""
    if all(s + n == t for s, n, t in zip(starts, lengths, starts[1:], strict=False)):
        return starts[0]
    counts = np.array(lengths, dtype=np.int64)
    ends = np.cumsum(counts)
    offsets = np.repeat(np.array(starts, dtype=np.int64) - (ends - counts), counts)
    return offsets + np.arange(int(ends[-1]), dtype=np.int64)
