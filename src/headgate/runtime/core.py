"""The core of a running network: stimuli in, instructions out.

``core.handle(stimulus, now)`` takes what happened (packets admitted, a worker free, a call ended, a timer, a
change asked for) and returns what the engine has to do about it (run this call, wake, set a timer, hand
over).
The core owns no thread, no clock and no file.  Threads and simulation are shells around it: they own time,
waiting and execution, and call one method at a time.  What workers do between two visits, without the
scheduler's lock, is in ``execute``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headgate.graph.needs import needs
from headgate.graph.network import Network
from headgate.graph.operator import Kind, Operator
from headgate.machine.topology import Topology, flat
from headgate.runtime.admission import Admission, Group
from headgate.runtime.dead_letter_output import LetterBox
from headgate.runtime.execute import Calls
from headgate.runtime.finishing import Finishing
from headgate.runtime.instructions import Instruction, Park, RunCall
from headgate.runtime.lifecycle import Lifecycle
from headgate.runtime.network import LiveNetwork
from headgate.runtime.observers import Observers
from headgate.runtime.policy_driver import PolicyDriver
from headgate.runtime.queues import Spooling
from headgate.runtime.report import Report
from headgate.runtime.shedding import Gate, dropped_at, report_shed
from headgate.runtime.starting import Starting
from headgate.runtime.stimuli import (
    Admitted,
    Asked,
    CallEnded,
    CallProgressed,
    Free,
    QueriesFailed,
    RequestCancelled,
    RequestOver,
    Rescheduled,
    Seen,
    SinkFailed,
    Stimulus,
    TakeOver,
    TimerDue,
)
from headgate.runtime.superbox import Superboxes
from headgate.scheduling.catalog import Catalog
from headgate.scheduling.events import Moved, QueueState, Spawned
from headgate.scheduling.interface import Policy, Shed

QUEUE_PACKETS = 16
"""A queue holds about that many packets; a box whose results find no room is not run."""
EVERYTHING = frozenset({"latency", "head", "bytes"})
"""All measurements that queues can be asked for."""


class Core:
    """A network in motion.  ``start`` comes first, then ``handle`` for everything that happens.

    ``fuse``: calls of one plan that follow each other become one superbox, where that changes nothing but the
    cost.  ``at_once``: a plan's first call begins with the plan; otherwise the worker asks again for it, so
    that the engine can let the time of the decision pass.  ``timer`` and ``processor`` are stopwatches for
    the cost of deciding and of calls, not clocks.
    """

    def __init__(
        self,
        network: Network,
        policy: Policy,
        *,
        workers: int,
        packet_rows: int,
        drain: bool,
        requested: int | None = None,
        fuse: bool = True,
        at_once: bool = True,
        seed: int = 0,
        reorder: str = "nonblocking",
        ring: int | None = None,
        partitioning: str = "hybrid",
        buckets: int = 100,
        split: bool | None = None,
        spool: Spooling | None = None,
        topology: Topology | None = None,
        prepare: Callable[[Operator], Operator] = lambda operator: operator,
        timer: Callable[[], float] = lambda: 0.0,
        processor: Callable[[], float] | None = None,
    ) -> None:
        self._out: list[Instruction] = []
        self.observers = Observers()
        self.expected = 0
        """Requests that are planned and have not come yet."""
        self._fuse, self._at_once, self._topology = fuse, at_once, topology
        self.admission = Admission(network.sources, packet_rows, needs=needs(network), drain=drain)
        self.live = live = LiveNetwork(
            network,
            lanes=workers,
            packet_rows=packet_rows,
            queue_rows=QUEUE_PACKETS * packet_rows,
            reorder=reorder,
            ring=ring,
            prepare=prepare,
            own=self.admission.own,
            spool=spool,
        )
        letters: LetterBox | None = None
        if network.dead_letter is not None:
            letters = LetterBox(live, network.dead_letter)
            live.outputs.append(letters.output)
        self.catalog = Catalog([live.entry(box) for box in live.boxes], network.goals)
        self.catalog.packet_rows = packet_rows
        self.driver = PolicyDriver(policy, self.catalog, self, self._out, timer, seed)
        self.driver.workers, self.driver.requested = workers, requested or workers
        weighed = processor if split is None else None
        self.calls = Calls(letters, timer, weighed)
        self.lifecycle = Lifecycle(live, self.admission, self.driver, letters, self._out)
        self._starting = Starting(
            live,
            self.admission,
            self.driver,
            partitioning=partitioning,
            buckets=buckets,
            split=split,
            measured=weighed is not None,
            letters=letters is not None,
        )
        self._superboxes = Superboxes(live, self._starting, self.driver)
        self._finishing = Finishing(live, self.admission, self.driver, self.lifecycle, self._out)
        self._handlers: dict[type, Callable[..., None]] = {
            Admitted: lambda s, now: self._finishing.admit(s.packets, s.version, now),
            Free: self._free,
            CallEnded: lambda s, now: self._finishing.finish(s.work, now),
            CallProgressed: lambda s, now: self._finishing.progress(s.box, s.worker, now),
            TimerDue: lambda s, now: self.driver.timer(s.key, now),
            Rescheduled: lambda s, now: self.driver.rescheduled(now),
            Seen: self._seen,
            Asked: self._change,
            TakeOver: lambda s, now: self.driver.take_over(s.policy, s.requested, now),
            QueriesFailed: lambda s, now: self.lifecycle.fail(s.queries, s.error, now),
            SinkFailed: lambda s, now: self.lifecycle.fail_output(s.output, s.error, now),
            RequestCancelled: lambda s, now: self.lifecycle.cancel(s.request, now),
            RequestOver: lambda s, now: self._release(s.group, now),
        }

    @property
    def network(self) -> Network:
        return self.live.network

    def start(self) -> list[Instruction]:
        """Let the policy begin."""
        self._put_on_cores(self.driver.workers)
        self.driver.start(self.driver.workers, self.driver.requested)
        taken = self._out[:]
        self._out.clear()
        return taken

    def handle(self, stimulus: Stimulus, now: float) -> list[Instruction]:
        """Take in what happened.  Returns what the engine must do about it, in order."""
        self._handlers[type(stimulus)](stimulus, now)
        taken = self._out[:]
        self._out.clear()
        if self.observers:
            self.observers.tell(stimulus, taken, now, self.driver.problems)
        return taken

    # --- workers ------------------------------------------------------------------------------------

    def _free(self, stimulus: Free, now: float) -> None:
        """Give the worker the next call of its plan that can run; if there is none, a new plan or Park."""
        worker, plans = stimulus.worker, self.driver.plans
        if self._begin(worker, now):
            return
        self.driver.idle(worker, now, stimulus.overhead)
        if worker not in plans:
            self._out.append(Park(worker))
        elif self._at_once:
            self._begin(worker, now)

    def _begin(self, worker: int, now: float) -> bool:
        """Begin the next call of a worker's plan that can run; false if there is none."""
        plans = self.driver.plans
        plan = plans.pop(worker, ())
        for place, call in enumerate(plan):
            work = self._starting.begin(worker, call, now)
            if work is not None:
                rest = plan[place + 1 :]
                if self._fuse:
                    rest = self._superboxes.fuse(work, rest, now)
                plans[worker] = rest
                self._out.append(RunCall(worker, work))
                return True
        return False

    def _seen(self, stimulus: Seen, now: float) -> None:
        """A worker is on that core; policies hear of it only if it is another one, of the worker's group."""
        worker, core = stimulus.worker, stimulus.core
        cores, machine = self.catalog.cores, self.catalog.topology
        if worker >= len(cores) or core == cores[worker] or machine is None:
            return
        if core in machine.groups[machine.group_of(cores[worker])]:
            self.driver.tell(Moved(now, worker, core))

    # --- changes ------------------------------------------------------------------------------------

    def check(self, stimulus: Asked) -> None:
        """Whether a change can be made; an error says why not."""
        change = stimulus.change
        queries = [output.output.name for output in self.lifecycle.queries if not output.failed]
        change.check(change.chosen or self.driver.policy, queries)
        self.lifecycle.check(stimulus.outputs, change.remove)

    def _change(self, stimulus: Asked, now: float) -> None:
        self.check(stimulus)
        change = stimulus.change
        if stimulus.outputs:
            boxes = self.lifecycle.add(stimulus.outputs, stimulus.writers, now)
            self.driver.joined(boxes, now)
        for name in change.remove:
            self.lifecycle.remove(name, now)
        if change.qos:
            reports = {output.output.name: output.report for output in self.live.outputs}
            change.set_goals(self.live.network, reports, self.catalog)
            self.live.let_spool()
        self.driver.change(change, stimulus.fit, now)

    def _release(self, group: Group, now: float) -> None:
        """A request's sinks are closed: nothing of it is left but its report."""
        self._settle_reports()
        self.lifecycle.release(group, now)

    # --- what the policy driver needs of the network -----------------------------------------------

    def measure_for(self, needs: frozenset[str]) -> None:
        self.live.needs = needs

    def measure_all(self) -> list[QueueState]:
        self.live.needs = EVERYTHING
        for live in self.live.boxes:
            for packet in live.inbox.heads()[:1]:
                live.entry.tuple_bytes = packet.batch.nbytes / len(packet)
        found = [QueueState(0) if live.removed else self.live.measure(live) for live in self.live.boxes]
        self.live.needs = self.driver.policy.needs
        return found

    def make_lanes(self, workers: int) -> None:
        for live in self.live.boxes:
            if live.buckets is not None:
                live.task.lanes = live.entry.lanes = min(workers, len(live.buckets.states))
            elif live.operator.kind is Kind.STATELESS:
                live.task.lanes = live.entry.lanes = workers
        self._put_on_cores(workers)

    def _put_on_cores(self, workers: int) -> None:
        self.catalog.topology = self._topology or flat(workers)
        self.catalog.cores = self.catalog.topology.placed(workers)

    def open_gates(self) -> None:
        for live in self.live.boxes:
            if live.gate is not None:
                live.gate.open()

    def tasks(self, now: float) -> Iterator[Spawned]:
        for live in self.live.boxes:
            queue = self.catalog.boxes[live.place].queue
            if not live.removed and live.task.again(queue.tuples > 0):
                yield Spawned(now, live.place, queue, immediate=False)

    def shed(self, decision: Shed) -> None:
        live = self.live.boxes[decision.box]
        if live.gate is None:
            ports = [place for place, port in enumerate(live.box.ports) for _ in port]
            live.gate = Gate(live.box, ports)
        live.gate.set(decision, self.lifecycle.importance[decision.box])

    def set_packet_rows(self, rows: int) -> None:
        """Queues keep holding about as many packets."""
        self.admission.packet_rows = self.catalog.packet_rows = rows
        self.live.resize(rows, QUEUE_PACKETS * rows)

    # --- the end ------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Nothing is left to do."""
        return not self.expected and not self.serves and self._finishing.done

    @property
    def serves(self) -> bool:
        """It has no queries of its own and is not to be drained: it is there for requests."""
        return not self.lifecycle.queries and not self.admission.own.drain

    @property
    def may_be_done(self) -> bool:
        """Cheaper than ``done``: false as long as there must be something left."""
        return self.live.sources_ended or self.lifecycle.failed

    def requests_over(self) -> list[Group]:
        """Requests that have nothing left to do but to close their sinks."""
        return self._finishing.requests_over()

    def report(self, engine: str, seconds: float) -> Report:
        """What has happened so far."""
        live, network = self.live, self.live.network
        self._settle_reports()
        queries = self.lifecycle.queries
        report_shed(
            network,
            self.catalog.boxes,
            {output.output.name: output.report for output in queries},
            dropped_at(box.gate for box in live.boxes),
            {box.box.name: box.held for box in live.boxes if not box.removed},
            {output.output.name: output.inbox.rows + output.undelivered for output in queries},
            {output.output.name: output.shed_before for output in queries},
        )
        rows = sum([entry.rows for entry in self.admission.entries]) + self.lifecycle.rows_gone
        report = self.driver.report(
            engine, seconds, rows, {output.output.name: output.report for output in live.outputs}
        )
        report.requests = dict(self.lifecycle.requests)
        report.ring_full = live.ring_full
        report.spooled = 0 if live.spool is None else live.spool.written
        report.packet_rows = self.admission.packet_rows
        return report

    def _settle_reports(self) -> None:
        """Bring the queries' own reports up to date."""
        live, network = self.live, self.live.network
        rows = {entry.source.name: entry.rows for entry in self.admission.entries}
        least = self.catalog.least_latencies()
        for output in live.outputs:
            query, sources = output.output, network.sources_of(output.output.port)
            given = output.given(rows, sources)
            late = sum(live.boxes[b].late for b in network.queries.get(query.name, ()))
            output.report.settle(given, late, output.markers, query.qos, least.get(query.name, 0.0))
