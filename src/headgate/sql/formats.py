"""Times as text by a pattern, and text as times: Java's patterns as Spark takes them."""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import ExpressionError
from headgate.sql import types as t
from headgate.sql.intervals import civil_from_days
from headgate.sql.node import FallibleKernel, Kernel
from headgate.sql.parsing import days_from_civil, offsets_of
from headgate.sql.values import (
    Bad,
    Mask,
    Numbers,
    Value,
    as_array,
    both_valid,
    from_numbers,
    is_true,
    numbers,
    some,
)

_DAY = 86_400_000_000
_PIECE = re.compile(r"([A-Za-z])\1*|'((?:[^']|'')*)'|([\[\]])|([^A-Za-z'\[\]]+)|(.)", re.DOTALL)
_SHORT_MONTHS, _MONTHS = list(calendar.month_abbr)[1:], list(calendar.month_name)[1:]
_SHORT_DAYS, _DAYS = list(calendar.day_abbr), list(calendar.day_name)
_ZONES = {
    **{"X" * i: "Z" for i in range(1, 6)},
    "x": "+00",
    "xx": "+0000",
    "xxx": "+00:00",
    "xxxx": "+0000",
    "xxxxx": "+00:00",
    "Z": "+0000",
    "ZZ": "+0000",
    "ZZZ": "+0000",
    "ZZZZ": "GMT",
    "ZZZZZ": "Z",
    "z": "UTC",
    "zz": "UTC",
    "zzz": "UTC",
    "zzzz": "Coordinated Universal Time",
    "VV": "UTC",
    "O": "GMT",
    "OOOO": "GMT",
}
Clock = dict[str, Numbers]


def pieces(pattern: str, text: str) -> list[tuple[str, str]]:
    """A pattern as (field, letters), ("'", literal text) and ("[", "") or ("]", "")."""
    out: list[tuple[str, str]] = []
    for match in _PIECE.finditer(pattern):
        letter, quoted, bracket, plain, odd = match.groups()
        if letter:
            out.append((letter, match[0]))
        elif bracket:
            out.append((bracket, ""))
        elif odd or any(c in "{}#" for c in plain or ""):
            raise ExpressionError(
                f"{odd or plain!r} in the pattern {pattern!r} is not supported in {text!r}."
            )
        else:
            literal = plain if plain is not None else quoted.replace("''", "'") or "'"
            out.append(("'", literal))
    return out


def _refuse(letters: str, pattern: str, text: str, doing: str) -> ExpressionError:
    return ExpressionError(
        f"{letters!r} in the pattern {pattern!r} is not supported for {doing} in {text!r}."
    )


def _number(name: str, width: int) -> Callable[[Clock], Value]:
    def written(clock: Clock) -> Value:
        text = pa.array(clock[name]).cast(t.STRING)
        return pc.utf8_lpad(text, width, "0") if width > 1 else text

    return written


def _named(name: str, names: list[str], first: int = 1) -> Callable[[Clock], Value]:
    table = pa.array(names)
    return lambda clock: table.take(pa.array(clock[name] - first))


def _year(width: int) -> Callable[[Clock], Value]:
    def written(clock: Clock) -> Value:
        year = np.where(clock["year"] <= 0, 1 - clock["year"], clock["year"])
        if width == 2:
            year = year % 100
        text = pc.utf8_lpad(pa.array(year).cast(t.STRING), width, "0")
        if width == 4 and (year > 9999).any():
            text = pc.if_else(pa.array(year > 9999), pc.binary_join_element_wise("+", text, ""), text)
        return text

    return written


def _fraction(width: int) -> Callable[[Clock], Value]:
    def written(clock: Clock) -> Value:
        text = pc.utf8_lpad(pa.array(clock["micro"]).cast(t.STRING), 6, "0")
        return pc.utf8_slice_codeunits(text, 0, width) if width <= 6 else pc.utf8_rpad(text, width, "0")

    return written


def _writer(letter: str, letters: str) -> Callable[[Clock], Value] | None:
    n = len(letters)
    if letters in _ZONES:
        zone = pa.scalar(_ZONES[letters], t.STRING)
        return lambda clock: zone
    if letter == "y" and n <= 6:
        return _year(n)
    if letter in "ML" and n in (3, 4):
        return _named("month", _SHORT_MONTHS if n == 3 else _MONTHS)
    if letter == "E" and n <= 4:
        return _named("weekday", _DAYS if n == 4 else _SHORT_DAYS, first=0)
    if letter == "S" and n <= 9:
        return _fraction(n)
    if letters == "a":
        return _named("half", ["AM", "PM"], first=0)
    if letters in ("G", "GG", "GGG"):
        return _named("era", ["BC", "AD"], first=0)
    if letter in "Qq" and n in (3, 4):
        names = ["Q1", "Q2", "Q3", "Q4"] if n == 3 else [f"{x} quarter" for x in ("1st", "2nd", "3rd", "4th")]
        return _named("quarter", names)
    fields = {
        "M": "month", "L": "month", "d": "day", "D": "yearday", "H": "hour", "h": "hour12", "K": "hour11",
        "k": "hour24", "m": "minute", "s": "second", "Q": "quarter", "q": "quarter",
    }  # fmt: skip
    if letter in fields and (n <= 2 or letters == "DDD"):
        return _number(fields[letter], n)
    return None


def _clock(micros: Numbers) -> Clock:
    """The fields of times, each as an array of numbers."""
    days, rest = np.divmod(micros, _DAY)
    year, month, day = civil_from_days(days)
    hour = rest // 3_600_000_000
    first, _ = days_from_civil(year, np.ones_like(month), np.ones_like(month))
    return {
        "year": year,
        "era": (year > 0).astype(np.int64),
        "month": month,
        "day": day,
        "quarter": (month + 2) // 3,
        "yearday": days - first + 1,
        "weekday": np.mod(days + 3, 7),
        "hour": hour,
        "half": hour // 12,
        "hour11": hour % 12,
        "hour12": (hour + 11) % 12 + 1,
        "hour24": (hour + 23) % 24 + 1,
        "minute": rest // 60_000_000 % 60,
        "second": rest // 1_000_000 % 60,
        "micro": rest % 1_000_000,
    }


def formatter(pattern: str, text: str) -> Kernel:
    """The kernel that writes timestamps by a pattern."""
    parts: list[Any] = []
    for kind, letters in pieces(pattern, text):
        if kind == "'":
            parts.append(pa.scalar(letters, t.STRING))
        elif kind not in "[]":
            made = _writer(kind, letters)
            if made is None:
                raise _refuse(letters, pattern, text, "writing")
            parts.append(made)

    def run(value: Value) -> Value:
        array = as_array(value, 1)
        clock = _clock(numbers(array))
        columns = [part(clock) if callable(part) else part for part in parts]
        filler = pa.array([""] * len(array), t.STRING)
        joined = pc.binary_join_element_wise(filler, *columns, "")
        valid = both_valid(len(array), array)
        return joined if valid is None else pc.if_else(pa.array(valid), joined, pa.scalar(None, t.STRING))

    return run


_ZONE_PATTERNS = {
    "X": r"Z|[+-]\d{2}(?:\d{2})?", "XX": r"Z|[+-]\d{4}", "XXX": r"Z|[+-]\d{2}:\d{2}",
    "x": r"[+-]\d{2}(?:\d{2})?", "xx": r"[+-]\d{4}", "xxx": r"[+-]\d{2}:\d{2}",
    "Z": r"[+-]\d{4}", "ZZ": r"[+-]\d{4}", "ZZZ": r"[+-]\d{4}",
}  # fmt: skip


def _reader(letter: str, letters: str) -> tuple[str, str] | None:
    """The field that letters read, and the pattern of its text."""
    n = len(letters)
    if letter in "yu":
        digits = {1: r"\d{1,6}", 2: r"\d{2}", 3: r"\d{3}", 4: r"\d{4}"}.get(n)
        return None if digits is None else ("year2" if n == 2 else "year", digits)
    if letter in "ML" and n in (3, 4):
        names = _SHORT_MONTHS if n == 3 else _MONTHS
        return ("month3" if n == 3 else "month4"), "(?i:" + "|".join(names) + ")"
    if letters in _ZONE_PATTERNS:
        return "zone", _ZONE_PATTERNS[letters]
    if letter == "S" and n <= 9:
        return "fraction", rf"\d{{1,{n}}}"
    if letters == "a":
        return "half", "(?i:AM|PM)"
    fields = {
        "M": "month", "L": "month", "d": "day", "D": "yearday", "H": "hour", "h": "hour12", "K": "hour11",
        "k": "hour24", "m": "minute", "s": "second",
    }  # fmt: skip
    if letter not in fields or (n > 2 and letters != "DDD"):
        return None
    return fields[letter], r"\d{1,3}" if letters == "D" else r"\d{1,2}" if n == 1 else rf"\d{{{n}}}"


def parser(pattern: str, text: str) -> FallibleKernel:
    """The kernel that reads timestamps by a pattern; text that does not fit makes its row bad."""
    out, seen = [], set()
    for kind, letters in pieces(pattern, text):
        if kind == "'":
            out.append("(?i:" + re.escape(letters) + ")")
        elif kind in "[]":
            out.append("(?:" if kind == "[" else ")?")
        else:
            made = _reader(kind, letters)
            if made is None or made[0] in seen:
                raise _refuse(letters, pattern, text, "reading")
            seen.add(made[0])
            out.append(f"(?P<{made[0]}>{made[1]})")
    # A group that is always there lets a pattern without fields be refused by Arrow in words.
    regex = r"\A" + "".join(out) + r"\z"

    def run(value: Value) -> tuple[Value, Bad]:
        array = as_array(value, 1)
        found = pc.extract_regex(array, regex)
        given = is_true(array.is_valid(), len(array))
        micros, good = _micros(found, seen, len(array))
        good &= is_true(found.is_valid(), len(array)) & given
        return from_numbers(np.where(good, micros, 0), t.TIMESTAMP, good), some(given & ~good)

    return run


def _micros(found: pa.Array, seen: set[str], length: int) -> tuple[Numbers, Mask]:
    def field(name: str, default: int) -> Numbers:
        if name not in seen:
            return np.full(length, default, dtype=np.int64)
        text = pc.struct_field(found, name)
        text = pc.if_else(pc.equal(text, ""), pa.scalar(None, t.STRING), text)
        out: Numbers = text.cast(pa.int64()).fill_null(default).to_numpy(zero_copy_only=False)
        return out

    year = field("year2", 70) + 2000 if "year2" in seen else field("year", 1970)
    month = field("month", 1)
    for name, names in (("month3", _SHORT_MONTHS), ("month4", _MONTHS)):
        if name in seen:
            place = pc.index_in(
                pc.utf8_lower(pc.struct_field(found, name)), pa.array([m.lower() for m in names])
            )
            month = place.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64) + 1
    days, good = days_from_civil(year, month, field("day", 1))
    good = good & (year >= 1)
    if "yearday" in seen:
        first, _ = days_from_civil(year, np.ones_like(year), np.ones_like(year))
        following, _ = days_from_civil(year + 1, np.ones_like(year), np.ones_like(year))
        days = first + field("yearday", 1) - 1
        good &= (days >= first) & (days < following)
    hour, fits = _hour(found, seen, field)
    minute, second = field("minute", 0), field("second", 0)
    good &= fits & (minute < 60) & (second < 60)
    micros = days * _DAY + hour * 3_600_000_000 + minute * 60_000_000 + second * 1_000_000
    if "fraction" in seen:
        digits = pc.utf8_slice_codeunits(pc.utf8_rpad(pc.struct_field(found, "fraction"), 6, "0"), 0, 6)
        micros = micros + digits.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    if "zone" in seen:
        offset, fits = offsets_of(pc.struct_field(found, "zone"))
        micros, good = micros - offset, good & fits
    return micros, good


def _hour(found: pa.Array, seen: set[str], field: Callable[[str, int], Numbers]) -> tuple[Numbers, Mask]:
    if "hour" in seen:
        hour = field("hour", 0)
        return hour, hour < 24
    if "hour24" in seen:
        hour = field("hour24", 24)
        return hour % 24, (hour >= 1) & (hour <= 24)
    if "hour11" in seen:
        hour = field("hour11", 0)
        fits = hour < 12
    else:
        hour = field("hour12", 12)
        fits = (hour >= 1) & (hour <= 12)
        hour = hour % 12
    if "half" in seen:
        late = pc.equal(pc.utf8_lower(pc.struct_field(found, "half")), "pm")
        hour = hour + 12 * is_true(late, len(hour))
    return hour, fits
