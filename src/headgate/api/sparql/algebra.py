"""SPARQL text to patterns and conditions.  rdflib parses it; what is not supported is an error here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headgate.connectors.triples import INTEGER, IRI, STRING
from headgate.errors import PipelineError

_KNOWN = (
    "SELECT (DISTINCT) with triple patterns, FILTER with comparisons, bound, &&, || and !, OPTIONAL, UNION, "
    "ORDER BY variables, LIMIT and OFFSET"
)
_OPERATORS = {"=", "!=", "<", "<=", ">", ">="}
_XSD = "http://www.w3.org/2001/XMLSchema#"
_INTEGERS = {_XSD + name for name in ("integer", "int", "long", "short", "byte", "nonNegativeInteger")}


@dataclass(frozen=True)
class Variable:
    name: str


@dataclass(frozen=True)
class Constant:
    kind: int
    text: str


Term = Variable | Constant


@dataclass(frozen=True)
class Compare:
    op: str
    left: Term
    right: Term


@dataclass(frozen=True)
class Bound:
    variable: Variable


@dataclass(frozen=True)
class Not:
    part: Condition


@dataclass(frozen=True)
class Both:
    """All parts hold, or any of them."""

    word: str
    parts: tuple[Condition, ...]


Condition = Compare | Bound | Not | Both


@dataclass(frozen=True)
class Triple:
    """A triple pattern."""

    s: Term
    p: Term
    o: Term

    @property
    def variables(self) -> list[Variable]:
        return list(dict.fromkeys(term for term in (self.s, self.p, self.o) if isinstance(term, Variable)))


@dataclass(frozen=True)
class Union:
    parts: tuple[Group, ...]

    @property
    def variables(self) -> list[Variable]:
        return _all(self.parts)


@dataclass(frozen=True)
class Optional:
    """The left pattern, and where the condition holds for both, also the right one."""

    left: Group
    right: Group
    conditions: tuple[Condition, ...]

    @property
    def variables(self) -> list[Variable]:
        return _all((self.left, self.right))


@dataclass(frozen=True)
class Group:
    """Patterns that are joined, and conditions that all hold."""

    patterns: tuple[Triple | Union | Optional, ...]
    conditions: tuple[Condition, ...] = ()

    @property
    def variables(self) -> list[Variable]:
        return _all(self.patterns)


@dataclass(frozen=True)
class Question:
    """A SELECT query."""

    pattern: Group
    variables: tuple[Variable, ...]
    distinct: bool
    order: tuple[tuple[Variable, bool], ...]
    """Variables, and whether they descend."""
    limit: int | None
    offset: int


def parse(text: str) -> Question:
    """The question that a text asks."""
    from pyparsing import ParseException
    from rdflib.plugins.sparql.algebra import translateQuery
    from rdflib.plugins.sparql.parser import parseQuery

    try:
        algebra = translateQuery(parseQuery(text)).algebra
    except ParseException as error:
        line = text.splitlines()[error.lineno - 1] if text.strip() else ""
        if found := re.match(
            r"\s*(?:(?:PREFIX|BASE)[^>]*>\s*)*(INSERT|DELETE|LOAD|CLEAR|DROP)\b", text, re.I
        ):
            raise _unsupported(f"{found[1].upper()} (triples are only read)") from None
        raise PipelineError(
            f"This SPARQL does not parse: line {error.lineno}, column {error.column}: {line.strip()!r}."
        ) from None
    except (
        Exception
    ) as error:  # rdflib raises plain exceptions: an unknown prefix, a variable that is used twice
        unknown = re.match(r"Unknown namespace prefix : (.*)", str(error))
        if unknown is not None:
            raise PipelineError(
                f"SPARQL: nothing says what the prefix '{unknown[1]}:' stands for. Begin with "
                f"'PREFIX {unknown[1]}: <http://…>'."
            ) from None
        raise PipelineError(f"This SPARQL does not parse: {error}") from None
    if algebra.name != "SelectQuery":
        raise _unsupported(algebra.name.removesuffix("Query").upper())
    if algebra.datasetClause:
        raise _unsupported("FROM")
    return _question(algebra.p, tuple(Variable(str(v)) for v in algebra.PV))


def conjuncts(conditions: Iterable[Condition]) -> Iterator[Condition]:
    """Conditions that hold together, each for itself."""
    for condition in conditions:
        if isinstance(condition, Both) and condition.word == "AND":
            yield from conjuncts(condition.parts)
        else:
            yield condition


def used(condition: Condition) -> set[Variable]:
    """The variables that a condition looks at."""
    match condition:
        case Compare(_, left, right):
            return {term for term in (left, right) if isinstance(term, Variable)}
        case Bound(variable):
            return {variable}
        case Not(part):
            return used(part)
        case Both(_, parts):
            return set().union(*map(used, parts))


def _question(node: Any, variables: tuple[Variable, ...]) -> Question:
    limit, offset, distinct, order = None, 0, False, []
    while True:
        match node.name:
            case "Slice":
                limit, offset = node.length, node.start
            case "Distinct":
                distinct = True
            case "Project":
                pass
            case "OrderBy":
                order = [_ordered(each) for each in node.expr]
            case _:
                return Question(_group(node), variables, distinct, tuple(order), limit, offset)
        node = node.p


def _ordered(node: Any) -> tuple[Variable, bool]:
    term = _term(node.expr) if not hasattr(node.expr, "name") else None
    if not isinstance(term, Variable):
        raise _unsupported("ORDER BY an expression")
    return term, node.order == "DESC"


def _group(node: Any) -> Group:
    match node.name:
        case "BGP":
            return Group(tuple(Triple(*map(_term, triple)) for triple in node.triples))
        case "Join":
            one, two = _group(node.p1), _group(node.p2)
            return Group((*one.patterns, *two.patterns), (*one.conditions, *two.conditions))
        case "Union":
            return Group((Union((_group(node.p1), _group(node.p2))),))
        case "Filter":
            inner = _group(node.p)
            conditions = tuple(conjuncts([_condition(node.expr)]))
            _check_scope(conditions, inner.variables)
            return Group(inner.patterns, (*inner.conditions, *conditions))
        case "LeftJoin":
            left, right = _group(node.p1), _group(node.p2)
            always = getattr(node.expr, "name", "") == "TrueFilter"
            conditions = () if always else tuple(conjuncts([_condition(node.expr)]))
            _check_scope(conditions, [*left.variables, *right.variables])
            return Group((Optional(left, right, conditions),))
    raise _unsupported(_WORDS.get(node.name, node.name))


_WORDS = {
    "Extend": "BIND, AS or an aggregate",
    "AggregateJoin": "an aggregate",
    "Group": "GROUP BY",
    "ToMultiSet": "VALUES or a query inside a query",
    "Minus": "MINUS",
    "Graph": "GRAPH",
    "ServiceGraphPattern": "SERVICE",
    "Reduced": "REDUCED",
}


def _check_scope(conditions: Sequence[Condition], known: Sequence[Variable]) -> None:
    for condition in conditions:
        for variable in used(condition) - set(known):
            raise PipelineError(
                f"FILTER looks at ?{variable.name}, which its group does not bind; move the FILTER to the "
                "group that does, or correct the name."
            )


def _condition(node: Any) -> Condition:
    name = getattr(node, "name", "")
    match name:
        case "RelationalExpression" if node.op in _OPERATORS and not isinstance(node.other, list):
            return Compare(node.op, _operand(node.expr), _operand(node.other))
        case "ConditionalAndExpression" | "ConditionalOrExpression":
            word = "AND" if name == "ConditionalAndExpression" else "OR"
            return Both(word, tuple(map(_condition, [node.expr, *node.other])))
        case "UnaryNot":
            return Not(_condition(node.expr))
        case "Builtin_BOUND":
            return Bound(Variable(str(node.arg)))
    if name == "RelationalExpression":
        raise _unsupported(f"'{node.op}' in FILTER")
    raise _unsupported(f"{_said(name) if name else 'a term alone'} in FILTER")


def _said(name: str) -> str:
    words = {"AdditiveExpression": "+ or -", "MultiplicativeExpression": "* or /", "NOTEXISTS": "NOT EXISTS"}
    name = name.removeprefix("Builtin_")
    return words.get(name, name)


def _operand(node: Any) -> Term:
    if getattr(node, "name", "") == "UnaryMinus":
        inner = _operand(node.expr)
        if isinstance(inner, Constant) and inner.kind == INTEGER:
            return Constant(INTEGER, str(-int(inner.text)))
    if hasattr(node, "name"):
        raise _unsupported(f"{_said(node.name)} in FILTER")
    return _term(node)


def _term(node: Any) -> Term:
    from rdflib.paths import Path
    from rdflib.term import BNode, Literal, URIRef
    from rdflib.term import Variable as Named

    if isinstance(node, Named):
        return Variable(str(node))
    if isinstance(node, BNode):
        return Variable(f"_{node}")  # a blank node in a pattern is a variable that is not asked for
    if isinstance(node, URIRef):
        return Constant(IRI, str(node))
    if isinstance(node, Path):
        raise _unsupported("a property path")
    if not isinstance(node, Literal) or node.language:
        raise _unsupported(f"the term {node.n3()}")
    if node.datatype is None or str(node.datatype) == _XSD + "string":
        return Constant(STRING, str(node))
    if str(node.datatype) in _INTEGERS:
        return Constant(INTEGER, str(int(node)))
    raise _unsupported(f"a literal of type {node.datatype}")


def _all(parts: Iterable[Any]) -> list[Variable]:
    return list(dict.fromkeys(variable for part in parts for variable in part.variables))


def _unsupported(what: str) -> PipelineError:
    return PipelineError(f"SPARQL: {what} is not supported. Headgate answers {_KNOWN}.")
