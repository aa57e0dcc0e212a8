"""From the user's text to a sqlglot tree, as Spark would read it.

The dialect is sqlglot's Spark with its function table emptied: every call keeps the name that the user
wrote, so that one table of ours decides what is supported.  Where sqlglot binds operators differently from
Spark, the text is refused and parentheses are asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from headgate.errors import ExpressionError
from headgate.sql.guard import shown


class PlainParser(SparkParser):
    """Spark's grammar with every function call left as the user named it."""

    FUNCTIONS: ClassVar[dict[str, Any]] = {}
    ARRAY_CONSTRUCTORS: ClassVar[dict[str, Any]] = {}
    FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: SparkParser.FUNCTION_PARSERS[name]
        for name in ("CAST", "TRY_CAST", "EXTRACT", "TRIM", "SUBSTRING", "SUBSTR", "POSITION")
    }


class PlainSpark(Spark):
    """Spark's dialect with :class:`PlainParser`."""

    Parser = PlainParser


SUFFIX = "__suffix_"
_DIALECT = PlainSpark()
_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ)
_PREDICATES = (exp.Is, exp.In, exp.Between, exp.Like, exp.ILike, exp.RegexpLike, exp.Escape, exp.Not)
_BITS = (exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseLeftShift, exp.BitwiseRightShift)
_TERMS = (exp.Add, exp.Sub, exp.Collate)
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))", re.DOTALL)


def parse(text: str, *, ordering: bool = False) -> exp.Expr:
    """Parses one expression, or raises ExpressionError pointing at the place.

    With ``ordering`` the text is the list after ORDER BY, and the tree is a statement that carries it.
    """
    if not isinstance(text, str):
        if type(text).__module__.startswith("pyspark."):
            raise ExpressionError(
                f"An expression is a string of Spark SQL, not a PySpark column: write the text of {text!r}, "
                "such as 'price * quantity' for col('price') * col('quantity')."
            )
        raise ExpressionError(f"An expression is a string of Spark SQL, not {type(text).__name__}: {text!r}.")
    if not text.strip():
        raise ExpressionError("The expression is empty.")
    tree = _parsed(text, _parse_ordering if ordering else _parse_tokens)
    for node in tree.walk():
        _check_binding(node, text)
    return tree


def parse_query(text: str) -> exp.Query:
    """Parses one SELECT, with UNIONs and CTEs, or raises ExpressionError."""
    if not isinstance(text, str) or not text.strip():
        raise ExpressionError(f"A query is a text such as 'SELECT * FROM clicks', not {text!r}.")
    tree = _parsed(text, _parse_query_tokens)
    for node in tree.walk():
        _check_binding(node, text)
    if not isinstance(tree, exp.Query):
        raise ExpressionError(
            f"A query begins with SELECT or WITH, but {shown(text)} does not. A condition or a single column "
            "belongs into a method of a stream, such as filter() or select()."
        )
    return tree


def tokens_of(text: str) -> list[Token]:
    """The tokens of a text, with literals as Spark reads them."""
    try:
        return _as_spark_reads(_DIALECT.tokenize(text), text)
    except TokenError as error:
        raise _cannot_parse(text, str(error), None) from None


def write(tree: exp.Expr) -> str:
    """A tree as text that parses to the same tree."""
    return str(tree.sql(dialect=_DIALECT, normalize_functions=False))


def _parsed(text: str, read: Callable[[list[Token], str], exp.Expr]) -> exp.Expr:
    try:
        return read(_as_spark_reads(_DIALECT.tokenize(text), text), text)
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        column = first.get("col")
        start = None if column is None else column - len(first.get("highlight") or "")
        problem = str(first.get("description") or error)
        if problem.startswith("Required keyword"):
            problem = "An operand is missing"
        raise _cannot_parse(text, problem, start) from None
    except TokenError as error:
        raise _cannot_parse(text, str(error), None) from None


def _parse_query_tokens(tokens: list[Token], text: str) -> exp.Expr:
    while tokens and tokens[-1].token_type == TokenType.SEMICOLON:
        tokens.pop()
    for place, token in enumerate(tokens):
        following = [t.token_type for t in tokens[place + 1 : place + 4]]
        if token.token_type == TokenType.WINDOW and following[1:] != [TokenType.ALIAS, TokenType.L_PAREN]:
            # The function window(), or a column of that name, and not the clause WINDOW w AS (...).
            tokens[place] = _like(token, TokenType.VAR, token.text)
    trees = _DIALECT.parser().parse(tokens, text)
    if len(trees) != 1 or trees[0] is None:
        raise _cannot_parse(text, "One SELECT at a time", None)
    return trees[0]


def _parse_tokens(tokens: list[Token], text: str) -> exp.Expr:
    for token in tokens:
        if token.token_type == TokenType.SEMICOLON:
            raise _cannot_parse(text, "One expression at a time: unexpected ';'", token.start)
    trees = _DIALECT.parser().parse(tokens, text)
    tree = trees[0] if trees else None
    if len(trees) != 1 or tree is None:
        raise _cannot_parse(text, "One expression at a time", None)
    if isinstance(tree, exp.Query | exp.DDL | exp.Command | exp.Block):
        raise _cannot_parse(text, "An expression is expected, not a statement", 0)
    return tree


def _parse_ordering(tokens: list[Token], text: str) -> exp.Expr:
    prefix = _DIALECT.tokenize("SELECT 1 ORDER BY ")
    trees = _DIALECT.parser().parse([*prefix, *tokens], text)
    tree = trees[0] if len(trees) == 1 else None
    if tree is None or any(value for key, value in tree.args.items() if key not in ("expressions", "order")):
        raise _cannot_parse(text, "An ordering such as 'n DESC, user_id' is expected", None)
    return tree


def _cannot_parse(text: str, problem: str, position: int | None) -> ExpressionError:
    problem = problem.strip().rstrip(".")
    if position is None or not text.isprintable():
        return ExpressionError(f"Cannot parse {text!r}: {problem}.")
    return ExpressionError(f"Cannot parse the expression: {problem}.\n  {text}\n  {' ' * max(0, position)}^")


def _as_spark_reads(tokens: list[Token], text: str) -> list[Token]:
    """The tokens with literals as Spark reads them."""
    out: list[Token] = []
    for token in tokens:
        last = out[-1] if out else None
        if token.token_type == TokenType.STRING:
            token = _unescaped(token, text)
            if last is not None and last.token_type == TokenType.STRING and last.end + 1 == token.start:
                # Two quotes without a gap between them are one quote.
                last.text += text[token.start] + token.text
                last.end = token.end
                continue
        out.append(token)
        if (
            len(out) > 2
            and out[-2].token_type == TokenType.DCOLON
            and out[-2].start == token.start == out[-3].start
        ):
            # sqlglot reads 5L as 5::BIGINT; a call keeps it apart from a cast that the user wrote.
            number = out[-3]
            out[-3:] = [
                _like(number, TokenType.VAR, SUFFIX + token.text.lower()),
                _like(number, TokenType.L_PAREN, "("),
                number,
                _like(number, TokenType.R_PAREN, ")"),
            ]
    return out


def _like(token: Token, kind: TokenType, text: str) -> Token:
    return Token(kind, text, token.line, token.col, token.start, token.end)


def _unescaped(token: Token, text: str) -> Token:
    # sqlglot's reading of backslashes differs from Spark's in \0, \Z, \%, \_, octal and unicode escapes.
    if token.token_type != TokenType.STRING:
        return token
    raw = text[token.start : token.end + 1]
    if "\\" in raw and raw[0] in "'\"":
        token.text = _ESCAPED.sub(_unescape, raw[1:-1])
    return token


def _unescape(match: re.Match[str]) -> str:
    short, long, octal, char = match.groups()
    if short or long:
        return chr(int(short or long, 16))
    if octal:
        return chr(int(octal, 8))
    return _ESCAPES.get(char, char)


def _check_binding(node: exp.Expr, text: str) -> None:
    """Refuses what sqlglot groups otherwise than Spark."""
    sides = [
        side for side in (node.args.get("this"), node.args.get("expression")) if isinstance(side, exp.Expr)
    ]
    if isinstance(node, _COMPARISONS):
        mixed = any(isinstance(side, (*_COMPARISONS, *_PREDICATES)) for side in sides)
    elif isinstance(node, _BITS):
        mixed = any(isinstance(side, _BITS) and type(side) is not type(node) for side in sides)
    else:
        mixed = isinstance(node, exp.DPipe) and any(isinstance(side, (*_TERMS, *_BITS)) for side in sides)
    if mixed:
        raise ExpressionError(f"Put parentheses into {node.sql('spark')!r}: it is easy to misread.")
