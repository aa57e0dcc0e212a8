"""Plans as boxes of an application."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from headgate.api.finite import hash_joins, runs_of, sort_net
from headgate.api.sparql.algebra import Condition, Question, Variable, parse, used
from headgate.api.sparql.conditions import Conditions
from headgate.api.sparql.planning import Filtered, Joined, Plan, Planner, Scan, United
from headgate.api.streams import Stream
from headgate.connectors.batches import from_batches
from headgate.connectors.files import from_files
from headgate.connectors.source import Source
from headgate.connectors.triples import PAIR, TRIPLE, Store
from headgate.errors import PipelineError
from headgate.graph.operators.decode import Decode
from headgate.graph.operators.distinct import Distinct
from headgate.graph.operators.hash_join import HashJoin
from headgate.graph.operators.limit import Limit
from headgate.graph.operators.merge_join import MergeJoin

Variables = frozenset[Variable]


class Sources(Protocol):
    """An application, as far as a request needs it."""

    def source(self, name: str, source: Source) -> Stream: ...


def sparql(app: Sources, text: str, data: str | Path, name: str = "triples") -> Stream:
    """The answers to a question over the triples in the folder ``data``: one text column per variable."""
    if not isinstance(text, str) or not text.strip():
        raise PipelineError(
            "sparql: give the question as text, e.g. 'SELECT ?s WHERE { ?s ?p ?o } LIMIT 10'."
        )
    return Builder(app, Store(data), name).answers(parse(text))


class Builder:
    """Puts the boxes of one request into an application."""

    def __init__(self, app: Sources, store: Store, name: str) -> None:
        self._app, self._store, self._name = app, store, name
        self._sources: dict[str, Stream] = {}
        self._columns: dict[Variable, str] = {}

    def answers(self, question: Question) -> Stream:
        plan = Planner(self._store).plan(question.pattern)
        wanted = dict.fromkeys([*question.variables, *(variable for variable, _ in question.order)])
        for number, variable in enumerate(dict.fromkeys([*wanted, *question.pattern.variables])):
            taken = {name.lower() for name in self._columns.values()}
            usable = variable.name.isidentifier() and variable.name.lower() not in taken
            self._columns[variable] = variable.name if usable else f"_{number}"
        self._conditions = Conditions(self._store, self._columns)
        there = [variable for variable in wanted if variable in plan.variables]
        stream = self._build(plan, there, None, sets=question.distinct and not question.order)
        stream = self._spelled(stream, wanted)
        if question.order:
            stream = self._sorted(stream, question, plan.expected.rows)
        stream = self._only(stream, question.variables)
        if question.distinct:
            stream = self._box("distinct", Distinct(stream.schema), stream)
        if question.limit is not None or question.offset:
            stream = self._box("limit", Limit(stream.schema, question.limit, question.offset), stream)
        stream = self._box("decode", Decode(stream.schema, self._store.terms), stream)
        names = [(self._columns[variable], variable.name) for variable in question.variables]
        if all(column == name for column, name in names):
            return stream
        return stream.select(*(f"`{column}` AS `{name}`" for column, name in names))

    # --- relations ----------------------------------------------------------------------------------

    def _build(self, plan: Plan, needed: Iterable[Variable], order: Variable | None, *, sets: bool) -> Stream:
        """A relation with just the columns of ``needed``, sorted by ``order``.

        ``sets``: how often a row comes makes no difference.
        """
        needed = [v for v in sorted(set(needed), key=lambda v: self._columns[v]) if v in plan.variables]
        match plan:
            case Scan():
                return self._scan(plan, needed, order)
            case Filtered():
                looked_at = {v for condition in plan.conditions for v in used(condition)}
                inner = self._build(plan.plan, {*needed, *looked_at}, order, sets=sets)
                where = self._where(plan.plan, plan.conditions)
                return self._only(self._filter(inner, where), needed)
            case Joined():
                return self._join(plan, needed, order, sets=sets)
            case United():
                return self._union(plan, needed, sets=sets)
        raise AssertionError(plan)

    def _scan(self, plan: Scan, needed: Sequence[Variable], order: Variable | None) -> Stream:
        s, p, o = plan.terms
        if isinstance(p, Variable):
            stream = self._source(None, "s")
        else:
            # By object if that is known, or should be in order and the subject is not known.
            by_object = not isinstance(o, Variable) or (
                order is not None and order == o and isinstance(s, Variable)
            )
            stream = self._source(p, "o" if by_object else "s")
        conditions, columns = [], dict[Variable, str]()
        for term, column in zip(plan.terms, ("s", "p", "o"), strict=True):
            if column not in stream.schema.names:
                continue
            if not isinstance(term, Variable):
                conditions.append(f"{column} = {term}")
            elif term in columns:
                conditions.append(f"{column} = {columns[term]}")
            else:
                columns[term] = column
        if conditions:
            stream = self._filter(stream, " AND ".join(conditions))
        if not needed:  # only whether there is a row matters
            return stream.select(f"{stream.schema.names[0]} AS _row")
        return stream.select(*(f"{columns[v]} AS `{self._columns[v]}`" for v in needed))

    def _source(self, number: int | None, by: str) -> Stream:
        known = number is None or number in self._store.predicates
        file = self._store.file(number, by) if known else ""
        if file not in self._sources:
            schema = TRIPLE if number is None else PAIR
            source: Source = from_files(file, "parquet") if file else from_batches([], schema=schema)
            label = f"{self._name}-{number if number is not None else 'all'}-{by}"
            self._sources[file] = self._app.source(label, source)
        return self._sources[file]

    def _join(
        self, plan: Joined, needed: Sequence[Variable], order: Variable | None, *, sets: bool
    ) -> Stream:
        looked_at = {v for condition in plan.conditions for v in used(condition)}
        merges = plan.merges and (order is None or order in plan.on[0])
        own = {*needed, *looked_at}
        sides = []
        for side, child in enumerate((plan.left, plan.right)):
            mine = {pair[side] for pair in plan.on} | (own & child.variables)
            if side == 1:
                mine -= {v for v in own & plan.left.variables if v not in {b for _, b in plan.on}}
            sorted_by = plan.on[0][side] if merges else order if side == 0 else None
            as_sets = sets or (side == 1 and plan.how == "anti")
            stream = self._build(child, mine, sorted_by, sets=as_sets)
            if as_sets and isinstance(child, Joined) and mine < child.variables:
                stream = self._box("distinct", Distinct(stream.schema), stream)
            sides.append(stream)
        left, right = sides
        where = self._where(plan, plan.conditions) if plan.conditions else None
        on = [(self._columns[a], self._columns[b]) for a, b in plan.on]
        there = {*left.schema.names, *right.schema.names}
        keep = [self._columns[v] for v in needed if self._columns[v] in there] or [left.schema.names[0]]
        if merges:
            joined = MergeJoin(left.schema, right.schema, on[0], keep, where=where)
            return self._spelled(self._box("merge_join", joined, left, right), needed)
        hashed = HashJoin(left.schema, right.schema, on, keep, how=plan.how, where=where)
        # Joined by parts the rows would not leave in the order of the left ones.
        rows = max(plan.left.expected.rows, plan.right.expected.rows)
        ways = runs_of(rows) if order is None else 1
        return self._spelled(hash_joins(left, right, hashed, ways, f"{plan.how}_join"), needed)

    def _union(self, plan: United, needed: Sequence[Variable], *, sets: bool) -> Stream:
        parts = []
        for part in plan.parts:
            stream = self._build(part, needed, None, sets=sets)
            parts.append(self._spelled(stream, needed))
        return parts[0].union(*parts[1:])

    # --- columns ------------------------------------------------------------------------------------

    def _where(self, plan: Plan, conditions: Sequence[Condition]) -> str:
        return " AND ".join(f"({self._conditions.sql(c, plan.expected.ranges)})" for c in conditions)

    def _filter(self, stream: Stream, where: str) -> Stream:
        return stream.filter(where)

    def _only(self, stream: Stream, variables: Iterable[Variable]) -> Stream:
        names = [self._columns[variable] for variable in variables]
        return (
            stream if stream.schema.names == names or not names else stream.select(*(f"`{n}`" for n in names))
        )

    def _spelled(self, stream: Stream, variables: Iterable[Variable]) -> Stream:
        """All of these columns, null where no row binds them."""
        names = [self._columns[variable] for variable in variables]
        if stream.schema.names == names or not names:
            return stream
        there = set(stream.schema.names)
        return stream.select(*(f"`{n}`" if n in there else f"CAST(NULL AS INT) AS `{n}`" for n in names))

    # --- order --------------------------------------------------------------------------------------

    def _sorted(self, stream: Stream, question: Question, rows: float) -> Stream:
        """Runs that are sorted side by side, and a net that merges two at a time."""
        terms = [f"`{self._columns[v]}`{' DESC' if down else ''}" for v, down in question.order]
        by = ", ".join(dict.fromkeys(terms))
        first = None if question.limit is None or question.distinct else question.offset + question.limit
        return sort_net(stream, by, runs_of(rows), first)

    def _box(self, verb: str, operator: object, *streams: Stream) -> Stream:
        return streams[0]._box(verb, operator, None, *(stream._port for stream in streams))  # type: ignore[arg-type]
