"""Spark's types in Arrow clothes: their names, and Spark's ANSI rules for finding a common type."""

from __future__ import annotations

import re

import pyarrow as pa

from headgate.errors import ExpressionError, TypeMismatch

NULL = pa.null()
BOOLEAN = pa.bool_()
TINYINT = pa.int8()
SMALLINT = pa.int16()
INT = pa.int32()
BIGINT = pa.int64()
FLOAT = pa.float32()
DOUBLE = pa.float64()
STRING = pa.string()
BINARY = pa.binary()
DATE = pa.date32()
TIMESTAMP = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ = pa.timestamp("us")

INTEGRAL = (TINYINT, SMALLINT, INT, BIGINT)
PLAIN_NUMERIC = (*INTEGRAL, FLOAT, DOUBLE)
_INTEGRAL_DIGITS = {TINYINT: 3, SMALLINT: 5, INT: 10, BIGINT: 20}
_NAMES = {
    NULL: "VOID",
    BOOLEAN: "BOOLEAN",
    TINYINT: "TINYINT",
    SMALLINT: "SMALLINT",
    INT: "INT",
    BIGINT: "BIGINT",
    FLOAT: "FLOAT",
    DOUBLE: "DOUBLE",
    STRING: "STRING",
    BINARY: "BINARY",
    DATE: "DATE",
    TIMESTAMP: "TIMESTAMP",
    TIMESTAMP_NTZ: "TIMESTAMP_NTZ",
}
ATOMIC = frozenset(_NAMES) - {NULL}
_BY_NAME = {name: t for t, name in _NAMES.items()} | {
    "BYTE": TINYINT,
    "SHORT": SMALLINT,
    "INTEGER": INT,
    "LONG": BIGINT,
    "REAL": FLOAT,
    "DEC": pa.decimal128(10, 0),
    "DECIMAL": pa.decimal128(10, 0),
    "NUMERIC": pa.decimal128(10, 0),
    "TIMESTAMP_LTZ": TIMESTAMP,
}


def decimal(precision: int, scale: int) -> pa.DataType:
    return pa.decimal128(precision, scale)


def is_decimal(t: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(t))


def is_array(t: pa.DataType) -> bool:
    return bool(pa.types.is_list(t))


def is_integral(t: pa.DataType) -> bool:
    return t in INTEGRAL


def is_fractional(t: pa.DataType) -> bool:
    return t in (FLOAT, DOUBLE)


def is_numeric(t: pa.DataType) -> bool:
    return t in PLAIN_NUMERIC or is_decimal(t)


def is_timestamp(t: pa.DataType) -> bool:
    return t in (TIMESTAMP, TIMESTAMP_NTZ)


def is_atomic(t: pa.DataType) -> bool:
    return t in ATOMIC or is_decimal(t)


def spark_name(t: pa.DataType) -> str:
    """The type as Spark writes it; an Arrow type that Spark lacks keeps its Arrow name."""
    if t in _NAMES:
        return _NAMES[t]
    if is_decimal(t):
        return f"DECIMAL({t.precision},{t.scale})"
    if is_array(t):
        return f"ARRAY<{spark_name(t.value_type)}>"
    if pa.types.is_struct(t):
        return "STRUCT<" + ", ".join(f"{f.name}: {spark_name(f.type)}" for f in t) + ">"
    if pa.types.is_map(t):
        return f"MAP<{spark_name(t.key_type)}, {spark_name(t.item_type)}>"
    return str(t)


def parse_type(text: str) -> pa.DataType:
    """A Spark type name (``"DECIMAL(10,2)"``) as an Arrow type."""
    name = text.strip().upper()
    if name in _BY_NAME:
        return _BY_NAME[name]
    match = re.fullmatch(r"(?:DEC|DECIMAL|NUMERIC)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", name)
    if match:
        precision, scale = int(match[1]), int(match[2] or 0)
        if not (1 <= precision <= 38 and scale <= precision):
            raise ExpressionError(
                f"{name} is not a valid decimal type: 1 <= precision <= 38, scale <= precision."
            )
        return decimal(precision, scale)
    match = re.fullmatch(r"ARRAY\s*<(.*)>", name)
    if match:
        return pa.list_(parse_type(match[1]))
    raise ExpressionError(
        f"The type {text!r} is not supported. Supported: {', '.join(sorted(_BY_NAME))}, "
        f"DECIMAL(p,s), ARRAY<...>."
    )


def stored_as(t: pa.DataType) -> pa.DataType | None:
    """The Spark type as which a column of an Arrow type is read; None for types only passed through."""
    if is_atomic(t) or t == NULL:
        return t if not pa.types.is_decimal256(t) else None
    if pa.types.is_large_string(t) or pa.types.is_string_view(t):
        return STRING
    if pa.types.is_large_binary(t) or pa.types.is_binary_view(t) or pa.types.is_fixed_size_binary(t):
        return BINARY
    if pa.types.is_dictionary(t):
        return stored_as(t.value_type)
    if pa.types.is_timestamp(t) and t.unit != "ns":
        return TIMESTAMP if t.tz else TIMESTAMP_NTZ
    if pa.types.is_date64(t):
        return DATE
    unsigned = {pa.uint8(): SMALLINT, pa.uint16(): INT, pa.uint32(): BIGINT}
    if t in unsigned:
        return unsigned[t]
    if is_array(t) or pa.types.is_struct(t):
        return t
    return None


def as_decimal(t: pa.DataType) -> pa.DataType:
    """The decimal type that holds every value of an integral or decimal type."""
    return decimal(_INTEGRAL_DIGITS[t], 0) if t in _INTEGRAL_DIGITS else t


def bounded(precision: int, scale: int) -> pa.DataType:
    """A decimal type cut to 38 digits, integral digits first, as ``boundedPreferIntegralDigits``."""
    if precision <= 38:
        return decimal(precision, scale)
    return decimal(38, max(0, scale - (precision - 38)))


def wider_decimal(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    scale = max(a.scale, b.scale)
    return bounded(max(a.precision - a.scale, b.precision - b.scale) + scale, scale)


def common_type(a: pa.DataType, b: pa.DataType, *, strings: bool = True) -> pa.DataType | None:
    """The type to which Spark (ANSI) brings both operands, or None if there is none.

    ``strings`` says whether a string meeting another type takes that type, as it does everywhere but
    in ``greatest`` and ``least``.
    """
    if a == b:
        return a
    if a == NULL:
        return b
    if b == NULL:
        return a
    if is_numeric(a) and is_numeric(b):
        return _common_numeric(a, b)
    if STRING in (a, b):
        other = b if a == STRING else a
        if not strings or not is_atomic(other):
            return None
        if is_integral(other):
            return BIGINT
        return DOUBLE if is_numeric(other) else other
    if a in (DATE, TIMESTAMP, TIMESTAMP_NTZ) and b in (DATE, TIMESTAMP, TIMESTAMP_NTZ):
        return TIMESTAMP if TIMESTAMP in (a, b) else TIMESTAMP_NTZ
    if is_array(a) and is_array(b):
        inner = common_type(a.value_type, b.value_type, strings=strings)
        return None if inner is None else pa.list_(inner)
    return None


def _common_numeric(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    if is_decimal(a) or is_decimal(b):
        if is_fractional(a) or is_fractional(b):
            return DOUBLE
        return wider_decimal(as_decimal(a), as_decimal(b))
    if FLOAT in (a, b) and (is_integral(a) or is_integral(b)):
        return DOUBLE
    return max(a, b, key=PLAIN_NUMERIC.index)


def common_of(types: list[pa.DataType], what: str, text: str, *, strings: bool = True) -> pa.DataType:
    """The common type of several operands, or TypeMismatch naming them all.

    Spark looks at strings first, because pairwise folding would depend on the order.
    """
    ordered = sorted(types, key=lambda t: t != STRING) if strings else types
    found = ordered[0]
    for t in ordered[1:]:
        wider = common_type(found, t, strings=strings)
        if wider is None:
            names = " and ".join(dict.fromkeys(spark_name(t) for t in types))
            raise TypeMismatch(f"{what} cannot bring {names} to one type in {text!r}; cast one of them.")
        found = wider
    return found
