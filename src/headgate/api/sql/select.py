"""One SELECT, clause by clause, as boxes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa
from sqlglot import exp

from headgate.api.sql.grouping import aggregates, grouped, is_aggregate
from headgate.api.sql.over import Over, over
from headgate.api.sql.relation import Column, Relation, alias_of, is_bound, physical, whole_window
from headgate.api.sql.sharing import Boxes
from headgate.api.sql.tables import GENERATORS, REFUSED, Tables, Views
from headgate.api.streams import Stream
from headgate.errors import ExpressionError
from headgate.graph.durations import spell_duration
from headgate.graph.network import sources_before
from headgate.sql import types as t
from headgate.sql.aggregates import spell_call
from headgate.sql.parse import write
from headgate.sql.spelling import spell

_CLAUSES = (
    *("expressions", "from_", "joins", "laterals", "where", "group", "having", "windows"),
    *("order", "limit", "distinct", "with_", "kind", "hint"),
)


class Binding(Protocol):
    """How a clause's trees become trees over a stream."""

    def bind(self, tree: exp.Expr) -> exp.Expr: ...
    def window(self, tree: exp.Expr) -> Column | None: ...


@dataclass(frozen=True)
class Item:
    """What SELECT lists: a name, and a tree that is bound already or a column as it is."""

    name: str
    tree: exp.Expr | None
    column: Column | None = None


class Planner:
    """Makes boxes of queries over the views of an application."""

    def __init__(self, boxes: Boxes, view: Callable[[str], Relation | None], known: Callable[[], list[str]]):
        self._boxes, self._tables = boxes, Tables(boxes, view, known, self.query)

    def query(self, tree: exp.Expr, views: Views | None = None) -> Relation:
        """The relation of a query."""
        views = dict(views or {})
        written = tree.args.get("with_")
        if written is not None:
            if written.args.get("recursive"):
                raise ExpressionError("WITH RECURSIVE is not supported: a network of boxes has no loops.")
            for table in written.expressions:
                names = [name.name for name in table.args["alias"].args.get("columns") or ()]
                views[table.alias.lower()] = self.query(table.this, views).named(table.alias, names)
        if isinstance(tree, exp.Subquery):
            return self.query(tree.this, views)
        if isinstance(tree, exp.Select):
            return self._select(tree, views)
        if isinstance(tree, exp.Union):
            return self._union(tree, views)
        raise ExpressionError(
            f"{type(tree).__name__.upper()} of two streams is not supported; use a join, or UNION ALL."
        )

    def finished(self, relation: Relation) -> Relation:
        """The relation with its columns under their own names, as a query's result."""
        items = [Item(column.name, None, column) for column in relation.columns]
        return self._projected(relation, items, last=True)

    # --- SELECT -------------------------------------------------------------------------------------

    def _select(self, tree: exp.Select, views: Views) -> Relation:
        for clause, value in tree.args.items():
            if value and clause not in _CLAUSES:
                reason = REFUSED.get(clause, f"{clause.upper().strip('_')} is not supported")
                raise ExpressionError(f"{reason}.")
        relation = self._tables.read(tree, views)
        relation, listed = self._listed(tree, relation)
        ordered = tree.args.get("order")
        having = tree.args.get("having")
        trees = [item for _, item in listed] + [x for x in (ordered, having) if x is not None]
        binding: Binding = relation
        if tree.args.get("group") or any(True for each in trees for _ in aggregates(each)):
            if any(each.find(exp.Window) for each in trees):
                raise ExpressionError(
                    "OVER and GROUP BY in one SELECT: put the GROUP BY into FROM, as in "
                    "SELECT …, sum(n) OVER (…) FROM (SELECT … GROUP BY …)."
                )
            by = _group_by(tree.args.get("group"), relation, listed)
            relation, binding = grouped(self._boxes, relation, by, trees)
        elif any(each.find(exp.Window) for each in trees):
            named = {window.name.lower(): window for window in tree.args.get("windows") or ()}
            relation, binding = over(self._boxes, relation, trees, named)
        if having is not None:
            condition = write(binding.bind(having.this))
            relation = relation.over(self._boxes.filter(relation.stream, condition))
        items = [self._item(name, item, relation, binding) for name, item in listed]
        relation = self._limited(tree, relation, items, binding)
        projected = self._projected(relation, items)
        if distinct := tree.args.get("distinct"):
            if distinct.args.get("on") is not None:
                raise ExpressionError(f"'{distinct.sql(dialect='spark')}' is not Spark's.")
            projected = self._distinct(projected)
        return projected

    def _listed(self, tree: exp.Select, relation: Relation) -> tuple[Relation, list[tuple[str, exp.Expr]]]:
        """The names and trees that SELECT lists, with * written out and explode() carried out."""
        listed: list[tuple[str, exp.Expr]] = []
        for tree_ in tree.expressions:
            star = (
                tree_
                if isinstance(tree_, exp.Star)
                else tree_.this
                if isinstance(tree_, exp.Column)
                else None
            )
            if isinstance(star, exp.Star):
                listed += _starred(star, tree_, relation)
                continue
            body, names = tree_, []
            if isinstance(tree_, exp.Alias):
                body, names = tree_.this, [tree_.alias]
            elif isinstance(tree_, exp.Aliases):
                body, names = tree_.this, [name.name for name in tree_.expressions]
            if isinstance(body, exp.Anonymous) and body.name.lower() in GENERATORS:
                before = len(relation.columns)
                relation = self._tables.exploded(relation, body, "", names, outer=False)
                listed += [(c.name, physical(c.physical)) for c in relation.columns[before:]]
                continue
            listed.append((names[0] if names else _name(body, relation), body))
        return relation, listed

    def _item(self, name: str, tree: exp.Expr, relation: Relation, binding: Binding) -> Item:
        window = binding.window(tree)
        if window is not None:
            return Item(name, None, window)
        if isinstance(binding, Over) and tree in binding.ranks:
            return Item(name, None, Column("", name, "", rank=binding.ranks[tree]))
        found = relation.column(tree) if isinstance(tree, exp.Column) and not is_bound(tree) else None
        if binding is relation and found is not None and found[0].rank is not None:
            return Item(name, None, found[0])
        bound = binding.bind(tree)
        if is_bound(bound):
            return Item(name, None, Column("", name, bound.name, period=relation.period(bound)))
        return Item(name, bound)

    def _projected(self, relation: Relation, items: Sequence[Item], *, last: bool = False) -> Relation:
        """The relation of what SELECT lists; a box only where something is computed, or at the end."""
        own = [item.column.physical for item in items if item.column is not None]
        plain = all(item.column is not None for item in items)
        exact = plain and own == [item.name for item in items] == relation.schema.names
        if plain and (exact or not last):
            columns = [replace(item.column, table="", name=item.name) for item in items if item.column]
            return replace(relation, columns=tuple(columns))
        if any(item.column is not None and item.column.rank is not None for item in items):
            return self._widened(relation, items, last)
        texts, columns, used = [], [], set[str]()
        for item in items:
            column, tree = item.column, item.tree
            if column is not None and column.end is not None and last:
                tree, column = whole_window(column), None
            new = item.name if last or item.name.lower() not in used else f"{item.name}_{len(used)}"
            used.add(new.lower())
            parts = [tree] if column is None else [physical(part) for part in column.physicals]
            names = [new] if len(parts) == 1 else [f"{new}_start", f"{new}_end"]
            texts += [
                _called(part, name) for part, name in zip(parts, names, strict=True) if part is not None
            ]
            period = None if column is None else column.period
            columns.append(Column("", item.name, names[0], names[1] if len(names) == 2 else None, period))
        return replace(relation, stream=self._boxes.select(relation.stream, texts), columns=tuple(columns))

    def _widened(self, relation: Relation, items: Sequence[Item], last: bool) -> Relation:
        """A ROW_NUMBER() that is not bounded yet needs columns that SELECT need not list."""
        texts, columns = [], []
        for item in items:
            column = item.column
            if column is not None and column.rank is not None and last:
                replace(relation, columns=(column,)).bind(exp.column(column.name))  # which refuses it
            if column is None and item.tree is not None:
                column = Column("", item.name, relation.fresh(item.name))
                texts.append(_called(item.tree, column.physical))
            if column is not None:
                columns.append(replace(column, table="", name=item.name))
        stream = self._boxes.with_columns(relation.stream, texts)
        return replace(relation, stream=stream, columns=tuple(columns))

    def _distinct(self, relation: Relation) -> Relation:
        columns = [name for column in relation.columns for name in column.physicals]
        return relation.over(self._boxes.distinct(relation.stream, columns))

    def _limited(
        self, tree: exp.Expr, relation: Relation, items: Sequence[Item], binding: Binding
    ) -> Relation:
        """ORDER BY and LIMIT: the best rows of every window, or the first rows of all."""
        order, limit = tree.args.get("order"), tree.args.get("limit")
        if order is None and limit is None:
            return relation
        text = " ".join(write(clause).strip() for clause in (order, limit) if clause is not None)
        n = None
        if limit is not None:
            if not (isinstance(limit.expression, exp.Literal) and str(limit.expression.this).isdigit()):
                raise ExpressionError(f"{text!r}: LIMIT takes a number of rows.")
            n = int(limit.expression.this)
        if order is None:
            assert n is not None
            return relation.over(self._boxes.limit(relation.stream, n))
        by = ", ".join(self._ordering(ordered, items, binding) for ordered in order.expressions)
        on = next((c for c in relation.columns if c.period is not None), None)
        if n is not None and on is not None and relation.lateness == 0:
            every = spell_duration(on.period or 1)
            best = self._boxes.top(relation.stream, (), n, by, every=every, on=on.end or on.physical)
            return relation.over(best)
        endless = [s.name for s in sources_before(relation.stream._port) if not s.origin.finite]
        if endless or relation.groups is not None:
            reason = (
                f"source '{endless[0]}' has no end at which it could be sorted"
                if endless
                else "results of a GROUP BY without a window change with every row"
            )
            raise ExpressionError(
                f"{text!r}: {reason}. ORDER BY … LIMIT n gives the best n rows of every window in a query "
                "with GROUP BY window(…); per key, bound ROW_NUMBER() OVER (PARTITION BY … ORDER BY …) <= n."
            )
        return relation.over(self._boxes.sort(relation.stream, by, n))

    def _ordering(self, ordered: exp.Ordered, items: Sequence[Item], binding: Binding) -> str:
        key = ordered.this
        item: Item | None = None
        if isinstance(key, exp.Literal) and not key.is_string:
            if not 1 <= int(key.this) <= len(items):
                raise ExpressionError(f"ORDER BY {key.this}: SELECT lists {len(items)} columns.")
            item = items[int(key.this) - 1]
        elif isinstance(key, exp.Column) and len(key.parts) == 1:
            item = next((i for i in items if i.name.lower() == key.name.lower()), None)
        bound = binding.bind(key) if item is None else item.tree
        if item is not None and item.column is not None:
            bound = physical(item.column.physical)
        assert bound is not None
        nulls = ordered.args.get("nulls_first")
        down = bool(ordered.args.get("desc"))
        text = f"{write(bound)} {'DESC' if down else 'ASC'}"
        return text if nulls is None else f"{text} NULLS {'FIRST' if nulls else 'LAST'}"

    # --- UNION --------------------------------------------------------------------------------------

    def _union(self, tree: exp.Union, views: Views) -> Relation:
        one, two = (self.query(side, views) for side in (tree.this, tree.expression))
        if any(c.end is not None or c.rank is not None for side in (one, two) for c in side.columns):
            one, two = self.finished(one), self.finished(two)
        if len(one.columns) != len(two.columns):
            raise ExpressionError(
                f"UNION: {len(one.columns)} columns ({_names(one)}) and {len(two.columns)} ({_names(two)}); "
                "select as many from both."
            )
        if one.groups is not None or two.groups is not None:
            raise ExpressionError(
                "UNION of the results of a GROUP BY without a window, which change with every row: give the "
                "GROUP BY a window, or write two queries."
            )
        common = []
        for pair in zip(one.columns, two.columns, strict=True):
            mine, other = (
                side.schema.field(c.physical).type for side, c in zip((one, two), pair, strict=True)
            )
            kind = t.common_type(mine, other)
            if kind is None:
                raise ExpressionError(
                    f"UNION: '{pair[0].name}' is {t.spark_name(mine)}, but '{pair[1].name}' is "
                    f"{t.spark_name(other)}; CAST one of them."
                )
            common.append((pair[0].name, kind))
        streams = [self._alike(side, common) for side in (one, two)]
        late = None if one.lateness is None or two.lateness is None else max(one.lateness, two.lateness)
        columns = [Column("", name, name) for name, _ in common]
        relation = Relation(streams[0].union(streams[1]), tuple(columns), late)
        if tree.args.get("distinct"):
            relation = self._distinct(relation)
        items = [Item(c.name, None, c) for c in relation.columns]
        return self._limited(tree, relation, items, relation)

    def _alike(self, side: Relation, common: Sequence[tuple[str, pa.DataType]]) -> Stream:
        """A side of a union with the names and types of both."""
        if (
            [(f.name, f.type) for f in side.schema]
            == list(common)
            == [(c.physical, kind) for c, (_, kind) in zip(side.columns, common, strict=True)]
        ):
            return side.stream
        texts = []
        for column, (name, kind) in zip(side.columns, common, strict=True):
            own = physical(column.physical)
            same = side.schema.field(column.physical).type == kind
            texts.append(_called(own if same else exp.cast(own, t.spark_name(kind), dialect="spark"), name))
        return self._boxes.select(side.stream, texts)


def _called(tree: exp.Expr, name: str) -> str:
    """A bound tree as text, under a name."""
    text = write(tree)
    return text if text == alias_of(name) else f"{text} AS {alias_of(name)}"


def _names(relation: Relation) -> str:
    return ", ".join(column.name for column in relation.columns)


def _group_by(
    group: exp.Group | None, relation: Relation, listed: Sequence[tuple[str, exp.Expr]]
) -> list[tuple[exp.Expr, str | None]]:
    """What GROUP BY lists, with numbers and names of SELECT replaced by what they stand for."""
    if group is None:
        return []
    if group.args.get("all"):
        return [(tree, name) for name, tree in listed if not any(True for _ in aggregates(tree))]
    others = [x for part in ("rollup", "cube", "grouping_sets") for x in group.args.get(part) or ()]
    by: list[tuple[exp.Expr, str | None]] = []
    for tree in [*group.expressions, *others]:
        named: str | None = None
        if isinstance(tree, exp.Literal) and not tree.is_string:
            if not 1 <= int(tree.this) <= len(listed):
                raise ExpressionError(f"GROUP BY {tree.this}: SELECT lists {len(listed)} columns.")
            named, tree = listed[int(tree.this) - 1]
        elif isinstance(tree, exp.Column) and len(tree.parts) == 1 and not relation.find(tree.name):
            named, tree = next(
                (pair for pair in listed if pair[0].lower() == tree.name.lower() and pair[1] != tree),
                (None, tree),
            )
        if any(True for _ in aggregates(tree)):
            raise ExpressionError(f"GROUP BY {write(tree)}: rows are not grouped by an aggregate of them.")
        by.append((tree, named))
    return by


def _starred(star: exp.Star, tree: exp.Expr, relation: Relation) -> list[tuple[str, exp.Expr]]:
    """The columns that * or t.* stands for."""
    table = tree.table.lower() if isinstance(tree, exp.Column) else None
    left_out = {name.name.lower() for name in star.args.get("except_") or ()}
    columns = [c for c in relation.columns if (not c.hidden if table is None else c.table.lower() == table)]
    if not columns and isinstance(tree, exp.Column):
        return _fields(tree, relation, left_out)
    unknown = left_out - {column.name.lower() for column in columns}
    if unknown:
        raise relation.unknown(exp.column(sorted(unknown)[0]))
    return [
        (c.name, exp.column(exp.to_identifier(c.name, quoted=True), c.table or None))
        for c in columns
        if c.name.lower() not in left_out
    ]


def _fields(tree: exp.Column, relation: Relation, left_out: set[str]) -> list[tuple[str, exp.Expr]]:
    """The fields of a struct, or the bounds of a window, that ``x.*`` stands for."""
    *outer, last = [part.copy() for part in tree.parts[:-1]]
    whole = exp.Column(this=last, **dict(zip(("table", "db", "catalog"), reversed(outer), strict=False)))
    found = relation.column(whole)
    if found is None:
        tables = sorted({column.table for column in relation.columns if column.table})
        known = f"tables {', '.join(tables)}, and columns" if tables else "columns"
        names = ", ".join(column.name for column in relation.columns)
        raise ExpressionError(
            f"{write(tree)!r}: there is no table or struct '{write(whole)}' here, but {known} {names}."
        )
    column, path = found
    if column.end is not None and not path:
        return [(name, exp.Dot(this=whole, expression=exp.to_identifier(name))) for name in ("start", "end")]
    type_ = relation.schema.field(column.physical).type
    for name in path:
        type_ = next((f.type for f in type_.fields if f.name.lower() == name.lower()), None)
    if type_ is None or not pa.types.is_struct(type_):
        raise ExpressionError(f"{write(tree)!r}: '{write(whole)}' is no struct, so it has no fields.")
    return [
        (field.name, exp.Dot(this=whole.copy(), expression=exp.to_identifier(field.name, quoted=True)))
        for field in type_.fields
        if field.name.lower() not in left_out
    ]


def _name(tree: exp.Expr, relation: Relation) -> str:
    """The name that Spark gives to a column that has none."""
    inner = tree
    while isinstance(inner, exp.Cast | exp.TryCast | exp.Paren):
        inner = inner.this
    if isinstance(inner, exp.Column):
        found = relation.column(inner)
        return str(found[0].name if found is not None and not found[1] else inner.parts[-1].name)
    if isinstance(tree, exp.Dot):
        return str(tree.expression.name)
    return spell_call(tree) if is_aggregate(tree) else spell(tree)
