"""Dates and times made from parts, moved by units, and read or written by patterns."""

from __future__ import annotations

import calendar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import ExpressionError
from headgate.sql import formats, intervals
from headgate.sql import types as t
from headgate.sql.casts import cast
from headgate.sql.node import Node, constant, fallible, forgiving, null_of, strict
from headgate.sql.parsing import days_from_civil
from headgate.sql.registry import Call, function
from headgate.sql.values import Bad, Mask, Numbers, Value, as_array, checked, computed, numbers, rows
from headgate.sql.zones import by_zone, instant

_DAY = intervals.DAY
_DEFAULT = "yyyy-MM-dd HH:mm:ss"


def _time(call: Call, index: int = 0) -> Node:
    return call.cast(index, t.TIMESTAMP)


def _pattern(call: Call, index: int = 1) -> str | None:
    found: str | None = call.constant(index, t.STRING, "pattern").as_py()
    return found


@function("date_format", args=2)
def _date_format(call: Call) -> Node:
    pattern = _pattern(call)
    if pattern is None:
        return null_of(t.STRING, call.text)
    return strict(t.STRING, call.text, formats.formatter(pattern, call.text), _time(call))


@function("from_unixtime", args=(1, 2))
def _from_unixtime(call: Call) -> Node:
    pattern = _pattern(call) if len(call.args) == 2 else _DEFAULT
    if pattern is None:
        return null_of(t.STRING, call.text)
    write = formats.formatter(pattern, call.text)
    limit = (2**63 - 1) // 1_000_000

    def run(value: Value) -> Value:
        # Spark multiplies without a check; what overflows is cut here, at the ends of time.
        seconds = np.clip(numbers(value), -limit, limit)
        array = as_array(value, 1)
        micros = pa.array(seconds * 1_000_000, mask=~array.is_valid().to_numpy(zero_copy_only=False))
        return write(micros.view(t.TIMESTAMP))

    return strict(t.STRING, call.text, run, call.cast(0, t.BIGINT))


def _read(call: Call, target: pa.DataType) -> Node:
    """Text by a pattern as a timestamp; a time needs no reading."""
    node = call.args[0]
    if node.type in (t.DATE, t.TIMESTAMP, t.TIMESTAMP_NTZ) or len(call.args) == 1:
        return cast(node, target, call.text)
    pattern = _pattern(call)
    if pattern is None:
        return null_of(target, call.text)
    run = formats.parser(pattern, call.text)
    reason = f"{node.text} is not a time of the form {pattern!r}"
    read = fallible(t.TIMESTAMP, call.text, reason, run, call.cast(0, t.STRING))
    return cast(read, target, call.text)


@function("to_timestamp", "to_timestamp_ltz", "try_to_timestamp", "to_timestamp_ntz", args=(1, 2))
def _to_timestamp(call: Call) -> Node:
    target = t.TIMESTAMP_NTZ if call.name == "to_timestamp_ntz" else t.TIMESTAMP
    node = _read(call, target)
    return forgiving(node) if call.name.startswith("try") else node


@function("to_date", "try_to_date", args=(1, 2))
def _to_date(call: Call) -> Node:
    node = _read(call, t.DATE)
    if not call.name.startswith("try"):
        return node
    return forgiving(node if len(call.args) == 1 else _as_one(node))


def _as_one(node: Node) -> Node:
    """Reading and casting as one step, so that ``try_`` forgives both."""
    inner = node.children[0] if node.children else node
    return Node(
        node.type,
        node.run,
        node.text,
        inner.children,
        node.constant,
        reason=inner.reason,
        columns=node.columns,
    )


@function("unix_timestamp", "to_unix_timestamp", args=(1, 2))
def _unix_timestamp(call: Call) -> Node:
    if call.args[0].type == t.STRING and len(call.args) == 1:
        given = (*call.args, constant(pa.scalar(_DEFAULT), _DEFAULT, literal=True))
        call = Call(call.name, call.text, given, call.trees)
    # Unlike unix_seconds, this one truncates towards 1970.
    run = computed(t.BIGINT, lambda micros: (micros - np.fmod(micros, 1_000_000)) // 1_000_000)
    return strict(t.BIGINT, call.text, run, _read(call, t.TIMESTAMP))


@function("dayname", "monthname", args=1)
def _names(call: Call) -> Node:
    table = pa.array(list(calendar.day_abbr) if call.name == "dayname" else list(calendar.month_abbr)[1:])

    def run(value: Value) -> Value:
        days = as_array(value, 1)
        if call.name == "dayname":
            return table.take(pc.day_of_week(days))
        return table.take(pc.subtract(pc.month(days), 1))

    return strict(t.STRING, call.text, run, call.cast(0, t.DATE))


_WEEK = {
    name: i
    for i, day in enumerate(calendar.day_name)
    for name in (day[:2].upper(), day[:3].upper(), day.upper())
}


@function("next_day", args=2)
def _next_day(call: Call) -> Node:
    def run(value: Value, name: Value) -> tuple[Value, Bad]:
        n = rows(value, name)
        wanted = [_WEEK.get(str(x).strip().upper(), -1) for x in as_array(name, n).to_pylist()]
        day = np.array(wanted, dtype=np.int64)
        start = np.broadcast_to(numbers(value), n).astype(np.int64)
        ahead = np.mod(day - 1 - start - 3, 7) + 1
        return checked(start + ahead, day < 0, t.DATE, value, name)

    reason = f"the day of {call.text} is not one such as 'MON'"
    return fallible(t.DATE, call.text, reason, run, call.cast(0, t.DATE), call.cast(1, t.STRING))


@function("months_between", args=(2, 3))
def _months_between(call: Call) -> Node:
    rounded = True if len(call.args) == 2 else call.constant(2, t.BOOLEAN, "rounding").as_py()

    def between(a: Numbers, b: Numbers) -> Numbers:
        sides = []
        for micros in (a, b):
            days, rest = np.divmod(micros, _DAY)
            year, month, day = intervals.civil_from_days(days)
            last = intervals.civil_from_days(intervals.add_months(days - day + 1, 1) - 1)[2] == day
            sides.append((year * 12 + month, day, last, rest // 1_000_000))
        (months, day, last, second), (months2, day2, last2, second2) = sides
        whole = (months - months2).astype(np.float64)
        part = ((day - day2) * 86_400 + second - second2) / (31 * 86_400.0)
        out = np.where((day == day2) | (last & last2), whole, whole + part)
        answer: Numbers = np.floor(out * 1e8 + 0.5) / 1e8 if rounded else out
        return answer

    return strict(t.DOUBLE, call.text, computed(t.DOUBLE, between), _time(call, 0), _time(call, 1))


@function(
    "make_timestamp", "make_timestamp_ltz", "make_timestamp_ntz", "try_make_timestamp",
    "try_make_timestamp_ltz", "try_make_timestamp_ntz", args=(6, 7),
)  # fmt: skip
def _make_timestamp(call: Call) -> Node:
    naive = call.name.endswith("ntz")
    if naive and len(call.args) == 7:
        raise ExpressionError(f"{call.name}() takes no time zone in {call.text!r}.")
    target = t.TIMESTAMP_NTZ if naive else t.TIMESTAMP
    nodes = [*(call.cast(i, t.INT) for i in range(5)), call.cast(5, t.decimal(16, 6))]
    nodes += [call.cast(6, t.STRING)] if len(call.args) == 7 else []

    def run(*values: Value) -> tuple[Value, Bad]:
        n = rows(*values)
        year, month, day, hour, minute = (np.broadcast_to(numbers(v), n).astype(np.int64) for v in values[:5])
        digits = pc.multiply(as_array(values[5], n), pa.scalar(1_000_000, pa.decimal128(7, 0)))
        seconds = numbers(digits.cast(pa.int64(), safe=False))
        days, good = days_from_civil(year, np.clip(month, 0, 13), np.clip(day, 0, 32))
        good = good & (hour >= 0) & (hour < 24) & (minute >= 0) & (minute < 60) & (year >= 1) & (year <= 9999)
        good &= (seconds >= 0) & (seconds <= 60_000_000)
        micros = np.where(good, days * _DAY + hour * 3_600_000_000 + minute * 60_000_000 + seconds, 0)
        if len(values) == 7:
            moved, bad = by_zone(instant, target, pa.array(micros).view(target), values[6])
            wrong: Mask = ~good if bad is None else ~good | bad
            return checked(numbers(moved), wrong, target, *values)
        return checked(micros, ~good, target, *values)

    node = fallible(target, call.text, f"the parts of {call.text} are not a time", run, *nodes)
    return forgiving(node) if call.name.startswith("try") else node


_STEPS = {
    "MICROSECOND": 1, "MILLISECOND": 1_000, "SECOND": 1_000_000, "MINUTE": 60_000_000, "HOUR": 3_600_000_000,
    "DAY": _DAY, "DAYOFYEAR": _DAY, "WEEK": 7 * _DAY,
}  # fmt: skip
_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}


def _unit(call: Call) -> str:
    unit = str(call.constant(0, t.STRING, "unit").as_py()).upper()
    if unit not in _STEPS and unit not in _MONTHS:
        known = ", ".join([*_STEPS, *_MONTHS])
        raise ExpressionError(f"The unit {unit} is not supported in {call.text!r}. Use one of {known}.")
    return unit


@function("timestampadd", args=3)
def _timestampadd(call: Call) -> Node:
    unit = _unit(call)
    node = _time(call, 2)

    def run(count: Value, value: Value) -> tuple[Value, Bad]:
        n = rows(count, value)
        steps, micros = (np.broadcast_to(numbers(v), n).astype(np.int64) for v in (count, value))
        if unit in _MONTHS:
            days, rest = np.divmod(micros, _DAY)
            outside = np.abs(steps) > 12 * 600_000
            months = np.where(outside, 0, steps) * _MONTHS[unit]
            return checked(intervals.add_months(days, months) * _DAY + rest, outside, node.type, count, value)
        step = _STEPS[unit]
        outside = np.abs(steps) > (2**63 - 1) // step
        moved = micros + np.where(outside, 0, steps) * step
        outside |= (moved < micros) != (steps < 0)
        outside &= steps != 0
        return checked(moved, outside, node.type, count, value)

    reason = f"the time {call.text} is out of range"
    return fallible(node.type, call.text, reason, run, call.cast(1, t.BIGINT), node)


@function("timestampdiff", args=3)
def _timestampdiff(call: Call) -> Node:
    unit = _unit(call)

    def difference(start: Numbers, end: Numbers) -> Numbers:
        if unit in _STEPS:
            between = end - start
            steps: Numbers = (between - np.fmod(between, _STEPS[unit])) // _STEPS[unit]
            return steps
        months, rest = [], []
        for micros in (start, end):
            year, month, day = intervals.civil_from_days(micros // _DAY)
            months.append(year * 12 + month)
            rest.append(day * _DAY + np.mod(micros, _DAY))
        whole = months[1] - months[0]
        whole = whole - ((whole > 0) & (rest[1] < rest[0])) + ((whole < 0) & (rest[1] > rest[0]))
        counted: Numbers = np.sign(whole) * (np.abs(whole) // _MONTHS[unit])
        return counted

    return strict(t.BIGINT, call.text, computed(t.BIGINT, difference), _time(call, 1), _time(call, 2))


function("current_timezone", args=0)(lambda call: constant(pa.scalar("UTC", t.STRING), call.text))
