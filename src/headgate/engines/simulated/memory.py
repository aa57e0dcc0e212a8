"""Caches and memory nodes in a simulation: what it costs a worker to read and to write packets.

Every packet is a block of bytes.  It lies in the memory of one node, and in those caches that it went through
and has not been displaced from: each cache holds whole blocks up to its size, and of these the least recently
used goes first.  A block that is larger than a cache never is in it.  Caches are inclusive, as those of the
papers' machines are: what leaves a cache leaves the smaller ones before it.

A worker that reads a block pays per byte for the nearest place that has it: a cache of its core, or the
memory of the block's node times the NUMA factor.  What it writes goes to its caches; it pays for the smallest
that the block fits into.  A block that no box will read any more gives its place in the caches back (the
locality-aware allocator's rule: memory that was freed last is used first), unless the model says otherwise.

A node's memory serves all workers at its bandwidth, a link between two nodes those who read across it: a call
is over when both its own time has passed and what it asked for has been carried, after whatever was asked for
before.  What is displaced before it was ever in memory has to be carried there.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from headgate.graph.packet import Packet
from headgate.machine.memory_model import FIRST_TOUCH, MemoryModel
from headgate.machine.topology import Cache, Topology
from headgate.runtime.boxes import LiveBox, Unit, Work
from headgate.runtime.report import Traffic


@dataclass(eq=False, slots=True)
class Block:
    """The bytes of a packet, or of a box's state."""

    size: int
    rows: int
    home: int
    """The node whose memory it is in."""
    unread: int = 0
    """Rows that readers still want, each reader's counted."""
    dirty: bool = True
    """Not yet in memory: only caches have it."""


@dataclass(eq=False, slots=True)
class Contents:
    """What a cache holds, the least recently used first."""

    level: int
    size: int
    cost: float
    used: int = 0
    blocks: OrderedDict[Block, None] = field(default_factory=OrderedDict)
    before: list[Contents] = field(default_factory=list)
    """Smaller caches of the same cores."""
    last: bool = True
    """Memory is behind it."""

    def add(self, block: Block) -> list[Block]:
        """Hold a block from now on, as the one used last; returns what had to go."""
        if block in self.blocks:
            self.blocks.move_to_end(block)
            return []
        if block.size > self.size:
            return []
        gone = []
        while self.used + block.size > self.size:
            oldest = next(iter(self.blocks))
            self.remove(oldest)
            gone.append(oldest)
        self.blocks[block] = None
        self.used += block.size
        return gone

    def remove(self, block: Block) -> None:
        """Remove a block from here and from the smaller caches, which hold nothing that this one does not."""
        if block not in self.blocks:
            return
        del self.blocks[block]
        self.used -= block.size
        for cache in self.before:
            cache.remove(block)


class Memory:
    """Where every packet of a run is."""

    def __init__(
        self, model: MemoryModel, topology: Topology, cores: Sequence[int], boxes: Sequence[LiveBox]
    ) -> None:
        self.model = model
        self.topology = topology
        self.traffic = Traffic()
        self._by_cache = {
            cache: Contents(cache.level, cache.size, model.levels[cache.level]) for cache in topology.caches
        }
        self._link_levels(self._by_cache)
        self._contents = list(self._by_cache.values())
        self._last = [cache for cache in self._contents if cache.last]
        self._caches: list[list[Contents]] = []
        """By worker, nearest first."""
        self._nodes: list[int] = []
        self._queues: list[list[deque[tuple[Block, int]]]] = []
        """By box and arrow, the blocks that wait there and how many of their rows."""
        self._rows: list[list[int]] = []
        self._states: dict[int, Block] = {}
        self.fit(cores, boxes)
        self._made: dict[int, tuple[Packet, Block]] = {}
        """By the packet's id; the packet is kept, so that no other gets the same id."""
        self._turn = 0
        self._busy: dict[tuple[int, int], float] = {}
        """Until when a node's memory (the node twice) or a link is asked for already."""
        self._asked: dict[tuple[int, int], int] = {}
        """The same of the call under way, in bytes."""
        self.worker: int | None = None
        """Who makes the packets that are queued now, if no call has told of them."""
        self._owed = 0.0

    def fit(self, cores: Sequence[int], boxes: Sequence[LiveBox]) -> None:
        """These are the workers' cores from now on, and the boxes; some may be new.

        Calls of workers that leave end where they are.
        """
        topology = self.topology
        mine = {core: [c for c in topology.caches if core in c.cores] for core in set(cores)}
        self._caches[: len(cores)] = [
            [self._by_cache[c] for c in sorted(mine[core], key=lambda c: c.level)] for core in cores
        ]
        self._nodes[: len(cores)] = [topology.node_of(core) for core in cores]
        for place, box in enumerate(boxes):
            if place == len(self._queues) or len(self._queues[place]) != len(box.feeders):
                self._queues[place : place + 1] = [[deque() for _ in box.feeders]]
                self._rows[place : place + 1] = [[0] * len(box.feeders)]
        for place in [place for place in self._states if not boxes[place].feeders]:
            del self._states[place]

    def _link_levels(self, caches: dict[Cache, Contents]) -> None:
        """Let every cache know the smaller ones right before it."""
        for smaller in caches:
            behind = [c for c in caches if c.level > smaller.level and set(c.cores) & set(smaller.cores)]
            if behind:
                caches[min(behind, key=lambda c: c.level)].before.append(caches[smaller])
                caches[smaller].last = False

    # --- what the network tells ----------------------------------------------------------------------

    def queued(self, target: LiveBox, arrow: int, packet: Packet, rows: int) -> None:
        """So many rows of a packet now wait before a box."""
        known = self._made.get(id(packet))
        block = self._unforeseen(packet) if known is None else known[1]
        block.unread += rows
        self._queues[target.place][arrow].append((block, rows))
        self._rows[target.place][arrow] += rows

    def sent(self, unit: Unit) -> None:
        """All of a unit's results are where they go."""
        packets = [packet for results in unit.results for packet in results if len(packet)]
        if self.worker is not None:
            for packet in packets:
                if id(packet) not in self._made:
                    self._unforeseen(packet)
        self._forget(packets)

    def admitted(self, packets: Sequence[tuple[int, Packet]]) -> None:
        """Sources' packets are where they go."""
        self._forget([packet for _, packet in packets])

    def _forget(self, packets: Sequence[Packet]) -> None:
        for packet in packets:
            known = self._made.pop(id(packet), None)
            if known is not None and not known[1].unread:
                self._free(known[1])

    def _unforeseen(self, packet: Packet) -> Block:
        """From a source, whose packets are in no cache and on all nodes in turns; or of a unit's parts."""
        size = packet.batch.nbytes
        if self.worker is None:
            block = Block(size, len(packet), self._place(None), dirty=False)
            self._made[id(packet)] = (packet, block)
            return block
        block = Block(size, len(packet), self._place(self.worker))
        self._made[id(packet)] = (packet, block)
        self._owed += self._write(self.worker, block)
        return block

    # --- what a call costs ----------------------------------------------------------------------------

    def call(self, work: Work, seconds: float, now: float) -> float:
        """How long a call takes that computes for ``seconds``, with reading, writing, and waiting for it."""
        worker, taken = work.worker, self._take(work.live)
        own = self._touch_state(work.live, worker)
        rounds, begin = len(work.results), 0
        for place, results in enumerate(work.results, 1):
            # Packet by packet: a packet and its results have to be in the caches at the same time.
            end = len(taken) * place // rounds
            own += self._read_all(worker, taken[begin:end])
            for port, packet in enumerate(results):
                if not len(packet):
                    continue
                if id(packet) in self._made:
                    # Two boxes have passed on the very same one: each has its own to write.
                    packet = results[port] = packet.with_markers(())
                block = Block(packet.batch.nbytes, len(packet), self._place(worker))
                self._made[id(packet)] = (packet, block)
                own += self._write(worker, block)
            self._free_read(taken[begin:end])
            begin = end
        own += self._read_all(worker, taken[begin:])
        self._free_read(taken[begin:])
        return self._carried(seconds, own, now)

    def part(self, work: Work, seconds: float, now: float) -> float:
        """The same for one bucket's rows of a call that works on several."""
        taken = self._take(work.live)
        own = self._read_all(work.worker, taken) + self._owed
        self._free_read(taken)
        self._owed = 0.0
        return self._carried(seconds, own, now)

    def _take(self, live: LiveBox) -> list[tuple[Block, int]]:
        """The blocks taken from a box's queue since the last time, and how many rows of each."""
        found: list[tuple[Block, int]] = []
        inbox, rows = live.inbox, self._rows[live.place]
        for arrow, queue in enumerate(self._queues[live.place]):
            left = inbox.capacity - inbox.room(arrow) - inbox.coming.get(arrow, 0)
            while rows[arrow] > left and queue:
                block, there = queue.popleft()
                taken = min(there, rows[arrow] - left)
                if taken < there:
                    queue.appendleft((block, there - taken))
                rows[arrow] -= taken
                found.append((block, taken))
        return found

    def _read_all(self, worker: int, taken: Sequence[tuple[Block, int]]) -> float:
        return sum([self._read(worker, block, block.size * rows // block.rows) for block, rows in taken])

    def _free_read(self, taken: Sequence[tuple[Block, int]]) -> None:
        for block, rows in taken:
            block.unread -= rows
            if not block.unread:
                self._free(block)

    def _touch_state(self, live: LiveBox, worker: int) -> float:
        """A box's state moves to the caches of the worker inside: it is changed, so no other cache has it."""
        size = 0 if live.state is None else live.state.nbytes
        if not size:
            return 0.0
        block = self._states.get(live.place)
        if block is None or block.size != size:
            if block is not None:
                self._free(block)
            home = self._place(worker) if block is None else block.home
            block = self._states[live.place] = Block(size, 1, home)
            return self._write(worker, block)
        seconds = self._read(worker, block, size)
        mine = self._caches[worker]
        for cache in self._contents:
            if cache not in mine:
                cache.remove(block)
        block.dirty = True
        return seconds

    def _place(self, worker: int | None) -> int:
        placement = self.model.placement
        if isinstance(placement, int):
            return placement
        if placement == FIRST_TOUCH and worker is not None:
            return self._nodes[worker]
        self._turn += 1
        return (self._turn - 1) % len(self.topology.nodes)

    def _read(self, worker: int, block: Block, size: int) -> float:
        """Read so many bytes of a block from the nearest place; then it is in all caches of the worker."""
        for cache in self._caches[worker]:
            if block in cache.blocks:
                seconds = size * cache.cost
                self.traffic.add(f"L{cache.level}", size)
                break
        else:
            seconds = self._from_memory(worker, block, size)
            if block.dirty and self.model.dirty is not None:
                seconds *= self.model.dirty
                self._write_back(worker, block)
        self._hold(worker, block)
        return seconds

    def _write(self, worker: int, block: Block) -> float:
        cache = next((c for c in self._caches[worker] if c.size >= block.size), None)
        if cache is None or not self.model.recycles:
            seconds = self._from_memory(worker, block, block.size)
            block.dirty = cache is not None
        else:
            seconds = block.size * cache.cost
            self.traffic.add(f"L{cache.level}", block.size)
        self._hold(worker, block)
        return seconds

    def _from_memory(self, worker: int, block: Block, size: int) -> float:
        """Between a core and a node's memory, whichever way."""
        node = self._nodes[worker]
        seconds = size * self.model.memory * self.topology.factors[node][block.home]
        self.traffic.add("memory" if node == block.home else "remote", size)
        self._ask(block.home, node, size)
        return seconds

    def _ask(self, home: int, node: int, size: int) -> None:
        asked = self._asked
        asked[home, home] = asked.get((home, home), 0) + size
        if home != node:
            asked[home, node] = asked.get((home, node), 0) + size

    def _hold(self, worker: int, block: Block) -> None:
        for cache in reversed(self._caches[worker]):
            for gone in cache.add(block):
                if cache.last and gone.dirty:
                    self._write_back(worker, gone)

    def _write_back(self, worker: int, block: Block) -> None:
        block.dirty = False
        self.traffic.written_back += block.size
        self._ask(block.home, self._nodes[worker], block.size)

    def _free(self, block: Block) -> None:
        if self.model.recycles:
            for cache in self._last:
                cache.remove(block)

    def _carried(self, seconds: float, own: float, now: float) -> float:
        """Until its own time has passed, and memory and links have carried what it asked for."""
        alone = takes = seconds + own
        for (home, node), size in self._asked.items():
            rate = self.model.bandwidth if home == node else self.model.link
            if rate is not None:
                end = max(self._busy.get((home, node), 0.0), now) + size / rate
                self._busy[home, node] = end
                takes = max(takes, end - now)
        self._asked.clear()
        self.traffic.seconds += own
        self.traffic.waited += takes - alone
        return takes
