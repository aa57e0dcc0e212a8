"""The line to a run: how other threads reach it while it goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from headgate.control.socket import Handler
from headgate.control.watching import Watch
from headgate.errors import PipelineError
from headgate.graph.network import Output, Request
from headgate.runtime.added_queries import joining
from headgate.runtime.change import Change
from headgate.runtime.observing import Observation
from headgate.runtime.report import Report


class RunOver(PipelineError):
    """A change of a run that has ended."""

    def __init__(self) -> None:
        super().__init__("The run is over; there is nothing left to change.")


SUCCEEDED = "Queries are just being added or removed; try again in a moment."


class Runner(Protocol):
    """A run, as far as others reach it while it goes on."""

    @property
    def succeeded(self) -> bool:
        """Whether another run goes on where this one stops."""
        ...

    def change(self, change: Change, outputs: Sequence[Output] = ()) -> None:
        """Carry a change out, with the outputs of the queries to add; raise if that cannot be."""

    def cancel(self, request: Request) -> None:
        """End a request now."""

    def snapshot(self) -> Report:
        """What has happened so far."""
        ...

    def observe(self, calls_seen: int) -> Observation:
        """What can be seen at this moment, with the box calls after so many."""
        ...

    def halt(self) -> None:
        """Stop as if by hand."""


class Onlooker(Protocol):
    """Looks on while a run goes on, for instance a recorder."""

    def begin(self, core: Any) -> None:
        """This core, an engine's own, decides from now on; ``core.observers`` hear what it hears."""


class Recording(Onlooker, Protocol):
    """One that also sees the end, such as a recorder."""

    def end(self, report: Report | None) -> None:
        """The run is over; without a report it failed."""


class Line:
    """The line to a run: changes that are planned, and requests from other threads while it goes on."""

    def __init__(
        self,
        planned: Sequence[Change] = (),
        outputs: Sequence[Output] = (),
        load: Callable[[str], list[Output]] | None = None,
        added: Callable[[Mapping[str, Any]], AbstractContextManager[list[Output]]] | None = None,
    ) -> None:
        self.load = load
        """Gives the outputs of the queries in a file."""
        self.added = added
        """Gives the outputs of a query in SQL, and takes it back if it cannot join."""
        self.page: str | None = None
        """Where a browser finds the run's page while it is served."""
        self.widget: str | None = None
        """Where a notebook finds it."""
        self.planned = sorted(planned, key=lambda change: change.at)
        self._outputs = {output.name: output for output in outputs}
        """The queries that are planned to be added."""
        self.handlers: Mapping[str, Handler] = {}
        """The commands that the run answers, by name."""
        self.gate: Callable[[Any, Sequence[Output]], None] | None = None
        """Raises if queries must not join a run, of which it sees the core."""
        self.forecast: Callable[[Any, Sequence[Output], Mapping[str, Any]], Any] | None = None
        """Says what would happen to a run if queries joined or goals and rates were others."""
        self.onlookers: list[Onlooker] = []
        """Are shown the core of the run before it begins."""
        self.watch = Watch(lambda: self._runner)
        self._runner: Runner | None = None
        self._began = threading.Event()

    def outputs(self, change: Change) -> list[Output]:
        """The outputs that a planned change adds."""
        if change.request is not None:
            return joining(change.request.network)
        return [self._outputs[name] for name in change.add]

    @property
    def requests(self) -> int:
        """How many requests are planned."""
        return sum([change.request is not None for change in self.planned])

    def begin(self, core: Any) -> None:
        """A run is about to begin, perhaps as the successor of another."""
        for onlooker in self.onlookers:
            onlooker.begin(core)

    def attach(self, runner: Runner) -> None:
        self._runner = runner
        self._began.set()

    def detach(self, *, for_good: bool = True) -> None:
        """The run is over, or goes on as another."""
        self._runner = None
        (self._began.set if for_good else self._began.clear)()

    def change(self, change: Change, outputs: Sequence[Output] = ()) -> None:
        """Have a change carried out; it is in force on return."""
        runner = self.runner
        runner.change(change, outputs)
        while runner.succeeded and self._runner is runner:
            time.sleep(0.001)
        if runner.succeeded:
            self._began.wait()

    @property
    def runner(self) -> Runner:
        """The run, once it goes on."""
        self._began.wait()
        runner = self._runner
        if runner is None:
            raise RunOver
        return runner
