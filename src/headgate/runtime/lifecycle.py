"""The queries of a running network: they come and go, fail one by one, have sinks, and are reported on."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

from headgate.errors import HeadgateError, PipelineError, SinkError
from headgate.graph.network import Output
from headgate.runtime.added_queries import check_removal, with_queries
from headgate.runtime.admission import Admission
from headgate.runtime.boxes import LiveOutput
from headgate.runtime.dead_letter_output import LetterBox
from headgate.runtime.execute import Calls
from headgate.runtime.network import LiveNetwork
from headgate.runtime.policy_driver import Host, Scheduled
from headgate.runtime.report import Report
from headgate.runtime.shedding import report_shed, tell_importance
from headgate.scheduling.catalog import Catalog
from headgate.scheduling.interface import Changed, Policy, QueueState


class Queries(Scheduled):
    """The part of a runtime that knows whose the boxes are."""

    def __init__(
        self,
        live: LiveNetwork,
        admission: Admission,
        policy: Policy,
        host: Host,
        *,
        timer: Callable[[], float],
        processor: Callable[[], float] | None,
    ) -> None:
        super().__init__(policy, host, timer)
        self.network = live.network
        self.live = live
        self.admission = admission
        self.failed = False
        """Some query has failed."""
        self.boxes = live.boxes
        self.outputs = live.outputs
        self._queries = tuple(self.outputs)
        self.letters: LetterBox | None = None
        """Where bad rows go; None: they fail their queries."""
        if self.network.dead_letter is not None:
            self.letters = LetterBox(live, self.network.dead_letter)
            self.outputs.append(self.letters.output)
        self.calls = Calls(self.letters, timer, processor)
        self.catalog = Catalog([live.entry(box) for box in self.boxes], self.network.goals)
        self._importance = tell_importance(self.network, self.catalog.boxes)

    @property
    def sources_ended(self) -> bool:
        return self.live.sources_ended

    # --- coming and going ----------------------------------------------------------------------------

    def add_queries(self, outputs: Sequence[Output], now: float) -> list[LiveOutput]:
        """Let queries join, from the next tuple on; the policy begins anew with their boxes."""
        if self.sources_ended:
            raise PipelineError(
                f"query '{outputs[0].name}' comes too late: all sources have ended, nothing is left for it."
            )
        network = with_queries(self.network, outputs)
        joining = network.outputs[len(self.network.outputs) :]
        writers = [output.sink.open(output.name, output.schema) for output in joining]
        self.network = network
        boxes, made = self.live.extend(network, joining, self.workers)
        for live, writer in zip(made, writers, strict=True):
            live.writer = writer
            live.missed = {entry.source.name: entry.rows for entry in self.admission.entries}
        self._queries += tuple(made)
        if self.letters is not None:
            assert network.dead_letter is not None
            self.letters.extend(network.dead_letter)
        for box in boxes:
            self.catalog.add(self.live.entry(box))
        self.catalog.goals |= network.goals
        self._importance = tell_importance(network, self.catalog.boxes)
        return made

    def remove_query(self, name: str, now: float) -> LiveOutput:
        """Let a query go: it gives nothing more, and boxes that no other needs stop."""
        alive = {live.output.name: live for live in self._queries if not live.failed}
        check_removal([name], alive)
        found = alive[name]
        found.failed = found.removed = found.report.removed = True
        found.forget()
        self._stop_boxes(now)
        return found

    # --- sinks and failure --------------------------------------------------------------------------

    def open_sinks(self) -> None:
        for live in self.outputs:
            try:
                live.writer = live.output.sink.open(live.output.name, live.output.schema)
            except Exception as error:
                self.fail_output(live, error, 0.0)

    def close(self) -> None:
        """Close sources and sinks."""
        self.admission.close()
        for live in self.outputs:
            self.close_output(live)

    def close_output(self, live: LiveOutput) -> None:
        """The run is over: close a sink, after the last dead letters if it is theirs."""
        if self.letters is not None and live is self.letters.output:
            try:
                self.letters.close()
            except Exception as error:
                self.fail_output(live, error, 0.0)
        self.close_sink(live)

    def close_sink(self, live: LiveOutput) -> None:
        """No lock: nobody hands anything over to it any more."""
        writer, live.writer = live.writer, None
        if writer is not None:
            try:
                writer.close(live.failed and not live.removed)
            except Exception as error:
                if live.report.error is None:
                    self.fail_output(live, error, 0.0)

    def fail_output(self, live: LiveOutput, error: BaseException, now: float) -> None:
        if not isinstance(error, HeadgateError):
            wrapped = SinkError(
                f"Query '{live.output.name}': its sink failed: {type(error).__name__}: {error}"
            )
            wrapped.__cause__ = error
            error = wrapped
        self.fail_queries([live.output.name], error, now)

    def fail_queries(self, names: Sequence[str], error: BaseException, now: float) -> None:
        """Stop these queries with their error; boxes that no other query needs stop too."""
        self.failed = True
        for live in self.outputs:
            if live.output.name in names and not live.failed:
                live.failed = True
                live.report.error = error
                live.forget()
        self._stop_boxes(now)

    def _stop_boxes(self, now: float) -> None:
        """Boxes that no query needs any more stop."""
        alive = {live.output.name for live in self.outputs if not live.failed}
        for box in self.boxes:
            if not box.removed and not alive.intersection(self.network.queries_of[box.place]):
                box.removed = True
                box.inbox.clear()
                self.tell(Changed(now, box.place, QueueState(0), removed=True))

    # --- report -------------------------------------------------------------------------------------

    def report(self, engine: str, seconds: float) -> Report:
        rows = {s.name: e.rows for s, e in zip(self.network.sources, self.admission.entries, strict=True)}
        least = self.catalog.least_latencies()
        for live in self.outputs:
            report = live.report
            report.tuples_in = sum(
                rows[s.name] - live.missed.get(s.name, 0) for s in self.network.sources_of(live.output.port)
            )
            boxes = self.network.queries.get(live.output.name, frozenset())
            report.late = sum(self.boxes[b].late for b in boxes)
            report.measure(live.markers)
            if live.output.qos is not None:
                report.attainable = live.output.qos.utility(least.get(live.output.name, 0.0))
        dropped = {
            (reason, box.box.name): count.load()
            for box in self.boxes
            if box.gate is not None
            for reason, count in box.gate.dropped.items()
            if count.load()
        }
        report_shed(
            self.network,
            self.catalog.boxes,
            {live.output.name: live.report for live in self._queries},
            dropped,
            {box.box.name: box.held for box in self.boxes if not box.removed},
            {live.output.name: live.inbox.rows + live.undelivered for live in self._queries},
        )
        return Report(
            engine=engine,
            policy=self.policy.name,
            workers=self.workers,
            seconds=seconds,
            tuples=sum(rows.values()),
            queries={live.output.name: live.report for live in self.outputs},
            boxes=self.box_reports(),
            overhead=copy.copy(self.overhead),
            trace=self.trace,
            ring_full=self.calls.ring_full.load(),
            packet_rows=self.admission.packet_rows,
            problems=[*self.problems, *self.policy.problems],
        )
