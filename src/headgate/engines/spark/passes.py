"""A part of a step through its nodes, in one Arrow pass: read, call the boxes, write what leaves.

What a pass writes carries the step and the attempt in its name and does not exist until a commit record says
so, so a second attempt, or a speculative one, does no harm.
"""

from __future__ import annotations

import pickle
import time
import uuid
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.checkpoint import state_store as states
from headgate.checkpoint.graph import Feed, Node, Nodes
from headgate.checkpoint.offsets import Piece
from headgate.checkpoint.position import QueueFile
from headgate.engines.spark import reading
from headgate.engines.spark.messages import BoxCost, Framed, Member, OutputPart, TaskResult, WorkOrder
from headgate.engines.spark.parts import staged_name, write_parquet
from headgate.engines.spark.queue_files import between, queue_file, read_queue, stream
from headgate.errors import HeadgateError, OperatorError, RunError
from headgate.graph.drops import Recent
from headgate.graph.packet import Order, Packet, empty_batch
from headgate.graph.shards import merge, split
from headgate.runtime import dead_letters as dead

SAMPLE = 512
"""Tuples whose importance a task reports."""


class Pass:
    """One slice of one step through its nodes, or through those of them in ``places``."""

    def __init__(
        self,
        order: WorkOrder,
        nodes: Nodes,
        number: int,
        packed: dict[int, Framed],
        places: Collection[int] | None = None,
    ) -> None:
        self.order = order
        self.packed = packed
        self.nodes = nodes
        self.low, self.high = order.slices[number]
        self.number = number
        self.last = number == len(order.slices) - 1
        # A second attempt of this task must not write over what the first one wrote.
        self.unique = f"{order.name}-{number}-{uuid.uuid4().hex[:8]}"
        self.result = TaskResult(number, order.attempt)
        self.made: dict[Feed, list[Packet]] = {}
        """What has been made in this step on every arrow."""
        self.places = order.members if places is None else places
        self.pieces = order.pieces[number]
        self.arrived: dict[tuple[int, int], list[Packet]] = {}
        """What other tasks have sent, by node and arrow."""
        self.changed: dict[int, list[Any]] = {}
        self.importance: dict[int, Recent] = {}
        self.to_write: dict[str, Sequence[Any]] = {}
        """Files of the checkpoint, by name: written together, as a store takes its time for each."""
        self.repeated: set[int] = set()
        """Nodes that another task runs too, and answers for."""

    def run(self) -> TaskResult:
        begin = time.perf_counter()
        self.read()
        done = time.perf_counter()
        self.work()
        if not self.result.errors:
            ran = time.perf_counter()
            self._queue_rest()
            self._write_states()
            self._wrote(ran)
        for place in self.repeated:
            self.result.costs.pop(place, None)
            self.result.shed.pop(place, None)
        self.weigh()
        self.result.seconds["boxes"] = sum(cost.seconds for cost in self.result.costs.values())
        self.result.seconds["scan"] = done - begin
        self.result.seconds["all"] = time.perf_counter() - begin
        return self.result

    def _wrote(self, begin: float) -> None:
        """Count the time since ``begin`` as writing."""
        seconds = self.result.seconds
        seconds["write"] = seconds.get("write", 0.0) + time.perf_counter() - begin

    def work(self) -> None:
        """Run the nodes."""
        for place in sorted(self.places):
            self._node(self.nodes.all[place], self.order.members[place])

    def weigh(self) -> None:
        """Say how important the tuples were."""
        self.result.weighed = {place: recent.sample(SAMPLE) for place, recent in self.importance.items()}

    def read(self) -> None:
        order = self.order
        for place, framed in self.packed.items():
            self.made[Feed(True, place)] = framed.packets
        for place, pieces in self.pieces.items():
            if place in order.framed:
                continue
            origin, needs = self.nodes.sources[place][1], self.nodes.needs[place]
            found = reading.read(origin, needs, pieces, order.storage, order.clock)
            self.made[Feed(True, place)] = found.packets
            if found.refused:
                self.packed = {**self.packed, place: Framed(found.packets, found.refused)}
            for piece, error in found.failed:
                self._unread(Feed(True, place), piece, error)

    def _unread(self, feed: Feed, piece: Piece, error: HeadgateError) -> None:
        """Rows of a source cannot be read: the nodes that need them fail, and no others."""
        first, last = piece.span()
        for place, member in self.order.members.items():
            if feed in self.nodes.all[place].feeds and member.low <= last and first < member.high:
                self.result.errors[place] = error

    # --- nodes --------------------------------------------------------------------------------------

    def _node(self, node: Node, member: Member) -> None:
        low, high = max(member.low, self.low), min(member.high, self.high)
        end = member.end and self.last
        if (low >= high and not end) or node.place in self.result.errors:
            return
        if any(not f.source and f.place in self.result.errors for f in node.feeds):
            self.result.errors[node.place] = None  # it failed further up
            return
        try:
            refused = self._refused(node, low, high)
            arrows = [self.arrow(node, member, arrow, low, high) for arrow in range(len(node.feeds))]
            if node.operator is None:
                self._deliver(node, arrows)
            else:
                self._call(node, member, arrows, end)
            if refused:
                feed = node.outputs[-1]
                self.made[feed] = [Packet.merge([*refused, *self.made.get(feed, [])])]
        except Exception as error:
            self.result.errors[node.place] = located(node, error, low)

    def _refused(self, node: Node, low: int, high: int) -> list[Packet]:
        """Bad rows of the sources of a node, as letters; an error if they cannot leave it as such."""
        refused = []
        for feed in node.feeds:
            framed = self.packed.get(feed.place) if feed.source else None
            if framed is None:
                continue
            if framed.error is not None:
                raise framed.error
            bad = [letter for letter in framed.bad if low <= letter.serial < high]
            if bad and not (self.order.letters and node.outputs):
                raise dead.refusal(self.nodes.source_names[feed.place], bad[0].reason)
            if bad:
                refused.append(dead.as_packet(self.nodes.source_names[feed.place], node.queries, bad))
        return refused

    def arrow(self, node: Node, member: Member, arrow: int, low: int, high: int) -> list[Packet]:
        """What an arrow brings between two serials: committed files first, then this step's."""
        packets = [
            packet
            for name, check in member.queues.get(arrow, ())
            for packet in read_queue(self.order.storage, name, check, self._schema(node, arrow))
        ]
        packets += self.arrived.get((node.place, arrow), [])
        return self._kept(node, arrow, self._within(node, arrow, packets, low, high))

    def _within(self, node: Node, arrow: int, packets: list[Packet], low: int, high: int) -> list[Packet]:
        feed = node.feeds[arrow]
        made = self.made.get(feed, [])
        maker = None if feed.source else self.order.members.get(feed.place)
        if (
            not packets
            and maker is not None
            and max(maker.low, self.low) >= low
            and min(maker.high, self.high) <= high
        ):
            return made  # all of it, without a look at the serials
        return [part for packet in packets + made if len(part := between(packet, low, high))]

    def _kept(self, node: Node, arrow: int, packets: list[Packet]) -> list[Packet]:
        """What load shedding leaves of an arrow's packets."""
        drop, dropper = self.order.drops.get(node.place), node.dropper
        weighed = node.place in self.order.weighed
        if dropper is None or not packets or (drop is None and not weighed):
            return packets
        port = next(p for p, arrows in enumerate(node.ports) if arrow in arrows)
        kept: list[Packet] = []
        for packet in packets:
            values = None
            if weighed and dropper.importance is not None:
                values = dropper.importance.of(packet.batch, port)
                self.importance.setdefault(node.place, Recent()).add(values)
            kept.append(packet if drop is None else dropper.keep(packet, drop, values))
        if drop is not None:
            gone = self.result.shed.setdefault(node.place, {})
            gone[drop.reason] = gone.get(drop.reason, 0) + sum(map(len, packets)) - sum(map(len, kept))
        return [packet for packet in kept if len(packet)]

    def _schema(self, node: Node, arrow: int) -> pa.Schema:
        port = next(p for p, arrows in enumerate(node.ports) if arrow in arrows)
        return node.schemas[port]

    def _call(self, node: Node, member: Member, arrows: list[list[Packet]], end: bool) -> None:
        operator = node.operator
        assert operator is not None
        rounds = rounds_of(node, arrows, self.order.packet_rows)
        results: list[list[Packet]] = [[] for _ in operator.outputs]
        if rounds or end:
            held = self.states(node, member, member.shards) if node.stateful else [None]
            late = sum(state.late for state in held if state is not None)
            cost = BoxCost()
            begin = time.perf_counter()
            for packets in rounds:
                found = self._process(node, member, packets, held)
                for made, packet in zip(results, found, strict=True):
                    if len(packet):
                        made.append(packet)
                cost.calls += 1
            if end:
                last = Packet(empty_batch(operator.inputs[0]), Order(member.high - 1, time.time(), 1))
                closed = [operator.finish(state, last) for state in held]
                for made, packet in zip(results, merge(operator, closed), strict=False):
                    if len(packet):
                        made.append(packet)
            cost.seconds = time.perf_counter() - begin
            cost.tuples_in = sum(len(packet) for packets in rounds for packet in packets)
            cost.tuples_out = sum(map(len, results[0])) if results else 0
            cost.late = sum(state.late for state in held if state is not None) - late
            self.result.costs[node.place] = cost
            if node.stateful:
                self.changed[node.place] = held
        for output, packets in enumerate(results):
            self.made[Feed(False, node.place, output)] = packets

    def _process(self, node: Node, member: Member, packets: list[Packet], held: list[Any]) -> list[Packet]:
        """A call; of a box whose state is in shards, one call for each."""
        operator = node.operator
        assert operator is not None
        if len(held) == 1:
            return self.process(node, packets, held[0])
        parts = split(operator, packets, member.shards, member.buckets)
        return merge(operator, [self.process(node, p, s) for p, s in zip(parts, held, strict=True)])

    def process(self, node: Node, packets: list[Packet], state: Any) -> list[Packet]:
        """A call of an operator, with bad rows taken out if somebody wants them."""
        operator = node.operator
        assert operator is not None
        if not self.order.letters:
            return operator.process(packets, state)
        found, bad = dead.process(operator, packets, state)
        if bad:
            feed = node.outputs[-1]
            letters = dead.as_packet(node.name, node.queries, bad)
            self.made[feed] = [Packet.merge([*self.made.get(feed, []), letters])]
        return found

    def states(self, node: Node, member: Member, shards: Sequence[tuple[int, int]]) -> list[Any]:
        """The state of some shards of a node, taken out of the cache."""
        begin = time.perf_counter()
        assert node.operator is not None
        held = []
        for shard in shards:
            covered = (*shard, member.buckets)
            state, found = states.take(self.order.storage, node.key, node.operator, member.state, covered)
            self.result.states_found += found
            self.result.states_loaded += not found
            if node.operator.holds_time:
                state.ended = dict(member.ended)
                state.idle = set(member.idle)
            held.append(state)
        seconds = self.result.seconds
        seconds["state"] = seconds.get("state", 0.0) + time.perf_counter() - begin
        return held

    # --- what leaves --------------------------------------------------------------------------------

    def _deliver(self, node: Node, arrows: list[list[Packet]]) -> None:
        packets = [packet for packets in rounds_of(node, arrows, 1 << 30) for packet in packets]
        delivery = self.order.deliveries.get(node.place)
        if not packets or delivery is None:
            return
        arrivals = _arrivals(packets)
        rows = sum(map(len, packets))
        part = OutputPart(rows, arrivals=arrivals, first=packets[0].order.first_serial)
        if delivery.kind == "parquet":
            part.file = staged_name(delivery.folder, delivery.tag, self.unique)
            begin = time.perf_counter()
            write_parquet(part.file, _table(packets), self.order.storage.durable)
            self._wrote(begin)
        elif delivery.kind == "staged":
            # Should the sink refuse it, it is the queue before it already.
            name = f"queues/{self.unique}-{node.place}-staged.arrow"
            part.file = name
            part.queue = self._write_queue(name, Packet.concat(packets))
        else:
            packet = Packet.concat(packets)
            part.payload = bytes(stream(packet.batch))
            part.serials = packet.order.serials
        if delivery.keep:
            part.kept = staged_name(delivery.keep, "", self.unique)
            write_parquet(part.kept, _table(packets), self.order.storage.durable, private=True)
        self.result.outputs[node.place] = part

    def _queue_rest(self) -> None:
        """What the step made for nodes that did not take it in this step."""
        for place in {feed.place for feed in self.made if not feed.source} - self.repeated:
            maker = self.order.members[place]
            for feed in self.nodes.all[place].outputs:
                packets = self.made.get(feed, [])
                for target, arrow in self.nodes.targets.get(feed, ()) if packets else ():
                    member = self.order.members.get(target.place)
                    rest = packets
                    if member is not None and member.high >= maker.high:
                        continue
                    if member is not None:
                        rest = [p for packet in packets if len(p := between(packet, member.high, 1 << 62))]
                    if rest:
                        self._queue(target, arrow, Packet.concat(rest))

    def _queue(self, target: Node, arrow: int, packet: Packet) -> None:
        name = f"queues/{self.unique}-{target.place}-{arrow}.arrow"
        self.result.queued[target.place, arrow] = self._write_queue(name, packet)

    def _write_queue(self, name: str, packet: Packet) -> QueueFile:
        """Rows that wait, in a file that is written with the step's other files."""
        file, data = queue_file(name, packet)
        self.to_write[name] = [data]
        return file

    def _write_states(self) -> None:
        """Write what changed, together with the queues; only then may the next step find it in memory."""
        version = f"{self.order.name}-{self.unique[-8:]}"
        file = states.StateFile(f"states/{self.unique}.arrow")
        for place, held in self.changed.items():
            member = self.order.members[place]
            parts = [
                file.add(state, shard in member.full, version, (*shard, member.buckets))
                for shard, state in zip(self.shards(member), held, strict=True)
            ]
            self.result.states[place] = parts
        if file.parts:
            self.to_write[file.name] = file.parts
        self.order.storage.write_all(self.to_write)
        for place, held in self.changed.items():
            member, key = self.order.members[place], self.nodes.all[place].key
            for part, state in zip(self.result.states[place], held, strict=True):
                known = sum(p.length for p in member.state if states.covers(p) == states.covers(part))
                size = part.length if part.full else known + part.length
                states.put(self.order.storage, key, states.covers(part), version, state, size)

    def shards(self, member: Member) -> Sequence[tuple[int, int]]:
        """The shards of a node that this task holds."""
        return member.shards


def rounds_of(node: Node, arrows: list[list[Packet]], rows: int) -> list[list[Packet]]:
    """Calls of a node: packets of one arrow one by one, those of several put together by serial."""
    if len(arrows) == 1:
        return [[part] for packet in arrows[0] for part in _pieces(packet, rows)]
    ports = []
    for port, schema in zip(node.ports, node.schemas, strict=True):
        found = [Packet.concat(arrows[a]) for a in port if arrows[a]]
        ports.append(Packet.merge(found) if found else Packet.empty(schema))
    if len(ports) == 1:
        return [[part] for part in _pieces(ports[0], rows)]
    return [ports] if any(len(packet) for packet in ports) else []


def _pieces(packet: Packet, rows: int) -> list[Packet]:
    if len(packet) <= rows:
        return [packet] if len(packet) else []
    return [packet.slice(at, min(rows, len(packet) - at)) for at in range(0, len(packet), rows)]


def _arrivals(packets: Sequence[Packet]) -> float | npt.NDArray[np.float64]:
    """When the rows of some packets arrived: one time if they share it."""
    times = [packet.order.arrivals for packet in packets]
    first = times[0] if isinstance(times[0], float) else float(times[0][0])
    if all(np.all(np.equal(time, first)) for time in times):
        return first
    return np.concatenate([packet.order.arrival_array() for packet in packets])


def _table(packets: Sequence[Packet]) -> pa.Table:
    """The rows of some packets, not copied."""
    return pa.Table.from_batches([packet.batch for packet in packets])


def located(node: Node, error: Exception, serial: int) -> HeadgateError:
    """The error with the box that failed, unless it says so itself; it must survive pickling."""
    if isinstance(error, HeadgateError):
        located: HeadgateError = error
    elif node.operator is None:
        located = RunError(f"Query '{node.name}': its results could not be written: {error}")
    else:
        located = OperatorError(
            f"Box '{node.name}' ({node.operator.label}) failed on tuples from serial {serial} on: "
            f"{type(error).__name__}: {error}"
        )
    try:
        pickle.loads(pickle.dumps(located))
    except Exception:
        return OperatorError(str(located))
    return located
