"""What can go wrong, in the user's words.

Every error names the user's thing (a column, a query, a file), says what is wrong with it, and says
what to do.  Mistakes in a pipeline are raised by the stream method that makes them.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable


class HeadgateError(Exception):
    """Base of every error that Headgate raises on purpose."""


class PipelineError(HeadgateError):
    """The pipeline as written cannot work: a name, a schema, a graph, a QoS graph."""


class ExpressionError(PipelineError):
    """An expression that does not parse, does not type-check, or uses what is not supported."""


class UnknownColumn(ExpressionError):
    """A column that the stream does not have."""


class UnsupportedFunction(ExpressionError):
    """A function that Headgate does not implement."""


class TypeMismatch(ExpressionError):
    """Operands whose types do not fit the operation."""


class CycleError(PipelineError):
    """Boxes that feed each other in a circle."""


class SourceError(HeadgateError):
    """A source that cannot be read: missing, unreadable, or not of the promised schema."""


class SinkError(HeadgateError):
    """A sink that cannot be written."""


class OperatorError(HeadgateError):
    """An operator failed while running; says which operator, on which tuples, and why."""


class BadRow(OperatorError):
    """A row on which Spark would raise (ANSI mode): overflow, division by zero, a cast that fails.

    ``index`` is the row's place in the batch that was evaluated.
    """

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.index = index

    def __reduce__(self) -> tuple[type[BadRow], tuple[str, int]]:
        return BadRow, (str(self), self.index)


class RunError(HeadgateError):
    """Every query of a run failed."""


class ControlError(HeadgateError):
    """A command that no running application could take, or that one refused."""


class NotRunning(ControlError):
    """There is no such application to talk to."""


def in_a_line(error: BaseException) -> str:
    """What a library says, without its debugging text and its full stop."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def nearest(name: str, known: Iterable[str]) -> str:
    """``" Did you mean 'x'?"`` for the closest known name, or nothing."""
    match = difflib.get_close_matches(name.lower(), [k.lower() for k in known], n=1, cutoff=0.6)
    if not match:
        return ""
    original = next(k for k in known if k.lower() == match[0])
    return f" Did you mean '{original}'?"


_OBEYED = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Kinds of characters that a terminal obeys or cannot show: controls, surrogates, line separators."""
_DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that turn the direction of what follows, so that it reads as something else."""


def printable(text: object) -> str:
    r"""A text from outside that a terminal can show: ``\x1b`` is written out, not obeyed.

    Whatever a program, a file or a stream says can hold sequences that move the cursor or rename the window.
    """
    text = str(text)
    if text.isprintable():
        return text
    return "".join(map(_spelled, text))


def _spelled(character: str) -> str:
    if character in "\n\t" or not (unicodedata.category(character) in _OBEYED or character in _DIRECTIONS):
        return character
    return repr(character)[1:-1] if ord(character) < 0x100 else f"\\u{ord(character):04x}"


def box_failed(box: str, label: str, serial: int, error: Exception) -> HeadgateError:
    """An operator's error with its box and the tuples that it failed on, unless the error says so itself."""
    if isinstance(error, HeadgateError):
        return error
    failed = OperatorError(
        f"Box '{box}' ({label}) failed on tuples from serial {serial} on: {type(error).__name__}: {error}"
    )
    failed.__cause__ = error
    return failed
