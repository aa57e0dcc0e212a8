"""The one place that turns every failure to compile a text into an error in the user's words.

sqlglot parses, Python and Arrow read numbers and strings, and kernels fold constants: each raises errors of
its own.  A text compiles, or it raises ``ExpressionError``.  A list of the
expected errors instead would be as long as the libraries, and never complete.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

import pyarrow as pa

from headgate.errors import ExpressionError, HeadgateError

_SHOWN = 200
"""Characters of a text that an error shows."""
Compiled = TypeVar("Compiled")


def guarded(compile_text: Callable[[str, pa.Schema], Compiled]) -> Callable[[str, pa.Schema], Compiled]:
    """The same function of a text and a schema, but with no other errors than our own."""

    @wraps(compile_text)
    def compiled(text: str, schema: pa.Schema) -> Compiled:
        _check_unicode(text)
        try:
            return compile_text(text, schema)
        except HeadgateError:
            raise
        except RecursionError:
            raise ExpressionError(
                f"The expression is nested too deeply: {shown(text)}. Compute parts of it before, in a "
                "with_columns() of their own, or list values with IN."
            ) from None
        except Exception as error:
            problem = str(error).strip().rstrip(".") or type(error).__name__
            raise ExpressionError(f"Cannot read the expression {shown(text)}: {problem}.") from error

    return compiled


def shown(text: str) -> str:
    """A text for an error: quoted, with characters that cannot be printed escaped, and not too long."""
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "...")


def _check_unicode(text: str) -> None:
    """Half of a surrogate pair cannot be encoded: not for Arrow, nor where the error is printed."""
    if not isinstance(text, str):
        return  # the parser says what a text is
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ExpressionError(
            f"Character {error.start + 1} of the expression {shown(text)} is half of a surrogate pair, which "
            "no text can hold; decode the text with errors='replace' first."
        ) from None
