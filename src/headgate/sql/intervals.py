"""Dates and timestamps plus or minus an interval literal, and dates plus or minus days."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from sqlglot import exp

from headgate.errors import ExpressionError, TypeMismatch
from headgate.sql import types as t
from headgate.sql.casts import cast, implicit
from headgate.sql.node import FallibleKernel, Node, fallible, strict
from headgate.sql.parsing import days_from_civil
from headgate.sql.spelling import spell
from headgate.sql.values import Bad, Numbers, Value, checked, computed, numbers

DAY = 86_400_000_000
_UNITS = {
    "YEAR": (12, 0, 0),
    "MONTH": (1, 0, 0),
    "WEEK": (0, 7, 0),
    "DAY": (0, 1, 0),
    "HOUR": (0, 0, 3_600_000_000),
    "MINUTE": (0, 0, 60_000_000),
    "SECOND": (0, 0, 1_000_000),
    "MILLISECOND": (0, 0, 1_000),
    "MICROSECOND": (0, 0, 1),
}


@dataclass(frozen=True, slots=True)
class Interval:
    """A constant interval; ``timed`` says that it was written with units below a day."""

    months: int = 0
    days: int = 0
    micros: int = 0
    timed: bool = False

    def plus(self, other: Interval, sign: int = 1) -> Interval:
        return Interval(
            self.months + sign * other.months,
            self.days + sign * other.days,
            self.micros + sign * other.micros,
            self.timed or other.timed,
        )


def constant_interval(tree: exp.Expr) -> Interval | None:
    """The interval that a tree of interval literals denotes, or None if it is something else."""
    if isinstance(tree, exp.Paren):
        return constant_interval(tree.this)
    if isinstance(tree, exp.Neg):
        inner = constant_interval(tree.this)
        return None if inner is None else Interval().plus(inner, -1)
    if isinstance(tree, exp.Add | exp.Sub):
        left, right = constant_interval(tree.this), constant_interval(tree.expression)
        if left is None or right is None:
            return None
        return left.plus(right, 1 if isinstance(tree, exp.Add) else -1)
    if isinstance(tree, exp.Interval):
        return _literal(tree)
    return None


def _literal(tree: exp.Interval) -> Interval:
    text = tree.sql("spark")
    value = tree.this
    negative = isinstance(value, exp.Neg)
    if negative:
        value = value.this
    unit = tree.args.get("unit")
    if isinstance(value, exp.Literal) and unit is not None and not isinstance(unit, exp.IntervalSpan):
        pairs = [(str(value.this).strip(), unit.name.upper())]
    elif isinstance(value, exp.Literal) and unit is None:
        words = str(value.this).split()
        if len(words) % 2 or not words:
            raise ExpressionError(f"{text!r} is not an interval of the form INTERVAL 5 MINUTES.")
        pairs = [(words[i], words[i + 1].upper()) for i in range(0, len(words), 2)]
    else:
        raise ExpressionError(f"The interval {text!r} is not supported; write it as INTERVAL 5 MINUTES.")
    total = Interval()
    for amount, name in pairs:
        total = total.plus(_amount(amount, name, text), -1 if negative else 1)
    return total


def _amount(amount: str, name: str, text: str) -> Interval:
    unit = name.removesuffix("S")
    if unit not in _UNITS:
        raise ExpressionError(f"The interval unit {name} is not supported in {text!r}.")
    months, days, micros = _UNITS[unit]
    if not re.fullmatch(r"[+-]?\d+", amount):
        if unit == "SECOND" and (match := re.fullmatch(r"([+-]?)(\d*)\.(\d{1,9})", amount)):
            size = int(match[2] or 0) * 1_000_000 + int(match[3][:6].ljust(6, "0"))
            return Interval(micros=-size if match[1] == "-" else size, timed=True)
        raise ExpressionError(f"The interval {text!r} is not supported; write a whole number and a unit.")
    count = int(amount)
    return Interval(months * count, days * count, micros * count, timed=bool(micros))


def shifted(compiled: Callable[[exp.Expr], Node], operator: str, tree: exp.Expr) -> Node | None:
    """``time + interval``, ``time - interval`` or ``interval + time``; None if no interval is involved.

    ``compiled`` compiles the other side.
    """
    left, right = constant_interval(tree.this), constant_interval(tree.expression)
    if left is None and right is None:
        return None
    text = spell(tree)
    if right is not None and left is None:
        interval, node = right, compiled(tree.this)
    elif left is not None and right is None and operator == "+":
        interval, node = left, compiled(tree.expression)
    else:
        raise ExpressionError(
            f"An interval is not supported as a value in {text!r}; add it to a date or timestamp."
        )
    return add_interval(node, Interval().plus(interval, -1 if operator == "-" else 1), text)


def add_interval(node: Node, interval: Interval, text: str) -> Node:
    """A date or timestamp moved by months, then days, then microseconds."""
    if node.type == t.DATE and interval.timed:
        node = cast(node, t.TIMESTAMP).spelled(node.text)
    if interval.months and (interval.days or interval.micros):
        raise ExpressionError(
            f"An interval of months and of days is not supported in {text!r}; add one after the other."
        )
    reason = f"the result of {text} is out of range"
    if node.type == t.DATE:
        return fallible(t.DATE, text, reason, _move_date(interval), node)
    if not t.is_timestamp(node.type):
        raise TypeMismatch(
            f"An interval can be added to a date or timestamp, not to {node.type_name}, in {text!r}."
        )
    return fallible(node.type, text, reason, _move_timestamp(interval, node.type), node)


def _move_date(interval: Interval) -> FallibleKernel:
    def run(value: Value) -> tuple[Value, Bad]:
        days = numbers(value).astype(np.int64)
        if interval.months:
            days = add_months(days, interval.months)
        return bounded_days(days + interval.days, value)

    return run


def bounded_days(days: Numbers, *operands: Value) -> tuple[Value, Bad]:
    """Days as dates; what 32 bits cannot hold is bad."""
    outside = (days < -(2**31)) | (days >= 2**31)
    return checked(np.where(outside, 0, days), outside, t.DATE, *operands)


def _move_timestamp(interval: Interval, type_: pa.DataType) -> FallibleKernel:
    fixed = interval.days * DAY + interval.micros

    def run(value: Value) -> tuple[Value, Bad]:
        micros = numbers(value)
        if interval.months:
            days, rest = np.divmod(micros, DAY)
            micros = add_months(days, interval.months) * DAY + rest
        moved = micros + fixed
        # Nothing added is nothing that wraps, though it is not less either.
        wrapped = ((moved < micros) != (fixed < 0)) & (fixed != 0)
        return checked(moved, wrapped, type_, value)

    return run


def civil_from_days(days: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Year, month and day of days since 1970."""
    shifted_days = days.astype(np.int64) + 719468
    era = shifted_days // 146097
    day_of_era = shifted_days - era * 146097
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    index = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * index + 2) // 5 + 1
    month = np.where(index < 10, index + 3, index - 9)
    return year_of_era + era * 400 + (month <= 2), month, day


def add_months(days: Numbers, months: Numbers | int) -> Numbers:
    """Days moved by months; a day that the month does not have becomes its last."""
    year, month, day = civil_from_days(days)
    total = year * 12 + (month - 1) + months
    year, month = total // 12, total % 12 + 1
    ones = np.ones_like(month)
    first, _ = days_from_civil(year, month, ones)
    following, _ = days_from_civil(year + (month == 12), month % 12 + 1, ones)
    moved: Numbers = first + np.minimum(day, following - first) - 1
    return moved


def date_arithmetic(operator: str, left: Node, right: Node, text: str) -> Node:
    """``date + n`` and ``date - n``; n is a number of days."""
    if right.type == t.DATE and (left.type == t.DATE or operator == "-"):
        raise ExpressionError(
            f"The difference of two dates is an interval, which is not supported as a column, in "
            f"{text!r}. Use datediff(a, b)."
        )
    date, count = (left, right) if left.type == t.DATE else (right, left)
    if count.type not in (t.TINYINT, t.SMALLINT, t.INT, t.NULL):
        raise TypeMismatch(f"Days added to a DATE must be INT, not {count.type_name}, in {text!r}.")
    return add_days(date, count, 1 if operator == "+" else -1, text)


def add_days(date: Node, count: Node, sign: int, text: str) -> Node:
    """A date moved by a number of days that may differ per row."""
    count = implicit(count, t.INT, "days", text)

    # Spark adds in 32 bits and lets it wrap.
    run = computed(t.DATE, lambda days, moved: (days.astype(np.int64) + sign * moved).astype(np.int32))
    return strict(t.DATE, text, run, date, count)
