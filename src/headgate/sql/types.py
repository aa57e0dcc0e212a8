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


def is_map(t: pa.DataType) -> bool:
    return bool(pa.types.is_map(t))


def is_struct(t: pa.DataType) -> bool:
    return bool(pa.types.is_struct(t))


def is_nested(t: pa.DataType) -> bool:
    return is_array(t) or is_map(t) or is_struct(t)


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
    """A Spark type name (``"DECIMAL(10,2)"``, ``"ARRAY<STRUCT<a: INT>>"``) as an Arrow type."""
    reader = _TypeReader(text)
    found = reader.type()
    reader.finish()
    return found


def parse_fields(text: str) -> pa.DataType:
    """A schema as ``from_json`` takes it: ``"a INT, b STRING"`` as a struct, or the name of a type."""
    reader = _TypeReader(text)
    if reader.tokens[1:2] and reader.tokens[1] not in "<(,":
        found = pa.struct(reader.fields(None))
    else:
        found = reader.type()
    reader.finish()
    return found


class _TypeReader:
    """Reads one type from its text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = re.findall(r"`(?:[^`]|``)*`|[^\s<>(),:`]+|[<>(),:]", text)
        self.at = 0

    def refuse(self) -> ExpressionError:
        return ExpressionError(
            f"The type {self.text!r} is not supported. Supported: {', '.join(sorted(_BY_NAME))}, "
            f"DECIMAL(p,s), ARRAY<...>, MAP<..., ...>, STRUCT<name: ..., ...>."
        )

    def take(self, *expected: str) -> str:
        token = self.tokens[self.at] if self.at < len(self.tokens) else ""
        if not token or (expected and token not in expected):
            raise self.refuse()
        self.at += 1
        return token

    def finish(self) -> None:
        if self.at != len(self.tokens):
            raise self.refuse()

    def type(self) -> pa.DataType:
        name = self.take().upper()
        if name in ("DEC", "DECIMAL", "NUMERIC") and self.tokens[self.at : self.at + 1] == ["("]:
            return self._decimal()
        if name in ("ARRAY", "MAP", "STRUCT"):
            self.take("<")
            if name == "STRUCT":
                return pa.struct(self.fields(">"))
            inner = self.type()
            if name == "MAP":
                self.take(",")
                inner = pa.map_(inner, self.type())
            self.take(">")
            return inner if name == "MAP" else pa.list_(inner)
        if name not in _BY_NAME:
            raise self.refuse()
        return _BY_NAME[name]

    def fields(self, end: str | None) -> list[pa.Field]:
        """Names and types up to ``end``."""
        found = []
        while True:
            name = self.take()
            if self.tokens[self.at : self.at + 1] == [":"]:
                self.at += 1
            found.append(pa.field(name[1:-1].replace("``", "`") if name[0] == "`" else name, self.type()))
            if [part.upper() for part in self.tokens[self.at : self.at + 2]] == ["NOT", "NULL"]:
                self.at += 2
            if end is None and self.at == len(self.tokens):
                return found
            if self.take(",", *([end] if end else [])) == end:
                return found

    def _decimal(self) -> pa.DataType:
        self.take("(")
        precision, scale = self._digits(), 0
        if self.take(",", ")") == ",":
            scale = self._digits()
            self.take(")")
        if not (1 <= precision <= 38 and scale <= precision):
            raise ExpressionError(
                f"{self.text} is not a valid decimal type: 1 <= precision <= 38, scale <= precision."
            )
        return decimal(precision, scale)

    def _digits(self) -> int:
        token = self.take()
        if not token.isdecimal():
            raise self.refuse()
        return int(token)


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
    return _stored_nested(t)


def _stored_nested(t: pa.DataType) -> pa.DataType | None:
    """An array, struct or map with parts as Spark reads them; None if it is or holds anything else."""
    if is_struct(t):
        parts = [stored_as(f.type) for f in t]
        return pa.struct([(f.name, p) for f, p in zip(t, parts, strict=True)]) if None not in parts else None
    if is_map(t):
        key, item = stored_as(t.key_type), stored_as(t.item_type)
        return pa.map_(key, item) if key is not None and item is not None else None
    if is_array(t) or pa.types.is_large_list(t) or pa.types.is_fixed_size_list(t):
        inner = stored_as(t.value_type)
        return None if inner is None else pa.list_(inner)
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
    if is_map(a) and is_map(b):
        key = common_type(a.key_type, b.key_type, strings=strings)
        item = common_type(a.item_type, b.item_type, strings=strings)
        return None if key is None or item is None else pa.map_(key, item)
    if is_struct(a) and is_struct(b) and [f.name.lower() for f in a] == [f.name.lower() for f in b]:
        parts = [common_type(x.type, y.type, strings=strings) for x, y in zip(a, b, strict=True)]
        return None if None in parts else pa.struct([(f.name, p) for f, p in zip(a, parts, strict=True)])
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
