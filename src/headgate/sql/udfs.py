"""Functions of the user's own, called by name in any expression.

An expression is shipped as its text, so the functions that it names are shipped with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from headgate.errors import ExpressionError
from headgate.sql import types as t
from headgate.sql.node import Node, examined
from headgate.sql.registry import AGGREGATES, FUNCTIONS, Call
from headgate.sql.values import Bad, Value, as_array, some

Kind = Literal["python", "arrow", "pandas"]


@dataclass(frozen=True)
class Udf:
    """A registered function.  Called directly it is the function that it wraps."""

    name: str
    function: Callable[..., Any]
    type: pa.DataType
    kind: Kind

    def __reduce__(self) -> tuple[Any, ...]:
        """A process that gets the function knows it by its name from then on."""
        return _arrived, (self.name, self.function, self.type, self.kind)

    def __call__(self, *values: Any) -> Any:
        return self.function(*values)

    def node(self, call: Call) -> Node:
        """The call of the function on compiled operands."""
        run = self._rows if self.kind == "python" else self._arrays
        return examined(self.type, call.text, f"the function {self.name}() failed", run, *call.args)

    def _rows(self, *values: Value) -> tuple[Value, Bad]:
        length = max((len(v) for v in values if isinstance(v, pa.Array)), default=1)
        out, bad = [], np.zeros(length, dtype=bool)
        columns = [as_array(v, length).to_pylist() for v in values]
        for place, row in enumerate(zip(*columns, strict=True)):
            try:
                out.append(self.function(*row))
            except Exception:
                out.append(None)
                bad[place] = True
        return pa.array(out, type=self.type), some(bad)

    def _arrays(self, *values: Value) -> tuple[Value, Bad]:
        length = max((len(v) for v in values if isinstance(v, pa.Array)), default=1)
        arrays = [as_array(v, length) for v in values]
        if self.kind == "pandas":
            found = pa.Array.from_pandas(self.function(*(a.to_pandas() for a in arrays)), type=self.type)
        else:
            found = self.function(*arrays)
            found = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
        if len(found) != length:
            raise ExpressionError(
                f"{self.name}() must give {length} values for {length} rows, not {len(found)}."
            )
        return found.cast(self.type), None


UDFS: dict[str, Udf] = {}


def _arrived(name: str, function: Callable[..., Any], type_: pa.DataType, kind: Kind) -> Udf:
    made = UDFS[name] = Udf(name, function, type_, kind)
    return made


def udf(
    returns: str, *, name: str | None = None, kind: Kind = "python"
) -> Callable[[Callable[..., Any]], Udf]:
    """Makes a function callable in expressions: ``@hg.udf("bigint")``.

    ``kind`` is "python" (a call per row, null is None), "arrow" (a call per packet with Arrow arrays) or
    "pandas" (a call per packet with series).  The same operands must always give the same result.
    """
    if kind not in ("python", "arrow", "pandas"):
        raise ExpressionError(f"A udf is 'python', 'arrow' or 'pandas', not {kind!r}.")
    type_ = t.parse_type(returns)

    def register(function: Callable[..., Any]) -> Udf:
        called = (name or function.__name__).lower()
        if not re.fullmatch(r"[a-z_][a-z0-9_]*", called):
            raise ExpressionError(
                f"{called!r} cannot be called in SQL; give the udf a name= of letters and digits."
            )
        if called in FUNCTIONS or called in AGGREGATES:
            raise ExpressionError(f"{called}() is one of Spark's functions; give the udf another name=.")
        UDFS[called] = Udf(called, function, type_, kind)
        return UDFS[called]

    return register


def named_in(text: str) -> tuple[Udf, ...]:
    """The functions that a text may call."""
    if not UDFS:
        return ()
    words = {word.lower() for word in re.findall(r"([A-Za-z_][A-Za-z0-9_]*)`?\s*\(", text)}
    return tuple(UDFS[word] for word in sorted(words & UDFS.keys()))


def made_with(udfs: Sequence[Udf], make: Callable[..., Any], *operands: Any) -> Any:
    """``make(*operands)`` where these functions are known: how an expression arrives in another process."""
    UDFS.update({one.name: one for one in udfs})
    return make(*operands)


def shipped(text: str, made: tuple[Any, ...]) -> tuple[Any, ...]:
    """What pickles an expression of a text: the function and operands that make it, with its udfs."""
    used = named_in(text)
    make, operands = made
    return (made_with, (used, make, *operands)) if used else (make, operands)
