"""An application's views, and the SELECTs over them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from headgate.api.pipeline import Pipeline
from headgate.api.sql.habits import advice
from headgate.api.sql.options import sink
from headgate.api.sql.relation import Relation, of_stream
from headgate.api.sql.select import Planner
from headgate.api.sql.sharing import Boxes
from headgate.api.streams import Stream
from headgate.connectors.source import Source as Origin
from headgate.errors import ExpressionError, HeadgateError, PipelineError
from headgate.graph.durations import parse_duration
from headgate.graph.network import Arrow, Output
from headgate.graph.qos import goal_of
from headgate.sql.guard import shown
from headgate.sql.parse import parse_query

_QUERY = {"to": None, "goal": None, "class": 0, "keep": None, "start": "earliest", "importance": None}
"""What a query's WITH (…) can say apart from the options of its sink."""


class Session:
    """The tables that an application's queries can name: its sources, and views."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._views: dict[str, Relation] = {}
        self._planner = Planner(Boxes(), self._view, self._names)

    def view(self, name: str, stream: Stream, lateness: str | float) -> None:
        """Let queries read a stream as a table."""
        if not isinstance(name, str) or not name:
            raise PipelineError("view(…): give it a name, e.g. app.view('clicks', stream).")
        if not isinstance(stream, Stream) or stream._pipeline is not self._pipeline:
            raise PipelineError(f"view '{name}': {stream!r} is not a stream of this application.")
        if name.lower() in self._views:
            raise PipelineError(f"There is already a view called '{name}'; give each a name of its own.")
        micros = parse_duration(lateness, f"view '{name}': lateness")
        self._views[name.lower()] = of_stream(stream, name, micros)

    def source(self, name: str, origin: Origin, idle_after: Any, lateness: str | float) -> None:
        """A source that is a table by its name."""
        node = self._pipeline.add_source(name, origin, idle_after)
        self.view(name, Stream(self._pipeline, (Arrow(node),)), lateness)

    def query(self, name: str, text: str, given: Mapping[str, Any]) -> None:
        """A query of a SELECT, with what ``WITH (to = …, goal = …, class = …)`` says."""
        options = dict(given)
        own = {key: options.pop(key, default) for key, default in _QUERY.items()}
        self.sql(text).to(
            name,
            sink(name, own["to"], options),
            qos=goal_of(own["goal"], name),
            keep=own["keep"],
            start=int(start) if (start := str(own["start"])).isdecimal() else start,
            importance=own["importance"],
            query_class=own["class"],
        )

    @contextmanager
    def added(self, given: Mapping[str, Any]) -> Iterator[list[Output]]:
        """The outputs of a query that joins a run; if that fails, the application does not keep it."""
        options = {key: value for key, value in given.items() if value is not None}
        name, text = options.pop("name", None), options.pop("sql", "")
        self.query(name, text, options)
        try:
            yield self._pipeline.outputs_named([str(name)])
        except BaseException:
            self._pipeline.outputs = [o for o in self._pipeline.outputs if o.name != name]
            raise

    def sql(self, text: str) -> Stream:
        """The stream of one SELECT."""
        return self._relation(text).stream

    def sql_view(self, name: str, text: str) -> None:
        """Let queries read the results of a SELECT as a table."""
        relation = self._relation(text)
        self.view(name, relation.stream, 0)
        # What is known of the rows' order in time, of windows and of groups goes with the view.
        self._views[name.lower()] = relation.named(name)

    def _relation(self, text: str) -> Relation:
        try:
            return self._planner.finished(self._planner.query(parse_query(text)))
        except PipelineError as error:
            if not (told := advice(text)):
                raise
            raise type(error)(f"{error}{told}") from error
        except HeadgateError:
            raise
        except RecursionError:
            raise ExpressionError(
                f"The query {shown(text)} is nested too deeply. Name parts of it with app.view(…) or WITH."
            ) from None
        except Exception as error:
            problem = str(error).strip().rstrip(".") or type(error).__name__
            raise ExpressionError(f"Cannot read the query {shown(text)}: {problem}.") from error

    def _view(self, name: str) -> Relation | None:
        found = self._views.get(name.lower())
        if found is not None:
            return found
        same = [source for source in self._pipeline.sources if source.name.lower() == name.lower()]
        source = next((s for s in same if s.name == name), same[0] if same else None)
        return None if source is None else of_stream(Stream(self._pipeline, (Arrow(source),)), source.name, 0)

    def _names(self) -> list[str]:
        views = [relation.columns[0].table for relation in self._views.values()]
        return sorted({*views, *(source.name for source in self._pipeline.sources)})
