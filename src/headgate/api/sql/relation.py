"""What a FROM clause gives: a stream, and the names by which a query knows its columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlglot import exp

from headgate.api.streams import Stream
from headgate.errors import ExpressionError, UnknownColumn, nearest
from headgate.sql import compile_expression, supported_functions
from headgate.sql.names import quoted
from headgate.sql.parse import parse, write

UNITS_FIRST = ("timestampdiff", "timestampadd", "date_diff", "datediff", "dateadd", "date_add")
"""With three operands, the first one of these functions is a unit of time and no column."""
_BOUND = "bound"


@dataclass(frozen=True)
class Rank:
    """ROW_NUMBER() that is not computed, as it can change: the WHERE around it says how many rows stay."""

    keys: tuple[str, ...]
    order: str
    on: tuple[str, int] | None
    """The bound of windows that have closed among the partition's columns, and its period."""


@dataclass(frozen=True)
class Column:
    """A column of a query's scope, and the stream's column that has its values."""

    table: str
    name: str
    physical: str
    end: str | None = None
    """The stream's column of the windows' ends, if this is a window; ``physical`` has their starts."""
    period: int | None = None
    """It is a window, or a bound of one, that has closed: so many microseconds hold one bound."""
    hidden: bool = False
    """Reached only with its table's name: the other side of a join USING it."""
    rank: Rank | None = None

    @property
    def physicals(self) -> tuple[str, ...]:
        return (self.physical,) if self.end is None else (self.physical, self.end)


@dataclass(frozen=True)
class Relation:
    """A stream as a query sees it."""

    stream: Stream
    columns: tuple[Column, ...]
    lateness: int | None = 0
    """Microseconds by which a row can be older than one before it; None: it has no order in time."""
    groups: tuple[str, ...] | None = None
    """Columns of the groups whose newest row replaces the one before; None: rows stand."""

    @property
    def schema(self) -> pa.Schema:
        return self.stream.schema

    def named(self, table: str, names: Sequence[str] = ()) -> Relation:
        """The relation as a table of that name, its columns renamed if there are names."""
        if names and len(names) != len(self.columns):
            raise ExpressionError(
                f"'{table}' gives {len(names)} names for {len(self.columns)} columns; give one for each."
            )
        new = list(names) or [column.name for column in self.columns]
        columns = [
            replace(c, table=table, name=n, hidden=False) for c, n in zip(self.columns, new, strict=True)
        ]
        return replace(self, columns=tuple(columns))

    def over(self, stream: Stream) -> Relation:
        """The same names over another stream that has their columns."""
        return replace(self, stream=stream)

    def find(self, name: str, table: str | None = None) -> list[Column]:
        """The columns of a name, without regard to case."""
        return [
            column
            for column in self.columns
            if column.name.lower() == name.lower()
            and (not column.hidden if table is None else column.table.lower() == table.lower())
        ]

    def column(self, tree: exp.Column) -> tuple[Column, list[str]] | None:
        """The column that ``a.b.c`` means, and the fields that are left; None if there is none."""
        parts = [part.name for part in tree.parts]
        for table, rest in ((parts[0], parts[1:]), (None, parts)):
            if not rest:
                continue
            found = self.find(rest[0], table)
            if len({column.physicals for column in found}) > 1:
                choices = " or ".join(f"{column.table}.{column.name}" for column in found)
                raise ExpressionError(f"The column '{rest[0]}' is ambiguous; write {choices}.")
            if found:
                return found[0], rest[1:]
        return None

    def window(self, tree: exp.Expr) -> Column | None:
        """The window that a tree means as a whole, if it does."""
        found = self.column(tree) if isinstance(tree, exp.Column) and not is_bound(tree) else None
        return found[0] if found is not None and found[0].end is not None and not found[1] else None

    def bind(self, tree: exp.Expr) -> exp.Expr:
        """The tree with the stream's own columns in the place of the query's."""
        whole = exp.Paren(this=tree.copy())
        for call in whole.find_all(exp.Anonymous):
            if call.name.lower() in UNITS_FIRST and len(call.expressions) == 3:
                call.expressions[0].meta[_BOUND] = True

        def bound(node: exp.Expr) -> exp.Expr:
            if isinstance(node, exp.Anonymous) and node.name.lower() == "window_time":
                window = self.window(node.expressions[0]) if len(node.expressions) == 1 else None
                if window is None:
                    raise ExpressionError(
                        f"{write(node)!r}: window_time() takes a window of an aggregate, as in "
                        "SELECT window_time(window) … GROUP BY window(ts, '1 minute')."
                    )
                return last_moment(window)
            if not isinstance(node, exp.Column) or is_bound(node) or isinstance(node.this, exp.Star):
                return node
            return self._bound(node)

        return whole.transform(bound, copy=False).this  # type: ignore[no-any-return]

    def _bound(self, node: exp.Column) -> exp.Expr:
        found = self.column(node)
        if found is None:
            raise self.unknown(node)
        column, fields = found
        if column.rank is not None:
            raise ExpressionError(
                f"'{column.name}' is a ROW_NUMBER() that changes with every row that comes, so it has no "
                f"value. Bound it in the WHERE around it, as in WHERE {column.name} <= 10, and do not select "
                "it: name the other columns instead of *."
            )
        if column.end is None:
            tree: exp.Expr = physical(column.physical)
        elif fields and fields[0].lower() in ("start", "end"):
            tree = physical(column.physical if fields.pop(0).lower() == "start" else column.end)
        elif fields:
            raise UnknownColumn(f"A window has no field '{fields[0]}'; it has start and end.")
        else:
            tree = whole_window(column)
        for field in fields:
            tree = exp.Dot(this=tree, expression=exp.to_identifier(field, quoted=True))
        return tree

    def unknown(self, node: exp.Column) -> UnknownColumn:
        """The error for a column that there is not."""
        names = [column.name for column in self.columns]
        tables = sorted({column.table for column in self.columns if column.table})
        said = ".".join(part.name for part in node.parts)
        where = f" of {' or '.join(tables)}" if tables else ""
        return UnknownColumn(
            f"There is no column '{said}'{where}.{nearest(node.name, names)} Columns: {', '.join(names)}."
        )

    def period(self, bound: exp.Expr) -> int | None:
        """The period of a bound tree that is a bound of windows that have closed."""
        if not is_bound(bound):
            return None
        return next(
            (c.period for c in self.columns if bound.name in c.physicals and c.period is not None), None
        )

    def text(self, tree: exp.Expr) -> str:
        """A tree as an expression over the stream."""
        return write(self.bind(tree))

    def type_of(self, bound: exp.Expr) -> pa.DataType:
        """The type of a bound tree's values."""
        return compile_expression(write(bound), self.schema).type

    def fresh(self, name: str) -> str:
        """A name that no column of the stream has."""
        taken = {known.lower() for known in self.schema.names}
        names = (name if number == 1 else f"{name}_{number}" for number in range(1, len(taken) + 2))
        return next(new for new in names if new.lower() not in taken)


def of_stream(stream: Stream, table: str, lateness: int) -> Relation:
    """A stream as a table of that name."""
    return Relation(stream, tuple(Column(table, name, name) for name in stream.schema.names), lateness)


def physical(name: str) -> exp.Column:
    """A column of the stream, which needs no further look."""
    column = exp.column(exp.to_identifier(name, quoted=not _is_plain(name)))
    column.meta[_BOUND] = True
    return column


def is_bound(tree: exp.Expr) -> bool:
    return isinstance(tree, exp.Column) and bool(tree.meta.get(_BOUND))


def last_moment(window: Column) -> exp.Expr:
    """The last microsecond of a window, which Spark takes as its rows' time."""
    assert window.end is not None
    step = exp.Interval(this=exp.Literal.string("1"), unit=exp.Var(this="MICROSECOND"))
    return exp.Paren(this=exp.Sub(this=physical(window.end), expression=step))


def whole_window(window: Column) -> exp.Expr:
    """A window as a struct of its bounds."""
    assert window.end is not None
    if "named_struct" not in supported_functions():
        raise ExpressionError(
            f"'{window.name}' as a whole cannot leave a query; select {window.name}.start and "
            f"{window.name}.end."
        )
    parts = [exp.Literal.string("start"), physical(window.physical)]
    parts += [exp.Literal.string("end"), physical(window.end)]
    return exp.Anonymous(this="named_struct", expressions=parts)


def conjuncts(tree: exp.Expr | None) -> Iterator[exp.Expr]:
    """The conditions that AND joins."""
    while isinstance(tree, exp.Paren) and isinstance(tree.this, exp.And | exp.Paren):
        tree = tree.this
    if isinstance(tree, exp.And):
        yield from conjuncts(tree.this)
        yield from conjuncts(tree.expression)
    elif tree is not None:
        yield tree


def alias_of(name: str) -> str:
    """A name behind AS."""
    return name if _is_plain(name) else quoted(name)


def _is_plain(name: str) -> bool:
    """Whether an expression that is just the name means the column."""
    if name not in _PLAIN:
        try:
            tree = parse(f"{name} + 1").this if name.isidentifier() else None
        except ExpressionError:
            tree = None
        _PLAIN[name] = isinstance(tree, exp.Column) and tree.sql() == name
    return _PLAIN[name]


_PLAIN: dict[str, bool] = {}
