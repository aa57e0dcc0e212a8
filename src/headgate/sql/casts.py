"""CAST, TRY_CAST, and the casts that Spark inserts itself."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import ExpressionError, TypeMismatch
from headgate.sql import decimals, parsing
from headgate.sql import types as t
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
    both_valid,
    checked,
    computed,
    from_numbers,
    kernel,
    numbers,
    per_distinct,
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
    risky = _risky(source, target)
    if risky is None:
        raise TypeMismatch(f"{t.spark_name(source)} cannot be cast to {t.spark_name(target)} in {text!r}.")
    reason = f"a value of {node.text} ({t.spark_name(source)}) cannot be cast to {t.spark_name(target)}"
    made = fallible(target, text, reason, risky, node)
    return forgiving(made) if safe else made


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
    if not allowed:
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
    direct = _caster(target)
    if source.precision <= 15 and target == t.DOUBLE:
        return direct
    # Arrow divides in floating point, which is exact only while the digits fit the mantissa.
    to_string = _caster(t.STRING)
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
        raise ExpressionError(
            f"A {t.spark_name(source)} as STRING is not supported: its digits depend on the Java version. "
            "Cast it to a DECIMAL first."
        )
    return None


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
    if source == t.BINARY and target == t.STRING:
        raise ExpressionError(
            "BINARY as STRING is not supported: Spark does not check that the bytes are valid UTF-8."
        )
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
