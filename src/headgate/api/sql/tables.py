"""FROM: tables, joins, LATERAL VIEW and WHERE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlglot import exp

from headgate.api.sql.joins import Sides, join, names_in, together
from headgate.api.sql.relation import Column, Relation, alias_of, conjuncts
from headgate.api.sql.sharing import Boxes
from headgate.errors import ExpressionError, PipelineError, nearest
from headgate.graph.durations import spell_duration
from headgate.sql.parse import write

Views = dict[str, Relation]
"""Tables by lower-case name."""
REFUSED = {
    "qualify": "QUALIFY is not Spark's; put the query into FROM and bound the number in its WHERE",
    "sort": "SORT BY has no meaning for a stream",
    "distribute": "DISTRIBUTE BY has no meaning here; GROUP BY and joins distribute by themselves",
    "cluster": "CLUSTER BY has no meaning here; GROUP BY and joins distribute by themselves",
    "offset": "OFFSET would skip rows of a result that never ends; number them with ROW_NUMBER()",
    "pivots": "PIVOT is not supported; write an aggregate with FILTER for each column",
    "sample": "TABLESAMPLE is not supported; take every tenth row with WHERE id % 10 = 0",
}
"""Clauses that are refused, and what to write instead."""
GENERATORS = ("explode", "explode_outer", "posexplode", "posexplode_outer")


@dataclass(frozen=True)
class Tables:
    """Makes boxes of FROM clauses over the views of an application."""

    boxes: Boxes
    view: Callable[[str], Relation | None]
    """A view of the application by its name."""
    known: Callable[[], list[str]]
    """The names of all views."""
    query: Callable[[exp.Expr, Views], Relation]
    """The relation of a query in FROM."""

    def table(self, tree: exp.Expr, views: Views) -> Relation:
        alias = tree.args.get("alias")
        names = [name.name for name in alias.args.get("columns") or ()] if alias is not None else []
        for clause in ("pivots", "sample"):
            if tree.args.get(clause):
                raise ExpressionError(f"{REFUSED[clause]}.")
        if isinstance(tree, exp.Subquery):
            return self.query(tree.this, views).named(tree.alias or "", names)
        if not isinstance(tree, exp.Table) or not isinstance(tree.this, exp.Identifier):
            raise ExpressionError(
                f"{write(tree)!r} cannot be read; name a source or a view after FROM, or a query in parentheses."
            )
        name = ".".join(part.name for part in tree.parts)
        found = views.get(name.lower()) or self.view(name)
        if found is None:
            known = [*(relation.columns[0].table for relation in views.values()), *self.known()]
            raise PipelineError(
                f"There is no source or view '{name}'.{nearest(name, known)} "
                f"There are: {', '.join(sorted(known)) or 'none'}. Name a stream with app.view('{name}', stream)."
            )
        return found.named(tree.alias or name, names)

    def read(self, tree: exp.Select, views: Views) -> Relation:
        """FROM, its joins and WHERE."""
        where = tree.args.get("where")
        pool = list(conjuncts(where.this if where is not None else None))
        source = tree.args.get("from_")
        if source is None:
            raise ExpressionError(
                f"{write(tree)!r} reads no stream; name a source or a view, as in SELECT * FROM clicks."
            )
        relation = self.table(source.this, views)
        needed = names_in(tree)
        joins = tree.args.get("joins") or []
        for clause in joins:
            if isinstance(clause.this, exp.Lateral):
                relation = self._lateral(relation, clause.this)
            else:
                relation = self._joined(relation, clause, pool, needed, views)
        for lateral in tree.args.get("laterals") or ():
            relation = self._lateral(relation, lateral)
        return self.where(relation, pool)

    def _joined(
        self, left: Relation, clause: exp.Join, pool: list[exp.Expr], needed: set[str], views: Views
    ) -> Relation:
        text = write(clause).strip()
        kind = " ".join(str(clause.args.get(part) or "") for part in ("method", "side", "kind")).split()
        if [word for word in kind if word not in ("INNER", "CROSS")]:
            raise ExpressionError(f"{text!r}: only inner joins are supported so far.")
        right = self.table(clause.this, views)
        sides = Sides(left, right)
        conditions = list(conjuncts(clause.args.get("on")))
        using = [name.name for name in clause.args.get("using") or ()]
        for name in using:
            tables = [sides.left.find(name), sides.right.find(name)]
            if not all(tables):
                raise sides.both.unknown(exp.column(name))
            one, two = (exp.column(found[0].name, found[0].table) for found in tables)
            conditions.append(exp.EQ(this=one, expression=two))
        usable = [condition for condition in pool if sides.of(condition) is not None]
        for condition in usable:
            pool.remove(condition)
        conditions += usable
        alone: tuple[list[exp.Expr], list[exp.Expr]] = ([], [])
        both = []
        for condition in conditions:
            side = sides.of(condition)
            (both if side in (2, None) else alone[side]).append(condition)
        if any(alone):
            left, right = (self.where(side, own) for side, own in zip((left, right), alone, strict=True))
            sides = Sides(left, right)
        relation, checks = join(self.boxes, sides, both, needed, text)
        hidden = {name.lower() for name in using}
        tables = {column.table for column in right.columns}
        columns = [
            replace(c, hidden=True) if c.table in tables and c.name.lower() in hidden else c
            for c in relation.columns
        ]
        return self.where(replace(relation, columns=tuple(columns)), checks)

    def _lateral(self, relation: Relation, lateral: exp.Lateral) -> Relation:
        alias = lateral.args.get("alias")
        table = alias.name if alias is not None else ""
        names = [name.name for name in alias.args.get("columns") or ()] if alias is not None else []
        if not names and table and not lateral.args.get("view"):
            names = [table]
        return self.exploded(relation, lateral.this, table, names, bool(lateral.args.get("outer")))

    def exploded(
        self, relation: Relation, call: exp.Expr, table: str, names: Sequence[str], outer: bool
    ) -> Relation:
        function = call.name.lower()
        if not isinstance(call, exp.Anonymous) or function not in GENERATORS or len(call.expressions) != 1:
            raise ExpressionError(
                f"{write(call)!r} cannot make rows; these can: {', '.join(f'{g}(list)' for g in GENERATORS)}."
            )
        bound = relation.bind(call.expressions[0])
        pair = pa.types.is_map(relation.type_of(bound))
        position = function.startswith("pos")
        default = [*(["pos"] if position else []), *(["key", "value"] if pair else ["col"])]
        names = list(names) or default
        if len(names) != len(default):
            raise ExpressionError(f"{write(call)!r} gives {len(default)} columns; name as many behind AS.")
        fresh = [relation.fresh(name) for name in names]
        aliases = [alias_of(name) for name in (fresh[1:] if position else fresh)]
        behind = f"({', '.join(aliases)})" if pair else aliases[0]
        stream = self.boxes.explode(
            relation.stream,
            f"{write(bound)} AS {behind}",
            outer or function.endswith("_outer"),
            fresh[0] if position else None,
        )
        new = [Column(table, name, own) for name, own in zip(names, fresh, strict=True)]
        return replace(relation, stream=stream, columns=(*relation.columns, *new))

    def where(self, relation: Relation, conditions: Sequence[exp.Expr]) -> Relation:
        """The rows that meet all conditions; one that bounds a ROW_NUMBER() chooses the best rows."""
        rest = []
        for condition in conditions:
            bounded = _bounded(relation, condition)
            if bounded is None:
                rest.append(condition)
            else:
                relation = self._best(relation, *bounded)
        whole = together(rest)
        if whole is None:
            return relation
        return relation.over(self.boxes.filter(relation.stream, relation.text(whole)))

    def _best(self, relation: Relation, column: Column, n: int) -> Relation:
        rank = column.rank
        assert rank is not None
        if rank.on is None or rank.keys:
            raise ExpressionError(f"'{column.name}': ROW_NUMBER() per key is not supported so far.")
        on, period = rank.on
        stream = self.boxes.top(relation.stream, n, rank.order, spell_duration(period), on)
        left = tuple(c for c in relation.columns if c is not column)
        return replace(relation, stream=stream, columns=left)


def _bounded(relation: Relation, condition: exp.Expr) -> tuple[Column, int] | None:
    """The ROW_NUMBER() that a condition bounds, and how many rows stay; None if it bounds none."""
    turned: dict[type[exp.Expr], type[exp.Expr]] = {exp.GTE: exp.LTE, exp.GT: exp.LT, exp.EQ: exp.EQ}
    kind, one, two = type(condition), condition.this, condition.args.get("expression")
    if isinstance(one, exp.Literal) and kind in turned:
        kind, one, two = turned[kind], two, one
    found = relation.column(one) if isinstance(one, exp.Column) else None
    if found is None or found[0].rank is None:
        return None
    limit = int(two.this) if isinstance(two, exp.Literal) and str(two.this).isdigit() else 0
    limit -= kind is exp.LT
    if limit < 1 or kind not in (exp.LTE, exp.LT, exp.EQ) or (kind is exp.EQ and limit != 1):
        raise ExpressionError(
            f"{write(condition)!r}: a ROW_NUMBER() is bounded by a number of rows, as in {found[0].name} <= 10."
        )
    return found[0], limit
