"""An analysed streaming plan as boxes, node by node from the sources up."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

from headgate.api.pipeline import Pipeline
from headgate.api.pyspark.catalyst import (
    column,
    elements,
    kind,
    named,
    number,
    refused,
    text,
    unique,
)
from headgate.api.pyspark.joining import join
from headgate.api.pyspark.sources import relation
from headgate.api.pyspark.taken import Taken
from headgate.api.streams import Stream
from headgate.errors import HeadgateError
from headgate.graph.durations import parse_duration
from headgate.graph.operators.running import Running
from headgate.graph.windows import Window

_SLIDE = re.compile(r"% (\d+)L?\)")
_END = re.compile(r"\+ (\d+)L?\)+$")
_TIME = re.compile(r"^named_struct\('start', (?:knownnullable\()?precisetimestampconversion\(")
_GAP = re.compile(r"CAST\('([^']+)' AS INTERVAL\)")
_PASSED_THROUGH = {"SubqueryAlias", "View", "ResolvedHint", "Repartition", "RepartitionByExpression"}


class Taking:
    """Takes one plan over into an application."""

    def __init__(self, pipeline: Pipeline, follow: bool, update: bool) -> None:
        self.pipeline = pipeline
        self.follow = follow
        self.update = update
        """Whether an aggregate gives its new value with every row, and not when its window closes."""

    def take(self, node: Any) -> Taken:
        what = kind(node)
        method = getattr(self, f"_{what.lower()}", None)
        if what in _PASSED_THROUGH:
            return self.take(elements(node.children())[0])
        if method is None:
            raise refused(node, "there is no box for it.")
        try:
            found: Taken = method(node)
        except HeadgateError as error:
            if str(error).startswith("from_spark:"):
                raise
            raise refused(node, str(error)) from error
        return found

    def _child(self, node: Any) -> Taken:
        return self.take(elements(node.children())[0])

    # --- where rows come from -------------------------------------------------------------------------

    def _streamingrelation(self, node: Any) -> Taken:
        stream = Stream(self.pipeline, relation(node, self.pipeline, self.follow))
        columns = {
            number(a): str(a.name()) for a in elements(node.output()) if a.name() in stream.schema.names
        }
        return Taken(stream, columns)

    _streamingrelationv2 = _streamingrelation

    # --- stateless ------------------------------------------------------------------------------------

    def _filter(self, node: Any) -> Taken:
        child = self._child(node)
        return child.passed(child.stream.filter(text(node.condition(), child.columns)))

    def _project(self, node: Any) -> Taken:
        child = self._child(node)
        return self._projected(child, elements(node.projectList()))

    def _projected(self, child: Taken, expressions: list[Any]) -> Taken:
        windows = dict(child.windows)
        plain = []
        for expression in expressions:
            if kind(expression) == "Alias" and _TIME.match(expression.child().sql()):
                windows[number(expression)] = _window(expression.child(), child)
            elif kind(expression) != "AttributeReference" or number(expression) not in windows:
                plain.append(named(expression, child.columns))
        columns = unique([(place, name) for place, name, _ in plain])
        texts = [f"{said} AS {column(columns[place])}" for place, _, said in plain]
        watermarks = {
            columns[place]: child.watermarks[said.strip("`")]
            for place, _, said in plain
            if said.strip("`") in child.watermarks
        }
        same = [columns[place] for place, _, _ in plain] == child.stream.schema.names
        if same and all(said == column(columns[place]) for place, _, said in plain):
            return Taken(child.stream, columns, watermarks, windows)
        return Taken(child.stream.select(*texts), columns, watermarks, windows)

    def _expand(self, node: Any) -> Taken:
        """Overlapping windows: Spark copies each row into every window that it falls into."""
        child = self._child(node)
        first = elements(elements(node.projections())[0])
        windows = {
            number(made): _window(expression, child)
            for made, expression in zip(elements(node.output()), first, strict=True)
            if _TIME.match(expression.sql())
        }
        if not windows:
            raise refused(node, "only windows may expand rows; GROUPING SETS, CUBE and ROLLUP cannot stream.")
        return replace(child, windows={**child.windows, **windows})

    def _generate(self, node: Any) -> Taken:
        child = self._child(node)
        generator = node.generator()
        made = elements(node.generatorOutput())
        what = kind(generator)
        if what not in ("Explode", "PosExplode"):
            raise refused(node, f"{what} is not taken over; explode and posexplode are.")
        taken = set(child.stream.schema.names)
        new = unique([(number(a), str(a.name())) for a in made], taken)
        names = [new[number(a)] for a in made]
        position = names.pop(0) if what == "PosExplode" else None
        said = text(elements(generator.children())[0], child.columns)
        alias = column(names[0]) if len(names) == 1 else f"({', '.join(names)})"
        stream = child.stream.explode(f"{said} AS {alias}", outer=bool(node.outer()), position=position)
        return replace(child, stream=stream, columns={**child.columns, **new})

    def _union(self, node: Any) -> Taken:
        sides = [self.take(child) for child in elements(node.children())]
        outputs = [[number(a) for a in elements(child.output())] for child in elements(node.children())]
        numbers = [number(a) for a in elements(node.output())]
        first = sides[0]
        names = [first.columns[place] for place in outputs[0]]
        streams = []
        for side, output in zip(sides, outputs, strict=True):
            mine = [side.columns[place] for place in output]
            texts = [f"{column(own)} AS {column(name)}" for own, name in zip(mine, names, strict=True)]
            as_they_are = mine == names == side.stream.schema.names
            streams.append(side.stream if as_they_are else side.stream.select(*texts))
        columns = dict(zip(numbers, names, strict=True))
        return Taken(streams[0].union(*streams[1:]), columns, first.watermarks)

    def _globallimit(self, node: Any) -> Taken:
        child = self.take(elements(elements(node.children())[0].children())[0])
        return child.passed(child.stream.limit(int(node.limitExpr().sql())))

    # --- stateful -------------------------------------------------------------------------------------

    def _eventtimewatermark(self, node: Any) -> Taken:
        child = self._child(node)
        name = child.columns[number(node.eventTime())]
        delay = parse_duration(str(node.delay().toString()), "withWatermark")
        return replace(child, watermarks={**child.watermarks, name: delay})

    def _deduplicate(self, node: Any) -> Taken:
        child = self._child(node)
        keys = [child.columns[number(key)] for key in elements(node.keys())]
        for name, delay in child.watermarks.items():
            if name in keys or kind(node) == "DeduplicateWithinWatermark":
                within = max(delay, 1) / 1e6
                punctual = _punctual(child.stream, column(name), name, delay)
                return child.passed(punctual.drop_duplicates(*keys, within=within, on=name))
        return child.passed(child.stream.drop_duplicates(*keys))

    _deduplicatewithinwatermark = _deduplicate

    def _distinct(self, node: Any) -> Taken:
        child = self._child(node)
        return child.passed(child.stream.drop_duplicates())

    def _join(self, node: Any) -> Taken:
        return join(self.take, node)

    def _aggregate(self, node: Any) -> Taken:
        child = self._child(node)
        groups = elements(node.groupingExpressions())
        windows = [g for g in groups if kind(g) == "AttributeReference" and number(g) in child.windows]
        if len(windows) > 1:
            raise refused(node, "it groups by two windows.")
        keys, stream = _keys(child, [g for g in groups if g not in windows])
        plain, aggregates = [], []
        for expression in elements(node.aggregateExpressions()):
            if kind(expression) == "AttributeReference" and number(expression) in child.windows:
                plain.append((number(expression), str(expression.name()), _WINDOW))
                continue
            if (
                windows
                and kind(expression) == "Alias"
                and kind(expression.child()) == "AttributeReference"
                and (number(expression.child()) in child.windows)
            ):
                plain.append((number(expression), str(expression.name()), _WINDOW))
                continue
            place, name, said = named(expression, child.columns)
            plain.append((place, name, keys.get(said, "")))
            if said not in keys:
                aggregates.append((place, said))
        made = {place: f"_agg{place}" for place, _ in aggregates}
        texts = [f"{said} AS {column(made[place])}" for place, said in aggregates]
        if windows:
            stream = self._windowed(
                node, stream, list(keys.values()), child.windows[number(windows[0])], texts
            )
        elif keys:
            stream = stream.key_by(*keys.values()).running(*texts)
        else:
            stream = stream._box("running", Running(stream.schema, (), texts), None)
        columns = unique([(place, name) for place, name, _ in plain])
        chosen = [
            f"{_STRUCT if key is _WINDOW else column(key or made[place])} AS {column(columns[place])}"
            for place, _, key in plain
        ]
        return Taken(stream.select(*chosen), columns)

    def _windowed(
        self, node: Any, stream: Stream, keys: list[str], window: Window, texts: list[str]
    ) -> Stream:
        if not self.update:
            return (stream.key_by(*keys) if keys else stream).window(window).agg(*texts)
        if window.kind != "tumbling":
            raise refused(
                node, f"{window.kind} windows cannot be updated row by row; use outputMode('append')."
            )
        start = f"timestamp_micros(floor(unix_micros({column(window.on)}) / {window.size}) * {window.size})"
        stream = stream.with_columns(f"{start} AS window_start").with_columns(
            f"window_start + INTERVAL {window.size // 1000} MILLISECOND AS window_end"
        )
        stream = _punctual(stream, "window_end", window.on, window.lateness)
        keyed = stream.key_by(*keys, "window_start")
        expire = timedelta(microseconds=window.size + window.lateness)
        return keyed.running(*texts, expire=expire, on=window.on)


_WINDOW = "\0window"
_STRUCT = "named_struct('start', window_start, 'end', window_end)"


def _punctual(stream: Stream, due: str, on: str, lateness: int) -> Stream:
    """Without the rows that Spark drops as late: those whose ``due`` the watermark has reached.

    What follows has forgotten their keys.  It would take them for new ones: a duplicate would pass again, and
    the sum of a closed window would begin anew, over the right one in a sink that keeps the last.
    """
    names = stream.schema.names
    latest = next(name for number in count() if (name := f"_latest{number or ''}") not in names)
    timed = stream._box("running", Running(stream.schema, (), [f"max({column(on)}) AS {latest}"]), None)
    timed = timed.filter(f"{due} IS NULL OR unix_micros({due}) > unix_micros({latest}) - {lateness}")
    return timed.select(*map(column, names))


def _keys(child: Taken, groups: list[Any]) -> tuple[dict[str, str], Stream]:
    """By text, the key column of each group; computed ones are added to the stream."""
    keys: dict[str, str] = {}
    new = []
    for place, group in enumerate(groups):
        said = text(group, child.columns)
        if kind(group) == "AttributeReference":
            keys[said] = child.columns[number(group)]
        else:
            keys[said] = f"_group{place}"
            new.append(f"{said} AS {keys[said]}")
    return keys, child.stream.with_columns(*new) if new else child.stream


def _window(struct: Any, child: Taken) -> Window:
    """The windows whose start and end a struct of Spark's computes.

    Spark writes them out as arithmetic when it analyses the plan, so their lengths are read from there.
    """
    said = struct.sql()
    [on] = {child.columns[number(a)] for a in elements(struct.references().toSeq())}
    lateness = child.watermarks.get(on, 0)
    gap = _GAP.search(said)
    if gap is not None:
        micros = parse_duration(gap.group(1), "session_window")
        return Window("session", micros, micros, on, lateness)
    slide, size = _SLIDE.search(said), _END.search(said)
    if slide is None or size is None or " - 0L) % " not in said:
        raise refused(struct, "windows must have a fixed length and no offset.")
    every, length = int(slide.group(1)), int(size.group(1))
    return Window("tumbling" if every == length else "sliding", length, every, on, lateness)
