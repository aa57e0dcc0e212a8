"""``App``: sources, the queries over them, and ``run``."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from headgate.api.extensions import check_schema
from headgate.api.running import Running
from headgate.api.streams import Stream
from headgate.connectors.sink import Sink, check_shared
from headgate.connectors.source import Source as Origin
from headgate.engines.base import Engine, Progress, Until
from headgate.engines.simulated import Simulated
from headgate.engines.spark import Spark
from headgate.engines.threads import Threads
from headgate.errors import CycleError, PipelineError, RunError, nearest
from headgate.graph.durations import parse_duration
from headgate.graph.importance import check_importance
from headgate.graph.network import DEAD_LETTER, Arrow, Box, DeadLetter, Network, Output, Source
from headgate.graph.operator import Operator
from headgate.graph.qos import QoS
from headgate.graph.schema import normalise
from headgate.runtime.change import Change, Line
from headgate.runtime.limits import check_workers
from headgate.runtime.report import Report
from headgate.scheduling import policies
from headgate.scheduling.interface import Policy

_ENGINES: dict[str, type[Engine]] = {"spark": Spark, "threads": Threads, "simulated": Simulated}


class App:
    """An application: named sources, streams derived from them, and the queries that leave it."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise PipelineError("App: give it a name, e.g. hg.App('shop').")
        self.name = name
        self._sources: list[Source] = []
        self._outputs: list[Output] = []
        self._dead_letter: Sink | None = None
        self._boxes: dict[str, Box] = {}
        self._numbers: dict[str, int] = {}

    # --- building -----------------------------------------------------------------------------------

    def source(self, name: str, source: Origin, *, idle_after: str | float | None = None) -> Stream:
        """A stream that enters the application.

        ``idle_after``: a source that has had nothing for that long no longer holds back the time of a join.
        """
        if not isinstance(name, str) or not name:
            raise PipelineError("source(…): give it a name, e.g. app.source('clicks', hg.from_rate(10)).")
        if not isinstance(source, Origin):
            raise PipelineError(
                f"source '{name}': {source!r} is not a source; use hg.from_files(…) or another hg.from_…."
            )
        check_schema(name, source)
        if any(s.name == name for s in self._sources):
            raise PipelineError(f"There is already a source called '{name}'; give each a name of its own.")
        seconds = (
            None if idle_after is None else parse_duration(idle_after, f"source '{name}': idle_after") / 1e6
        )
        try:
            schema = normalise(source.schema)
        except (PipelineError, AttributeError) as error:
            raise PipelineError(f"source '{name}': {error}") from error
        node = Source(name, schema, source, seconds)
        self._sources.append(node)
        return Stream(self, (Arrow(node),))

    def add_box(self, name: str, operator: Operator, ports: Sequence[Sequence[Arrow]]) -> Box:
        """Put an operator into the network; streams call this."""
        if name in self._boxes:
            raise PipelineError(f"There is already a box called '{name}'; give each a name of its own.")
        box = Box(name, operator, tuple(tuple(port) for port in ports))
        self._boxes[name] = box
        return box

    def next_name(self, kind: str) -> str:
        """A name for a box that was given none."""
        self._numbers[kind] = self._numbers.get(kind, 0) + 1
        return f"{kind}-{self._numbers[kind]}"

    def add_output(
        self,
        name: str,
        port: Sequence[Arrow],
        sink: Sink,
        qos: QoS | None,
        keep: str | None,
        start: str | int = "earliest",
        importance: str | None = None,
        query_class: int = 0,
    ) -> None:
        """Let a query leave; streams call this."""
        if not isinstance(name, str) or not name:
            raise PipelineError(
                "to(…): give the query a name, e.g. stream.to('abandoned', hg.to_parquet('out'))."
            )
        if any(o.name == name for o in self._outputs):
            raise PipelineError(f"There is already a query called '{name}'; give each a name of its own.")
        if name == DEAD_LETTER and self._dead_letter is not None:
            raise PipelineError(f"query '{name}': that is the dead-letter output's name; take another.")
        if not isinstance(sink, Sink):
            raise PipelineError(
                f"query '{name}': {sink!r} is not a sink; use hg.to_parquet(…) or another hg.to_…."
            )
        if qos is not None and not isinstance(qos, QoS):
            raise PipelineError(f"query '{name}': qos= takes hg.QoS([(seconds, utility), …]), not {qos!r}.")
        if keep is not None and not parse_duration(keep, f"query '{name}': keep"):
            raise PipelineError(f"query '{name}': keep= must be more than zero, e.g. keep='7 days'.")
        serial = isinstance(start, int) and not isinstance(start, bool) and start >= 0
        if start not in ("earliest", "now") and not serial:
            raise PipelineError(
                f"query '{name}': start={start!r}: use 'earliest', 'now', or the serial of a tuple."
            )
        if importance is not None:
            check_importance(name, importance, tuple(port))
        if not isinstance(query_class, int) or isinstance(query_class, bool):
            raise PipelineError(
                f"query '{name}': query_class={query_class!r}: it must be a whole number; higher goes first."
            )
        self._check_folder(name, sink)
        self._outputs.append(Output(name, tuple(port), sink, qos, keep, start, importance, query_class))

    def dead_letter(self, sink: Sink) -> None:
        """Send rows on which an operator raises, and those that a source refuses, to ``sink``.

        Without dead letters they fail their queries.  A source refuses lines and records that are no JSON of
        its schema; then the source is named as the box, and every reader of it has a letter.

        The sink gets the box, its queries, the tuple's serial, the reason, and the row as JSON, by serial.
        In the report they are a query called 'dead_letter'.
        """
        if not isinstance(sink, Sink):
            raise PipelineError(
                f"dead_letter: {sink!r} is not a sink; use hg.to_parquet(…) or another hg.to_…."
            )
        if self._dead_letter is not None:
            raise PipelineError("dead_letter: there is already a sink for bad rows; one is for all queries.")
        if any(o.name == DEAD_LETTER for o in self._outputs):
            raise PipelineError(f"dead_letter: a query is called '{DEAD_LETTER}'; give that another name.")
        self._check_folder(DEAD_LETTER, sink)
        self._dead_letter = sink

    def _check_folder(self, name: str, sink: Sink) -> None:
        """A query's folder is neither another query's nor one that a source reads."""
        if sink.path is None:
            return
        letters = [(DEAD_LETTER, self._dead_letter)] if self._dead_letter is not None else []
        check_shared(name, sink, [*((o.name, o.sink) for o in self._outputs), *letters])
        written = Path(os.path.abspath(sink.path))
        for source in self._sources:
            path = getattr(source.origin, "path", None)
            if path is None:
                continue
            read = Path(os.path.abspath(str(path)))
            if written == read or written in read.parents or read in written.parents:
                raise CycleError(
                    f"Query '{name}' writes to {sink.path}, which source '{source.name}' reads: its results "
                    "would come back as input. Write to another folder."
                )

    @property
    def network(self) -> Network:
        """The boxes-and-arrows network, checked; prints as data and as a picture."""
        return self._network()

    def _network(self, without: Collection[str] = ()) -> Network:
        network = Network.of(self.name, [output for output in self._outputs if output.name not in without])
        needed = set(network.sources)
        letters = None
        if self._dead_letter is not None:
            letters = DeadLetter(DEAD_LETTER, tuple(map(Arrow, network.boxes)), self._dead_letter)
        sources = [s for s in self._sources if s in needed]
        return Network(sources, network.boxes, network.outputs, self.name, letters)

    def to_mermaid(self) -> str:
        """The network as a picture, in Mermaid's text form."""
        return self.network.to_mermaid()

    def to_data(self) -> dict[str, Any]:
        """The network as plain data."""
        return self.network.to_data()

    # --- running ------------------------------------------------------------------------------------

    def run(
        self,
        engine: str | Engine = "spark",
        policy: str | Policy = policies.DEFAULT,
        workers: int | None = None,
        until: Until = "drained",
        *,
        progress: Progress | None = None,
        seed: int = 0,
        changes: Sequence[Change] = (),
    ) -> Report:
        """Run the application and report what happened.

        ``until="drained"`` ends when the sources have ended and everything open has been closed; a number
        of seconds stops then, and ``None`` runs until it is interrupted, both closing nothing.  A query
        that fails has its error in the report; if all fail, ``RunError`` is raised.  ``changes`` come into
        force at their times; queries that they add wait till then, and what cannot be done is in
        ``report.problems``.
        """
        return self._run(self._line(changes), engine, policy, workers, until, progress, seed)

    def start(
        self,
        engine: str | Engine = "spark",
        policy: str | Policy = policies.DEFAULT,
        workers: int | None = None,
        until: Until = None,
        *,
        progress: Progress | None = None,
        seed: int = 0,
        changes: Sequence[Change] = (),
    ) -> Running:
        """Run the application meanwhile, and change it while it runs.

        ``with app.start("threads") as running: running.set(policy="qos")``
        """
        line = self._line(changes)
        return Running(self, line, lambda: self._run(line, engine, policy, workers, until, progress, seed))

    def _line(self, changes: Sequence[Change]) -> Line:
        later = [name for change in changes for name in change.add]
        return Line(changes, self.outputs_named(later), _load)

    def outputs_named(self, names: Sequence[str]) -> list[Output]:
        """The outputs of queries."""
        known = {output.name: output for output in self._outputs}
        for name in names:
            if name not in known:
                raise PipelineError(
                    f"App '{self.name}' has no query '{name}'.{nearest(name, known)} Let a stream leave with "
                    f"stream.to('{name}', sink) first."
                )
        return [known[name] for name in names]

    def _run(
        self,
        line: Line,
        engine: str | Engine,
        policy: str | Policy,
        workers: int | None,
        until: Until,
        progress: Progress | None,
        seed: int,
    ) -> Report:
        later = {name for change in line.planned for name in change.add}
        if not [output for output in self._outputs if output.name not in later]:
            raise PipelineError(
                f"App '{self.name}' has no queries; let a stream leave with stream.to(name, sink)."
            )
        if workers is not None:
            check_workers(workers)
        report = _engine(engine).run(
            self._network(later),
            policies.get(policy),
            workers=workers,
            until=until,
            progress=progress,
            seed=seed,
            line=line,
        )
        queries = [q for q in report.queries.values() if self._dead_letter is None or q.name != DEAD_LETTER]
        errors = [q.error for q in queries if q.error is not None]
        if errors and len(errors) == len(queries):
            names = ", ".join(f"'{q.name}'" for q in queries)
            raise RunError(f"Every query failed ({names}). The first error: {errors[0]}") from errors[0]
        return report


def _engine(engine: str | Engine) -> Engine:
    if isinstance(engine, Engine):
        return engine
    if engine not in _ENGINES:
        raise PipelineError(
            f"There is no engine '{engine}'.{nearest(str(engine), _ENGINES)} "
            f"There are: {', '.join(sorted(_ENGINES))}."
        )
    return _ENGINES[engine]()


def _load(path: str) -> list[Output]:
    """The queries of an application in a file."""
    from headgate.api.loading import load_app  # which needs this module

    return load_app(Path(path))._outputs
