"""String functions that look at single characters, encodings or pieces between delimiters."""

from __future__ import annotations

import base64
import decimal as py
import math
import re
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.errors import ExpressionError
from headgate.sql import types as t
from headgate.sql.casts import cast
from headgate.sql.comparison import compare, null_safe_equal
from headgate.sql.digits import from_hex
from headgate.sql.logic import conditional, null_test
from headgate.sql.node import Node, constant, evaluated_all, fallible, forgiving, null_of, strict
from headgate.sql.registry import Call, function, valued
from headgate.sql.values import Value, as_array, kernel, per_value, plain


@valued("ascii", takes=(t.STRING,), gives=t.INT)
def _ascii(text: str) -> int:
    return ord(text[0]) if text else 0


@valued("char", "chr", takes=(t.BIGINT,), gives=t.STRING)
def _chr(number: int) -> str:
    return "" if number < 0 else chr(number & 0xFF)


@valued("base64", takes=(t.BINARY,), gives=t.STRING)
def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def from_base64(text: str) -> bytes:
    """The bytes of base64 text.  Other characters are skipped, as Java's MIME decoder does."""
    kept = re.sub(r"[^A-Za-z0-9+/=]", "", text)
    body, _, rest = kept.partition("=")
    if len(body) % 4 == 1 or rest.strip("=") or (rest and len(body) % 4 != 2):
        raise ValueError(text)
    if kept.endswith("=") and len(body) % 4 == 2 and len(kept) - len(body) < 2:
        raise ValueError(text)
    return base64.b64decode(body + "=" * (-len(body) % 4))


valued("unbase64", takes=(t.STRING,), gives=t.BINARY)(from_base64)


def _strict_base64(text: str) -> bytes:
    body = re.sub(r"\s", "", text)
    if "=" not in body and len(body) % 4 > 1:
        body += "=" * (-len(body) % 4)
    return base64.b64decode(body, validate=True)


@function("to_binary", "try_to_binary", args=(1, 2), per_row=True)
def _to_binary(call: Call) -> Node:
    form = str(call.constant(1, t.STRING, "format").as_py() if len(call.args) == 2 else "hex").lower()
    readers: dict[str, Any] = {
        "hex": from_hex,
        "utf-8": str.encode,
        "utf8": str.encode,
        "base64": _strict_base64,
    }
    if form not in readers:
        raise ExpressionError(
            f"The format {form!r} is not supported in {call.text!r}. Use {', '.join(readers)}."
        )
    run = per_value(readers[form], t.BINARY)
    node = fallible(t.BINARY, call.text, f"{call.text} is not {form}", run, call.cast(0, t.STRING))
    return forgiving(node) if call.name.startswith("try") else node


_CHARSETS = {
    "utf-8": "utf-8", "us-ascii": "ascii", "iso-8859-1": "latin-1",
    "utf-16be": "utf-16-be", "utf-16le": "utf-16-le", "utf-16": "utf-16", "utf-32": "utf-32-be",
}  # fmt: skip


def _charset(call: Call) -> str:
    given = str(call.constant(1, t.STRING, "character set").as_py()).lower()
    if given not in _CHARSETS:
        raise ExpressionError(
            f"The character set {given!r} is not supported in {call.text!r}. Use {', '.join(_CHARSETS)}."
        )
    return _CHARSETS[given]


@function("encode", args=2, per_row=True)
def _encode(call: Call) -> Node:
    charset = _charset(call)

    def encoded(text: str) -> bytes:
        mark = b"\xfe\xff" if charset == "utf-16" and text else b""
        return mark + text.encode("utf-16-be" if charset == "utf-16" else charset)

    reason = f"{call.text} has a character that {charset} lacks"
    return fallible(t.BINARY, call.text, reason, per_value(encoded, t.BINARY), call.cast(0, t.STRING))


@function("decode", args=(2, None), per_row=True)
def _decode(call: Call) -> Node:
    if len(call.args) > 2:
        return _matched(call)
    charset = _charset(call)

    def decoded(data: bytes) -> str:
        if charset == "utf-16" and data[:2] not in (b"\xff\xfe", b"\xfe\xff"):
            return data.decode("utf-16-be")
        return data.decode(charset)

    reason = f"{call.text} is not {charset}"
    return fallible(t.STRING, call.text, reason, per_value(decoded, t.STRING), call.cast(0, t.BINARY))


def _matched(call: Call) -> Node:
    """``decode(x, search, result, …, default)``: as CASE, but null matches null."""
    subject, rest = call.args[0], call.args[1:]
    branches = [
        (null_safe_equal(subject, rest[i], call.text), rest[i + 1]) for i in range(0, len(rest) - 1, 2)
    ]
    return conditional(branches, rest[-1] if len(rest) % 2 else None, call.text, "decode()")


@function("elt", args=(2, None))
def _elt(call: Call) -> Node:
    if all(n.type == t.BINARY for n in call.args[1:]):
        raise call.mismatch("a number and strings")
    place = call.cast(0, t.INT)
    texts = [call.cast(i, t.STRING) for i in range(1, len(call.args))]
    branches = []
    for i, text in enumerate(texts):
        number = constant(pa.scalar(i + 1, t.INT), str(i + 1), literal=True)
        branches.append((compare("=", place, number, call.text), text))
    branches.append((null_test(place, call.text, valid=False), null_of(t.STRING)))
    outside = fallible(
        t.STRING, call.text, f"the number of {call.text} is not between 1 and {len(texts)}",
        lambda v: (pa.nulls(len(as_array(v, 1)), t.STRING), np.ones(len(as_array(v, 1)), dtype=bool)), place,
    )  # fmt: skip
    return conditional(branches, outside, call.text, "elt()")


@valued("find_in_set", takes=(t.STRING, t.STRING), gives=t.INT)
def _find_in_set(text: str, options: str) -> int:
    if "," in text:
        return 0
    parts = options.split(",")
    return parts.index(text) + 1 if text in parts else 0


@valued("levenshtein", takes=(t.STRING, t.STRING, t.INT), gives=t.INT, optional=1)
def _levenshtein(a: str, b: str, most: int | None = None) -> int:
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, right in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (left != right))
    return row[-1] if most is None or row[-1] <= most else -1


@valued("luhn_check", takes=(t.STRING,), gives=t.BOOLEAN)
def _luhn(text: str) -> bool:
    if not text or not all("0" <= c <= "9" for c in text):
        return False
    doubled = [int(c) * (1 + i % 2) for i, c in enumerate(reversed(text))]
    return sum(d - 9 * (d > 9) for d in doubled) % 10 == 0


@function("mask", args=(1, 5), per_row=True)
def _mask(call: Call) -> Node:
    given = [call.constant(i, t.STRING, "replacement").as_py() for i in range(1, len(call.args))]
    upper, lower, digit, other = (given + ["X", "x", "n", None][len(given) :])[:4]
    for char in (upper, lower, digit, other):
        if char is not None and len(char) != 1:
            raise ExpressionError(f"A replacement of mask() must be one character in {call.text!r}.")

    def masked(text: str) -> str:
        out = []
        for c in text:
            new = upper if c.isupper() else lower if c.islower() else digit if c.isdecimal() else other
            out.append(c if new is None else new)
        return "".join(out)

    return fallible(t.STRING, call.text, "", per_value(masked, t.STRING), call.cast(0, t.STRING))


@valued("overlay", takes=(t.STRING, t.STRING, t.INT, t.INT), gives=t.STRING, optional=1)
def _overlay(text: str, new: str, start: int, size: int = -1) -> str:
    size = len(new) if size < 0 else size
    return _substring(text, 1, start - 1) + new + _substring(text, start + size, 2**31)


def _substring(text: str, start: int, size: int) -> str:
    """Spark's substring: counted from 1, or from the end if negative."""
    low = start - 1 if start > 0 else len(text) + start if start < 0 else 0
    return text[max(low, 0) : max(low + size, 0)]


@valued("quote", takes=(t.STRING,), gives=t.STRING)
def _quote(text: str) -> str:
    return "'" + text.replace("'", "\\'") + "'"


_SOUNDEX = dict(zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "01230127022455012623017202", strict=True))


@valued("soundex", takes=(t.STRING,), gives=t.STRING)
def _soundex(text: str) -> str:
    if not text or not (text[0].isascii() and text[0].isalpha()):
        return text
    first = text[0].upper()
    out, last = first, _SOUNDEX[first]
    for char in text[1:]:
        code = _SOUNDEX.get(char.upper())
        if code is None:
            last = "0"
            continue
        if code != "7":
            if code not in ("0", last):
                out += code
                if len(out) == 4:
                    return out
            last = code
    return out.ljust(4, "0")


@valued("space", takes=(t.INT,), gives=t.STRING)
def _space(count: int) -> str:
    return " " * count


@valued("split_part", takes=(t.STRING, t.STRING, t.INT), gives=t.STRING)
def _split_part(text: str, delimiter: str, place: int) -> str:
    if not place:
        raise ValueError("0")
    parts = text.split(delimiter) if delimiter else [text]
    if abs(place) > len(parts):
        return ""
    return parts[place - 1 if place > 0 else place]


@valued("substring_index", takes=(t.STRING, t.STRING, t.INT), gives=t.STRING)
def _substring_index(text: str, delimiter: str, count: int) -> str:
    if not delimiter or not count:
        return ""
    if count > 0:
        # Overlapping finds count, as in Spark: the search goes on one byte after each.
        at = -1
        for _ in range(count):
            at = text.find(delimiter, at + 1)
            if at < 0:
                return text
        return text[:at]
    at = len(text) - len(delimiter) + 1
    for _ in range(-count):
        at = text.rfind(delimiter, 0, max(at + len(delimiter) - 1, 0))
        if at < 0:
            return text
    return text[at + len(delimiter) :]


@valued("jaro_winkler_similarity", takes=(t.STRING, t.STRING), gives=t.DOUBLE)
def _jaro_winkler(a: str, b: str) -> float:
    if a == b:
        return 1.0
    reach = max(max(len(a), len(b)) // 2 - 1, 0)
    used = [False] * len(b)
    left = []
    for i, char in enumerate(a):
        for j in range(max(0, i - reach), min(len(b), i + reach + 1)):
            if not used[j] and b[j] == char:
                used[j] = True
                left.append(char)
                break
    if not left:
        return 0.0
    right = [c for c, hit in zip(b, used, strict=True) if hit]
    m = len(left)
    moved = sum(x != y for x, y in zip(left, right, strict=True)) // 2
    jaro = (m / len(a) + m / len(b) + (m - moved) / m) / 3
    prefix = 0
    while prefix < min(4, len(a), len(b)) and a[prefix] == b[prefix]:
        prefix += 1
    return jaro + prefix * 0.1 * (1 - jaro)


_JAVA_FORMAT = re.compile(r"%(?:(\d+)\$)?([-#+ 0,(]*)(\d+)?(?:\.(\d+))?([a-zA-Z%])")


@function("format_string", "printf", args=(1, None), per_row=True)
def _format_string(call: Call) -> Node:
    pattern = call.constant(0, t.STRING, "pattern").as_py()
    if pattern is None:
        return null_of(t.STRING, call.text)
    if "%" in _JAVA_FORMAT.sub("", pattern):
        raise ExpressionError(f"The pattern {pattern!r} is not supported in {call.text!r}.")
    for match in _JAVA_FORMAT.finditer(pattern):
        if match[5] not in "sdfxXcbeE%n" or "(" in match[2] or "#" in match[2]:
            raise ExpressionError(f"{match[0]!r} in the pattern is not supported in {call.text!r}.")
    nodes = list(call.args[1:])
    for i, node in enumerate(nodes):
        if t.is_fractional(node.type) and re.search("%[^%]*s", pattern):
            nodes[i] = cast(node, t.STRING)
        elif not t.is_atomic(node.type) and node.type != t.NULL:
            raise call.mismatch("a pattern and values that are not nested")

    def formatted(*values: Any) -> str:
        following = iter(values)

        def one(match: re.Match[str]) -> str:
            place, flags, width, digits, kind = match.groups()
            if kind in "%n":
                return "\n" if kind == "n" else "%"
            value = values[int(place) - 1] if place else next(following)
            return _java_piece(value, flags, width, digits, kind)

        return _JAVA_FORMAT.sub(one, pattern)

    return _nullable(call.text, formatted, nodes)


def _java_piece(value: Any, flags: str, width: str | None, digits: str | None, kind: str) -> str:
    if value is None or kind in "sbc":
        if kind == "b":
            text = str(value is True or (value is not None and value is not False)).lower()
        elif kind == "c" and isinstance(value, int):
            text = chr(value)
        else:
            text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        text = text if digits is None else text[: int(digits)]
        # Java counts a character beyond the basic plane twice.
        fill = " " * (int(width or 0) - len(text.encode("utf-16-le")) // 2)
        return text + fill if "-" in flags else fill + text
    if isinstance(value, float) and not math.isfinite(value):
        text = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return text.ljust(int(width or 0)) if "-" in flags else text.rjust(int(width or 0))
    if kind in "xX":
        value = value % 2**64 if value < -(2**31) else value % 2**32 if value < 0 else value
    sign = "+" if "+" in flags else " " if " " in flags else ""
    form = (
        f"{sign}{'0' if '0' in flags and '-' not in flags else ''}{width or ''}{',' if ',' in flags else ''}"
    )
    if kind == "f" and isinstance(value, float):
        # Java rounds the shortest digits half up, not the binary number.
        step = py.Decimal(1).scaleb(-int(digits or 6))
        value = py.Decimal(repr(value)).quantize(step, py.ROUND_HALF_UP, py.Context(prec=400))
    precision = f".{digits or 6}" if kind in "feE" else ""
    return format(value, ("<" if "-" in flags else "") + form + precision + kind)


def _nullable(text: str, fn: Any, nodes: list[Node]) -> Node:
    """A node that calls Python for each row, nulls included."""

    def run(*values: Value) -> Value:
        n = max((len(v) for v in values if isinstance(v, pa.Array)), default=1)
        columns = [plain(as_array(v, n)) for v in values]
        return pa.array([fn(*row) for row in zip(*columns, strict=True)] if columns else [fn()], t.STRING)

    return evaluated_all(t.STRING, text, run, *nodes)


@function("is_valid_utf8", "make_valid_utf8", "validate_utf8", "try_validate_utf8", args=1)
def _valid_utf8(call: Call) -> Node:
    # An Arrow string is valid UTF-8.
    node = call.cast(0, t.STRING)
    same = kernel("equal")
    return strict(t.BOOLEAN, call.text, lambda v: same(v, v), node) if call.name == "is_valid_utf8" else node
