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
_HOW = {
    **dict.fromkeys(("", "INNER", "CROSS"), "inner"),
    "LEFT": "left",
    "RIGHT": "right",
    "FULL": "full",
    **dict.fromkeys(("SEMI", "LEFT SEMI"), "semi"),
    **dict.fromkeys(("ANTI", "LEFT ANTI"), "anti"),
}
_JOINS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN")
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
                f"{write(tree)!r} cannot be read; name a source or a view, or put a query in parentheses."
            )
        name = ".".join(part.name for part in tree.parts)
        found = views.get(name.lower()) or self.view(name)
        if found is None:
            known = [*(relation.columns[0].table for relation in views.values()), *self.known()]
            raise PipelineError(
                f"There is no source or view '{name}'.{nearest(name, known)} "
                f"There are: {', '.join(sorted(known)) or 'none'}. app.view('{name}', stream) makes one."
            )
        return found.named(tree.alias or name, names)

    def read(self, tree: exp.Select, views: Views) -> Relation:
        """FROM, its joins and WHERE."""
        where = tree.args.get("where")
        pool = list(conjuncts(where.this if where is not None else None))
        asked = [condition for condition in pool if condition.find(exp.Query)]
        pool = [condition for condition in pool if condition not in asked]
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
        relation = self.where(relation, pool)
        for condition in asked:
            relation = self._matching(relation, condition, needed, views)
        return relation

    def _joined(
        self, left: Relation, clause: exp.Join, pool: list[exp.Expr], needed: set[str], views: Views
    ) -> Relation:
        text = write(clause).strip().lstrip(", ")
        words = [str(clause.args.get(part) or "").upper() for part in ("method", "side", "kind")]
        how = _HOW.get(" ".join(word for word in words if word and word != "OUTER"))
        if how is None:
            raise ExpressionError(
                f"{text!r}: this kind of join is not supported; there are {', '.join(_JOINS)}."
            )
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
        if how == "inner":
            usable = [condition for condition in pool if sides.of(condition) is not None]
            pool[:] = [condition for condition in pool if condition not in usable]
            conditions += usable
        relation = self._join(sides, conditions, how, needed, text)
        if not using:
            return relation
        keys = {name.lower() for name in using}
        columns = [replace(c, hidden=True) if c.name.lower() in keys else c for c in relation.columns]
        if how == "full":
            raise ExpressionError(f"{text!r}: write ON a.{using[0]} = b.{using[0]}, and coalesce both.")
        # One column stands for both sides: that of the side whose rows are all there.
        whole = sides.right if how == "right" else sides.left
        first = [Column("", n, relation.find(n, whole.find(n)[0].table)[0].physical) for n in using]
        return replace(relation, columns=(*first, *columns))

    def _join(
        self, sides: Sides, conditions: Sequence[exp.Expr], how: str, needed: set[str], text: str
    ) -> Relation:
        """A join whose conditions on one side alone are met before it, where that is the same."""
        early = {"inner": (0, 1), "left": (1,), "right": (0,), "semi": (0, 1), "anti": (1,), "full": ()}[how]
        alone: dict[int, list[exp.Expr]] = {0: [], 1: []}
        both: list[exp.Expr] = []
        for condition in conditions:
            side = sides.of(condition)
            (alone[side] if side in early else both).append(condition)
        left, right = (self.where(one, alone[n]) for n, one in enumerate((sides.left, sides.right)))
        relation, checks = join(self.boxes, Sides(left, right), both, how, needed, text)
        return self.where(relation, checks)

    def _matching(self, relation: Relation, condition: exp.Expr, needed: set[str], views: Views) -> Relation:
        """WHERE x IN (SELECT …) and [NOT] EXISTS (SELECT …): semi and anti joins."""
        text, how = write(condition), "semi"
        while isinstance(condition, exp.Paren | exp.Not):
            how = ("anti" if how == "semi" else "semi") if isinstance(condition, exp.Not) else how
            condition = condition.this
        if isinstance(condition, exp.In) and how == "semi":
            inner = self.query(condition.args["query"], views).named("_in")
            if len(inner.columns) != 1:
                raise ExpressionError(f"{text!r}: the query after IN must give one column.")
            equal = exp.EQ(this=condition.this, expression=exp.column(inner.columns[0].name, "_in"))
            return self._join(Sides(relation, inner), [equal], how, needed | names_in(equal), text)
        if isinstance(condition, exp.Exists) and isinstance(condition.this, exp.Select):
            tree = condition.this
            if not tree.args.get("from_") or any(
                tree.args.get(c) for c in ("group", "having", "limit", "joins")
            ):
                raise ExpressionError(f"{text!r}: EXISTS takes a plain SELECT … FROM one table WHERE ….")
            inner = self.table(tree.args["from_"].this, views)
            where = tree.args.get("where")
            conditions = list(conjuncts(where.this if where is not None else None))
            return self._join(Sides(relation, inner), conditions, how, needed | names_in(tree), text)
        raise ExpressionError(
            f"{text!r}: of queries in WHERE there are x IN (SELECT …), EXISTS (SELECT …) and NOT EXISTS "
            "(SELECT …), each joined to other conditions by AND."
        )

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
            f"{write(condition)!r}: bound ROW_NUMBER() by a number of rows, as in {found[0].name} <= 10."
        )
    return found[0], limit
