"""Strings as other types: the texts that Spark's CAST accepts, and only those."""

from __future__ import annotations

import decimal as py

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.sql import decimals
from headgate.sql import types as t
from headgate.sql.node import FallibleKernel
from headgate.sql.values import (
    Bad,
    Mask,
    Numbers,
    Value,
    as_array,
    from_numbers,
    is_true,
    null_where,
    per_distinct,
    some,
    union,
)

_BLANK = "".join(chr(c) for c in range(0x21)) + "\x7f"
_TRUE = pa.array(["t", "true", "y", "yes", "1"])
_FALSE = pa.array(["f", "false", "n", "no", "0"])
_DAY = 86_400_000_000
_DATE = r"^(?P<year>[+-]?\d{4,7})(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2})(?:[ T].*)?)?)?$"
_TIMESTAMP = (
    r"^(?P<year>[+-]?\d{4,6})(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2})(?:[ T](?:(?P<hour>\d{1,2})"
    r"(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d*))?)?)?"
    r" ?(?P<zone>Z|UTC|GMT|UT|(?:UTC|GMT|UT)?[+-]\d{1,2}(?::?\d{1,2})?(?::?\d{2})?)?)?)?)?)?$"
)


def parser(target: pa.DataType) -> FallibleKernel | None:
    """The kernel that reads strings as a type, or None if Spark has no such cast."""
    if t.is_integral(target):
        return lambda v: _integers(v, target)
    if t.is_fractional(target):
        return lambda v: _fractions(v, target)
    if target == t.BOOLEAN:
        return _booleans
    if target == t.DATE:
        return _dates
    if t.is_timestamp(target):
        return lambda v: _timestamps(v, target)
    if t.is_decimal(target):
        return lambda v: _decimals(v, target)
    return None


def _trimmed(value: Value) -> pa.Array:
    return pc.utf8_trim(as_array(value, 1), _BLANK)


def _malformed(text: pa.Array, good: pa.Array) -> Bad:
    return some(~is_true(good, len(text)) & is_true(text.is_valid(), len(text)))


def _integers(value: Value, target: pa.DataType) -> tuple[Value, Bad]:
    text = _trimmed(value)
    bad = _malformed(text, pc.match_substring_regex(text, r"^[+-]?\d+$"))
    digits = pc.replace_substring_regex(text, r"^(-?)\+?0*(\d)", r"\1\2")
    # 19 digits may still be too many, which the cast finds; more always are, and would fail the whole array.
    long = is_true(pc.greater(pc.utf8_length(digits), 20), len(text))
    bad = union(bad, some(long))
    if bad is not None:
        digits = null_where(digits, bad)
    wide = digits.cast(pa.decimal128(38, 0))
    bits = target.bit_width
    low, high = (pa.scalar(x, pa.decimal128(38, 0)) for x in (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
    outside = some(is_true(pc.or_(pc.less(wide, low), pc.greater(wide, high)), len(text)))
    if outside is not None:
        wide = null_where(wide, outside)
    return wide.cast(target), union(bad, outside)


def _fractions(value: Value, target: pa.DataType) -> tuple[Value, Bad]:
    text = _trimmed(value)
    ordinary = pc.match_substring_regex(text, r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[dDfF]?$")
    special = pc.match_substring_regex(text, r"(?i)^([+-]?inf(inity)?|nan)$")
    bad = _malformed(text, pc.or_(ordinary, special))
    if bad is not None:
        text = null_where(text, bad)
    plain = pc.replace_substring_regex(pc.utf8_lower(text), r"^\+", "")
    plain = pc.replace_substring_regex(plain, r"(\d\.?)[df]$", r"\1")
    return plain.cast(target), bad


def _booleans(value: Value) -> tuple[Value, Bad]:
    text = pc.ascii_lower(_trimmed(value))
    yes = pc.is_in(text, _TRUE)
    bad = _malformed(text, pc.or_(yes, pc.is_in(text, _FALSE)))
    out = pc.if_else(text.is_valid(), yes, pa.scalar(None, t.BOOLEAN))
    return (out if bad is None else null_where(out, bad)), bad


def _decimals(value: Value, target: pa.DataType) -> tuple[Value, Bad]:
    text = _trimmed(value)
    bad = _malformed(text, pc.match_substring_regex(text, r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"))
    if bad is not None:
        text = null_where(text, bad)
    unusual = pc.or_(pc.match_substring_regex(text, "[eE]"), pc.greater(pc.binary_length(text), 36))
    if is_true(unusual, len(text)).any():
        text = per_distinct(text, lambda xs: [_plain_digits(x, target.scale) for x in xs], t.STRING)
    text = pc.replace_substring_regex(text, r"^\+", "")
    out, overflow = decimals.fit(text.cast(pa.decimal256(76, 38)), target)
    return out, union(bad, overflow)


def _plain_digits(text: str | None, scale: int) -> str | None:
    """A decimal text without exponent, rounded to a scale; what no decimal holds becomes 38 nines."""
    if text is None:
        return None
    value = py.Decimal(text)
    if not value or value.adjusted() < -60:
        return "0"
    if value.adjusted() >= 38:
        return "-" * (value < 0) + "9" * 38
    context = py.Context(prec=400, rounding=py.ROUND_HALF_UP)
    return f"{value.quantize(py.Decimal(1).scaleb(-scale), context=context):f}"


def _part(parts: pa.Array, name: str, default: int) -> Numbers:
    text = pc.struct_field(parts, name)
    text = pc.if_else(pc.equal(text, ""), pa.scalar(None, t.STRING), text)
    text = pc.replace_substring_regex(text, r"^\+", "")
    out: Numbers = text.cast(pa.int64()).fill_null(default).to_numpy(zero_copy_only=False)
    return out


def days_from_civil(year: Numbers, month: Numbers, day: Numbers) -> tuple[Numbers, Mask]:
    """Days since 1970 of a date, and where it is a real date."""
    leap = ((year % 4 == 0) & (year % 100 != 0)) | (year % 400 == 0)
    lengths = np.array([31, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
    month_ok = (month >= 1) & (month <= 12)
    last = lengths[np.where(month_ok, month, 0)] + (leap & (month == 2))
    good = month_ok & (day >= 1) & (day <= last)
    shifted = year - (month <= 2)
    era = shifted // 400
    year_of_era = shifted - era * 400
    day_of_year = (153 * (month + np.where(month > 2, -3, 9)) + 2) // 5 + day - 1
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    return era * 146097 + day_of_era - 719468, good


def _dates(value: Value) -> tuple[Value, Bad]:
    text = _trimmed(value)
    parts = pc.extract_regex(text, _DATE)
    days, good = days_from_civil(_part(parts, "year", 1970), _part(parts, "month", 1), _part(parts, "day", 1))
    matched = is_true(parts.is_valid(), len(text))
    given = is_true(text.is_valid(), len(text))
    good &= matched & (np.abs(days) < 2**31)
    return from_numbers(np.where(good, days, 0), t.DATE, good), some(given & ~good)


def _timestamps(value: Value, target: pa.DataType) -> tuple[Value, Bad]:
    text = _trimmed(value)
    parts = pc.extract_regex(text, _TIMESTAMP)
    days, good = days_from_civil(_part(parts, "year", 1970), _part(parts, "month", 1), _part(parts, "day", 1))
    hour, minute, second = (_part(parts, name, 0) for name in ("hour", "minute", "second"))
    good &= is_true(parts.is_valid(), len(text)) & (hour < 24) & (minute < 60) & (second < 60)
    fraction = pc.utf8_rpad(pc.utf8_slice_codeunits(pc.struct_field(parts, "fraction"), 0, 6), 6, "0")
    micros: Numbers = fraction.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    total = days * _DAY + hour * 3_600_000_000 + minute * 60_000_000 + second * 1_000_000 + micros
    offset, zone_ok = offsets_of(pc.struct_field(parts, "zone"))
    good &= zone_ok
    if target == t.TIMESTAMP:
        total = total - offset
    good &= np.abs(days) < 106_751_991
    given = is_true(text.is_valid(), len(text))
    return from_numbers(np.where(good, total, 0), target, good), some(given & ~good)


def offsets_of(zone: pa.Array) -> tuple[Numbers, Mask]:
    """Zone texts as microseconds east of Greenwich."""
    parts = pc.extract_regex(
        zone, r"(?P<sign>[+-])(?P<hour>\d{1,2}):?(?P<minute>\d{0,2}):?(?P<second>\d{0,2})$"
    )
    hour, minute, second = (_part(parts, name, 0) for name in ("hour", "minute", "second"))
    sign = np.where(is_true(pc.equal(pc.struct_field(parts, "sign"), "-"), len(zone)), -1, 1)
    seconds = hour * 3600 + minute * 60 + second
    good = (minute < 60) & (second < 60) & (seconds <= 18 * 3600)
    return sign * seconds * 1_000_000, good
