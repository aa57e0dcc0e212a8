"""Moving between Arrow arrays, scalars and numpy on the paths where no single kernel does the work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Value: TypeAlias = Any  # pa.Array, or pa.Scalar for a constant
Mask: TypeAlias = npt.NDArray[np.bool_]
Bad: TypeAlias = "Mask | None"
Numbers: TypeAlias = npt.NDArray[Any]


def kernel(name: str, options: Any = None) -> Callable[..., Value]:
    """An Arrow compute function without the Python wrapper, which costs as much as a small kernel."""
    call = pc.get_function(name).call
    if options is None:
        return lambda *args: call(args)
    return lambda *args: call(args, options)


_if_else = kernel("if_else")


def rows(*values: Value) -> int:
    """How many rows the operands have: the length of the first that is an array."""
    for value in values:
        if not isinstance(value, pa.Scalar):
            return len(value)
    return 1


def as_array(value: Value, length: int) -> pa.Array:
    """An operand as an array; a constant is repeated."""
    if isinstance(value, pa.Scalar):
        return pa.repeat(value, length) if value.is_valid else pa.nulls(length, value.type)
    return value


def is_true(value: Value, length: int) -> Mask:
    """Where a boolean operand is true; null counts as false."""
    if isinstance(value, pa.Scalar):
        return np.full(length, value.as_py() is True)
    filled = value.fill_null(False) if value.null_count else value
    out: Mask = filled.to_numpy(zero_copy_only=False)
    return out


def is_valid(value: Value, length: int) -> Mask:
    """Where an operand is not null."""
    if isinstance(value, pa.Scalar):
        return np.full(length, value.is_valid)
    if not value.null_count:
        return np.ones(length, dtype=bool)
    out: Mask = value.is_valid().to_numpy(zero_copy_only=False)
    return out


def numbers(value: Value) -> Numbers:
    """The raw numbers of an operand (days of a date, microseconds of a timestamp); 0 where it is null."""
    if isinstance(value, pa.Scalar):
        value = as_array(value, 1)
    if pa.types.is_date32(value.type):
        value = value.view(pa.int32())
    elif pa.types.is_timestamp(value.type):
        value = value.view(pa.int64())
    if value.null_count:
        value = value.fill_null(False if pa.types.is_boolean(value.type) else 0)
    out: Numbers = value.to_numpy(zero_copy_only=False)
    return out


def from_numbers(data: Numbers, type_: pa.DataType, valid: Mask | None = None) -> pa.Array:
    """An array of a fixed-width type over numbers; null where ``valid`` is false."""
    raw = type_
    if pa.types.is_date32(type_):
        raw = pa.int32()
    elif pa.types.is_timestamp(type_):
        raw = pa.int64()
    data = np.ascontiguousarray(data, dtype=raw.to_pandas_dtype())
    mask = None if valid is None or valid.all() else ~valid
    array = pa.array(data, type=raw, mask=mask, from_pandas=False)
    return array if raw is type_ else array.view(type_)


def may_have_nan(value: Value) -> bool:
    """Whether a NaN is among the numbers; one under a null may count."""
    if isinstance(value, pa.Scalar):
        return True
    if not len(value):
        return False
    data = np.frombuffer(value.buffers()[1], dtype=value.type.to_pandas_dtype())
    return bool(np.isnan(data[value.offset : value.offset + len(value)]).any())


def both_valid(length: int, *values: Value) -> Mask | None:
    """Where all operands are not null, or None if that is everywhere."""
    out: Mask | None = None
    for value in values:
        if isinstance(value, pa.Scalar):
            if value.is_valid:
                continue
        elif not value.null_count:
            continue
        valid = is_valid(value, length)
        out = valid if out is None else out & valid
    return out


def computed(type_: pa.DataType, compute: Callable[..., Numbers]) -> Callable[..., Value]:
    """A kernel by numpy: ``compute`` sees the operands' numbers, and 0 where an operand is null."""

    def run(*values: Value) -> Value:
        n = rows(*values)
        with np.errstate(all="ignore"):
            out = compute(*[numbers(value) for value in values])
        if len(out) != n:
            out = np.broadcast_to(out, n)
        return from_numbers(out, type_, both_valid(n, *values))

    return run


def checked(data: Numbers, bad: Mask, type_: pa.DataType, *operands: Value) -> tuple[Value, Bad]:
    """The result over numbers, null on bad rows.  A row is not bad if one of its operands is null."""
    valid = both_valid(len(data), *operands)
    if valid is not None:
        bad = bad & valid
    found = some(bad)
    if found is not None:
        data = np.where(bad, 0, data)
        valid = ~bad if valid is None else valid & ~bad
    return from_numbers(data, type_, valid), found


def null_where(value: Value, mask: Mask) -> pa.Array:
    """The operand with null on the rows of a mask."""
    array = as_array(value, len(mask))
    return _if_else(pa.array(mask), pa.scalar(None, array.type), array)


def some(mask: Mask) -> Bad:
    """A mask, or None if it is empty."""
    return mask if mask.any() else None


def union(a: Bad, b: Bad) -> Bad:
    if a is None:
        return b
    return a if b is None else a | b


def per_distinct(array: pa.Array, convert: Callable[[list[Any]], list[Any]], type_: pa.DataType) -> pa.Array:
    """Applies a Python function to the distinct values of an array: for what no kernel does exactly."""
    encoded = array.dictionary_encode()
    mapped = pa.array(convert(encoded.dictionary.to_pylist()), type=type_)
    return mapped.take(encoded.indices)


def plain(value: Value) -> list[Any]:
    """An operand's values for Python; a date is its days and a timestamp its microseconds since 1970."""
    array = as_array(value, 1)
    if pa.types.is_date32(array.type):
        array = array.view(pa.int32())
    elif pa.types.is_timestamp(array.type):
        array = array.view(pa.int64())
    found: list[Any] = array.to_pylist()
    return found


def per_value(fn: Callable[..., Any], type_: pa.DataType) -> Callable[..., tuple[Value, Bad]]:
    """A kernel that calls Python for each distinct value, or for each row if several operands vary.

    ``fn`` sees no nulls.  If it raises ``ValueError`` the row is bad.
    """

    def one(given: tuple[Any, ...]) -> tuple[Any, bool]:
        if any(v is None for v in given):
            return None, False
        try:
            return fn(*given), False
        except (ValueError, OverflowError, ArithmeticError):
            return None, True

    def run(*values: Value) -> tuple[Value, Bad]:
        n = rows(*values)
        varying = [i for i, v in enumerate(values) if isinstance(v, pa.Array)]
        indices = None
        if len(varying) == 1 and not pa.types.is_nested(values[varying[0]].type):
            encoded = values[varying[0]].dictionary_encode()
            indices, n = encoded.indices, len(encoded.dictionary)
            values = tuple(encoded.dictionary if i == varying[0] else v for i, v in enumerate(values))
        columns = [plain(v) if isinstance(v, pa.Array) else plain(v) * n for v in values]
        answers = [one(given) for given in zip(*columns, strict=True)]
        out = pa.array([a for a, _ in answers], type=_raw(type_))
        out = out if out.type == type_ else out.view(type_)
        bad = np.array([b for _, b in answers], dtype=bool)
        if indices is not None:
            out = out.take(indices)
            if bad.any():
                bad = is_true(pa.array(bad).take(indices), len(indices))
            else:
                bad = np.zeros(len(indices), dtype=bool)
        return out, some(bad)

    return run


def _raw(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_date32(type_):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(type_) else type_
