"""The queries of a running network: they come and go, and fail one by one."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.connectors.sink import Writer
from headgate.errors import HeadgateError, PipelineError, RunError, SinkError
from headgate.graph.needs import everything, needs
from headgate.graph.network import Network, Output, Request
from headgate.runtime.added_queries import check_new, check_removal, with_queries
from headgate.runtime.admission import Admission, Group
from headgate.runtime.boxes import NEVER, LiveOutput
from headgate.runtime.dead_letter_output import LetterBox
from headgate.runtime.dead_letters import Letter, refusal
from headgate.runtime.instructions import CloseSink, Instruction
from headgate.runtime.network import LiveNetwork
from headgate.runtime.policy_driver import PolicyDriver
from headgate.runtime.report import QueryReport
from headgate.runtime.shedding import dropped_at, tell_importance
from headgate.scheduling.events import Changed, QueueState

KEPT_REQUESTS = 1000
"""Requests that have ended and whose reports are kept."""


class Lifecycle:
    """Adds, removes and fails queries, and stops boxes that no query needs."""

    def __init__(
        self,
        live: LiveNetwork,
        admission: Admission,
        driver: PolicyDriver,
        letters: LetterBox | None,
        out: list[Instruction],
    ) -> None:
        self._live, self._admission, self._driver, self._out = live, admission, driver, out
        self.letters = letters
        """Where bad rows go; None: they fail their queries."""
        self.failed = False
        """Some query has failed."""
        self.importance = tell_importance(live.network, driver.catalog.boxes)
        self.requests: dict[str, dict[str, QueryReport]] = {}
        """Reports of the last requests that have ended."""
        self.rows_gone = 0
        """Rows that sources of such requests had."""
        self._came = len(live.network.outputs)
        """Requests that have come: queries, and requests with sources of their own."""

    @property
    def queries(self) -> list[LiveOutput]:
        """The outputs, without that of the dead letters."""
        if self.letters is None:
            return self._live.outputs
        return [output for output in self._live.outputs if output is not self.letters.output]

    # --- coming and going ---------------------------------------------------------------------------

    def check(self, add: Sequence[Output], remove: Sequence[str]) -> None:
        """Whether queries can be added and removed; an error says why not."""
        if add:
            if self._live.sources_ended and add[0].request is None:
                raise PipelineError(
                    f"query '{add[0].name}' comes too late: all sources have ended, nothing is left for it."
                )
            check_new(self._live.network, add)
        if remove:
            alive = [o.output for o in self.queries if not o.failed]
            check_removal(remove, [output.name for output in alive if output.request is None])

    def add(self, outputs: Sequence[Output], writers: Sequence[Writer], now: float) -> list[int]:
        """Let queries join, from the next tuple on; the policy begins anew with their boxes.

        A request reads its own sources from their first tuple on.  Returns the new boxes' numbers.
        """
        live, catalog, admission = self._live, self._driver.catalog, self._admission
        before = len(live.network.outputs)
        network = with_queries(live.network, outputs, live.standing)
        joining, request = network.outputs[before:], outputs[0].request
        if request is not None:
            own = {place: s for place, s in enumerate(network.sources) if s.request is request}
            group = admission.join(request, own, needs(network), now)
        else:
            group = admission.own
        boxes, made = live.extend(network, joining, self._driver.workers, group)
        if request is None:
            # What is read by now may lack columns that the new boxes need: they begin when it does not.
            new = Network.of(network.name, joining)
            read = map(everything, [s.schema for s in new.sources]) if network.dead_letter else needs(new)
            admission.want({live.source_places[s]: of for s, of in zip(new.sources, read, strict=True)})
            live.joining += [*boxes, *made]
            for target in live.joining[-len(boxes) - len(made) :]:
                target.since, target.begins = admission.wanted_version, NEVER
        for output, writer in zip(made, writers, strict=True):
            output.writer = writer
        if self.letters is not None:
            assert network.dead_letter is not None
            self.letters.extend(network.dead_letter)
        for box in boxes:
            entry = live.entry(box)
            entry.request = self._came + (entry.request - before if request is None else 0)
            catalog.add(entry, box.place)
        for output in made:
            shared = network.queries[output.output.name].difference([box.place for box in boxes])
            output.shed_before = dropped_at([live.share(place).gate for place in shared])
        self._came += len(joining) if request is None else 1
        catalog.goals |= network.goals
        self.importance = tell_importance(network, catalog.boxes)
        return [box.place for box in boxes]

    def cancel(self, request: Request, now: float) -> None:
        """End a request now."""
        error = RunError(f"Request '{request.name}' was cancelled.")
        self.fail([o.output.name for o in self.queries if o.output.request is request], error, now)

    def release(self, group: Group, now: float) -> None:
        """A request is over and its sinks are closed: give back everything that it had."""
        live, catalog, request = self._live, self._driver.catalog, group.request
        assert request is not None
        reports = {o.output.name: o.report for o in live.outputs if o.group is group}
        network = live.network.without(request)
        self.rows_gone += sum([entry.rows for entry in group.entries.values()])
        places = live.release(network, group)
        for place in places:
            if not catalog.boxes[place].removed:
                self._driver.tell(Changed(now, place, QueueState(0), removed=True))
        self._driver.left(places, now)
        for place in places:
            catalog.add(live.entry(live.boxes[place]), place)
            catalog.boxes[place].removed = True
        self._admission.release(group)
        if self.letters is not None:
            assert network.dead_letter is not None
            self.letters.extend(network.dead_letter)
        for name in reports:
            catalog.goals.pop(name, None)
        self.importance = tell_importance(network, catalog.boxes)
        self.requests[request.name] = reports
        while len(self.requests) > KEPT_REQUESTS:
            del self.requests[next(iter(self.requests))]
        request.ended(reports)

    def remove(self, name: str, now: float) -> None:
        """Remove a query: its results end, and boxes that no other query needs stop."""
        found = next(o for o in self.queries if o.output.name == name and not o.failed)
        found.failed = found.removed = found.report.removed = True
        found.forget()
        self._stop_boxes(now)
        self._out.append(CloseSink(found))

    # --- failure ------------------------------------------------------------------------------------

    def queries_of_source(self, place: int) -> list[str]:
        network = self._live.network
        source = network.sources[place]
        return [o.name for o in network.outputs if source in network.sources_of(o.port)]

    def fail_source(self, place: int, error: BaseException, now: float) -> None:
        """A source cannot be read: the queries over it stop."""
        self.fail(self.queries_of_source(place), error, now)

    def refuse(
        self, source: int, letters: Sequence[Letter], now: float, outputs: dict[int, LiveOutput]
    ) -> None:
        """A source has refused rows: dead letters, or the end of the queries that read it."""
        request = self._live.network.sources[source].request
        if self.letters is not None and not self.letters.output.failed and request is None:
            self.letters.refuse(source, letters, outputs)
            return
        self._admission.end(source)
        error = refusal(self._live.network.sources[source].name, letters[0].reason)
        self.fail_source(source, error, now)

    def fail_output(self, live: LiveOutput, error: BaseException, now: float) -> None:
        """A sink failed: its query stops."""
        if not isinstance(error, HeadgateError):
            wrapped = SinkError(
                f"Query '{live.output.name}': its sink failed: {type(error).__name__}: {error}"
            )
            wrapped.__cause__ = error
            error = wrapped
        self.fail([live.output.name], error, now)

    def fail(self, names: Sequence[str], error: BaseException, now: float) -> None:
        """Stop these queries with their error; boxes that no other query needs stop too.

        A request stops as a whole, because its caller waits for all of it.
        """
        self.failed = True
        groups = {o.group for o in self._live.outputs if o.output.name in names and o.group.request}
        for group in groups:
            group.void = True
        for live in self._live.outputs:
            if (live.output.name in names or live.group in groups) and not live.failed:
                live.failed = True
                live.report.error = error
                live.forget()
        self._stop_boxes(now)

    def _stop_boxes(self, now: float) -> None:
        """Boxes that no query needs any more stop."""
        alive = {live.output.name for live in self._live.outputs if not live.failed}
        for box in self._live.boxes:
            if not box.removed and not alive.intersection(self._live.network.queries_of[box.place]):
                box.removed = True
                box.inbox.clear()
                self._driver.tell(Changed(now, box.place, QueueState(0), removed=True))
