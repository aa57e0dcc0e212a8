"""The queries of a running network: they come and go, and fail one by one."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.connectors.sink import Writer
from headgate.errors import HeadgateError, PipelineError, SinkError
from headgate.graph.needs import needs
from headgate.graph.network import Output
from headgate.runtime.added_queries import check_new, check_removal, with_queries
from headgate.runtime.admission import Admission
from headgate.runtime.boxes import LiveBox, LiveOutput
from headgate.runtime.dead_letter_output import LetterBox
from headgate.runtime.dead_letters import Letter, refusal
from headgate.runtime.instructions import CloseSink, Instruction
from headgate.runtime.network import LiveNetwork
from headgate.runtime.policy_driver import PolicyDriver
from headgate.runtime.shedding import tell_importance
from headgate.scheduling.events import Changed, QueueState


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

    @property
    def queries(self) -> list[LiveOutput]:
        """The outputs, without that of the dead letters."""
        letters = None if self.letters is None else self.letters.output
        return [output for output in self._live.outputs if output is not letters]

    # --- coming and going ---------------------------------------------------------------------------

    def check(self, add: Sequence[Output], remove: Sequence[str]) -> None:
        """Whether queries can be added and removed; an error says why not."""
        if add:
            if self._live.sources_ended:
                raise PipelineError(
                    f"query '{add[0].name}' comes too late: all sources have ended, nothing is left for it."
                )
            check_new(self._live.network, add)
        if remove:
            check_removal(remove, [o.output.name for o in self.queries if not o.failed])

    def add(self, outputs: Sequence[Output], writers: Sequence[Writer]) -> None:
        """Let queries join, from the next tuple on; the policy begins anew with their boxes."""
        live, catalog = self._live, self._driver.catalog
        network = with_queries(live.network, outputs)
        joining = network.outputs[len(live.network.outputs) :]
        boxes, made = live.extend(network, joining, self._driver.workers)
        # What is read by now may lack columns that the new boxes need: they begin when it does not.
        self._admission.want(needs(network))
        targets: list[LiveBox | LiveOutput] = [*boxes, *made]
        for target in targets:
            target.since = self._admission.wanted_version
        for output, writer in zip(made, writers, strict=True):
            output.writer = writer
            output.missed = {entry.source.name: entry.rows for entry in self._admission.entries}
        if self.letters is not None:
            assert network.dead_letter is not None
            self.letters.extend(network.dead_letter)
        for box in boxes:
            catalog.add(live.entry(box))
        catalog.goals |= network.goals
        self.importance = tell_importance(network, catalog.boxes)

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
        if self.letters is not None and not self.letters.output.failed:
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
        """Stop these queries with their error; boxes that no other query needs stop too."""
        self.failed = True
        for live in self._live.outputs:
            if live.output.name in names and not live.failed:
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
