"""Functions of dates and timestamps, in UTC."""

from __future__ import annotations

import decimal as py
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import ExpressionError
from headgate.sql import intervals
from headgate.sql import types as t
from headgate.sql.casts import cast
from headgate.sql.node import Node, fallible, strict
from headgate.sql.parsing import days_from_civil
from headgate.sql.registry import Call, function
from headgate.sql.values import Bad, Numbers, Value, as_array, checked, computed, kernel, numbers, rows

_DAY = intervals.DAY
_to_int = kernel("cast", pc.CastOptions.unsafe(t.INT))


def _time_operand(call: Call, index: int) -> Node:
    """A timestamp with or without zone; a date or a string becomes one with."""
    node = call.args[index]
    return node if t.is_timestamp(node.type) else call.cast(index, t.TIMESTAMP)


def _naive(value: Value) -> pa.Array:
    # In UTC the wall clock is the instant, and Arrow's zone lookup costs more than the field.
    array = as_array(value, 1)
    return array.view(t.TIMESTAMP_NTZ) if t.is_timestamp(array.type) else array


def _date_part(arrow: Callable[[pa.Array], pa.Array]) -> Callable[[Call], Node]:
    def run(value: Value) -> Value:
        return _to_int(arrow(as_array(value, 1)))

    return lambda call: strict(t.INT, call.text, run, call.cast(len(call.args) - 1, t.DATE))


_DATE_PARTS: dict[str, Callable[[pa.Array], pa.Array]] = {
    "year": pc.year,
    "month": pc.month,
    "day": pc.day,
    "dayofmonth": pc.day,
    "quarter": pc.quarter,
    "dayofyear": pc.day_of_year,
    "weekofyear": pc.iso_week,
    "dayofweek": lambda a: pc.day_of_week(a, count_from_zero=False, week_start=7),
    "weekday": lambda a: pc.day_of_week(a, count_from_zero=True, week_start=1),
}
for _name, _arrow in _DATE_PARTS.items():
    function(_name, args=1)(_date_part(_arrow))

_TIME_PARTS: dict[str, Callable[[Numbers], Numbers]] = {
    "hour": lambda micros: np.mod(micros, _DAY) // 3_600_000_000,
    "minute": lambda micros: np.mod(micros, 3_600_000_000) // 60_000_000,
    "second": lambda micros: np.mod(micros, 60_000_000) // 1_000_000,
}


def _time_part(compute: Callable[[Numbers], Numbers]) -> Callable[[Call], Node]:
    run = computed(t.INT, compute)
    return lambda call: strict(t.INT, call.text, run, _time_operand(call, len(call.args) - 1))


for _name, _compute in _TIME_PARTS.items():
    function(_name, args=1)(_time_part(_compute))

_EXTRACT = {
    "year": "year", "y": "year", "years": "year", "yr": "year", "yrs": "year",
    "quarter": "quarter", "qtr": "quarter",
    "month": "month", "mon": "month", "mons": "month", "months": "month",
    "week": "weekofyear", "w": "weekofyear", "weeks": "weekofyear",
    "day": "day", "d": "day", "days": "day",
    "dayofweek": "dayofweek", "dow": "dayofweek",
    "doy": "dayofyear",
    "hour": "hour", "h": "hour", "hours": "hour", "hr": "hour", "hrs": "hour",
    "yearofweek": "yearofweek", "dayofweek_iso": "dayofweek_iso", "dow_iso": "dayofweek_iso",
    "second": "second", "s": "second", "sec": "second", "seconds": "second", "secs": "second",
    "minute": "minute", "m": "minute", "min": "minute", "mins": "minute", "minutes": "minute",
}  # fmt: skip


_DATE_PARTS["yearofweek"] = pc.iso_year
_DATE_PARTS["dayofweek_iso"] = lambda a: pc.day_of_week(a, count_from_zero=False, week_start=1)


def _exact_seconds(value: Value) -> Value:
    micros = computed(t.BIGINT, lambda data: np.mod(data, 60_000_000))(value)
    return pc.multiply(micros.cast(pa.decimal128(19, 0)), pa.scalar(py.Decimal("0.000001"))).cast(
        t.decimal(8, 6)
    )


@function("extract", "date_part", "datepart", args=2)
def _extract(call: Call) -> Node:
    field = str(call.constant(0, t.STRING, "field").as_py()).lower()
    part = _EXTRACT.get(field)
    if part is None:
        raise ExpressionError(
            f"The field {field!r} is not supported in {call.text!r}. Use one of "
            f"{', '.join(sorted(set(_EXTRACT.values())))}."
        )
    if part == "second":
        return strict(t.decimal(8, 6), call.text, _exact_seconds, _time_operand(call, 1))
    if part in _TIME_PARTS:
        return _time_part(_TIME_PARTS[part])(call)
    return _date_part(_DATE_PARTS[part])(call)


_TRUNCATIONS = {
    "year": "year", "yyyy": "year", "yy": "year",
    "quarter": "quarter",
    "month": "month", "mm": "month", "mon": "month",
    "week": "week",
    "day": "day", "dd": "day",
    "hour": "hour", "minute": "minute", "second": "second",
    "millisecond": "millisecond", "microsecond": "microsecond",
}  # fmt: skip
_FIXED = {
    "day": _DAY,
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1_000,
    "microsecond": 1,
}


def truncate_days(days: Numbers, unit: str) -> Numbers:
    """Days moved back to the start of their year, quarter, month or ISO week."""
    if unit == "week":
        monday: Numbers = days - np.mod(days + 3, 7)
        return monday
    year, month, day = intervals.civil_from_days(days)
    ones = np.ones_like(day)
    if unit == "month":
        return days - day + 1
    first = ones if unit == "year" else (month - 1) // 3 * 3 + 1
    return days_from_civil(year, first, ones)[0]


def _unit(call: Call, index: int, allowed: tuple[str, ...]) -> str:
    given = call.constant(index, t.STRING, "unit").as_py()
    unit = _TRUNCATIONS.get(str(given).lower())
    if unit not in allowed:
        raise ExpressionError(
            f"The unit {given!r} is not supported in {call.text!r}. Use one of {', '.join(allowed)}."
        )
    return unit


@function("date_trunc", args=2)
def _date_trunc(call: Call) -> Node:
    unit = _unit(call, 0, ("year", "quarter", "month", "week", *_FIXED))
    step = _FIXED.get(unit)

    def truncated(micros: Numbers) -> Numbers:
        return micros - np.mod(micros, step) if step else truncate_days(micros // _DAY, unit) * _DAY

    return strict(t.TIMESTAMP, call.text, computed(t.TIMESTAMP, truncated), call.cast(1, t.TIMESTAMP))


@function("trunc", args=2)
def _trunc(call: Call) -> Node:
    unit = _unit(call, 1, ("year", "quarter", "month", "week"))

    run = computed(t.DATE, lambda days: truncate_days(days.astype(np.int64), unit))
    return strict(t.DATE, call.text, run, call.cast(0, t.DATE))


@function("date_add", "dateadd", "date_sub", args=2)
def _date_add(call: Call) -> Node:
    if call.args[1].type not in (t.TINYINT, t.SMALLINT, t.INT, t.STRING, t.NULL):
        raise call.mismatch("a date and an INT number of days", 1)
    sign = -1 if call.name == "date_sub" else 1
    return intervals.add_days(call.cast(0, t.DATE), call.cast(1, t.INT), sign, call.text)


@function("add_months", args=2)
def _add_months(call: Call) -> Node:
    if not (t.is_integral(call.args[1].type) or call.args[1].type in (t.NULL, t.STRING)):
        raise call.mismatch("a date and an INT number of months", 1)

    def run(value: Value, months: Value) -> tuple[Value, Bad]:
        n = rows(value, months)
        days = np.broadcast_to(numbers(value), n).astype(np.int64)
        return intervals.bounded_days(
            intervals.add_months(days, numbers(months).astype(np.int64)), value, months
        )

    reason = f"the date {call.text} is out of range"
    return fallible(t.DATE, call.text, reason, run, call.cast(0, t.DATE), call.cast(1, t.INT))


@function("last_day", args=1)
def _last_day(call: Call) -> Node:
    def last(days: Numbers) -> Numbers:
        return intervals.add_months(truncate_days(days.astype(np.int64), "month"), 1) - 1

    return strict(t.DATE, call.text, computed(t.DATE, last), call.cast(0, t.DATE))


@function("make_date", args=3)
def _make_date(call: Call) -> Node:
    def run(*values: Value) -> tuple[Value, Bad]:
        n = rows(*values)
        year, month, day = (np.broadcast_to(numbers(v), n).astype(np.int64) for v in values)
        days, good = days_from_civil(year, np.clip(month, 0, 13), np.clip(day, 0, 32))
        good = good & (np.abs(year) <= 999_999_999)
        return checked(np.where(good, days, 0), ~good, t.DATE, *values)

    reason = f"{call.text} is not a date"
    return fallible(t.DATE, call.text, reason, run, *(call.cast(i, t.INT) for i in range(3)))


@function("datediff", "date_diff", args=2)
def _datediff(call: Call) -> Node:
    return strict(t.INT, call.text, computed(t.INT, np.subtract), call.cast(0, t.DATE), call.cast(1, t.DATE))


function("date", args=1)(lambda call: cast(call.args[0], t.DATE, call.text))
function("timestamp", args=1)(lambda call: cast(call.args[0], t.TIMESTAMP, call.text))
