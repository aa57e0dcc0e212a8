"""Finding one string in another."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import ExpressionError
from headgate.sql import types as t
from headgate.sql import utf8
from headgate.sql.node import Node, null_of, strict
from headgate.sql.registry import Call, function
from headgate.sql.values import Value, as_array, both_valid, from_numbers, kernel, numbers, rows


def _position(text: str, string: Node, wanted: str, start: int = 1) -> Node:
    """The place of a string in another, from 1; 0 if it is not there."""
    find = kernel("find_substring", pc.MatchSubstringOptions(wanted))

    def run(value: Value) -> Value:
        array = as_array(value, 1)
        searched = pc.utf8_slice_codeunits(array, start - 1) if start > 1 else array
        byte = numbers(find(searched)).astype(np.int64)
        point = byte if utf8.is_ascii(searched) else utf8.point_index(searched, np.maximum(byte, 0))
        place = np.where(byte < 0, 0, point + start)
        return from_numbers(place, t.INT, both_valid(len(array), array))

    return strict(t.INT, text, run, string)


@function("instr", args=2)
def _instr(call: Call) -> Node:
    wanted = call.constant(1, t.STRING, "search string").as_py()
    if wanted is None:
        return null_of(t.INT, call.text)
    return _position(call.text, call.cast(0, t.STRING), wanted)


@function("locate", "position", args=(2, 3))
def _locate(call: Call) -> Node:
    wanted = call.constant(0, t.STRING, "search string").as_py()
    start = call.constant(2, t.INT, "position").as_py() if len(call.args) == 3 else 1
    if wanted is None:
        return null_of(t.INT, call.text)
    if start is None or start < 1:
        raise ExpressionError(f"The start position of {call.text!r} must be 1 or more.")
    if not wanted and start > 1:
        raise ExpressionError(
            f"An empty search string with a start position is not supported in {call.text!r}."
        )
    return _position(call.text, call.cast(1, t.STRING), wanted, start)


def _affix(arrow: str, from_end: bool) -> Callable[[Call], Node]:
    def build(call: Call) -> Node:
        if any(n.type == t.BINARY for n in call.args):
            raise call.mismatch("two STRINGs")
        string, affix = call.cast(0, t.STRING), call.cast(1, t.STRING)
        if affix.constant is not None:
            wanted = affix.constant.as_py()
            if wanted is None:
                return null_of(t.BOOLEAN, call.text)
            return strict(t.BOOLEAN, call.text, kernel(arrow, pc.MatchSubstringOptions(wanted)), string)
        return strict(t.BOOLEAN, call.text, lambda s, a: _has_affix(s, a, from_end), string, affix)

    return build


def _has_affix(string: Value, affix: Value, from_end: bool) -> Value:
    n = rows(string, affix)
    whole, piece = as_array(string, n), as_array(affix, n)
    length, size = (numbers(pc.binary_length(a)).astype(np.int64) for a in (whole, piece))
    raw, places = utf8.parts(whole)
    size = np.minimum(length, size)
    begin = places[1:] - size if from_end else places[:-1]
    part = utf8.gather(raw, begin, begin + size, pa.binary(), both_valid(n, whole))
    return pc.equal(part, piece.cast(pa.binary()))


function("startswith", args=2)(_affix("starts_with", from_end=False))
function("endswith", args=2)(_affix("ends_with", from_end=True))


@function("contains", args=2)
def _contains(call: Call) -> Node:
    if any(n.type == t.BINARY for n in call.args):
        raise call.mismatch("two STRINGs")
    wanted = call.constant(1, t.STRING, "search string").as_py()
    if wanted is None:
        return null_of(t.BOOLEAN, call.text)
    return strict(
        t.BOOLEAN,
        call.text,
        kernel("match_substring", pc.MatchSubstringOptions(wanted)),
        call.cast(0, t.STRING),
    )
