"""Functions named after types, questions about types, and failures on purpose."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headgate.sql import types as t
from headgate.sql.casts import cast
from headgate.sql.comparison import null_safe_equal
from headgate.sql.logic import boolean, conditional, negation, truth_test
from headgate.sql.node import Node, constant, fallible, null_of
from headgate.sql.patterns import like
from headgate.sql.registry import Call, build_call, function
from headgate.sql.values import Bad, Value

for _name in (
    "bigint",
    "binary",
    "boolean",
    "decimal",
    "double",
    "float",
    "int",
    "smallint",
    "string",
    "tinyint",
):
    function(_name, args=1)(lambda call: cast(call.args[0], t.parse_type(call.name), call.text))


@function("typeof", args=1)
def _typeof(call: Call) -> Node:
    name = call.args[0].type_name.lower().replace(", ", ",").replace(": ", ":")
    return constant(pa.scalar(name, t.STRING), call.text)


@function("collation", args=1)
def _collation(call: Call) -> Node:
    call.cast(0, t.STRING)
    return constant(pa.scalar("SYSTEM.BUILTIN.UTF8_BINARY", t.STRING), call.text)


function("equal_null", args=2)(lambda call: null_safe_equal(call.args[0], call.args[1], call.text))


@function("like", "ilike", args=(2, 3))
def _like(call: Call) -> Node:
    mark = call.constant(2, t.STRING, "escape character").as_py() if len(call.args) == 3 else "\\"
    sides = call.args[:2]
    if call.name == "ilike":
        sides = tuple(build_call(Call("lower", n.text, (n,), ())) for n in sides)
    return like(sides[0], sides[1], mark, call.text)


def _failing(call: Call, message: str, *nodes: Node) -> Node:
    def run(*values: Value) -> tuple[Value, Bad]:
        n = max((len(v) for v in values if isinstance(v, pa.Array)), default=1)
        return pa.nulls(n), np.ones(n, dtype=bool)

    return fallible(t.NULL, call.text, message, run, *nodes)


@function("raise_error", args=1)
def _raise_error(call: Call) -> Node:
    node = call.cast(0, t.STRING)
    given = node.constant.as_py() if node.constant is not None else None
    return _failing(call, str(given or node.text), node)


@function("assert_true", args=(1, 2))
def _assert_true(call: Call) -> Node:
    holds = truth_test(boolean(call.args[0], "assert_true()", call.text), True, call.text)
    given = call.cast(1, t.STRING).constant if len(call.args) == 2 else None
    message = f"{call.args[0].text} is not true" if given is None else str(given.as_py())
    return conditional(
        [(negation(holds, call.text), _failing(call, message, holds))],
        null_of(t.NULL),
        call.text,
        "assert_true()",
    )
