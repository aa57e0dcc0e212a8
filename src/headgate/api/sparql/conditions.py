"""Conditions of SPARQL as Spark SQL over the numbers of terms.

The order of numbers is the order of terms, so a comparison is one of numbers.  Where SPARQL has an error (an
integer is compared with a text, or a variable is not bound), SQL has null: AND, OR and NOT treat both alike.
"""

from __future__ import annotations

from collections.abc import Mapping

from headgate.api.sparql.algebra import Both, Bound, Compare, Condition, Constant, Not, Term, Variable
from headgate.connectors.triples import INTEGER, STRING, Store
from headgate.errors import PipelineError

Ranges = Mapping[Variable, tuple[int, int]]
"""For each variable the least and the greatest number that it can have."""


class Conditions:
    """Writes conditions; ``column`` names the column of a variable."""

    def __init__(self, store: Store, columns: Mapping[Variable, str]) -> None:
        self._store, self._columns = store, columns

    def sql(self, condition: Condition, ranges: Ranges) -> str:
        match condition:
            case Bound(variable):
                return f"{self._name(variable)} IS NOT NULL"
            case Not(part):
                return f"NOT ({self.sql(part, ranges)})"
            case Both(word, parts):
                return f" {word} ".join(f"({self.sql(part, ranges)})" for part in parts)
            case Compare(op, left, right):
                return self._compare(op, left, right, ranges)

    def _compare(self, op: str, left: Term, right: Term, ranges: Ranges) -> str:
        if isinstance(left, Constant) and isinstance(right, Variable):
            turned = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(op, op)
            return self._compare(turned, right, left, ranges)
        if isinstance(left, Constant):
            raise PipelineError("SPARQL: a FILTER compares two constants; it must look at a variable.")
        kinds = [self._kinds(term, ranges) for term in (left, right)]
        one = self._name(left)
        if isinstance(right, Constant):
            place, there = self._store.place(right.kind, right.text)
            if not there:  # compared with the place where it would stand
                op, place = {"<=": "<", ">": ">="}.get(op, op), -1 if op in ("=", "!=") else place
            two = str(place)
        else:
            two = self._name(right)
        plain = f"{one} {'<>' if op == '!=' else op} {two}"
        if op in ("=", "!="):
            literals = [found & {INTEGER, STRING} for found in kinds]
            if len(literals[0] | literals[1]) < 2 or not all(literals):
                return plain
            pairs = ((INTEGER, STRING), (STRING, INTEGER))
            apart = " OR ".join(f"({self._of_kinds(left, right, *pair)})" for pair in pairs)
            return f"CASE WHEN {apart} THEN NULL ELSE {plain} END"
        for kind in (INTEGER, STRING):
            if kinds == [{kind}, {kind}]:
                return plain
        same = " OR ".join(f"({self._of_kinds(left, right, kind, kind)})" for kind in (INTEGER, STRING))
        return f"CASE WHEN {same} THEN {plain} ELSE NULL END"

    def _of_kinds(self, left: Term, right: Term, one: int, two: int) -> str:
        return f"{self._is(left, one)} AND {self._is(right, two)}"

    def _is(self, term: Term, kind: int) -> str:
        if isinstance(term, Constant):
            return "true" if term.kind == kind else "false"
        low, high = self._store.kinds[kind], self._store.kinds[kind + 1]
        return f"{self._name(term)} >= {low} AND {self._name(term)} < {high}"

    def _kinds(self, term: Term, ranges: Ranges) -> set[int]:
        if isinstance(term, Constant):
            return {term.kind}
        low, high = ranges[term]
        return set(range(self._store.kind(low), self._store.kind(high) + 1)) if low <= high else {INTEGER}

    def _name(self, variable: Variable) -> str:
        return f"`{self._columns[variable]}`"
