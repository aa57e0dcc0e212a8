"""The pipeline as it is being built: sources, boxes and outputs, each checked when it is added."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from headgate.connectors.sink import Sink, check_shared
from headgate.connectors.source import Source as Origin
from headgate.errors import CycleError, PipelineError, nearest
from headgate.graph.durations import Duration, parse_duration
from headgate.graph.importance import check_importance
from headgate.graph.network import DEAD_LETTER, Arrow, Box, DeadLetter, Network, Output, Source
from headgate.graph.operator import Operator
from headgate.graph.qos import QoS
from headgate.graph.schema import normalise


class Pipeline:
    """What ``App`` and its streams add to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sources: list[Source] = []
        self.outputs: list[Output] = []
        self.dead_letter: Sink | None = None
        self.adopted: dict[str, Source] = {}
        """Sources of PySpark's plans, by what they read."""
        self._boxes: dict[str, Box] = {}
        self._numbers: dict[str, int] = {}

    def add_source(
        self, name: str, source: Origin, idle_after: Duration | None, was: str | None = None
    ) -> Source:
        if not isinstance(name, str) or not name:
            raise PipelineError("source(…): give it a name, e.g. app.source('clicks', hg.from_rate(10)).")
        if not isinstance(source, Origin):
            raise PipelineError(
                f"source '{name}': {source!r} is not a source; use hg.from_files(…) or another hg.from_…."
            )
        if any(s.name == name for s in self.sources):
            raise PipelineError(f"There is already a source called '{name}'; give each a name of its own.")
        seconds = (
            None if idle_after is None else parse_duration(idle_after, f"source '{name}': idle_after") / 1e6
        )
        try:
            schema = normalise(source.schema)
        except (PipelineError, AttributeError) as error:
            raise PipelineError(f"source '{name}': {error}") from error
        node = Source(name, schema, source, seconds, was=was)
        self.sources.append(node)
        return node

    def add_box(self, name: str, operator: Operator, ports: Sequence[Sequence[Arrow]]) -> Box:
        """Put an operator into the network."""
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
        was: str | None = None,
    ) -> None:
        """Add the output of a query."""
        if not isinstance(name, str) or not name:
            raise PipelineError(
                "to(…): give the query a name, e.g. stream.to('abandoned', hg.to_parquet('out'))."
            )
        if any(o.name == name for o in self.outputs):
            raise PipelineError(f"There is already a query called '{name}'; give each a name of its own.")
        if name == DEAD_LETTER and self.dead_letter is not None:
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
        made = Output(name, tuple(port), sink, qos, keep, start, importance, query_class, was=was)
        self.outputs.append(made)

    def set_dead_letter(self, sink: Sink) -> None:
        if not isinstance(sink, Sink):
            raise PipelineError(
                f"dead_letter: {sink!r} is not a sink; use hg.to_parquet(…) or another hg.to_…."
            )
        if self.dead_letter is not None:
            raise PipelineError("dead_letter: there is already a sink for bad rows; one is for all queries.")
        if any(o.name == DEAD_LETTER for o in self.outputs):
            raise PipelineError(f"dead_letter: a query is called '{DEAD_LETTER}'; give that another name.")
        self._check_folder(DEAD_LETTER, sink)
        self.dead_letter = sink

    def _check_folder(self, name: str, sink: Sink) -> None:
        """A query's folder is neither another query's nor one that a source reads."""
        if sink.path is None:
            return
        letters = [(DEAD_LETTER, self.dead_letter)] if self.dead_letter is not None else []
        check_shared(name, sink, [*((o.name, o.sink) for o in self.outputs), *letters])
        written = Path(os.path.abspath(sink.path))
        for source in self.sources:
            if source.origin.path is None:
                continue
            read = Path(os.path.abspath(source.origin.path))
            if written == read or written in read.parents or read in written.parents:
                raise CycleError(
                    f"Query '{name}' writes to {sink.path}, which source '{source.name}' reads: its results "
                    "would come back as input. Write to another folder."
                )

    def network(self, without: Collection[str] = ()) -> Network:
        network = Network.of(self.name, [output for output in self.outputs if output.name not in without])
        needed = set(network.sources)
        letters = None
        if self.dead_letter is not None:
            letters = DeadLetter(DEAD_LETTER, tuple(map(Arrow, network.boxes)), self.dead_letter)
        sources = [s for s in self.sources if s in needed]
        return Network(sources, network.boxes, network.outputs, self.name, letters)

    def outputs_named(self, names: Sequence[str]) -> list[Output]:
        """The outputs of queries."""
        known = {output.name: output for output in self.outputs}
        for name in names:
            if name not in known:
                raise PipelineError(
                    f"App '{self.name}' has no query '{name}'.{nearest(name, known)} Let a stream leave with "
                    f"stream.to('{name}', sink) first."
                )
        return [known[name] for name in names]
