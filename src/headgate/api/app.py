"""``App``: sources, the queries over them, and ``run``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from headgate.api import habits
from headgate.api.loading import load_file
from headgate.api.pipeline import Pipeline
from headgate.api.pyspark.adopting import Written, stream_of
from headgate.api.running import Running
from headgate.api.sparql import sparql
from headgate.api.sql import statements
from headgate.api.sql.session import Session
from headgate.api.streams import Stream
from headgate.connectors.sink import Sink
from headgate.connectors.source import Source as Origin
from headgate.control.line import Line, Recording
from headgate.control.watching import Event, Hook
from headgate.engines.base import Engine, Progress, Until
from headgate.engines.simulated import Simulated
from headgate.engines.spark import Spark
from headgate.engines.threads import Threads
from headgate.errors import PipelineError, RunError, nearest
from headgate.graph.durations import Duration, parse_duration
from headgate.graph.network import DEAD_LETTER, Arrow, Network, Output
from headgate.graph.qos import QoS
from headgate.recording.admitting import figures_of, forecast, refuse_what_breaks_goals
from headgate.recording.recorder import Recorder
from headgate.runtime.change import Change
from headgate.runtime.limits import check_workers
from headgate.runtime.report import Report
from headgate.scheduling import policies
from headgate.scheduling.interface import Policy

PAGE_EVERY = 0.5
"""Seconds between two samples on a page."""
_ENGINES: dict[str, type[Engine]] = {"spark": Spark, "threads": Threads, "simulated": Simulated}


class App:
    """An application: named sources, streams derived from them, and the queries that leave it."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise PipelineError("App: give it a name, e.g. hg.App('shop').")
        self.name = name
        self._pipeline = Pipeline(name)
        self._session = Session(self._pipeline)
        self._hooks: list[Hook] = []
        self._missed_for = 30.0

    def __getattr__(self, name: str) -> NoReturn:
        raise habits.no_attribute("An App", name, habits.APP, [n for n in dir(type(self)) if n[0] != "_"])

    # --- building -----------------------------------------------------------------------------------

    def source(
        self, name: str, source: Origin, *, idle_after: Duration | None = None, was: str | None = None
    ) -> Stream:
        """A stream that enters the application.

        ``idle_after``: a source that has had nothing for that long no longer holds back the time of a join.
        ``was``: its name in an earlier version of the application, whose checkpoint goes on with it.
        """
        return Stream(self._pipeline, (Arrow(self._pipeline.add_source(name, source, idle_after, was)),))

    def view(self, name: str, stream: Stream, *, lateness: str | float = 0) -> None:
        """Let SQL read a stream as table ``name``; sources are tables by their own names.

        Windows of SQL over it wait for rows that come up to ``lateness`` too late.
        """
        self._session.view(name, stream, lateness)

    def sql(self, query: str) -> Stream:
        """The stream of a SELECT in Spark's dialect: ``app.sql("SELECT * FROM clicks WHERE user > 0")``.

        Equal parts of several queries are one box.
        """
        return self._session.sql(query)

    def from_spark(self, dataframe: Any, *, follow: bool = True, update: bool = False) -> Stream:
        """The stream that a streaming DataFrame of PySpark describes: ``app.from_spark(df).to(…)``.

        Boxes are made from its analysed plan.  With ``follow=False`` its files end with those that are there.
        With ``update=True`` windows give their new value with every row, as outputMode("update") does.
        """
        return stream_of(dataframe, self._pipeline, follow, update)

    def adopt(self, writer: Any, *, name: str | None = None, qos: QoS | None = None) -> Stream:
        """Take over a query of Structured Streaming: ``app.adopt(df.writeStream.format("parquet")…)``.

        Give the writer in place of calling its ``start()``.  Its format, path and options, ``foreachBatch``
        and the output modes append and update are kept; its checkpoint location is not used, as the engine
        has one for all queries.  With ``trigger(availableNow=True)`` its files end with those that are there.
        """
        written = Written.of(writer)
        if written.mode not in ("Append", "Update"):
            raise PipelineError(
                f"adopt: outputMode('{written.mode.lower()}') would write all results again and again; use "
                "'append' or 'update'."
            )
        stream = stream_of(written.dataframe, self._pipeline, not written.finite, written.mode == "Update")
        query = name or written.options.get("queryname") or self._pipeline.next_name("adopted")
        return stream.to(query, written.sink(), qos=qos)

    def sparql(self, text: str, data: str | Path, *, name: str | None = None) -> Stream:
        """The answers to a SPARQL question over the triples in the folder ``data``, as a stream that ends.

        ``headgate generate sp2bench`` writes such a folder.  There is a text column for each variable; null
        where it is not bound.  ``name`` begins the names of the request's sources.
        """
        return sparql(self, text, data, name or self._pipeline.next_name("sparql"))

    def dead_letter(self, sink: Sink) -> None:
        """Send rows on which an operator raises, and those that a source refuses, to ``sink``.

        Without dead letters they fail their queries.  A source refuses lines and records that are no JSON of
        its schema; then the source is named as the box, and every reader of it has a letter.

        The sink gets the box, its queries, the tuple's serial, the reason, and the row as JSON, by serial.
        In the report they are a query called 'dead_letter'.
        """
        self._pipeline.set_dead_letter(sink)

    def on_event(self, hook: Callable[[Event], None], *, missed_for: str | float = "30 seconds") -> None:
        """Call ``hook(event)`` when a query fails, waits for a silent source, or misses its goal for long.

        ``event.kind`` is ``failed``, ``waiting``, ``running``, ``goal missed``, ``goal met`` or ``problem``;
        an event also has ``query``, ``message``, ``at``.  A goal is missed while the utility over ten
        seconds is below 0.9.  The hook runs on a thread of its own, and one that raises is dropped.
        """
        self._missed_for = parse_duration(missed_for, "missed_for") / 1e6
        self._hooks.append(hook)

    @property
    def network(self) -> Network:
        """The boxes-and-arrows network, checked; prints as data and as a picture."""
        return self._pipeline.network()

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
        policy: str | Policy | None = None,
        workers: int | None = None,
        until: Until = "drained",
        *,
        progress: Progress | None = None,
        seed: int = 0,
        changes: Sequence[Change] = (),
        page: bool | int | str = False,
        record: str | Path | None = None,
        admit: str = "all",
        telemetry: Sequence[Recording] = (),
    ) -> Report:
        """Run the application and report what happened.

        Without ``policy`` it is "qos" if a query has a goal (``qos=``), else "lp".
        ``until="drained"`` ends when the sources have ended and everything open has been closed; a number
        of seconds stops then, and ``None`` runs until it is interrupted, both closing nothing.  A query
        that fails has its error in the report; if all fail, ``RunError`` is raised.  ``changes`` come into
        force at their times; queries that they add wait till then, and what cannot be done is in
        ``report.problems``.  ``page``: True, a port, or "host:port" serves a page on which the run can be
        seen and changed; its address is printed.  ``record``: a file for what ``hg.replay`` and ``hg.advise``
        need: arrivals and costs, no data.  ``admit="goals"``: a query that joins while it runs is refused if
        that would break a goal.  ``telemetry``: who else hears of the run, ``[hg.traces(), hg.lineage(…)]``.
        """
        line = self._line(changes, admit)
        return self._run(line, engine, policy, workers, until, progress, seed, page, record, telemetry)

    def start(
        self,
        engine: str | Engine = "spark",
        policy: str | Policy | None = None,
        workers: int | None = None,
        until: Until = None,
        *,
        progress: Progress | None = None,
        seed: int = 0,
        changes: Sequence[Change] = (),
        page: bool | int | str = False,
        record: str | Path | None = None,
        admit: str = "all",
        telemetry: Sequence[Recording] = (),
    ) -> Running:
        """Run the application meanwhile, and change it while it runs.

        ``with app.start("threads") as running: running.set(policy="qos")``
        """
        line = self._line(changes, admit)
        return Running(
            self._pipeline.outputs_named,
            line,
            lambda: self._run(line, engine, policy, workers, until, progress, seed, page, record, telemetry),
        )

    def _line(self, changes: Sequence[Change], admit: str) -> Line:
        if admit not in ("all", "goals"):
            raise PipelineError(
                f"admit={admit!r}: use 'all', or 'goals' to refuse queries that break a goal."
            )
        later = [name for change in changes for name in change.add]
        line = Line(changes, self._pipeline.outputs_named(later), _load, self._session.added)
        line.gate = refuse_what_breaks_goals if admit == "goals" else None
        line.forecast = lambda run, outputs, given: forecast(figures_of(run, line), outputs, **given)
        return line

    def _run(
        self,
        line: Line,
        engine: str | Engine,
        policy: str | Policy | None,
        workers: int | None,
        until: Until,
        progress: Progress | None,
        seed: int,
        page: bool | int | str,
        record: str | Path | None,
        telemetry: Sequence[Recording],
    ) -> Report:
        later = {name for change in line.planned for name in change.add}
        waits = until is None or line.requests  # it may be there for requests
        if not waits and not [output for output in self._pipeline.outputs if output.name not in later]:
            raise PipelineError(
                f"App '{self.name}' has no queries; let a stream leave with stream.to(name, sink)."
            )
        if workers is not None:
            check_workers(workers)
        line.watch.listen(self._hooks, self._missed_for)
        report, chosen = None, _engine(engine)
        looking = [*telemetry]
        try:
            network = self._pipeline.network(later)
            decides = policies.chosen(policy, network.goals)
            if record is not None:
                looking.append(_recorder(record, chosen, policy or decides.name, seed, until))
            line.onlookers += looking
            with _page(page, line, chosen):
                report = chosen.run(
                    network,
                    decides,
                    workers=workers,
                    until=until,
                    progress=progress,
                    seed=seed,
                    line=line,
                )
        finally:
            line.watch.stop(report)
            for onlooker in looking:
                onlooker.end(report)
        queries = [
            q for q in report.queries.values() if self._pipeline.dead_letter is None or q.name != DEAD_LETTER
        ]
        errors = [q.error for q in queries if q.error is not None]
        if errors and len(errors) == len(queries):
            names = ", ".join(f"'{q.name}'" for q in queries)
            raise RunError(f"Every query failed ({names}). The first error: {errors[0]}") from errors[0]
        return report


def _recorder(record: str | Path, engine: Engine, policy: str | Policy, seed: int, until: Until) -> Recorder:
    about = {
        "engine": engine.name,
        "settings": engine.described(),
        "policy": policy if isinstance(policy, str) else policy.name,
        "policy_spelled": isinstance(policy, str),
        "seed": seed,
        "drain": until == "drained",
    }
    return Recorder(record, about, exact=isinstance(engine, Simulated))


@contextmanager
def _page(page: bool | int | str, line: Line, engine: Engine) -> Iterator[None]:
    """Serve the page while a run goes on, if that was asked for."""
    if page is False:
        yield
        return
    if isinstance(engine, Simulated):
        raise PipelineError("page=: a simulation is over at once; run on threads or Spark to see a page.")
    from headgate.web.server import Page  # here: the web server takes longer to import than all the rest

    line.watch.every = PAGE_EVERY
    with Page(page, line) as served:
        print(f"Page: {served.address}", file=sys.stderr, flush=True)
        yield


def _engine(engine: str | Engine) -> Engine:
    if isinstance(engine, Engine):
        return engine
    if engine not in _ENGINES:
        raise PipelineError(
            f"There is no engine '{engine}'.{nearest(str(engine), _ENGINES)} "
            f"There are: {', '.join(sorted(_ENGINES))}."
        )
    return _ENGINES[engine]()


def load_app(path: Path) -> App:
    """The application in a file: SQL, or Python with a variable ``app`` or a function ``build()``."""
    if path.suffix.lower() == ".sql":
        return _load_sql(path)
    module = load_file(path)
    for name in ("app", "build"):
        found = getattr(module, name, None)
        if callable(found):
            found = found()
        if isinstance(found, App):
            return found
    raise PipelineError(
        f"{path} defines no application: give it a variable 'app = hg.App(…)' or a function 'build()'."
    )


def _load_sql(path: Path) -> App:
    if not path.is_file():
        raise PipelineError(f"There is no file {path}.")
    app = App(path.stem)
    statements.run(path.read_text(encoding="utf-8"), app._session, str(path))
    return app


def _load(path: str) -> list[Output]:
    """The queries of an application in a file."""
    return load_app(Path(path))._pipeline.outputs


def from_spark(
    dataframe: Any, app: App | None = None, *, follow: bool = True, update: bool = False
) -> Stream:
    """The stream that a streaming DataFrame of PySpark describes, in ``app`` or an application of its own."""
    return (app or App("spark")).from_spark(dataframe, follow=follow, update=update)
