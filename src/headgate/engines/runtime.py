"""The running network: what threads and simulation share.

The runtime moves packets: it admits them from the sources, lets workers take trains from the inboxes,
passes results on in order, and hands them to the sinks.  Whatever happens it tells the policy as an event,
and what the policy decides it passes to the engine (the ``Host``).  It owns no thread and no clock: every
method takes the time, and the engine calls one at a time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headgate.engines.admission import Admission
from headgate.engines.inbox import Fifo, Inbox, Merge, Round
from headgate.engines.report import BoxCall, BoxReport, Overhead, QueryReport, Report, Trace
from headgate.engines.sinks.base import Writer
from headgate.errors import HeadgateError, OperatorError, SinkError
from headgate.graph.network import Arrow, Box, Network, Output, Source
from headgate.graph.operator import Kind, Operator
from headgate.graph.packet import Marker, Order, Packet, empty_batch
from headgate.scheduling.catalog import BoxEntry, Catalog
from headgate.scheduling.interface import (
    Call,
    Changed,
    Event,
    Finished,
    Idle,
    Plan,
    Policy,
    QueueState,
    Run,
    Spawned,
    Started,
    Timer,
    Wake,
)
from headgate.scheduling.states import Task

QUEUE_PACKETS = 8
"""A queue holds about that many packets; a box whose results find no room is not run."""
NEVER = 1 << 62


class Host(Protocol):
    """What the runtime asks of its engine."""

    def wake(self, worker: int) -> None: ...
    def assign(self, worker: int, plan: Plan) -> None: ...
    def set_timer(self, at: float, name: str) -> None: ...


@dataclass
class LiveBox:
    """A box while it runs."""

    place: int
    box: Box
    operator: Operator
    state: Any
    task: Task
    inbox: Inbox = field(init=False)
    targets: list[list[Target]] = field(default_factory=list)
    feeders: list[int] = field(default_factory=list)
    """For every arrow in, the box it comes from; -1 for a source."""
    merges: list[int] = field(default_factory=list)
    """Merging boxes downstream, whose input may become available when this one has run."""
    merging_outputs: list[int] = field(default_factory=list)
    next_ticket: int = 0
    next_delivery: int = 0
    open_work: dict[int, Work] = field(default_factory=dict)
    end_due: bool = False
    finished: bool = False
    removed: bool = False


@dataclass
class LiveOutput:
    """A query's output while it runs."""

    place: int
    output: Output
    inbox: Inbox
    report: QueryReport
    writer: Writer | None = None
    times: list[npt.NDArray[np.float64] | None] = field(default_factory=list)
    failed: bool = False
    passed: tuple[Marker, ...] = ()
    """Markers that came without a tuple."""
    markers: list[Marker] = field(default_factory=list)


Target = tuple[LiveBox | LiveOutput, int]


@dataclass
class Work:
    """One box call under way."""

    live: LiveBox
    worker: int
    rounds: list[Round]
    end: bool
    ticket: int
    tuples: int
    first_serial: int
    start: float
    results: list[list[Packet]] = field(default_factory=list)
    seconds: float = 0.0
    overhead: float = 0.0
    over: bool = False
    markers: tuple[Marker, ...] = ()
    """Markers that came while the call was under way and leave after its results."""
    error: BaseException | None = None
    leaves: Callable[[Packet], npt.NDArray[np.float64]] | None = None
    """In simulation: when each row of a result leaves the call."""

    @property
    def tuples_out(self) -> int:
        return sum(len(results[0]) for results in self.results if results)


class Runtime:
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
        queue_packets: int = QUEUE_PACKETS,
        prepare: Callable[[Operator], Operator] = lambda operator: operator,
        timer: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.network = network
        self.policy = policy
        self.host = host
        self.workers = workers
        self.packet_rows = packet_rows
        self.drain = drain
        self.overhead = Overhead()
        self.trace = Trace()
        self._timer = timer
        self._latency = "latency" in policy.needs
        self._queue_rows = queue_packets * packet_rows
        self.admission = Admission(network.sources, packet_rows)
        self.boxes = [
            LiveBox(i, box, prepare(box.operator), None, Task(self._lanes(box)))
            for i, box in enumerate(network.boxes)
        ]
        for live in self.boxes:
            live.state = live.operator.open()
            live.inbox = self._inbox([a for port in live.box.ports for a in port], live.box.ports)
            live.targets = [[] for _ in live.operator.outputs]
            live.feeders = [
                -1 if isinstance(a.node, Source) else network.index[a.node]
                for port in live.box.ports
                for a in port
            ]
        self.outputs = [
            LiveOutput(
                i, o, self._inbox(list(o.port), (o.port,)), QueryReport(o.name, has_qos=o.qos is not None)
            )
            for i, o in enumerate(network.outputs)
        ]
        self._source_places = {source: i for i, source in enumerate(network.sources)}
        self._source_targets: list[list[Target]] = [[] for _ in network.sources]
        self._connect()
        self._merging = [live for live in self.boxes if isinstance(live.inbox, Merge)]
        self.admitted = 0
        """Below this serial, every tuple has been queued."""
        self.sources_ended = False
        self.catalog = Catalog([self._entry(live) for live in self.boxes])
        for decision in policy.start(self.catalog, workers, seed):
            self._carry_out(decision)

    # --- building -----------------------------------------------------------------------------------

    def _lanes(self, box: Box) -> int:
        """How many workers may be inside: any number for stateless boxes, one for those with state."""
        return max(self.workers, 1) if box.operator.kind is Kind.STATELESS and not box.operator.slow else 1

    def _inbox(self, arrows: Sequence[Arrow], ports: Sequence[Sequence[Arrow]]) -> Inbox:
        if len(arrows) == 1:
            return Fifo(self._queue_rows, self.packet_rows)
        of_port = [i for i, port in enumerate(ports) for _ in port]
        schemas = [port[0].schema for port in ports]
        return Merge(of_port, schemas, lambda: self._bound(arrows), self._queue_rows, self.packet_rows)

    def _connect(self) -> None:
        for live in self.boxes:
            arrows = [a for port in live.box.ports for a in port]
            for place, arrow in enumerate(arrows):
                self._target_list(arrow).append((live, place))
        for output in self.outputs:
            for place, arrow in enumerate(output.output.port):
                self._target_list(arrow).append((output, place))
        for live in self.boxes:
            reach = self._reach(live.place)
            live.merges = [d for d in reach if isinstance(self.boxes[d].inbox, Merge)]
            live.merging_outputs = [
                o.place
                for o in self.outputs
                if isinstance(o.inbox, Merge) and live.place in self.network.queries[o.output.name]
            ]

    def _target_list(self, arrow: Arrow) -> list[Target]:
        if isinstance(arrow.node, Source):
            return self._source_targets[self._source_places[arrow.node]]
        return self.boxes[self.network.index[arrow.node]].targets[arrow.output]

    def _reach(self, place: int) -> list[int]:
        found: set[int] = set()
        todo = list(self.network.downstream[place])
        while todo:
            box = todo.pop()
            if box not in found:
                found.add(box)
                todo += self.network.downstream[box]
        return sorted(found)

    def _entry(self, live: LiveBox) -> BoxEntry:
        return BoxEntry(
            live.box.name,
            live.task.lanes,
            tuple(self.network.upstream[live.place]),
            tuple(self.network.downstream[live.place]),
            self.network.queries_of[live.place],
            live.operator.cost,
        )

    # --- events -------------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        """Let the catalog and the policy know, and carry out what the policy decides."""
        begin = self._timer()
        self.catalog.apply(event)
        for decision in self.policy.handle(event):
            self._carry_out(decision)
        self.overhead.scheduler += self._timer() - begin

    def _carry_out(self, decision: Any) -> None:
        if isinstance(decision, Run):
            self.host.assign(decision.worker, decision.plan)
        elif isinstance(decision, Wake):
            for worker in decision.workers:
                self.host.wake(worker)
        else:
            self.host.set_timer(decision.at, decision.name)

    def idle(self, worker: int, now: float) -> None:
        self.tell(Idle(now, worker))

    def timer(self, name: str, now: float) -> None:
        self.tell(Timer(now, name))

    # --- admission ----------------------------------------------------------------------------------

    def has_room(self) -> bool:
        """Back-pressure: whether every queue that a source feeds can take more."""
        return not any(
            target.inbox.full(arrow)
            for targets in self._source_targets
            for target, arrow in targets
            if not (target.removed if isinstance(target, LiveBox) else target.failed)
        )

    def admit(self, packets: Sequence[tuple[int, Packet]], now: float) -> list[LiveOutput]:
        """Queue packets that admission has given their serials; see to sources that have ended.

        Returns the outputs to drain.
        """
        touched: dict[int, LiveBox] = {}
        outputs: dict[int, LiveOutput] = {}
        for source, packet in packets:
            for target, arrow in self._source_targets[source]:
                self._put(target, arrow, packet, touched, outputs, None)
        self.admitted = self.admission.next_serial
        for source, entry in enumerate(self.admission.entries):
            if entry.error is not None:
                error, entry.error = entry.error, None
                self._fail_queries(self._queries_of_source(source), error, now)
        self._announce(touched, now, None)
        for live in self._merging:
            self._check_merge(live, now, None)
        for output in self.outputs:
            if isinstance(output.inbox, Merge):
                outputs[output.place] = output
        if self.admission.ended and not self.sources_ended:
            self.sources_ended = True
            outputs |= {o.place: o for o in self._settle_ends(now, range(len(self.boxes)))}
        return list(outputs.values())

    def _queries_of_source(self, place: int) -> list[str]:
        source = self.network.sources[place]
        return [o.name for o in self.network.outputs if source in self.network.sources_of(o.port)]

    # --- calls --------------------------------------------------------------------------------------

    def begin(self, worker: int, call: Call, now: float) -> Work | None:
        """Take a train for a call; None if there is nothing (left) to do or no lane or room."""
        live = self.boxes[call.box]
        if not live.task.free or not self.catalog.can_run(call.box):
            return None
        entry = self.catalog.boxes[call.box]
        if live.end_due:
            rounds: list[Round] = []
            tuples, first = 0, self.admission.next_serial
        else:
            rounds = live.inbox.take(max(1, call.train.size(entry)))
            if not rounds:
                return None
            tuples = sum(len(packet) for round_ in rounds for packet in round_)
            first = min(p.order.first_serial for p in rounds[0] if len(p))
        work = Work(live, worker, rounds, live.end_due, live.next_ticket, tuples, first, now)
        live.end_due = False
        live.next_ticket += 1
        live.open_work[work.ticket] = work
        self._set_idle_inputs(live)
        if -1 in live.feeders:
            for round_ in rounds:
                for packet in round_:
                    for marker in packet.markers:
                        if marker.begin is None:
                            marker.begin = now
        queue = self._measure(live)
        more = live.task.begin(queue.tuples > 0)
        self.tell(Started(now, worker, live.place, tuples, queue))
        if more:
            self.tell(Spawned(now, live.place, queue, immediate=False, worker=worker))
        return work

    def execute(self, work: Work) -> None:
        """The call itself; needs no lock, since nobody else is inside this lane."""
        live = work.live
        try:
            process, state = live.operator.process, live.state
            for packets in work.rounds:
                work.results.append(process(packets, state))
            if work.end:
                end = Packet(empty_batch(live.operator.inputs[0]), Order(work.first_serial, work.start, 1))
                work.results.append(live.operator.finish(state, end))
        except Exception as error:
            work.error = error if isinstance(error, HeadgateError) else _wrap(live, work, error)

    def finish(self, work: Work, now: float) -> list[LiveOutput]:
        """A call is over: pass results on, in the order in which calls began.  Returns outputs to drain."""
        live = work.live
        work.over = True
        work.rounds = []
        self.trace.add(BoxCall(work.worker, live.box.name, work.tuples, work.start, now))
        if work.error is not None:
            self._fail_queries(self.network.queries_of[live.place], work.error, now)
        touched: dict[int, LiveBox] = {}
        outputs: dict[int, LiveOutput] = {}
        while live.next_delivery in live.open_work and live.open_work[live.next_delivery].over:
            ready = live.open_work.pop(live.next_delivery)
            live.next_delivery += 1
            live.finished = live.finished or ready.end
            if not live.removed:
                self._deliver(ready, touched, outputs)
        more = live.task.finish(live.inbox.available() > 0)
        queues = tuple((place, self._measure(box)) for place, box in touched.items())
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
        self._announce(touched, now, work.worker)
        if more and not live.removed:
            self.tell(Spawned(now, live.place, self._measure(live), immediate=False, worker=work.worker))
        for place in live.merges:
            self._check_merge(self.boxes[place], now, work.worker)
        for place in live.merging_outputs:
            outputs[place] = self.outputs[place]
        if self.sources_ended:
            outputs |= {o.place: o for o in self._settle_ends(now, [live.place])}
        return list(outputs.values())

    def _deliver(self, work: Work, touched: dict[int, LiveBox], outputs: dict[int, LiveOutput]) -> None:
        for results in work.results:
            for port, packet in enumerate(results):
                times = work.leaves(packet) if work.leaves is not None and len(packet) else None
                for target, arrow in work.live.targets[port]:
                    self._put(target, arrow, packet, touched, outputs, times)
        if work.markers:
            self._forward(work.live, work.markers, touched, outputs)

    def _forward(
        self,
        live: LiveBox,
        markers: tuple[Marker, ...],
        touched: dict[int, LiveBox],
        outputs: dict[int, LiveOutput],
    ) -> None:
        """Markers without tuples pass a box by: there is nothing to call it for."""
        empty = Packet(empty_batch(live.operator.outputs[0]), Order(0, 0.0, 0), markers)
        for target, arrow in live.targets[0]:
            self._put(target, arrow, empty, touched, outputs, None)

    def _put(
        self,
        target: LiveBox | LiveOutput,
        arrow: int,
        packet: Packet,
        touched: dict[int, LiveBox],
        outputs: dict[int, LiveOutput],
        times: npt.NDArray[np.float64] | None,
    ) -> None:
        if isinstance(target, LiveOutput):
            if target.failed:
                return
            if len(packet):
                target.inbox.put(arrow, packet)
                target.times.append(times)
            elif packet.markers and not target.inbox.attach(arrow, packet):
                target.passed += packet.markers
            outputs[target.place] = target
        elif target.removed:
            return
        elif len(packet):
            target.inbox.put(arrow, packet)
            touched[target.place] = target
        elif packet.markers and not target.inbox.attach(arrow, packet):
            if target.open_work:
                newest = target.open_work[max(target.open_work)]
                newest.markers += packet.markers
            else:
                self._forward(target, packet.markers, touched, outputs)

    def _measure(self, live: LiveBox) -> QueueState:
        if live.end_due:
            return QueueState(1)
        full = frozenset(up for arrow, up in enumerate(live.feeders) if live.inbox.full(arrow))
        return live.inbox.measure(self._latency, full)

    def _announce(self, touched: dict[int, LiveBox], now: float, worker: int | None) -> None:
        """Tell of boxes that had nothing to do and now have; others only of their longer queue."""
        for live in touched.values():
            queue = self._measure(live)
            if queue.tuples and live.task.arrive():
                self.tell(Spawned(now, live.place, queue, True, worker))
            elif worker is None:
                self.tell(Changed(now, live.place, queue))

    def _check_merge(self, live: LiveBox, now: float, worker: int | None) -> None:
        if live.inbox.rows and not live.removed:
            queue = self._measure(live)
            if queue.tuples != self.catalog.boxes[live.place].queue.tuples:
                if live.task.arrive():
                    self.tell(Spawned(now, live.place, queue, True, worker))
                else:
                    self.tell(Changed(now, live.place, queue))

    # --- order and end ------------------------------------------------------------------------------

    def _bound(self, arrows: Sequence[Arrow]) -> int:
        """The serial below which none of the arrows can bring anything new."""
        known: dict[int, int] = {}
        return min(self._frontier(arrow, known) for arrow in arrows)

    def _frontier(self, arrow: Arrow, known: dict[int, int]) -> int:
        node = arrow.node
        if isinstance(node, Source):
            return NEVER if self.sources_ended else self.admitted
        live = self.boxes[self.network.index[node]]
        if live.finished or live.removed:
            return NEVER
        if live.place in known:
            return known[live.place]
        bound = min(self._frontier(a, known) for port in live.box.ports for a in port)
        queued = live.inbox.first_serial()
        if queued is not None:
            bound = min(bound, queued)
        for work in live.open_work.values():
            bound = min(bound, work.first_serial)
        if bound == NEVER:  # only what it closes at the end can still come, and that has the last serial
            bound = self.admitted
        known[live.place] = bound
        return bound

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
            if not all(self._has_ended(a) for port in live.box.ports for a in port):
                continue
            if type(live.operator).finish is Operator.finish:
                live.finished = True
                todo += [d for d in self.network.downstream[live.place] if d not in todo]
                continue
            live.end_due = True
            if live.task.arrive():
                self.tell(Spawned(now, live.place, QueueState(1), False))
        for live in self._merging:
            self._check_merge(live, now, None)
        return [output for output in self.outputs if isinstance(output.inbox, Merge)]

    def _has_ended(self, arrow: Arrow) -> bool:
        if isinstance(arrow.node, Source):
            return self.sources_ended
        live = self.boxes[self.network.index[arrow.node]]
        return live.finished or live.removed

    def _set_idle_inputs(self, live: LiveBox) -> None:
        """An input whose sources have all ended or fallen idle does not hold time back."""
        if len(live.box.ports) > 1 and hasattr(live.state, "idle"):
            live.state.idle = {
                place
                for place, port in enumerate(live.box.ports)
                if all(
                    self.admission.entries[self._source_places[s]].idle
                    or self.admission.entries[self._source_places[s]].ended
                    for s in self.network.sources_of(port)
                )
            }

    @property
    def done(self) -> bool:
        """Nothing is left to do: all ended, all queues empty, or every query failed."""
        if all(o.failed for o in self.outputs):
            return True
        if not self.sources_ended:
            return False
        busy = any(
            not b.removed and (b.inbox.rows or b.open_work or (self.drain and not b.finished))
            for b in self.boxes
        )
        return not busy and not any(o.inbox.rows for o in self.outputs if not o.failed)

    # --- outputs ------------------------------------------------------------------------------------

    def open_sinks(self) -> None:
        for live in self.outputs:
            try:
                live.writer = live.output.sink.open(live.output.name, live.output.schema)
            except Exception as error:
                self.fail_output(live, error, 0.0)

    def take_output(self, live: LiveOutput) -> list[tuple[Packet, npt.NDArray[np.float64] | None]]:
        """Everything that an output can hand over now, with the times at which rows left, if exact."""
        times, live.times = live.times, []
        if isinstance(live.inbox, Fifo):
            queued = live.inbox.packets()
            live.inbox.clear()
            taken = list(zip(queued, times, strict=True))
        else:
            taken = [(packet, None) for (packet,) in live.inbox.take(live.inbox.rows)]
        if live.passed:
            taken.append((Packet(empty_batch(live.output.schema), Order(0, 0.0, 0), live.passed), None))
            live.passed = ()
        return taken

    def hand_over(
        self,
        live: LiveOutput,
        packet: Packet,
        times: npt.NDArray[np.float64] | None,
        clock: Callable[[], float],
    ) -> None:
        """Give results to the sink and measure their latency.  One caller per output at a time."""
        if live.failed:
            return
        rows = len(packet)
        if rows:
            assert live.writer is not None
            live.writer.write(packet.batch)
        now = clock()
        if rows:
            arrivals = packet.order.arrivals
            if times is None and isinstance(arrivals, float):
                live.report.delivered(now - arrivals, rows, live.output.qos)
            else:
                left = now if times is None else times
                live.report.delivered(left - packet.order.arrival_array(), rows, live.output.qos)
        for marker in packet.markers:
            marker.exits[live.output.name] = now
            live.markers.append(marker)

    # --- failure ------------------------------------------------------------------------------------

    def fail_output(self, live: LiveOutput, error: BaseException, now: float) -> None:
        if not isinstance(error, HeadgateError):
            wrapped = SinkError(
                f"Query '{live.output.name}': its sink failed: {type(error).__name__}: {error}"
            )
            wrapped.__cause__ = error
            error = wrapped
        self._fail_queries([live.output.name], error, now)

    def _fail_queries(self, names: Sequence[str], error: BaseException, now: float) -> None:
        """Stop these queries with their error; boxes that no other query needs stop too."""
        for live in self.outputs:
            if live.output.name in names and not live.failed:
                live.failed = True
                live.report.error = error
                live.inbox.clear()
        alive = {live.output.name for live in self.outputs if not live.failed}
        for box in self.boxes:
            if not box.removed and not alive.intersection(self.network.queries_of[box.place]):
                box.removed = True
                box.inbox.clear()
                self.tell(Changed(now, box.place, QueueState(0), removed=True))

    # --- report -------------------------------------------------------------------------------------

    def close(self) -> None:
        self.admission.close()
        for live in self.outputs:
            if live.writer is not None:
                try:
                    live.writer.close(live.failed)
                except Exception as error:
                    if live.report.error is None:
                        self.fail_output(live, error, 0.0)

    def report(self, engine: str, seconds: float) -> Report:
        rows = {s.name: e.rows for s, e in zip(self.network.sources, self.admission.entries, strict=True)}
        for live in self.outputs:
            report = live.report
            report.tuples_in = sum(rows[s.name] for s in self.network.sources_of(live.output.port))
            boxes = self.network.queries[live.output.name]
            report.late = sum(getattr(self.boxes[b].state, "late", 0) for b in boxes)
            report.measure(live.markers)
        return Report(
            engine=engine,
            policy=self.policy.name,
            workers=self.workers,
            seconds=seconds,
            tuples=sum(rows.values()),
            queries={live.output.name: live.report for live in self.outputs},
            boxes={
                e.name: BoxReport(
                    e.name, e.calls, e.tuples_in, e.tuples_out, e.cost, e.selectivity, e.call_overhead, e.busy
                )
                for e in self.catalog.boxes
            },
            overhead=copy.copy(self.overhead),
            trace=self.trace,
        )


def _wrap(live: LiveBox, work: Work, error: Exception) -> OperatorError:
    wrapped = OperatorError(
        f"Box '{live.box.name}' ({live.operator.label}) failed on tuples from serial {work.first_serial} on: "
        f"{type(error).__name__}: {error}"
    )
    wrapped.__cause__ = error
    return wrapped
