"""Catalyst's plans and expressions, as far as a translation needs them.

An attribute of a plan has a number of its own, whatever its name.  ``Columns`` maps numbers to the columns of
a stream, and ``text`` writes an expression in Spark SQL over those columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlglot import exp, parse_one
from sqlglot.errors import ParseError

from headgate.errors import PipelineError
from headgate.sql.names import quoted

Columns = Mapping[int, str]


def elements(sequence: Any) -> list[Any]:
    """A Scala sequence as a list."""
    return [sequence.apply(place) for place in range(sequence.size())]


def kind(node: Any) -> str:
    """What a node of a plan or of an expression is: its class."""
    return str(node.getClass().getSimpleName()).removesuffix("$")


def number(attribute: Any) -> int:
    return int(attribute.exprId().id())


def refused(node: Any, why: str) -> PipelineError:
    """A plan that cannot be taken over, and the node that stands in the way."""
    line = str(node.simpleString(60) if hasattr(node, "simpleString") else node)[:120]
    return PipelineError(f"from_spark: {kind(node)} stands in the way: {why} The node is: {line.strip()}")


def references(expression: Any) -> list[Any]:
    """The attributes that an expression reads."""
    return elements(expression.references().toSeq())


def text(expression: Any, columns: Columns) -> str:
    """An expression in Spark SQL, over the columns of a stream."""
    known: dict[tuple[str, ...], str] = {}
    for attribute in references(expression):
        if number(attribute) not in columns:
            raise refused(expression, f"it reads {attribute.name()}, which a stream does not have.")
        parts = (*elements(attribute.qualifier()), attribute.name())
        spelled = tuple(part.lower() for part in parts)
        column = columns[number(attribute)]
        if known.setdefault(spelled, column) != column:
            raise refused(expression, f"it reads two columns called {attribute.name()}; rename one of them.")
    try:
        tree = parse_one(_said(expression), read="spark")
    except ParseError as error:
        raise refused(expression, "its text is no Spark SQL.") from error
    return str(tree.transform(lambda node: _replaced(node, known)).sql(dialect="spark"))


def _said(expression: Any) -> str:
    """Catalyst's text of an expression; it leaves out what from_json reads, so that is put back."""
    said = str(expression.sql())
    todo = [expression]
    while todo:
        part = todo.pop()
        todo += elements(part.children())
        if kind(part) == "PythonUDF":
            raise refused(
                part, f"{part.name()} is a function of Python; use Spark's own, or @hg.udf in a stream."
            )
        if kind(part) == "JsonToStructs":
            said = said.replace(part.sql(), f"{part.sql()[:-1]}, '{part.schema().sql()}')")
    return said


def _replaced(node: exp.Expr, known: Mapping[tuple[str, ...], str]) -> exp.Expr:
    if isinstance(node, exp.Column):
        parts = [part.name for part in node.parts]
        for length in range(len(parts), 0, -1):
            column = known.get(tuple(part.lower() for part in parts[:length]))
            if column is not None:
                found: exp.Expr = exp.column(exp.to_identifier(column, quoted=True))
                for field in parts[length:]:
                    found = exp.Dot(this=found, expression=exp.to_identifier(field, quoted=True))
                return found
    limit = node.args.get("limit") if isinstance(node, exp.RegexpSplit) else None
    if limit is not None and limit.sql() == "-1":
        node.set("limit", None)  # no limit, which is what leaving it out says
    return node


def named(expression: Any, columns: Columns) -> tuple[int, str, str]:
    """Number, name and text of one expression of a projection."""
    if kind(expression) == "Alias":
        return number(expression), str(expression.name()), text(expression.child(), columns)
    if kind(expression) == "AttributeReference":
        return number(expression), str(expression.name()), text(expression, columns)
    raise refused(expression, "it is no named expression.")


def unique(
    names: Iterator[tuple[int, str]] | list[tuple[int, str]], taken: set[str] | None = None
) -> Columns:
    """A column for every attribute: its name, with its number where another has that name."""
    used = {name.lower() for name in taken or ()}
    found: dict[int, str] = {}
    for place, name in names:
        column = name if name.lower() not in used else f"{name}_{place}"
        used.add(column.lower())
        found[place] = column
    return found


def column(name: str) -> str:
    return quoted(name)
