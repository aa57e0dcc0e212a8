"""OVER: running values of a partition, and ROW_NUMBER() that a WHERE around it bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from headgate.api.sql.grouping import is_aggregate
from headgate.api.sql.relation import Column, Rank, Relation, is_bound, physical
from headgate.api.sql.sharing import Boxes
from headgate.errors import ExpressionError
from headgate.sql.parse import write
from headgate.sql.registry import RUNNING_ONLY

_ROW_NUMBER = "row_number"


@dataclass(frozen=True)
class Over:
    """How trees are bound in which calls with OVER have become columns."""

    relation: Relation
    columns: Mapping[exp.Expr, str]
    ranks: Mapping[exp.Expr, Rank]

    def window(self, tree: exp.Expr) -> Column | None:
        return self.relation.window(tree)

    def bind(self, tree: exp.Expr) -> exp.Expr:
        def replaced(node: exp.Expr) -> exp.Expr:
            if not isinstance(node, exp.Window):
                return node
            if node in self.ranks:
                raise ExpressionError(
                    f"{write(node)!r} changes with every row that comes, so it has no value. Give it a name, "
                    "and bound it in a query around this one: SELECT … FROM (SELECT …, ROW_NUMBER() OVER (…) "
                    "AS place FROM …) WHERE place <= 10."
                )
            return physical(self.columns[node])

        first = exp.Paren(this=tree.copy()).transform(replaced, copy=False).this
        return self.relation.bind(first)


def over(
    boxes: Boxes, relation: Relation, trees: Iterable[exp.Expr], named: Mapping[str, exp.Window]
) -> tuple[Relation, Over]:
    """The relation with a column for every running value that the trees ask for."""
    columns: dict[exp.Expr, str] = {}
    ranks: dict[exp.Expr, Rank] = {}
    running: dict[tuple[str, ...], list[str]] = {}
    for call in (node for tree in trees for node in tree.find_all(exp.Window)):
        if call in columns or call in ranks:
            continue
        said, text = _specified(call, named), write(call)
        if relation.groups is not None:
            raise ExpressionError(
                f"{text!r} is over the results of a GROUP BY without a window, which change with every row. "
                "Give that GROUP BY a window, as in GROUP BY window(ts, '1 minute')."
            )
        keys = [relation.bind(key) for key in said.args.get("partition_by") or ()]
        added = [(key, relation.fresh(f"_p{place}")) for place, key in enumerate(keys) if not is_bound(key)]
        texts = [f"{write(key)} AS {name}" for key, name in added]
        relation = relation.over(boxes.with_columns(relation.stream, texts))
        names = dict(added)
        partition = tuple(key.name if is_bound(key) else names[key] for key in keys)
        order = said.args.get("order")
        timely = order is not None and _by_time(relation, order)
        ranked = call.this.name.lower() == _ROW_NUMBER
        lagging = call.this.name.lower() in RUNNING_ONLY
        if not ranked and not lagging and not is_aggregate(call.this):
            raise ExpressionError(
                f"{text!r}: with OVER there are ROW_NUMBER(), LAG(x) and aggregates such as sum(x) "
                "and count(*)."
            )
        if order is None:
            raise ExpressionError(
                f"{text!r} needs all rows of a partition, which never end. Add ORDER BY with the time column "
                "for the value so far, or aggregate a window: GROUP BY window(ts, '1 minute')."
            )
        if ranked and not timely:
            ranks[call] = _rank(relation, partition, order)
            continue
        if not timely:
            raise ExpressionError(
                f"{text!r}: a running value follows the stream; ORDER BY its time column, ascending."
            )
        _check_frame(said, text)
        value = "count(*)" if ranked else write(relation.bind(call.this))
        columns[call] = relation.fresh(f"_o{len(columns) + 1}")
        running.setdefault(partition, []).append(f"{value} AS {columns[call]}")
    stream = relation.stream
    for partition, values in running.items():
        stream = boxes.running(stream, partition, values)
    relation = relation.over(stream)
    return relation, Over(relation, columns, ranks)


def _rank(relation: Relation, partition: tuple[str, ...], order: exp.Order) -> Rank:
    periods = {name: relation.period(physical(name)) for name in partition}
    on = next(((name, period) for name, period in periods.items() if period is not None), None)
    keys = tuple(name for name, period in periods.items() if period is None)
    return Rank(keys, write(relation.bind(order)).strip().removeprefix("ORDER BY "), on)


def _specified(call: exp.Window, named: Mapping[str, exp.Window]) -> exp.Window:
    """The call's own specification, or the one of WINDOW w AS (...) that it names."""
    alias = call.args.get("alias")
    if alias is None:
        return call
    if alias.name.lower() not in named:
        raise ExpressionError(f"{write(call)!r}: there is no WINDOW {alias.name} AS (…) in this query.")
    return named[alias.name.lower()]


def _by_time(relation: Relation, order: exp.Order) -> bool:
    """Whether an order is that of a time column, oldest first."""
    if len(order.expressions) != 1 or order.expressions[0].args.get("desc"):
        return False
    key = relation.bind(order.expressions[0].this)
    return is_bound(key) and pa.types.is_timestamp(relation.schema.field(key.name).type)


def _check_frame(said: exp.Window, text: str) -> None:
    frame = said.args.get("spec")
    if frame is None:
        return
    start, side, end = (str(frame.args.get(part) or "").upper() for part in ("start", "start_side", "end"))
    if (start, side) != ("UNBOUNDED", "PRECEDING") or end not in ("CURRENT ROW", ""):
        raise ExpressionError(
            f"{text!r}: a running value is from the first row to the current one. For the last minutes, "
            "aggregate a sliding window: GROUP BY key, window(ts, '10 minutes', '1 minute')."
        )
