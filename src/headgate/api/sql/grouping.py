"""GROUP BY: aggregates of windows that close, or running values of groups that never do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp

from headgate.api.sql.relation import (
    UNITS_FIRST,
    Column,
    Relation,
    is_bound,
    last_moment,
    physical,
    whole_window,
)
from headgate.api.sql.sharing import Boxes
from headgate.errors import ExpressionError, UnknownColumn
from headgate.graph.durations import parse_duration, spell_duration
from headgate.graph.windows import Window, session, sliding, tumbling
from headgate.sql.intervals import DAY, constant_interval
from headgate.sql.parse import write
from headgate.sql.registry import AGGREGATES

CALLS = ("window", "session_window")
_WRAPPERS = (exp.Filter, exp.IgnoreNulls, exp.RespectNulls, exp.WithinGroup)
_BOUNDS = ("window_start", "window_end")
"""Columns that windows of a stream add, so that no key may have these names."""
_GROUPED = "grouped"


def is_aggregate(node: exp.Expr) -> bool:
    """Whether a node is an aggregate's call, with what belongs to it."""
    while isinstance(node, _WRAPPERS):
        node = node.this
    return isinstance(node, exp.Anonymous) and node.name.lower() in AGGREGATES


def aggregates(tree: exp.Expr) -> Iterator[exp.Expr]:
    """The aggregate calls of a tree that are of its own GROUP BY."""
    if isinstance(tree, exp.Window | exp.Query):
        return
    if is_aggregate(tree):
        yield tree
        return
    for child in tree.iter_expressions():
        yield from aggregates(child)


@dataclass(frozen=True)
class _Group:
    """What GROUP BY says, bound to the stream."""

    keys: list[exp.Expr]
    call: exp.Anonymous | None
    """window(…) or session_window(…)."""
    named: str | None
    """The name that SELECT gives to the call."""
    closed: Column | None
    """A window of an inner query, by which as a whole rows are grouped."""


def grouped(
    boxes: Boxes,
    relation: Relation,
    by: Sequence[tuple[exp.Expr, str | None]],
    trees: Iterable[exp.Expr],
) -> tuple[Relation, Groups]:
    """The relation of the groups, and how trees over it are bound.

    ``by`` is what GROUP BY lists, each with the name that SELECT gives it; ``trees`` are all that may hold
    aggregates.
    """
    if relation.groups is not None:
        raise ExpressionError(
            "This query aggregates the results of a GROUP BY without a window. They change with every row, "
            "and each change would be counted again. Give the inner GROUP BY a window, as in "
            "GROUP BY window(ts, '1 minute'), aggregate its input directly, or sum what each "
            "row changes: x - lag(x, 1, 0) OVER (PARTITION BY … ORDER BY ts)."
        )
    group = _read(relation, by)
    added: list[str] = []
    keys: dict[exp.Expr, str] = {}
    for key in group.keys:
        if key in keys:
            continue
        plain = is_bound(key) and key.name not in _BOUNDS
        keys[key] = key.name if plain else relation.fresh(f"_k{len(keys) + 1}")
        added += [] if plain else [f"{write(key)} AS {keys[key]}"]
    wanted: dict[exp.Expr, str] = {}
    for tree in trees:
        for call in aggregates(tree):
            bound = relation.bind(call)
            wanted.setdefault(bound, relation.fresh(f"_a{len(wanted) + 1}"))
    periods = {key: relation.period(key) for key in keys}
    window = _window(relation, group, {keys[k]: p for k, p in periods.items() if p is not None}, added)
    stream = boxes.with_columns(relation.stream, added)
    texts = [f"{write(call)} AS {name}" for call, name in wanted.items()]
    columns = [Column("", name, name, period=periods[key]) for key, name in keys.items()]
    names = list(keys.values())
    whole: Column | None = None
    if window is not None:
        stream = boxes.window(stream, names, window, texts or ["count(*) AS _rows"])
        if group.call is not None:
            whole = Column("", group.call.name.lower(), *_BOUNDS, period=_period(window))
        elif group.closed is not None:
            start, end = (keys[physical(name)] for name in group.closed.physicals)
            whole = Column("", group.closed.name, start, end, period=group.closed.period)
    elif texts:
        stream = boxes.running(stream, names, texts)
    else:
        stream = boxes.distinct(stream, names)
    groups = None if window is not None or not texts else tuple(names)
    after = Relation(stream, (*columns, *filter(None, [whole])), 0 if window else relation.lateness, groups)
    return after, Groups(relation, group, keys, wanted, whole)


def _read(relation: Relation, by: Sequence[tuple[exp.Expr, str | None]]) -> _Group:
    keys: list[exp.Expr] = []
    call, named, closed = None, None, None
    for tree, name in by:
        if isinstance(tree, exp.Rollup | exp.Cube | exp.GroupingSets):
            raise ExpressionError(
                f"{write(tree)!r} is not supported in GROUP BY; write a query for each grouping, and UNION "
                "ALL between them."
            )
        if isinstance(tree, exp.Anonymous) and tree.name.lower() in CALLS:
            if call is not None:
                raise ExpressionError(
                    f"GROUP BY has two windows, {write(call)!r} and {write(tree)!r}; write a query for each."
                )
            call, named = tree, name
        elif (found := relation.window(tree)) is not None:
            closed = found
            keys += [physical(part) for part in found.physicals]
        else:
            keys.append(relation.bind(tree))
    return _Group(keys, call, named, closed)


def _window(relation: Relation, group: _Group, bounds: dict[str, int], added: list[str]) -> Window | None:
    """The window to aggregate; None if the groups never close.  ``added`` are columns to compute before."""
    if group.call is None:
        if not bounds:
            return None
        # Rows of one window come together, so a group is complete when a later bound comes.
        name, period = next(iter(bounds.items()))
        return tumbling(_said(period), on=name)
    call, text = group.call, write(group.call)
    operands = list(call.expressions)
    most = 2 if call.name.lower() == "session_window" else 4
    if not 2 <= len(operands) <= most:
        shape = "session_window(ts, '5 minutes')" if most == 2 else "window(ts, '1 minute')"
        raise ExpressionError(f"{text!r}: it takes a time and a length, as in {shape}.")
    if relation.lateness is None:
        raise ExpressionError(
            f"{text!r} is over a join without a bound in time, whose results have no order in time, so no "
            "window could close. Bound the join, as in ON a.id = b.id AND a.ts BETWEEN b.ts AND b.ts + "
            "INTERVAL 1 HOUR."
        )
    closed = relation.window(operands[0])
    time = relation.bind(operands[0]) if closed is None else last_moment(closed)
    if is_bound(time):
        on = time.name
    else:
        on = relation.fresh("_t")
        added.append(f"{write(time)} AS {on}")
    lengths = [_said(micros(operand, text)) for operand in operands[1:3]]
    if len(operands) == 4 and micros(operands[3], text):
        raise ExpressionError(
            f"{text!r}: windows begin at whole multiples of their length; leave the start out."
        )
    late = _said(relation.lateness)
    if most == 2:
        return session(lengths[0], on=on, lateness=late)
    if lengths[0] == lengths[-1]:
        return tumbling(lengths[0], on=on, lateness=late)
    return sliding(lengths[0], every=lengths[-1], on=on, lateness=late)


def _period(window: Window) -> int:
    return 1 if window.kind == "session" else window.every


def _said(length: int) -> str:
    return spell_duration(length)


def micros(tree: exp.Expr, text: str) -> int:
    """Microseconds of a length in a query: '10 seconds', or INTERVAL 10 SECONDS."""
    interval = constant_interval(tree)
    if interval is not None and not interval.months:
        return interval.days * DAY + interval.micros
    if isinstance(tree, exp.Literal) and tree.is_string:
        said = str(tree.this).strip()
        return parse_duration(said[9:] if said.lower().startswith("interval ") else said, text)
    raise ExpressionError(
        f"{text!r}: {write(tree)!r} is not a fixed length of time; write '10 minutes' or INTERVAL 10 MINUTES."
    )


class Groups:
    """How trees over groups are bound: aggregates, keys and the window become columns."""

    def __init__(
        self,
        relation: Relation,
        group: _Group,
        keys: dict[exp.Expr, str],
        wanted: dict[exp.Expr, str],
        whole: Column | None,
    ) -> None:
        self._relation, self._group, self._keys, self._wanted = relation, group, keys, wanted
        self._whole = whole
        self._names = {"window", "session_window"} if group.call is None else {group.call.name.lower()}
        if group.named is not None:
            self._names.add(group.named.lower())

    def window(self, tree: exp.Expr) -> Column | None:
        """The window of GROUP BY, if a tree means it: by its call or by its name."""
        if isinstance(tree, exp.Column) and len(tree.parts) == 1 and not is_bound(tree):
            own = tree.name.lower() in self._names and not self._relation.find(tree.name)
            closed = self._group.closed is not None and self._relation.window(tree) is self._group.closed
            return self._whole if own or closed else None
        return self._whole if tree == self._group.call else None

    def bind(self, tree: exp.Expr) -> exp.Expr:
        """The tree over the columns of the groups."""
        first = exp.Paren(this=tree.copy()).transform(self._early, copy=False).this
        for column in first.find_all(exp.Column):
            if is_bound(column):
                column.meta[_GROUPED] = True
        found: exp.Expr = exp.Paren(this=self._relation.bind(first)).transform(self._late, copy=False).this
        return found

    def _early(self, node: exp.Expr) -> exp.Expr:
        """Aggregates and windows, as columns of the groups."""
        if is_aggregate(node):
            return physical(self._wanted[self._relation.bind(node)])
        if isinstance(node, exp.Anonymous) and node.name.lower() == "window_time":
            window = self.window(node.expressions[0]) if len(node.expressions) == 1 else None
            return node if window is None else last_moment(window)
        if isinstance(node, exp.Column) and len(node.parts) == 2 and not is_bound(node):
            window = self.window(exp.column(node.parts[0].name))
            return node if window is None else _part(window, node.name)
        if isinstance(node, exp.Dot) and (window := self.window(node.this)) is not None:
            return _part(window, node.expression.name)
        return node if (window := self.window(node)) is None else whole_window(window)

    def _late(self, node: exp.Expr) -> exp.Expr:
        """Keys as columns of the groups; what is left belongs to single rows."""
        if not isinstance(node, exp.Column):
            return physical(self._keys[node]) if node in self._keys else node
        if node.meta.get(_GROUPED) or _is_unit(node):
            return node
        if node not in self._keys:
            raise UnknownColumn(
                f"'{node.name}' is neither in GROUP BY nor inside an aggregate, so a group has no one value "
                f"of it; write e.g. max({node.name}), or group by it."
            )
        return physical(self._keys[node])


def _is_unit(node: exp.Column) -> bool:
    call = node.parent
    return isinstance(call, exp.Anonymous) and call.name.lower() in UNITS_FIRST and node.index == 0


def _part(window: Column, field: str) -> exp.Expr:
    if field.lower() not in ("start", "end"):
        raise UnknownColumn(f"A window has no field '{field}'; it has start and end.")
    assert window.end is not None
    return physical(window.physical if field.lower() == "start" else window.end)
