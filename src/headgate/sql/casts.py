"""CAST, TRY_CAST, and the casts that Spark inserts itself."""

from __future__ import annotations

import decimal as py
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import ExpressionError, TypeMismatch
from headgate.sql import decimals, parsing
from headgate.sql import types as t
from headgate.sql.lists import Lists, lists_of, map_array
from headgate.sql.node import (
    FallibleKernel,
    Kernel,
    Node,
    constant,
    fallible,
    forgiving,
    null_of,
    strict,
)
from headgate.sql.values import (
    Bad,
    Value,
    as_array,
    both_valid,
    checked,
    computed,
    from_numbers,
    is_valid,
    kernel,
    numbers,
    per_distinct,
    rows,
    some,
    union,
)

_DAY = 86_400_000_000
_LIMITS = {
    t.TINYINT: (-(2**7), 2**7 - 1),
    t.SMALLINT: (-(2**15), 2**15 - 1),
    t.INT: (-(2**31), 2**31 - 1),
    t.BIGINT: (-(2**63), 2**63 - 1),
}


def cast(node: Node, target: pa.DataType, text: str | None = None, *, safe: bool = False) -> Node:
    """``CAST(node AS target)``, or ``TRY_CAST`` if ``safe``."""
    source = node.type
    text = text or node.text
    if source == target:
        return node.spelled(text)
    if source == t.NULL:
        return null_of(target, text)
    plain = _plain(source, target)
    if plain is not None:
        return strict(target, text, plain, node)
    risky = _nested(source, target) if t.is_nested(source) else _risky(source, target)
    if risky is None:
        raise TypeMismatch(f"{t.spark_name(source)} cannot be cast to {t.spark_name(target)} in {text!r}.")
    reason = f"a value of {node.text} ({t.spark_name(source)}) cannot be cast to {t.spark_name(target)}"
    made = fallible(target, text, reason, risky, node)
    return forgiving(made) if safe else made


def converter(source: pa.DataType, target: pa.DataType) -> FallibleKernel | None:
    """The kernel of a cast between any two types; None if Spark has no such cast."""
    if source == target:
        return lambda v: (v, None)
    if source == t.NULL:
        return lambda v: (pa.nulls(len(v), target), None)
    if t.is_nested(source):
        return _nested(source, target)
    plain = _plain(source, target)
    if plain is not None:
        return lambda v: (plain(v), None)
    return _risky(source, target)


def _nested(source: pa.DataType, target: pa.DataType) -> FallibleKernel | None:
    """The cast of an array, map or struct, part by part."""
    if target == t.STRING:
        return _printed(source)
    if t.is_struct(source) and t.is_struct(target) and source.num_fields == target.num_fields:
        parts = [converter(a.type, b.type) for a, b in zip(source, target, strict=True)]
        return None if None in parts else lambda v: _cast_struct(as_array(v, 1), parts, target)
    if t.is_array(source) and t.is_array(target):
        inner = converter(source.value_type, target.value_type)
        return None if inner is None else lambda v: _cast_array(v, inner, target)
    if t.is_map(source) and t.is_map(target):
        sides = (converter(source.key_type, target.key_type), converter(source.item_type, target.item_type))
        return None if None in sides else lambda v: _cast_map(v, sides, target)
    return None


def _cast_array(value: Value, inner: FallibleKernel, target: pa.DataType) -> tuple[Value, Bad]:
    found = lists_of(value, rows(value))
    flat, bad = inner(found.flat)
    out = Lists(found.lengths, flat, found.valid).array(target.value_type)
    return out, None if bad is None else some(found.some(bad))


def _cast_map(value: Value, sides: Sequence[Any], target: pa.DataType) -> tuple[Value, Bad]:
    found = lists_of(value, rows(value))
    (keys, bad), (items, own) = (side(half) for side, half in zip(sides, found.flat.flatten(), strict=True))
    out, twice = map_array(found, keys, items, target)
    wrong = union(bad, own)
    return out, union(twice, None if wrong is None else some(found.some(wrong)))


def _cast_struct(array: pa.Array, parts: Sequence[Any], target: pa.DataType) -> tuple[Value, Bad]:
    made, bad = [], None
    for part, column in zip(parts, array.flatten(), strict=True):
        value, own = part(column)
        made.append(value)
        bad = union(bad, own)
    mask = None if not array.null_count else array.is_null()
    out = pa.StructArray.from_arrays(made, fields=list(target), mask=mask)
    return out, None if bad is None else some(bad & is_valid(array, len(array)))


def _printed(source: pa.DataType) -> FallibleKernel | None:
    """Arrays as ``[1, 2]``, structs as ``{1, a}``, maps as ``{a -> 1}``; a null part is the word."""
    if t.is_struct(source):
        texts = [converter(f.type, t.STRING) for f in source]
        return None if None in texts else lambda v: (_print_struct(as_array(v, 1), texts), None)
    entry = pa.struct([("k", source.key_type), ("v", source.item_type)]) if t.is_map(source) else None
    inner = converter(source.value_type, t.STRING) if entry is None else None
    sides: list[Any] = [] if entry is None else [converter(f.type, t.STRING) for f in entry]
    if (entry is None and inner is None) or None in sides:
        return None

    def run(value: Value) -> tuple[Value, Bad]:
        found = lists_of(value, rows(value))
        if entry is None:
            assert inner is not None
            flat = pc.fill_null(inner(found.flat)[0], "null")
        else:
            key, item = (
                pc.fill_null(s(h)[0], "null") for s, h in zip(sides, found.flat.flatten(), strict=True)
            )
            flat = pc.binary_join_element_wise(key, item, " -> ")
        joined = pc.binary_join(Lists(found.lengths, flat, found.valid).array(t.STRING), ", ")
        opening, closing = "[]" if entry is None else "{}"
        return pc.binary_join_element_wise(opening, joined, closing, ""), None

    return run


def _print_struct(array: pa.Array, texts: Sequence[Any]) -> pa.Array:
    columns = [
        pc.fill_null(text(column)[0], "null") for text, column in zip(texts, array.flatten(), strict=True)
    ]
    joined = pc.binary_join_element_wise("{", pc.binary_join_element_wise(*columns, ", "), "}", "")
    return pc.if_else(array.is_valid(), joined, pa.scalar(None, t.STRING))


def implicit(node: Node, target: pa.DataType, what: str, text: str) -> Node:
    """The cast that Spark (ANSI) inserts to fit an operand to the type that an operation takes."""
    source = node.type
    if source == target:
        return node
    if t.is_numeric(target) and node.literal and node.constant is not None and node.constant.is_valid:
        made = _literal(node, target)
        if made is not None:
            return made
    allowed = (
        source == t.NULL
        or (t.is_numeric(source) and t.is_numeric(target))
        or (t.is_atomic(source) and target == t.STRING)
        or (source == t.STRING and t.is_atomic(target))
        or (
            source in (t.DATE, t.TIMESTAMP, t.TIMESTAMP_NTZ)
            and target in (t.DATE, t.TIMESTAMP, t.TIMESTAMP_NTZ)
        )
    )
    if not (allowed or (t.is_nested(target) and t.common_type(source, target) == target)):
        raise TypeMismatch(
            f"{what} takes {t.spark_name(target)}, not {t.spark_name(source)} ({node.text}), in {text!r}."
        )
    return cast(node, target).spelled(node.text)


def _literal(node: Node, target: pa.DataType) -> Node | None:
    # Next to a double, 0.1 is the double 0.1; Arrow's decimal cast could be one unit in the last place off.
    if t.is_decimal(node.type) and target == t.DOUBLE and node.constant is not None:
        return constant(pa.scalar(float(node.constant.as_py()), t.DOUBLE), node.text, literal=True)
    return None


def _caster(target: pa.DataType) -> Kernel:
    return kernel("cast", pc.CastOptions.unsafe(target))


def _plain(source: pa.DataType, target: pa.DataType) -> Kernel | None:
    """The kernel of a cast that cannot fail."""
    if source in t.PLAIN_NUMERIC and target in t.PLAIN_NUMERIC:
        if t.is_fractional(target) or (
            t.is_integral(source) and t.INTEGRAL.index(source) < t.INTEGRAL.index(target)
        ):
            return _caster(target)
        return None
    if source == t.BOOLEAN and target in t.PLAIN_NUMERIC:
        return _caster(target)
    if target == t.BOOLEAN and t.is_numeric(source):
        zero = decimals.zero(source) if t.is_decimal(source) else pa.scalar(0, source)
        not_equal = kernel("not_equal")
        return lambda v: not_equal(v, zero)
    if target == t.STRING:
        return _to_string(source)
    if source == t.STRING and target == t.BINARY:
        return _caster(target)
    if t.is_decimal(source) and target in (t.DOUBLE, t.FLOAT):
        return _decimal_to_fractional(source, target)
    return _plain_temporal(source, target)


def _decimal_to_fractional(source: pa.DataType, target: pa.DataType) -> Kernel:
    if source.precision <= 15 and target == t.DOUBLE:
        # Digits and power of ten are exact as doubles, so their quotient is the nearest one.  Arrow
        # multiplies by a power that is not: 1.255 became 1.2550000000000001.
        return lambda v: decimals.to_double(v, source.scale)
    direct, to_string = _caster(target), _caster(t.STRING)
    return lambda v: direct(to_string(v))


def _plain_temporal(source: pa.DataType, target: pa.DataType) -> Kernel | None:
    if t.is_timestamp(source) and t.is_timestamp(target):
        return lambda v: v.view(target) if isinstance(v, pa.Array) else pa.scalar(v.value, target)
    if source == t.DATE and t.is_timestamp(target):
        return computed(target, lambda days: days.astype(np.int64) * _DAY)
    if t.is_timestamp(source) and target == t.DATE:
        return computed(t.DATE, lambda micros: micros // _DAY)
    if source == t.TIMESTAMP and target == t.BIGINT:
        return computed(t.BIGINT, lambda micros: micros // 1_000_000)
    if source == t.TIMESTAMP and target in (t.DOUBLE, t.FLOAT):
        return computed(target, lambda micros: micros / 1_000_000.0)
    return None


def _to_string(source: pa.DataType) -> Kernel | None:
    if t.is_integral(source) or source == t.BOOLEAN:
        return _caster(t.STRING)
    if source == t.DATE:
        return kernel("strftime", pc.StrftimeOptions("%Y-%m-%d"))
    if t.is_timestamp(source):
        return _timestamp_to_string
    if t.is_decimal(source):
        if source.scale <= 6:
            return _caster(t.STRING)
        return lambda v: per_distinct(v, lambda ds: [None if d is None else f"{d:f}" for d in ds], t.STRING)
    if t.is_fractional(source):
        return lambda v: per_distinct(v, lambda xs: [java_number(x, source) for x in xs], t.STRING)
    if source == t.BINARY:
        return _decoded
    return None


def _decoded(value: Value) -> Value:
    """Bytes as text.  What is not UTF-8 becomes U+FFFD, as where Spark hands a string to Java."""
    array = as_array(value, 1)
    try:
        return array.cast(t.STRING)
    except pa.ArrowInvalid:
        return per_distinct(
            array, lambda xs: [None if x is None else x.decode(errors="replace") for x in xs], t.STRING
        )


def java_number(value: float | None, type_: pa.DataType) -> str | None:
    """A floating-point number with the digits that Java 19 and later write: as few as tell it apart."""
    if value is None or not math.isfinite(value):
        return None if value is None else "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
    shortest = repr(value) if type_ == t.DOUBLE else str(np.float32(value))
    sign, digits, exponent = py.Decimal(shortest).as_tuple()
    text = "".join(map(str, digits)).rstrip("0") or "0"
    point = len(digits) + int(exponent)  # the number is 0.text times ten to this
    if not float(shortest):
        plain = "0.0"
    elif -3 < point <= 7:
        whole = text.ljust(max(point, 0), "0")[: max(point, 0)] or "0"
        plain = f"{whole}.{'0' * -min(point, 0)}{text[max(point, 0) :] or '0'}"
    else:
        plain = f"{text[0]}.{text[1:] or '0'}E{point - 1}"
    return "-" * sign + plain


def _timestamp_to_string(value: Value) -> Value:
    naive = value.view(t.TIMESTAMP_NTZ)
    full = pc.strftime(naive, format="%Y-%m-%d %H:%M:%S")
    return pc.utf8_rtrim(pc.utf8_rtrim(full, "0"), ".")


def _risky(source: pa.DataType, target: pa.DataType) -> FallibleKernel | None:
    """The kernel of a cast that may fail on a row, or None if Spark refuses the cast as a whole."""
    if source == t.STRING:
        return parsing.parser(target)
    if t.is_integral(target):
        if t.is_integral(source):
            return _narrow(target)
        if t.is_fractional(source):
            return _truncate(target)
        if t.is_decimal(source):
            return decimals.to_integral(source, target)
        if source == t.TIMESTAMP:
            return _seconds(target)
    if t.is_decimal(target):
        return _to_decimal(source, target)
    if target == t.TIMESTAMP and t.is_numeric(source):
        return _to_timestamp(source)
    return None


def _to_decimal(source: pa.DataType, target: pa.DataType) -> FallibleKernel | None:
    if t.is_decimal(source) or t.is_integral(source):
        return decimals.rescale(target)
    if t.is_fractional(source):
        return decimals.from_fractional(source, target)
    if source == t.BOOLEAN:
        rescale = decimals.rescale(target)
        widen = _caster(t.TINYINT)
        return lambda v: rescale(widen(v))
    return None


def _narrow(target: pa.DataType) -> FallibleKernel:
    fast = kernel("cast", pc.CastOptions.safe(target))
    low, high = _LIMITS[target]

    def run(value: Value) -> tuple[Value, Bad]:
        try:
            return fast(value), None
        except pa.ArrowInvalid:
            data = numbers(value)
            bad = (data < low) | (data > high)
            return checked(data, bad, target, value)

    return run


def _truncate(target: pa.DataType) -> FallibleKernel:
    low, high = _LIMITS[target]

    def run(value: Value) -> tuple[Value, Bad]:
        data = numbers(value)
        fits = (np.floor(data) <= float(high)) & (np.ceil(data) >= float(low))
        if fits.all() and target != t.BIGINT:
            return from_numbers(
                data.astype(target.to_pandas_dtype()), target, both_valid(len(value), value)
            ), None
        kept = np.where(fits, data, 0)
        # 2**63 passes Spark's range check as a double, and Java's conversion then saturates.
        with np.errstate(invalid="ignore"):
            whole = (
                np.where(kept >= float(high), high, kept.astype(np.int64))
                if target == t.BIGINT
                else np.trunc(kept)
            )
        return checked(whole, ~fits, target, value)

    return run


def _seconds(target: pa.DataType) -> FallibleKernel:
    low, high = _LIMITS[target]

    def run(value: Value) -> tuple[Value, Bad]:
        data = numbers(value) // 1_000_000
        return checked(data, (data < low) | (data > high), target, value)

    return run


def _to_timestamp(source: pa.DataType) -> FallibleKernel:
    if t.is_decimal(source):
        raise ExpressionError("DECIMAL as TIMESTAMP is not supported. Cast it to DOUBLE or BIGINT first.")

    def run(value: Value) -> tuple[Value, Bad]:
        data = numbers(value)
        if t.is_fractional(source):
            seconds = data.astype(np.float64)
            micros = seconds * 1_000_000.0
            bad = ~(np.abs(micros) < 2.0**63)
            return checked(np.where(bad, 0, micros).astype(np.int64), bad, t.TIMESTAMP, value)
        wide = data.astype(np.int64)
        limit = (2**63 - 1) // 1_000_000
        # SECONDS.toMicros saturates in Java; no error.
        micros = np.where(wide > limit, 2**63 - 1, np.where(wide < -limit, -(2**63), wide * 1_000_000))
        return from_numbers(micros, t.TIMESTAMP, both_valid(len(value), value)), None

    return run
