"""What a question to kept history may be: one SELECT over the kept views, with functions of rows only.

The question runs as the person who asks, in Spark, whose SQL can write files and call any method of Java.  So
``sqlglot`` reads it first, and Spark is given what was read: the same words, one by one, without comments.
Given the text as it came, Spark might take for words what was read as a comment or a string here.  (Text that
``sqlglot`` writes from its tree was the alternative; it does not keep every format of dates.)
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from headgate.engines.spark.functions import FUNCTIONS
from headgate.errors import HeadgateError, nearest, printable


class HistoryError(HeadgateError):
    """A question to kept history that has no answer."""


ONE_SELECT = "`headgate query` answers one SELECT over kept histories, and does nothing else"
_FORBIDDEN: dict[type, str] = {
    exp.Command: "a command",
    exp.DDL: "what makes or changes a table",
    exp.DML: "what changes a table",
    exp.Into: "INTO",
    exp.QueryTransform: "SELECT TRANSFORM, which runs a program",
    exp.Hint: "a hint",
    exp.Lock: "FOR UPDATE",
    exp.Version: "a version of a table",
    exp.Placeholder: "a placeholder",
    exp.Parameter: "a parameter",
}
_WORDS = """
all and any array as between by case cast cross cube dec decimal distinct else end except exists extract
filter from full group having if in inner intersect interval is join lateral left like limit map minus not
numeric on or order outer over partition pivot right rollup select sets semi anti some struct tablesample
then trim union unpivot using values varchar char when where window with within
"""
_BEFORE_BRACKETS = frozenset(_WORDS.split())
"""Words that may stand before a bracket without being a function's name."""
_FIRST = frozenset({"select", "with", "values", "("})
_TEXTS = {
    TokenType.STRING: re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL),
    TokenType.RAW_STRING: re.compile(r"""[rR](?:'[^']*'|"[^"]*")"""),
    TokenType.HEX_STRING: re.compile(r"[xX]'[0-9a-fA-F]*'"),
    TokenType.IDENTIFIER: re.compile(r"`(?:[^`]|``)*`"),
}
"""What Spark, too, takes for one text, or one name in backquotes."""
_WORD = re.compile(r"[A-Za-z0-9_]+(?:[ \t\r\n]+[A-Za-z0-9_]+)*|[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?[A-Za-z]*")
_SIGN = re.compile(r"[-+*/%<>=!|&^~()\[\],.:]{1,3}")


def checked(sql: str, views: Collection[str]) -> str:
    """The question as Spark is to be given it; raises HistoryError if it is anything but a question.

    ``views``: names of the histories that there are.
    """
    tree, tokens = _parsed(sql)
    for node in tree.walk():
        for kind, what in _FORBIDDEN.items():
            if isinstance(node, kind):
                raise HistoryError(f"{ONE_SELECT}: {what} is not allowed in it.")
        if isinstance(node, exp.Table):
            _check_table(node, views)
    _check_functions(tokens)
    return "".join(_respelled(sql, tokens))


def unknown_history(wanted: str, known: Collection[str]) -> HistoryError:
    """There is no view of that name."""
    there = ", ".join(f"'{name}'" for name in known) or "none"
    return HistoryError(
        f"There is no kept history called '{wanted}'.{nearest(wanted, known)} There are: {there}. "
        'A query keeps its history with keep="7 days".'
    )


def _parsed(sql: str) -> tuple[exp.Query, list[Token]]:
    dialect = Spark()
    try:
        tokens = [token for token in dialect.tokenize(sql) if token.token_type is not TokenType.SEMICOLON]
        found = [tree for tree in dialect.parser().parse(dialect.tokenize(sql), sql) if tree is not None]
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        near = f"{first.get('start_context') or ''}{first.get('highlight') or ''}"[-60:]
        near, why = " ".join(printable(near).split()), first.get("description") or "not SQL"
        raise HistoryError(f"Syntax error near '{near}': {why}. {ONE_SELECT}.") from error
    except (SqlglotError, RecursionError) as error:
        raise HistoryError(f"Syntax error: {printable(error).splitlines()[0]}. {ONE_SELECT}.") from error
    if len(found) != 1:
        raise HistoryError(f"{ONE_SELECT}; here are {len(found)} statements.")
    tree = found[0]
    if not isinstance(tree, exp.Query | exp.Values) or tokens[0].text.lower() not in _FIRST:
        raise HistoryError(f"{ONE_SELECT}; '{printable(tokens[0].text.upper())} …' is something else.")
    return tree, tokens  # type: ignore[return-value]


# --- tables ---------------------------------------------------------------------------------------------


def _check_table(table: exp.Table, views: Collection[str]) -> None:
    """Only a view, or a name that a WITH around it gives."""
    if not isinstance(table.this, exp.Identifier):
        raise HistoryError(
            f"{ONE_SELECT}: '{printable(table.sql('spark'))}' is a function that gives a table."
        )
    if table.args.get("db") or table.args.get("catalog"):
        raise HistoryError(
            f"{ONE_SELECT}: '{printable(table.sql('spark'))}' names a file or a catalog, not a history. "
            "A history's name that has a dot is written in backquotes."
        )
    name = table.name.lower()
    if name not in _named_by_with(table) and name not in {view.lower() for view in views}:
        raise unknown_history(table.name, views)


def _named_by_with(table: exp.Table) -> Iterator[str]:
    """Names that a table can have from WITH, where it stands: of one WITH, those before it."""
    inside: exp.Expr = table
    around = table.parent
    while around is not None:
        given = around.args.get("with_") or around.args.get("with")
        if isinstance(given, exp.With) and inside is not given:
            yield from (cte.alias.lower() for cte in given.expressions)
        elif isinstance(around, exp.With):
            place = next(n for n, cte in enumerate(around.expressions) if cte is inside)
            last = place + 1 if around.args.get("recursive") else place
            yield from (cte.alias.lower() for cte in around.expressions[:last])
        inside, around = around, around.parent


# --- words ----------------------------------------------------------------------------------------------


def _check_functions(tokens: Sequence[Token]) -> None:
    """What stands before a bracket is a function of rows, or no function at all."""
    for place, token in enumerate(tokens[:-1]):
        if tokens[place + 1].token_type is not TokenType.L_PAREN:
            continue
        word = token.text.split()[-1].lower() if token.text.split() else ""
        quoted = token.token_type is TokenType.IDENTIFIER
        named = quoted or word.replace("_", "a").isalnum()
        if not named or token.token_type in (TokenType.STRING, TokenType.NUMBER, TokenType.RAW_STRING):
            continue
        whole = token.text.lower() if quoted else word
        if place > 0 and tokens[place - 1].token_type is TokenType.DOT:
            raise HistoryError(
                f"{ONE_SELECT}: '….{printable(whole)}(…)' is a function of a catalog, not Spark's own."
            )
        if not (whole in FUNCTIONS or (whole in _BEFORE_BRACKETS and not quoted)):
            raise HistoryError(
                f"{ONE_SELECT}: '{printable(whole)}(…)' is not a function of rows that may be used in it."
                f"{nearest(whole, FUNCTIONS)}"
            )


def _respelled(sql: str, tokens: Sequence[Token]) -> Iterator[str]:
    """The words of a question as they were written, with a space between; comments are left out."""
    before: Token | None = None
    for token in tokens:
        if before is not None and token.start == before.start:
            continue  # of one number's value and type
        text = sql[token.start : token.end + 1]
        pattern = _TEXTS.get(token.token_type)
        if pattern is not None:
            if not pattern.fullmatch(text):
                raise HistoryError(f"{ONE_SELECT}: this text cannot be read: {printable(text)}")
        elif _WORD.fullmatch(text):
            text = " ".join(text.split())
        elif not _SIGN.fullmatch(text) or "--" in text or "/*" in text:
            raise HistoryError(
                f"{ONE_SELECT}: '{printable(text)}' cannot be read; write names with such characters in "
                "backquotes."
            )
        if before is not None and not _belong(before, token):
            yield " "
        yield text
        before = token


def _belong(before: Token, token: Token) -> bool:
    """Tokens that mean something else apart: ``'it''s'`` is one text, ``.5`` one number."""
    kinds = (before.token_type, token.token_type)
    touch = before.end + 1 == token.start
    return touch and (kinds == (TokenType.STRING, TokenType.STRING) or TokenType.DOT in kinds)
