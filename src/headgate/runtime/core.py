"""The running network: what threads and simulation share.

The runtime admits packets from the sources, lets workers take trains from the inboxes, and passes results
on in order.  Whatever happens it tells the policy as an event, and what the policy decides it passes to the
engine (the ``Host``).  It owns no thread and no clock: every method takes the time, and the engine calls one
at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence

from headgate.graph.network import Network
from headgate.graph.operator import Kind, Operator
from headgate.graph.packet import Order, Packet
from headgate.machine.topology import Topology, flat
from headgate.runtime.admission import Admission
from headgate.runtime.boxes import NO_TICKET, LiveBox, LiveOutput, Unit, Work
from headgate.runtime.dead_letters import Letter, refusal
from headgate.runtime.lifecycle import Queries
from headgate.runtime.network import LiveNetwork
from headgate.runtime.ordered.buckets import Buckets
from headgate.runtime.policy_driver import Host
from headgate.runtime.queues import Merge, Round
from headgate.runtime.report import BoxCall
from headgate.runtime.shedding import Gate
from headgate.scheduling.catalog import BoxEntry
from headgate.scheduling.interface import (
    Arrived,
    Call,
    Changed,
    Finished,
    Moved,
    Policy,
    QueueState,
    Shed,
    Spawned,
    Started,
)
from headgate.scheduling.trains import WHOLE_QUEUE

QUEUE_PACKETS = 16
"""A queue holds about that many packets; a box whose results find no room is not run."""
DEAR = 5e-6
"""Seconds per tuple from which on several workers in a keyed box pay for splitting its packets by bucket."""
DEAR_MEASURED = 4 * DEAR
"""The same where it is measured: part of what calls on short trains take is not their tuples'."""
CALLS_TO_KNOW = 8
"""Calls after which a box's measured cost is believed."""
UNIT_SECONDS = 0.05
"""Work that is split over buckets at once: some ten times what splitting it over a hundred costs."""
_GIL: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
EVERYTHING = frozenset({"latency", "head", "bytes"})
"""All measurements that queues can be asked for."""


class Runtime(Queries):
    """A network in motion."""

    def __init__(
        self,
        network: Network,
        policy: Policy,
        host: Host,
        *,
        workers: int,
        packet_rows: int,
        drain: bool,
        seed: int = 0,
        reorder: str = "nonblocking",
        partitioning: str = "hybrid",
        buckets: int = 100,
        split: bool | None = None,
        topology: Topology | None = None,
        prepare: Callable[[Operator], Operator] = lambda operator: operator,
        timer: Callable[[], float] = lambda: 0.0,
        processor: Callable[[], float] | None = None,
    ) -> None:
        live = LiveNetwork(
            network,
            lanes=workers,
            packet_rows=packet_rows,
            queue_rows=QUEUE_PACKETS * packet_rows,
            reorder=reorder,
            prepare=prepare,
        )
        admission = Admission(network.sources, packet_rows)
        weighed = processor if split is None else None
        super().__init__(live, admission, policy, host, timer=timer, processor=weighed)
        self.workers = self.requested = workers
        self.drain = drain
        self._partitioning, self._buckets, self._split = partitioning, buckets, split
        self.catalog.packet_rows = packet_rows
        self._tells_arrivals = False
        self._machine = topology
        self._put_on_cores(workers)
        self.start_policy(workers, seed)

    def measure_for(self, needs: frozenset[str]) -> None:
        self.live.needs = needs
        self._tells_arrivals = "arrivals" in needs

    def _put_on_cores(self, workers: int) -> None:
        self.catalog.topology = self._machine or flat(workers)
        self.catalog.cores = self.catalog.topology.placed(workers)

    def seen(self, worker: int, core: int, now: float) -> None:
        """A worker is on that core; policies hear of it only if it is another one, of the worker's group."""
        cores, machine = self.catalog.cores, self.catalog.topology
        if worker >= len(cores) or core == cores[worker] or machine is None:
            return
        if core in machine.groups[machine.group_of(cores[worker])]:
            self.tell(Moved(now, worker, core))

    # --- another policy, more or fewer workers ------------------------------------------------------

    def measure_all(self) -> list[QueueState]:
        self.live.needs = EVERYTHING
        for live in self.boxes:
            for packet in live.inbox.heads()[:1]:
                live.entry.tuple_bytes = packet.batch.nbytes / len(packet)
        found = [QueueState(0) if live.removed else self.live.measure(live) for live in self.boxes]
        self.live.needs = self.policy.needs
        return found

    def make_lanes(self, workers: int) -> None:
        for live in self.boxes:
            if live.buckets is not None:
                live.task.lanes = live.entry.lanes = min(workers, len(live.buckets.states))
            elif live.operator.kind is Kind.STATELESS:
                live.task.lanes = live.entry.lanes = workers
        self._put_on_cores(workers)

    def open_gates(self) -> None:
        for live in self.boxes:
            if live.gate is not None:
                live.gate.set(Shed(live.place, 0.0))

    def spawn_all(self, now: float) -> None:
        for live in self.boxes:
            queue = self.catalog.boxes[live.place].queue
            if not live.removed and live.task.again(queue.tuples > 0):
                self.tell(Spawned(now, live.place, queue, immediate=False))

    # --- admission ----------------------------------------------------------------------------------

    def admit(self, packets: Sequence[tuple[int, Packet]], now: float) -> list[LiveOutput]:
        """Queue packets that admission has given their serials; see to sources that have ended.

        Returns the outputs to drain.
        """
        begin, decided = self._timer(), self.overhead.scheduler
        touched: dict[int, LiveBox] = {}
        outputs: dict[int, LiveOutput] = {}
        for source, packet in packets:
            if self._tells_arrivals and len(packet):
                newest = packet.order.arrivals
                newest = newest if isinstance(newest, float) else float(newest.max())
                self.tell(Arrived(now, source, len(packet), newest))
            for target, arrow in self.live.source_targets[source]:
                self.live.put(target, arrow, packet)
                if isinstance(target, LiveBox):
                    touched[target.place] = target
                else:
                    outputs[target.place] = target
        for source, entry in enumerate(self.admission.entries):
            if entry.letters:
                refused, entry.letters = entry.letters, []
                self._refuse(source, refused, now, outputs)
        self.live.admitted = self.admission.next_serial
        for source, entry in enumerate(self.admission.entries):
            if entry.error is not None:
                error, entry.error = entry.error, None
                self.fail_queries(self.queries_of_source(source), error, now)
        for box in touched.values():
            self._let_pass(box, outputs)
        queues = [(place, self.live.measure(box)) for place, box in touched.items()]
        self._announce(queues, now, None, told=False)
        for live in self.live.merging:
            self._check_merge(live, now, None)
        for output in self.outputs:
            if isinstance(output.inbox, Merge):
                outputs[output.place] = output
        if self.admission.ended and not self.sources_ended:
            self.live.sources_ended = True
            outputs |= {o.place: o for o in self._settle_ends(now, range(len(self.boxes)))}
        self.beside(begin, decided)
        return list(outputs.values())

    def _refuse(
        self, source: int, letters: Sequence[Letter], now: float, outputs: dict[int, LiveOutput]
    ) -> None:
        """A source has refused rows: dead letters, or the end of the queries that read it."""
        if self.letters is not None and not self.letters.output.failed:
            self.letters.refuse(source, letters, outputs)
            return
        self.admission.end(source)
        error = refusal(self.network.sources[source].name, letters[0].reason)
        self.fail_queries(self.queries_of_source(source), error, now)

    def shed(self, decision: Shed) -> None:
        live = self.boxes[decision.box]
        if live.gate is None:
            ports = [place for place, port in enumerate(live.box.ports) for _ in port]
            live.gate = Gate(live.box, self._importance[decision.box], ports)
        live.gate.set(decision)

    def queries_of_source(self, place: int) -> list[str]:
        source = self.network.sources[place]
        return [o.name for o in self.network.outputs if source in self.network.sources_of(o.port)]

    def set_packet_rows(self, rows: int) -> None:
        """From now on; queues keep holding about as many packets."""
        self.admission.packet_rows = self.catalog.packet_rows = rows
        self.live.resize(rows, QUEUE_PACKETS * rows)

    # --- calls --------------------------------------------------------------------------------------

    def begin(self, worker: int, call: Call, now: float) -> Work | None:
        """Take a train for a call; None if there is nothing (left) to do or no lane or room."""
        live = self.boxes[call.box]
        if not live.task.free or not self.catalog.can_run(call.box):
            return None
        entry = self.catalog.boxes[call.box]
        if live.buckets is None and live.keyed and self._pays(live, entry) and live.idle:
            self._open_buckets(live, entry)
        if live.end_due:
            work: Work | None = self._open(live, worker, [], [Order(self.live.admitted, now, 1)], now)
        elif live.buckets is not None:
            work = self._enter(live, worker, max(1, call.train.size(entry, live.inbox)), now)
        else:
            rounds = self._take(live, max(1, call.train.size(entry, live.inbox)), now)
            work = self._open(live, worker, rounds, _head(rounds), now) if rounds else None
        if work is None:
            return None
        queue = self.live.measure(live)
        more = live.task.begin(queue.tuples > 0)
        self.tell(Started(now, worker, live.place, work.tuples, queue))
        if more:
            self._born(live.place, queue, now, worker, immediate=False)
        return work

    def _take(self, live: LiveBox, rows: int, now: float) -> list[Round]:
        """At most that many rows of a box's queue, with the markers that wait there."""
        rounds = live.inbox.take(rows)
        if rounds and live.inbox.loose:
            first, *others = rounds[-1]
            rounds[-1] = (first.with_markers(live.inbox.take_loose()), *others)
        if live.first:
            _mark_begin(rounds, now)
        return rounds

    def _open(self, live: LiveBox, worker: int, rounds: list[Round], head: list[Order], now: float) -> Work:
        tuples = sum([packet.order.length for round_ in rounds for packet in round_])
        work = Work(
            live,
            live.next_ticket,
            rounds,
            head,
            live.end_due,
            tuples,
            worker=worker,
            tuples=tuples,
            start=now,
        )
        work.onward = [[] for _ in live.targets]
        work.members[live.place] = work
        live.end_due = False
        live.next_ticket += 1
        live.open_work[work.ticket] = work
        if live.holds_time:
            self._set_idle_inputs(live)
        return work

    # --- keyed boxes with several workers inside ----------------------------------------------------

    def _pays(self, live: LiveBox, entry: BoxEntry) -> bool:
        """Whether more workers inside a keyed box gain more than splitting its packets costs."""
        if self.workers == 1 or self.letters is not None or self.policy.one_lane:
            return False
        if self._split is not None:
            return self._split
        if live.operator.slow and _GIL:
            return False  # one worker at a time holds the interpreter, however many are inside
        if entry.stated_cost is not None:
            return entry.cost >= DEAR
        if entry.calls < CALLS_TO_KNOW:
            return False
        # On a busy machine a call's time is not all its own.
        cost = entry.cost if self.calls.processor is None else live.processor / max(entry.tuples_in, 1)
        return cost >= DEAR_MEASURED

    def _open_buckets(self, live: LiveBox, entry: BoxEntry) -> None:
        """From now on a box keeps its state by bucket, and has a lane for every worker."""
        live.buckets = Buckets(live.operator, live.state, self._partitioning, self._buckets, self.workers)
        live.task.lanes = entry.lanes = min(self.workers, len(live.buckets.states))

    def _enter(self, live: LiveBox, worker: int, limit: int, now: float) -> Work | None:
        """A call on a box with its state by bucket: it takes something new if too little is at hand."""
        buckets = live.buckets
        assert buckets is not None
        if limit > buckets.waiting and self.live.has_place(live):
            entry = self.catalog.boxes[live.place]
            rows = limit if entry.cost <= 0 else max(limit, int(UNIT_SECONDS / entry.cost))
            rounds = self._take(live, min(rows, max(limit, self.admission.packet_rows)), now)
            if rounds:
                rows = sum([packet.order.length for round_ in rounds for packet in round_])
                unit = Unit(live, live.next_ticket, rounds, _head(rounds), taken=rows)
                if live.holds_time:
                    unit.inputs = self._idle_inputs(live)
                live.next_ticket += 1
                live.open_work[unit.ticket] = unit
                buckets.take(unit)
        if not buckets.waiting:
            return None
        work = Work(live, NO_TICKET, [], [], worker=worker, limit=limit, start=now)
        work.members[live.place] = work
        return work

    def fuse(self, work: Work, call: Call, now: float) -> bool:
        """Make a plan's later call part of a superbox under way, if that changes nothing but the cost.

        It must be fed by one member alone, wait for nothing older (neither queued nor in an open call that
        does not pass it), have a lane and room, and take all that comes.
        """
        live = self.boxes[call.box]
        feeder = work.members.get(live.feeders[0]) if len(live.feeders) == 1 else None
        if feeder is None or feeder.end or call.train != WHOLE_QUEUE or call.box in work.members:
            return False
        if live.buckets is not None or feeder.live.buckets is not None:
            return False
        if live.removed or live.finished or live.inbox.rows or not live.task.free:
            return False
        if live.gate is not None and live.gate.shut:
            return False  # it stands before the queue
        if not self.catalog.has_room(call.box):
            return False
        others = [w for w in feeder.live.open_work.values() if w is not feeder]
        if any(not isinstance(w, Work) or call.box not in w.members for w in others):
            return False
        member = self._open(live, work.worker, [], work.head, now)
        member.members = work.members
        member.members[live.place] = member
        for port, targets in enumerate(feeder.live.targets):
            feeder.onward[port] += [member for target, _ in targets if target is live]
        live.task.begin(False)
        self.tell(Started(now, work.worker, live.place, 0, self.catalog.boxes[call.box].queue))
        return True

    def finish(self, work: Work, now: float) -> list[LiveOutput]:
        """A call is over and sent: tell the policy, also of what has left.  Returns outputs to drain."""
        outputs: dict[int, LiveOutput] = {}
        start, overhead = work.start, work.overhead / len(work.members)
        for member in list(work.members.values()):
            end = now if member.end or len(work.members) == 1 else start + member.seconds
            self.trace.add(BoxCall(work.worker, member.live.box.name, member.tuples, start, end))
            start = end
            member.overhead = overhead
            self._finish_one(member, now, outputs)
        if self.sources_ended:
            outputs |= {o.place: o for o in self._settle_ends(now, list(work.members))}
        return list(outputs.values())

    def settle(self, live: LiveBox, worker: int, now: float) -> list[LiveOutput]:
        """While a call goes on: tell of what has left its box, and of what others could do in it."""
        outputs: dict[int, LiveOutput] = {}
        self._announce(self._settle(live, now, outputs), now, worker, told=False)
        self._recheck(live, now, worker)
        self._check_merges(live, now, worker, outputs)
        return list(outputs.values())

    def _settle(
        self, live: LiveBox, now: float, outputs: dict[int, LiveOutput]
    ) -> tuple[tuple[int, QueueState], ...]:
        """See to units that have left a box; the queues that their results went to."""
        if not live.sent:
            return ()
        while live.sent:
            unit = live.sent.popleft()
            del live.open_work[unit.ticket]
            live.finished = live.finished or unit.end
            if unit.error is not None:
                self.fail_queries(self.network.queries_of[live.place], unit.error, now)
            if self.letters is not None:
                self.letters.deliver(unit, now, outputs)
        if live.idle and live.inbox.loose and not live.inbox.rows:
            self.live.forward(live, live.inbox.take_loose())
        touched: dict[int, LiveBox] = {}
        self._reached(live, touched, outputs)
        return tuple([(place, self.live.measure(box)) for place, box in touched.items()])

    def _reached(self, live: LiveBox, touched: dict[int, LiveBox], outputs: dict[int, LiveOutput]) -> None:
        """Where a box's results go."""
        for targets in live.targets:
            for target, _ in targets:
                if isinstance(target, LiveOutput):
                    outputs[target.place] = target
                    continue
                touched[target.place] = target
                self._let_pass(target, outputs)

    def _let_pass(self, live: LiveBox, outputs: dict[int, LiveOutput]) -> None:
        """Markers that came without a tuple pass a box that has nothing to do."""
        if live.inbox.loose and live.idle and not live.inbox.rows:
            self.live.forward(live, live.inbox.take_loose())
            self._reached(live, {}, outputs)

    def _finish_one(self, work: Work, now: float, outputs: dict[int, LiveOutput]) -> None:
        live = work.live
        queues = self._settle(live, now, outputs)
        more = live.task.finish(live.waiting > 0)
        self.tell(
            Finished(
                now,
                work.worker,
                live.place,
                work.tuples,
                work.tuples_out,
                work.seconds,
                work.overhead,
                queues,
            )
        )
        self._announce(queues, now, work.worker, told=True)
        if more and not live.removed:
            self._born(live.place, self.live.measure(live), now, work.worker, immediate=False)
        else:
            self._recheck(live, now, work.worker)
        self._check_merges(live, now, work.worker, outputs)

    def _recheck(self, live: LiveBox, now: float, worker: int) -> None:
        """A box whose state is by bucket: what others can do in it changes while a call goes on."""
        if live.buckets is None or live.removed:
            return
        queue = self.live.measure(live)
        if queue.tuples != self.catalog.boxes[live.place].queue.tuples:
            if queue.tuples and live.task.arrive():
                self._born(live.place, queue, now, worker, immediate=False)
            else:
                self.tell(Changed(now, live.place, queue))

    def _check_merges(self, live: LiveBox, now: float, worker: int, outputs: dict[int, LiveOutput]) -> None:
        for place in live.merges:
            self._check_merge(self.boxes[place], now, worker)
        for place in live.merging_outputs:
            outputs[place] = self.outputs[place]

    def _announce(
        self, queues: Sequence[tuple[int, QueueState]], now: float, worker: int | None, *, told: bool
    ) -> None:
        """Tell of boxes that had nothing to do and now have; of others' longer queues if no call told it."""
        for place, queue in queues:
            if queue.tuples and self.boxes[place].task.arrive():
                self._born(place, queue, now, worker)
            elif not told:
                self.tell(Changed(now, place, queue))

    def _born(
        self, place: int, queue: QueueState, now: float, worker: int | None, immediate: bool = True
    ) -> None:
        """Tell of a task; it is immediate only if a worker has sent the packet, which may be in its cache."""
        immediate = immediate and worker is not None
        self.tell(Spawned(now, place, queue, immediate, worker, self.catalog.boxes[place].request))

    def _check_merge(self, live: LiveBox, now: float, worker: int | None) -> None:
        if live.inbox.rows and not live.removed:
            queue = self.live.measure(live)
            if queue.tuples != self.catalog.boxes[live.place].queue.tuples:
                if live.task.arrive():
                    self._born(live.place, queue, now, worker)
                else:
                    self.tell(Changed(now, live.place, queue))

    # --- the end ------------------------------------------------------------------------------------

    def _settle_ends(self, now: float, places: Iterable[int]) -> list[LiveOutput]:
        """When the sources have ended: let boxes close what is open, each after those that feed it.

        Returns the merging outputs, which may have become complete.
        """
        todo = sorted(places)
        while self.drain and todo:
            live = self.boxes[todo.pop(0)]
            if live.finished:
                todo += [
                    d
                    for d in self.network.downstream[live.place]
                    if d not in todo and not self.boxes[d].finished
                ]
                continue
            if live.removed or live.end_due or live.inbox.rows or live.open_work:
                continue
            if not all(self.live.has_ended(a) for port in live.box.ports for a in port):
                continue
            if type(live.operator).finish is Operator.finish:
                live.finished = True
                todo += [d for d in self.network.downstream[live.place] if d not in todo]
                continue
            live.end_due = True
            if live.task.arrive():
                self._born(live.place, QueueState(1), now, None)
            else:
                self.tell(Changed(now, live.place, QueueState(1)))
        for live in self.live.merging:
            self._check_merge(live, now, None)
        return [output for output in self.outputs if isinstance(output.inbox, Merge)]

    def _set_idle_inputs(self, live: LiveBox) -> None:
        live.state.ended, live.state.idle = self._idle_inputs(live)

    def _idle_inputs(self, live: LiveBox) -> tuple[dict[int, int], set[int]]:
        """Inputs whose sources have all ended, since when, or fallen idle: they hold no join's time back."""
        ended: dict[int, int] = {}
        idle: set[int] = set()
        for port, places in enumerate(live.port_sources):
            sources = [self.admission.entries[place] for place in places]
            ends = [source.ended_at for source in sources if source.ended_at is not None]
            if len(ends) == len(sources):
                ended[port] = max(ends)
            elif all(source.idle or source.ended_at is not None for source in sources):
                idle.add(port)
        return ended, idle

    @property
    def done(self) -> bool:
        """Nothing is left to do: all ended, all queues empty, or every query failed."""
        if all(o.failed for o in self._queries):
            return True
        if not self.sources_ended:
            return False
        busy = any(
            not b.removed and (b.inbox.rows or b.open_work or (self.drain and not b.finished))
            for b in self.boxes
        )
        return not busy and not any(o.inbox.rows for o in self._queries if not o.failed)


def _mark_begin(rounds: Sequence[Round], now: float) -> None:
    """The markers' first operator begins."""
    for round_ in rounds:
        for packet in round_:
            for marker in packet.markers:
                if marker.begin is None:
                    marker.begin = now


def _head(rounds: Sequence[Round]) -> list[Order]:
    return [packet.order for packet in rounds[0] if len(packet)]
