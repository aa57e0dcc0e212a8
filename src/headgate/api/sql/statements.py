"""An application as a file of SQL: CREATE SOURCE, CREATE VIEW and CREATE QUERY, each ended by a semicolon."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from sqlglot.tokenizer_core import Token, TokenType

from headgate.api.sql.options import source
from headgate.api.sql.session import Session
from headgate.errors import ExpressionError, HeadgateError, PipelineError
from headgate.sql.parse import tokens_of
from headgate.sql.types import parse_type

_EXAMPLE = {
    "SOURCE": "CREATE SOURCE clicks (user_id BIGINT, ts TIMESTAMP) WITH (from = 'files', path = 'data')",
    "VIEW": "CREATE VIEW buys AS SELECT …",
    "QUERY": "CREATE QUERY big WITH (to = 'out/big', goal = '500 ms') AS SELECT …",
}
_NAMES = (TokenType.VAR, TokenType.IDENTIFIER)


def run(text: str, session: Session, file: str) -> None:
    """Carry the statements of a file out; an error says in which line its statement begins."""
    for statement in _statements(tokens_of(text)):
        try:
            _Statement(statement, text).run(session)
        except HeadgateError as error:
            located = f"{file}, line {statement[0].line}: {error}"
            kind = type(error) if isinstance(error, PipelineError) else PipelineError
            raise kind(located) from error


def _statements(tokens: list[Token]) -> Iterator[list[Token]]:
    statement: list[Token] = []
    for token in tokens:
        if token.token_type != TokenType.SEMICOLON:
            statement.append(token)
        elif statement:
            yield statement
            statement = []
    if statement:
        yield statement


class _Statement:
    """One statement, read from left to right."""

    def __init__(self, tokens: list[Token], text: str) -> None:
        self._tokens, self._text, self._place = tokens, text, 0
        self._kind = ""

    def run(self, session: Session) -> None:
        self._expect("CREATE")
        self._kind = self._next().upper()
        if self._kind not in _EXAMPLE:
            raise ExpressionError(
                f"CREATE {self._kind}: there are CREATE SOURCE, CREATE VIEW and CREATE QUERY, e.g. "
                f"{_EXAMPLE['QUERY']};"
            )
        name = self._next()
        if self._kind == "SOURCE":
            columns = self._columns() if self._is("(") else None
            options = self._options()
            if self._place < len(self._tokens):
                raise self._unexpected("the end of the statement")
            lateness, idle = options.pop("lateness", 0), options.pop("idle_after", None)
            session.source(name, source(name, columns, options), idle, lateness)
            return
        options = self._options() if self._kind == "QUERY" else {}
        self._expect("AS")
        if self._place == len(self._tokens):
            raise self._unexpected("a SELECT")
        select = self._text[self._tokens[self._place].start : self._tokens[-1].end + 1]
        if self._kind == "VIEW":
            session.sql_view(name, select)
        else:
            session.query(name, select, options)

    def _columns(self) -> pa.Schema:
        """``(user_id BIGINT, price DECIMAL(10, 2))``."""
        self._expect("(")
        columns = []
        while True:
            name, depth, start = self._next(), 0, self._place
            while self._place < len(self._tokens) and (depth or not (self._is(",") or self._is(")"))):
                depth += (self._is("(") or self._is("<")) - (self._is(")") or self._is(">"))
                self._place += 1
            if start == self._place or self._place == len(self._tokens):
                raise self._unexpected(f"a type for column '{name}'")
            type_ = self._text[self._tokens[start].start : self._tokens[self._place - 1].end + 1]
            columns.append((name, parse_type(type_)))
            if self._take(")"):
                return pa.schema(columns)
            self._expect(",")

    def _options(self) -> dict[str, Any]:
        """``WITH (to = 'out', goal = '500 ms', class = 2)``."""
        options: dict[str, Any] = {}
        self._expect("WITH")
        self._expect("(")
        while not self._take(")"):
            name = self._next().lower()
            self._expect("=")
            token = self._token("a value")
            if token.token_type == TokenType.NUMBER:
                options[name] = float(token.text) if "." in token.text else int(token.text)
            elif token.text.lower() in ("true", "false") and token.token_type != TokenType.STRING:
                options[name] = token.text.lower() == "true"
            elif token.token_type == TokenType.STRING:
                options[name] = token.text
            else:
                raise self._unexpected("a text in quotes, a number, true or false", back=1)
            if not self._is(")"):
                self._expect(",")
        return options

    # --- tokens -------------------------------------------------------------------------------------

    def _is(self, text: str) -> bool:
        return self._place < len(self._tokens) and self._tokens[self._place].text.upper() == text

    def _take(self, text: str) -> bool:
        found = self._is(text)
        self._place += found
        return found

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self._unexpected(text)

    def _token(self, what: str) -> Token:
        if self._place == len(self._tokens):
            raise self._unexpected(what)
        self._place += 1
        return self._tokens[self._place - 1]

    def _next(self) -> str:
        return self._token("a name").text

    def _unexpected(self, wanted: str, back: int = 0) -> ExpressionError:
        place = self._place - back
        found = f"'{self._tokens[place].text}'" if place < len(self._tokens) else "the end of the statement"
        example = _EXAMPLE.get(self._kind, _EXAMPLE["QUERY"])
        return ExpressionError(f"{wanted} is expected, not {found}; write e.g. {example};")
