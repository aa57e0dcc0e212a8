"""Joins: keys from the equalities of ON and WHERE, the interval from their bounds in time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headgate.api.sql.relation import Column, Relation, alias_of, is_bound, physical
from headgate.api.sql.sharing import Boxes
from headgate.api.streams import KeyedStream, Stream
from headgate.errors import ExpressionError, TypeMismatch
from headgate.graph.durations import spell_duration
from headgate.graph.network import sources_before
from headgate.sql import types as t
from headgate.sql.intervals import DAY, constant_interval
from headgate.sql.parse import write

EVERYTHING = "*"
Moment = tuple[str, int]
"""A column of times, and microseconds to add to it."""


@dataclass
class _Plan:
    """What the conditions of a join say."""

    keys: list[tuple[exp.Expr, exp.Expr]] = field(default_factory=list)
    """Trees of both sides that must be equal, each bound to its side."""
    times: tuple[str, str] | None = None
    """The columns whose distance in time is bounded."""
    low: int = 0
    high: int = 0
    """Microseconds that the left time is at least and at most after the right one."""
    checks: list[exp.Expr] = field(default_factory=list)
    """Conditions that remain to be checked of every pair."""


class Sides:
    """Two relations side by side: conditions find their columns in both, and need one side or both."""

    def __init__(self, left: Relation, right: Relation) -> None:
        self.left, self.right = left, right
        self.both = Relation(left.stream, (*left.columns, *right.columns))

    def of(self, tree: exp.Expr) -> int | None:
        """0 or 1 if a condition needs that side alone, 2 if it needs both; None if it needs others too."""
        needed = set()
        for column in tree.find_all(exp.Column):
            found = self.both.column(column)
            if found is None:
                return None
            needed.add(0 if any(found[0] is mine for mine in self.left.columns) else 1)
        return None if not needed else 2 if len(needed) == 2 else needed.pop()

    def operands(self, tree: exp.Expr) -> tuple[exp.Expr, exp.Expr, bool] | None:
        """The operands of a comparison, the left side's first, and whether they were the other way round."""
        places = self.of(tree.this), self.of(tree.expression)
        if places == (0, 1):
            return tree.this, tree.expression, False
        return (tree.expression, tree.this, True) if places == (1, 0) else None

    def plan(self, conditions: Sequence[exp.Expr]) -> _Plan:
        """Keys, interval and the rest of the conditions."""
        plan = _Plan()
        equal: list[tuple[Moment, Moment]] = []
        bounds: dict[tuple[str, str], _Interval] = {}
        for condition in self._simple(conditions):
            operands = self.operands(condition) if isinstance(condition, _COMPARED) else None
            if operands is None:
                plan.checks.append(condition)
                continue
            one, two, turned = operands
            left, right = self.left.bind(one), self.right.bind(two)
            moments = _moment(left, self.left), _moment(right, self.right)
            if isinstance(condition, exp.EQ):
                if moments[0] is not None and moments[1] is not None and moments[0][1] == moments[1][1] == 0:
                    equal.append((moments[0], moments[1]))
                else:
                    plan.keys.append((left, right))
                continue
            if moments[0] is None or moments[1] is None:
                plan.checks.append(condition)
                continue
            pair = moments[0][0], moments[1][0]
            bounds.setdefault(pair, _Interval()).narrow(condition, moments[1][1] - moments[0][1], turned)
        for left_time, right_time in equal:
            if plan.times is None:
                plan.times = left_time[0], right_time[0]
            else:
                plan.keys.append((physical(left_time[0]), physical(right_time[0])))
        for pair, interval in bounds.items():
            if plan.times is None and interval.low is not None and interval.high is not None:
                plan.times, plan.low, plan.high = pair, interval.low, interval.high
            else:
                plan.checks += interval.conditions
        return plan

    def _simple(self, conditions: Sequence[exp.Expr]) -> Iterator[exp.Expr]:
        """The conditions, with BETWEEN as two comparisons, and equal windows as equal bounds."""
        for condition in conditions:
            if isinstance(condition, exp.Paren) and isinstance(condition.this, (*_COMPARED, exp.Between)):
                condition = condition.this
            if isinstance(condition, exp.Between):
                low, high = condition.args["low"], condition.args["high"]
                yield exp.GTE(this=condition.this.copy(), expression=low.copy())
                yield exp.LTE(this=condition.this.copy(), expression=high.copy())
                continue
            equal = isinstance(condition, exp.EQ) and self.both.window(condition.this) is not None
            if not equal or self.both.window(condition.expression) is None:
                yield condition
                continue
            for part in ("end", "start"):
                one, two = (
                    exp.column(part, *[p.name for p in side.parts][::-1])
                    for side in (condition.this, condition.expression)
                )
                yield exp.EQ(this=one, expression=two)


@dataclass
class _Interval:
    """How far the left time may be from the right one, in microseconds."""

    low: int | None = None
    high: int | None = None
    conditions: list[exp.Expr] = field(default_factory=list)

    def narrow(self, comparison: exp.Expr, distance: int, turned: bool) -> None:
        """``left op right + distance``, or, if turned, ``right + distance op left``."""
        self.conditions.append(comparison)
        below = isinstance(comparison, exp.LT | exp.LTE) is not turned
        if isinstance(comparison, exp.LT | exp.GT):
            distance += -1 if below else 1
        if below:
            self.high = distance if self.high is None else min(self.high, distance)
        else:
            self.low = distance if self.low is None else max(self.low, distance)


_COMPARED = (exp.EQ, exp.LT, exp.LTE, exp.GT, exp.GTE)


def _moment(bound: exp.Expr, relation: Relation) -> Moment | None:
    """A bound tree as a column of times plus a constant; None if it is something else."""
    while isinstance(bound, exp.Paren):
        bound = bound.this
    if is_bound(bound):
        kind = relation.schema.field(bound.name).type
        return (bound.name, 0) if pa.types.is_timestamp(kind) or pa.types.is_date32(kind) else None
    if isinstance(bound, exp.Add | exp.Sub):
        interval = constant_interval(bound.expression)
        inner = _moment(bound.this, relation)
        if interval is not None and not interval.months and inner is not None:
            distance = interval.days * DAY + interval.micros
            return inner[0], inner[1] + (distance if isinstance(bound, exp.Add) else -distance)
    return None


def join(
    boxes: Boxes, sides: Sides, conditions: Sequence[exp.Expr], how: str, needed: Collection[str], text: str
) -> tuple[Relation, list[exp.Expr]]:
    """Two relations joined, and conditions that remain to be checked of their pairs.

    ``needed`` are the names that the query uses, in lower case.
    """
    plan = sides.plan(conditions)
    _check(sides, plan, how, text)
    keys = [_comparable(pair, sides) for pair in plan.keys] or [(_ONE, _ONE)]
    left_time, right_time = plan.times or (None, None)
    outer = how in ("left", "right", "full")
    left = _Prepared(sides.left, [one for one, _ in keys], left_time, needed, (), copies=outer)
    gathered = bool(plan.checks) and how != "inner"
    taken = () if how in ("semi", "anti") and not gathered else left.used
    right = _Prepared(sides.right, [two for _, two in keys], right_time, needed, taken, copies=outer)
    options: dict[str, Any] = {} if how == "inner" else {"how": how}
    if plan.times is not None:
        # A stream's join says how much later the right row is.
        options["within"] = (-plan.high / 1e6, -plan.low / 1e6)
        options["on"] = (left.time, right.time)
        late = max(sides.left.lateness or 0, sides.right.lateness or 0)
        options |= {"lateness": spell_duration(late)} if late else {}
    one, two = (KeyedStream(side.stream(boxes), side.keys) for side in (left, right))
    if gathered:
        both = Relation(one._stream, (*left.columns(), *right.columns()))
        where = " AND ".join(f"({both.text(check)})" for check in plan.checks)
        stream, plan.checks = boxes.hash_join(one, two, how, where), []
    else:
        stream = boxes.join(one, two, **options)
    # The right side's keys do not leave a join, since the left side's are equal to them.
    same = dict(zip(right.keys, left.keys, strict=True))
    columns = [*left.columns(), *([] if how in ("semi", "anti") else right.columns(same))]
    lateness = None
    if plan.times is not None and sides.left.lateness is not None and sides.right.lateness is not None:
        late = max(sides.left.lateness, sides.right.lateness)
        lateness = 2 * max(abs(plan.low), abs(plan.high)) + late
    if lateness != 0:
        columns = [replace(column, period=None) for column in columns]
    return Relation(stream, tuple(columns), lateness), plan.checks


def _check(sides: Sides, plan: _Plan, how: str, text: str) -> None:
    """Refuse a join that cannot be."""
    for side in (sides.left, sides.right):
        if side.groups is not None:
            raise ExpressionError(
                f"{text!r} joins the results of a GROUP BY without a window, which change with every row. "
                "Give that GROUP BY a window, as in GROUP BY window(ts, '1 minute')."
            )
    if not plan.keys and plan.times is None:
        raise ExpressionError(
            f"{text!r} pairs every row with every other row. Add an equality of the two sides, as in "
            "ON a.id = b.id, or a bound in time, as in ON a.ts BETWEEN b.ts AND b.ts + INTERVAL 1 MINUTE."
        )
    if how == "inner":
        return
    endless = _endless(sides)
    if plan.checks and (endless or how not in _GATHERED):
        raise ExpressionError(
            f"{text!r}: {write(plan.checks[0])!r} is neither an equality nor a bound in time, so it cannot "
            f"be a condition of an outer, semi or anti join{_ENDLESS if endless else ''}. Compute it before, "
            "and compare with =."
        )
    if plan.times is None and how != "semi" and endless:
        raise ExpressionError(
            f"{text!r}: a row has no partner for certain only when time has passed, or at the end, which "
            f"source '{endless[0]}' has not. Bound the join in time, as in AND a.ts BETWEEN b.ts AND b.ts + "
            "INTERVAL 1 HOUR."
        )


_GATHERED = ("left", "semi", "anti")
"""Joins that a hash join at the end of finite sources can do with any condition."""
_ENDLESS = " of sources without an end"


def _endless(sides: Sides) -> list[str]:
    """Sources of either side that have no end."""
    before = [*sources_before(sides.left.stream._port), *sources_before(sides.right.stream._port)]
    return [source.name for source in before if not source.origin.finite]


_ONE = exp.Literal.number(1)


def _comparable(pair: tuple[exp.Expr, exp.Expr], sides: Sides) -> tuple[exp.Expr, exp.Expr]:
    """Keys of one type."""
    one, two = sides.left.type_of(pair[0]), sides.right.type_of(pair[1])
    if one == two:
        return pair
    common = t.common_type(one, two)
    if common is None:
        raise TypeMismatch(
            f"{write(pair[0])!r} is {t.spark_name(one)} and {write(pair[1])!r} is {t.spark_name(two)}, so "
            "they are never equal; CAST one of them."
        )
    left, right = (
        tree if kind == common else exp.cast(tree, t.spark_name(common), dialect="spark")
        for tree, kind in zip(pair, (one, two), strict=True)
    )
    return left, right


class _Prepared:
    """One side of a join, with the columns that are needed, under names that the other side has not."""

    def __init__(
        self,
        relation: Relation,
        keys: Sequence[exp.Expr],
        time: str | None,
        needed: Collection[str],
        taken: Collection[str],
        *,
        copies: bool,
    ) -> None:
        """``copies``: keys are columns of their own, since a row without partner has nulls and yet a key."""
        self.relation = relation
        wanted = {time, *(key.name for key in keys if is_bound(key) and not copies)}
        for column in relation.columns:
            if EVERYTHING in needed or column.name.lower() in needed:
                wanted |= {*column.physicals}
        self.used = {name.lower() for name in taken}
        self.names: dict[str, str] = {}
        """The names under which the stream's columns go into the join."""
        for name in relation.schema.names:
            if name in wanted:
                self.names[name] = _free(name, self.used)
        self._computed: list[tuple[str, str]] = []
        self.keys = [self.names[k.name] if is_bound(k) and not copies else self._add(k) for k in keys]
        self.time = None if time is None else self.names[time]

    def _add(self, key: exp.Expr) -> str:
        new = _free("_k", self.used)
        self._computed.append((write(key), new))
        return new

    def stream(self, boxes: Boxes) -> Stream:
        if not self._computed and list(self.names.items()) == [(n, n) for n in self.relation.schema.names]:
            return self.relation.stream
        pairs = [(write(physical(old)), new) for old, new in self.names.items()] + self._computed
        texts = [old if old == alias_of(new) else f"{old} AS {alias_of(new)}" for old, new in pairs]
        return boxes.select(self.relation.stream, texts)

    def columns(self, same: dict[str, str] | None = None) -> list[Column]:
        """The columns of this side behind the join."""
        found = []
        for column in self.relation.columns:
            names = [self.names.get(name) for name in column.physicals]
            if None not in names:
                start, *end = [(same or {}).get(str(name), str(name)) for name in names]
                found.append(replace(column, physical=start, end=end[0] if end else None))
        return found


def _free(name: str, used: set[str]) -> str:
    """The name, or one like it that is free; it is taken from now on."""
    new, number = name, 2
    while new.lower() in used:
        new, number = f"{name}_{number}", number + 1
    used.add(new.lower())
    return new


def together(conditions: Sequence[exp.Expr]) -> exp.Expr | None:
    """Conditions joined by AND; None if there are none."""
    if not conditions:
        return None
    whole = conditions[0]
    for condition in conditions[1:]:
        whole = exp.And(this=whole, expression=condition)
    return whole


def names_in(tree: exp.Expr) -> set[str]:
    """All names that a query uses, in lower case; ``*`` if it takes all columns of something."""
    names = {part.name.lower() for column in tree.find_all(exp.Column) for part in column.parts}
    names |= {name.name.lower() for j in tree.find_all(exp.Join) for name in j.args.get("using") or ()}
    stars = (star for star in tree.find_all(exp.Star) if not isinstance(star.parent, exp.Anonymous))
    return names | ({EVERYTHING} if any(True for _ in stars) else set())
