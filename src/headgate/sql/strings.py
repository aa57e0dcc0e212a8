"""String functions; positions and lengths are in code points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.sql import types as t
from headgate.sql import utf8
from headgate.sql.arrays import concatenated, reversed_lists
from headgate.sql.node import Kernel, Node, constant, evaluated_all, null_of, strict
from headgate.sql.registry import Call, function
from headgate.sql.values import Numbers, Value, as_array, both_valid, kernel, numbers, per_distinct, rows

_HUGE = 2**31 - 1
_JOIN = kernel("binary_join_element_wise", pc.JoinOptions(null_handling="emit_null"))
_JOIN_KNOWN = kernel("binary_join_element_wise", pc.JoinOptions(null_handling="skip"))
_EMPTY = pa.scalar("", t.STRING)


def _case(ascii_name: str, convert: Callable[[str], str]) -> Kernel:
    fast = kernel(ascii_name)

    def run(value: Value) -> Value:
        # Arrow maps one code point to one; Spark maps fully, as Python does ("ß" to "SS").
        array = as_array(value, 1)
        if utf8.is_ascii(array):
            return fast(array)
        return per_distinct(array, lambda xs: [None if x is None else convert(x) for x in xs], t.STRING)

    return run


def _title(text: str) -> str:
    # The whole word is lowered, because a final sigma is final by what stands before it.
    return " ".join(word[:1].title() + word.lower()[len(word[:1].lower()) :] for word in text.split(" "))


def _cased(call: Call, run: Kernel) -> Node:
    node = call.cast(0, t.STRING)
    if node.terms is not None and node.terms[0] == "case":
        # Spark's optimizer drops the inner one of two, although lower(upper('ß')) is 'ss'.
        node = node.terms[1][0]
    return replace(strict(t.STRING, call.text, run, node), terms=("case", (node,)))


function("upper", "ucase", args=1)(lambda call: _cased(call, _case("ascii_upper", str.upper)))
function("lower", "lcase", args=1)(lambda call: _cased(call, _case("ascii_lower", str.lower)))


@function("initcap", args=1)
def _initcap(call: Call) -> Node:
    def run(value: Value) -> Value:
        return per_distinct(value, lambda xs: [None if x is None else _title(x) for x in xs], t.STRING)

    return strict(t.STRING, call.text, run, call.cast(0, t.STRING))


_TRIMS = {"trim": "utf8_trim", "btrim": "utf8_trim", "ltrim": "utf8_ltrim", "rtrim": "utf8_rtrim"}


def trimmed(call: Call) -> Node:
    """A trim whose first operand is the string and whose second, if any, the characters."""
    characters = " "
    if len(call.args) == 2:
        characters = call.constant(1, t.STRING, "set of characters").as_py()
        if characters is None:
            return null_of(t.STRING, call.text)
    run = kernel(_TRIMS[call.name], pc.TrimOptions(characters)) if characters else (lambda v: v)
    return strict(t.STRING, call.text, run, call.cast(0, t.STRING))


@function("trim", "ltrim", "rtrim", args=(1, 2))
def _trim(call: Call) -> Node:
    # ltrim(characters, string): the string comes last.
    return trimmed(Call(call.name, call.text, call.args[::-1], call.trees[::-1]))


function("btrim", args=(1, 2))(lambda call: trimmed(call))


@function("length", "len", "char_length", "character_length", args=1)
def _length(call: Call) -> Node:
    if call.args[0].type == t.BINARY:
        return strict(t.INT, call.text, kernel("binary_length"), call.args[0])
    return strict(t.INT, call.text, kernel("utf8_length"), call.cast(0, t.STRING))


@function("octet_length", args=1)
def _octet_length(call: Call) -> Node:
    node = call.args[0] if call.args[0].type == t.BINARY else call.cast(0, t.STRING)
    return strict(t.INT, call.text, kernel("binary_length"), node)


@function("concat", args=(0, None))
def _concat(call: Call) -> Node:
    if not call.args:
        return constant(_EMPTY, call.text)
    if any(t.is_array(n.type) for n in call.args):
        return concatenated(call)
    if all(n.type == t.BINARY for n in call.args):
        return strict(t.BINARY, call.text, lambda *values: _JOIN(*values, pa.scalar(b"")), *call.args)
    nodes = [call.cast(i, t.STRING) for i in range(len(call.args))]
    return strict(t.STRING, call.text, lambda *values: _JOIN(*values, _EMPTY), *nodes)


@function("concat_ws", args=(1, None))
def _concat_ws(call: Call) -> Node:
    if any(t.is_array(n.type) for n in call.args):
        raise call.mismatch("strings (arrays are not supported)")
    nodes = [call.cast(i, t.STRING) for i in range(len(call.args))]
    if len(nodes) == 1:
        if_else, valid, none = kernel("if_else"), kernel("is_valid"), pa.scalar(None, t.STRING)
        return strict(t.STRING, call.text, lambda s: if_else(valid(s), _EMPTY, none), *nodes)
    return evaluated_all(t.STRING, call.text, _join_known, *nodes)


def _join_known(separator: Value, *values: Value) -> Value:
    n = rows(separator, *values)
    arrays = [as_array(v, n) for v in values]
    # Arrow drops a row whose operands are all null instead of giving the empty string.
    nothing = arrays[0].is_null()
    for array in arrays[1:]:
        nothing = pc.and_(nothing, array.is_null())
    arrays[0] = pc.if_else(nothing, _EMPTY, arrays[0])
    return _JOIN_KNOWN(*arrays, separator)


def _sliced(text: str, string: Node, bounds: Callable[..., tuple[Numbers, Numbers]], *operands: Node) -> Node:
    """A node that cuts a string between code points that ``bounds`` computes from its length and operands."""

    def run(value: Value, *values: Value) -> Value:
        n = rows(value, *values)
        array = as_array(value, n)
        size = numbers(pc.utf8_length(array)).astype(np.int64)
        start, stop = bounds(size, *(np.broadcast_to(numbers(v), n).astype(np.int64) for v in values))
        return utf8.cut(array, start, stop, both_valid(n, value, *values))

    return strict(t.STRING, text, run, string, *operands)


@function("substring", "substr", args=(2, 3))
def _substring(call: Call) -> Node:
    if call.args[0].type == t.BINARY:
        raise call.mismatch("a STRING and positions", 0)
    string, position = call.cast(0, t.STRING), call.cast(1, t.INT)
    if len(call.args) == 2:
        length = constant(pa.scalar(_HUGE, t.INT), str(_HUGE))
    else:
        length = call.cast(2, t.INT)
    if position.constant is not None and length.constant is not None:
        at, count = position.constant.as_py(), length.constant.as_py()
        if at is not None and count is not None:
            return strict(t.STRING, call.text, _fixed_slice(at, count), string)

    def bounds(size: Numbers, at: Numbers, count: Numbers) -> tuple[Numbers, Numbers]:
        start = np.where(at > 0, at - 1, np.where(at < 0, size + at, 0))
        stop = start + count
        return start, np.where(count <= 0, start, stop)

    return _sliced(call.text, string, bounds, position, length)


def _fixed_slice(position: int, count: int) -> Kernel:
    if count <= 0:
        nothing = kernel("utf8_slice_codeunits", pc.SliceOptions(0, 0))
        return lambda v: nothing(v)
    if position >= 0:
        start = max(position - 1, 0)
        return kernel("utf8_slice_codeunits", pc.SliceOptions(start, start + count))
    stop = position + count
    if stop < 0:
        return kernel("utf8_slice_codeunits", pc.SliceOptions(position, stop))
    return kernel("utf8_slice_codeunits", pc.SliceOptions(position))


@function("left", args=2)
def _left(call: Call) -> Node:
    return _sliced(call.text, call.cast(0, t.STRING), lambda size, n: (0 * size, n), call.cast(1, t.INT))


@function("right", args=2)
def _right(call: Call) -> Node:
    def bounds(size: Numbers, n: Numbers) -> tuple[Numbers, Numbers]:
        return np.where(n <= 0, size, size - n), size

    return _sliced(call.text, call.cast(0, t.STRING), bounds, call.cast(1, t.INT))


@function("lpad", "rpad", args=(2, 3))
def _pad(call: Call) -> Node:
    padding = call.constant(2, t.STRING, "padding").as_py() if len(call.args) == 3 else " "
    width = call.constant(1, t.INT, "length").as_py()
    if padding is None or width is None:
        return null_of(t.STRING, call.text)
    width = max(width, 0)
    fill = (padding * (width // len(padding) + 1))[:width] if padding else ""
    left = call.name == "lpad"

    def run(value: Value) -> Value:
        array = as_array(value, 1)
        kept = pc.utf8_slice_codeunits(array, 0, width) if width else pc.utf8_slice_codeunits(array, 0, 0)
        missing = width - np.minimum(numbers(pc.utf8_length(array)).astype(np.int64), width)
        pad = utf8.cut(pa.repeat(pa.scalar(fill, t.STRING), len(array)), 0 * missing, missing, None)
        return _JOIN(pad, kept, _EMPTY) if left else _JOIN(kept, pad, _EMPTY)

    return strict(t.STRING, call.text, run, call.cast(0, t.STRING))


@function("repeat", args=2)
def _repeat(call: Call) -> Node:
    times, zero = kernel("binary_repeat"), pa.scalar(0, t.INT)
    larger = kernel("max_element_wise", pc.ElementWiseAggregateOptions(skip_nulls=False))
    return strict(
        t.STRING,
        call.text,
        lambda v, n: times(v, larger(n, zero)),
        call.cast(0, t.STRING),
        call.cast(1, t.INT),
    )


@function("reverse", args=1)
def _reverse(call: Call) -> Node:
    if t.is_array(call.args[0].type):
        return strict(call.args[0].type, call.text, reversed_lists, call.args[0])
    return strict(t.STRING, call.text, kernel("utf8_reverse"), call.cast(0, t.STRING))


@function("replace", args=(2, 3))
def _replace(call: Call) -> Node:
    search = call.constant(1, t.STRING, "search string").as_py()
    replacement = call.constant(2, t.STRING, "replacement").as_py() if len(call.args) == 3 else ""
    string = call.cast(0, t.STRING)
    if search is None or replacement is None:
        return null_of(t.STRING, call.text)
    if not search:
        return string
    options = pc.ReplaceSubstringOptions(search, replacement)
    return strict(t.STRING, call.text, kernel("replace_substring", options), string)


@function("translate", args=3)
def _translate(call: Call) -> Node:
    source = call.constant(1, t.STRING, "set of characters").as_py()
    target = call.constant(2, t.STRING, "set of characters").as_py()
    if source is None or target is None:
        return null_of(t.STRING, call.text)
    table = {ord(c): (target[i] if i < len(target) else None) for i, c in reversed(list(enumerate(source)))}

    def run(value: Value) -> Value:
        return per_distinct(
            value, lambda xs: [None if x is None else x.translate(table) for x in xs], t.STRING
        )

    return strict(t.STRING, call.text, run, call.cast(0, t.STRING))
