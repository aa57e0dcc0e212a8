"""Plans of requests: which joins, in which order, by statistics of the data.

The two relations whose join is expected to be smallest are joined first, so plans are bushy and their parts
run side by side.  Relations that can come sorted by the variable that joins them are merged, others hashed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from headgate.api.sparql.algebra import (
    Bound,
    Compare,
    Condition,
    Constant,
    Group,
    Not,
    Optional,
    Term,
    Triple,
    Union,
    Variable,
    conjuncts,
    used,
)
from headgate.connectors.triples import Predicate, Store
from headgate.errors import PipelineError

Variables = frozenset[Variable]
_INEQUAL = 0.4
"""Share of rows for which a condition is expected to hold, other than that two variables are equal."""


@dataclass(frozen=True)
class Expected:
    """What is expected of a relation's rows."""

    rows: float
    distinct: Mapping[Variable, float]
    ranges: Mapping[Variable, tuple[int, int]]
    unbound: Variables = frozenset()
    """Variables that some rows may not bind."""

    @property
    def variables(self) -> Variables:
        return frozenset(self.distinct)


@dataclass(frozen=True)
class Plan:
    expected: Expected

    @property
    def variables(self) -> Variables:
        return self.expected.variables

    @property
    def orders(self) -> Variables:
        """Variables by which it can come sorted, one at a time."""
        return frozenset()


@dataclass(frozen=True)
class Scan(Plan):
    """A triple pattern: terms as numbers, -1 for one that no triple has."""

    terms: tuple[Variable | int, Variable | int, Variable | int]

    @property
    def orders(self) -> Variables:
        s, p, o = self.terms
        if isinstance(p, Variable):
            # All triples are sorted by subject only.
            return frozenset({s} if isinstance(s, Variable) else ())
        found = {term for term in (s, o) if isinstance(term, Variable)}
        return frozenset(found)


@dataclass(frozen=True)
class Filtered(Plan):
    plan: Plan
    conditions: tuple[Condition, ...]

    @property
    def orders(self) -> Variables:
        return self.plan.orders


@dataclass(frozen=True)
class Joined(Plan):
    left: Plan
    right: Plan
    on: tuple[tuple[Variable, Variable], ...]
    conditions: tuple[Condition, ...] = ()
    how: str = "inner"

    @property
    def merges(self) -> bool:
        return (
            self.how == "inner"
            and len(self.on) == 1
            and self.on[0][0] in self.left.orders
            and self.on[0][1] in self.right.orders
        )

    @property
    def orders(self) -> Variables:
        if self.merges:
            return frozenset(self.on[0])
        # A hash join leaves the left rows in their order.
        return self.left.orders


@dataclass(frozen=True)
class United(Plan):
    parts: tuple[Plan, ...] = field(default=())


class Planner:
    """Makes plans of patterns."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def plan(self, group: Group) -> Plan:
        if not group.patterns:
            raise PipelineError("SPARQL: a group without a triple pattern is not supported.")
        relations, conditions = [], list(group.conditions)
        for pattern in group.patterns:
            relations.append(self._relation(pattern, conditions))
        relations = [self._filtered(relation, conditions) for relation in relations]
        while len(relations) > 1:
            joins = [
                self._join(one, two, conditions)
                for one, two in combinations(relations, 2)
                if self._keys(one, two, conditions)
            ]
            if not joins:
                one, two, *_ = sorted(relations, key=lambda plan: plan.expected.rows)
                joins = [self._join(one, two, conditions)]
            best = min(joins, key=lambda join: (join.expected.rows, join.left.expected.rows))
            for condition in (*best.conditions, *(_equal(a, b) for a, b in best.on if a != b)):
                for known in [c for c in conditions if _same(c, condition)]:
                    conditions.remove(known)
            relations = [plan for plan in relations if plan is not best.left and plan is not best.right]
            relations.append(best)
        return self._filtered(relations[0], conditions)

    def _relation(self, pattern: Triple | Union | Optional, conditions: list[Condition]) -> Plan:
        match pattern:
            case Triple():
                return self._scan(pattern)
            case Union(parts):
                plans = tuple(self.plan(part) for part in parts)
                return United(_united([plan.expected for plan in plans]), plans)
            case Optional():
                return self._optional(pattern, conditions)

    # --- scans --------------------------------------------------------------------------------------

    def _scan(self, triple: Triple) -> Plan:
        numbers = [self._number(term) for term in (triple.s, triple.p, triple.o)]
        s, p, o = numbers
        known: Predicate | None = self._store.all
        if not isinstance(p, Variable):
            known = self._store.predicates.get(p)
        if known is None or -1 in numbers:
            nothing = dict.fromkeys(triple.variables, 1.0)
            return Scan(Expected(0.0, nothing, dict.fromkeys(nothing, (1, 0))), (s, p, o))
        rows = float(known.rows)
        for side, term, others in (("s", s, known.subjects), ("o", o, known.objects)):
            if not isinstance(term, Variable):
                exact = known.number is not None and rows == known.rows
                rows = float(self._store.count(known.number, side, term)) if exact else rows / others  # type: ignore[arg-type]
        distinct: dict[Variable, float] = {}
        ranges: dict[Variable, tuple[int, int]] = {}
        whole = (0, self._store.kinds[-1] - 1)
        columns = (
            (s, known.subjects, whole),
            (p, len(self._store.predicates), whole),
            (o, known.objects, (known.low, known.high)),
        )
        for term, different, span in columns:
            if isinstance(term, Variable):
                distinct[term] = max(min(float(different), rows), 1.0)
                ranges[term] = span
        return Scan(Expected(rows, distinct, ranges), (s, p, o))

    def _number(self, term: Term) -> Variable | int:
        if isinstance(term, Constant):
            place, there = self._store.place(term.kind, term.text)
            return place if there else -1
        return term

    # --- joins --------------------------------------------------------------------------------------

    def _keys(
        self, one: Plan, two: Plan, conditions: Iterable[Condition]
    ) -> tuple[tuple[Variable, Variable], ...]:
        """Variables that must be equal: shared ones, and those that a condition equates."""
        shared = sorted(one.variables & two.variables, key=lambda variable: variable.name)
        for variable in shared:
            if variable in one.expected.unbound | two.expected.unbound:
                raise PipelineError(
                    f"SPARQL: ?{variable.name} joins patterns, but an OPTIONAL or a UNION may leave it "
                    "unbound; that is not supported."
                )
        keys = [(variable, variable) for variable in shared]
        for condition in conditions:
            pair = _equated(condition)
            if pair is not None:
                a, b = pair if pair[0] in one.variables else pair[::-1]
                if a in one.variables and b in two.variables and a not in two.variables:
                    keys.append((a, b))
        return tuple(keys)

    def _join(self, one: Plan, two: Plan, conditions: Sequence[Condition]) -> Joined:
        # The smaller relation goes into the table of a hash join.
        left, right = (one, two) if one.expected.rows >= two.expected.rows else (two, one)
        on = self._keys(left, right, conditions)
        both = left.variables | right.variables
        ready = tuple(c for c in conditions if used(c) <= both and not _among(c, on))
        expected = _joined(left.expected, right.expected, on, len(ready))
        return Joined(expected, left, right, on, ready)

    def _optional(self, pattern: Optional, conditions: list[Condition]) -> Plan:
        left = self.plan(pattern.left)
        of_right = set(pattern.right.variables)
        mine = [c for c in pattern.conditions if used(c) <= of_right - left.variables]
        right = self.plan(Group(pattern.right.patterns, (*pattern.right.conditions, *mine)))
        others = [c for c in pattern.conditions if c not in mine]
        on = self._keys(left, right, others)
        rest = tuple(c for c in others if not _among(c, on))
        fresh = right.variables - left.variables
        how = "left"
        for condition in conditions:
            # Who asks that a variable of the right side is not bound wants the rows without a partner.
            match condition:
                case Not(Bound(variable)) if variable in fresh - right.expected.unbound:
                    conditions.remove(condition)
                    how = "anti"
                    break
        inner = _joined(left.expected, right.expected, on, len(rest))
        rows = max(inner.rows, left.expected.rows) if how == "left" else left.expected.rows / 2
        ranges = {**inner.ranges, **left.expected.ranges}
        unbound = left.expected.unbound | right.expected.unbound | fresh
        return Joined(Expected(rows, inner.distinct, ranges, unbound), left, right, on, rest, how)

    def _filtered(self, plan: Plan, conditions: list[Condition]) -> Plan:
        ready = tuple(condition for condition in conditions if used(condition) <= plan.variables)
        if not ready:
            return plan
        for condition in ready:
            conditions.remove(condition)
        found = plan.expected
        rows = found.rows * _INEQUAL ** len(ready)
        distinct = {v: max(min(n, rows), 1.0) for v, n in found.distinct.items()}
        return Filtered(Expected(rows, distinct, found.ranges, found.unbound), plan, ready)


def _joined(
    left: Expected, right: Expected, on: Sequence[tuple[Variable, Variable]], conditions: int
) -> Expected:
    rows = left.rows * right.rows
    for a, b in on:
        rows /= max(left.distinct[a], right.distinct[b])
    rows *= math.pow(_INEQUAL, conditions)
    distinct = {**right.distinct, **left.distinct}
    for a, b in on:
        distinct[a] = distinct[b] = min(left.distinct[a], right.distinct[b])
    distinct = {variable: max(min(count, rows), 1.0) for variable, count in distinct.items()}
    ranges = {**right.ranges, **left.ranges}
    return Expected(rows, distinct, ranges, left.unbound | right.unbound)


def _united(parts: Sequence[Expected]) -> Expected:
    variables = frozenset().union(*(part.variables for part in parts))
    distinct = {v: sum(part.distinct.get(v, 0.0) for part in parts) for v in variables}
    spans = {v: [part.ranges[v] for part in parts if v in part.ranges] for v in variables}
    ranges = {v: (min(low for low, _ in s), max(high for _, high in s)) for v, s in spans.items()}
    unbound = {v for part in parts for v in part.unbound | (variables - part.variables)}
    return Expected(sum(part.rows for part in parts), distinct, ranges, frozenset(unbound))


def _equated(condition: Condition) -> tuple[Variable, Variable] | None:
    match condition:
        case Compare("=", Variable() as left, Variable() as right):
            return left, right
    return None


def _equal(a: Variable, b: Variable) -> Condition:
    return Compare("=", a, b)


def _same(one: Condition, two: Condition) -> bool:
    pairs = _equated(one), _equated(two)
    return one == two or (None not in pairs and set(pairs[0] or ()) == set(pairs[1] or ()))


def _among(condition: Condition, on: Iterable[tuple[Variable, Variable]]) -> bool:
    """Whether the keys of a join see to a condition."""
    return any(_same(condition, _equal(a, b)) for a, b in on if a != b)


__all__ = ["Filtered", "Joined", "Plan", "Planner", "Scan", "United", "conjuncts"]
