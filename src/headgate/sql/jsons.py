"""JSON: reading values by path or schema, and writing them.  Python parses each distinct text."""

from __future__ import annotations

import base64
import functools
import json
import math
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from headgate.errors import ExpressionError
from headgate.sql import types as t
from headgate.sql.casts import converter, java_number
from headgate.sql.formats import formatter
from headgate.sql.lists import lists_of
from headgate.sql.node import Node, constant, fallible, null_of
from headgate.sql.registry import Call, function, valued
from headgate.sql.values import Value, as_array, per_value

_WILD = "*"
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]|\[(\*)\]|\['([^']+)'\]|\[\"([^\"]+)\"\]")
_RAW, _QUOTED, _FLAT = "raw", "quoted", "flat"
_DOUBLES = {
    **dict.fromkeys(("Infinity", "+Infinity", "INF", "+INF"), math.inf),
    "NaN": math.nan,
    "-Infinity": -math.inf,
    "-INF": -math.inf,
}


class _Mismatch(ValueError):
    """A value that its declared type cannot hold."""


def _first(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in pairs:
        out.setdefault(key, value)
    return out


_BY_PATH = json.JSONDecoder(object_pairs_hook=_first, strict=False)
_BY_SCHEMA = json.JSONDecoder(strict=False)


def _parsed(text: str, decoder: json.JSONDecoder = _BY_PATH) -> Any:
    """The first value of a text, ValueError if there is none.  As in Spark, what follows does not matter."""
    try:
        return decoder.raw_decode(text.lstrip(" \t\r\n"))[0]
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _written(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, float):
        return (
            str(java_number(value, t.DOUBLE)) if math.isfinite(value) else f'"{java_number(value, t.DOUBLE)}"'
        )
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{_quoted(k)}:{_written(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return str(value)


def _quoted(text: str) -> str:
    return re.sub(
        r"\\u00[01][a-f0-9]", lambda m: m[0][:4] + m[0][4:].upper(), json.dumps(text, ensure_ascii=False)
    )


def _steps(path: str) -> list[str | int] | None:
    """A path such as ``$.a[0].b`` as names, places and wildcards; None if it is no path."""
    if not path.startswith("$"):
        return None
    out: list[str | int] = []
    at = 1
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            return None
        name, place, wild, single, double = match.groups()
        out.append(
            int(place) if place is not None else _WILD if wild or name == _WILD else name or single or double
        )
        if name == _WILD:
            return None
        at = match.end()
    return out


def _found(value: Any, path: list[str | int], style: str) -> list[str]:
    """The texts that Spark's evaluator writes for a path; wildcards flatten and drop brackets as it does."""
    if not path:
        if style == _FLAT and isinstance(value, list):
            return [text for item in value for text in _found(item, path, style)]
        return [value if style == _RAW and isinstance(value, str) else _written(value)]
    head, rest = path[0], path[1:]
    if head == _WILD:
        return _each(value, rest, style) if isinstance(value, list) else []
    if isinstance(head, int):
        if not isinstance(value, list) or head >= len(value):
            return []
        return _found(value[head], rest, _QUOTED if rest[:1] == [_WILD] else style)
    if not isinstance(value, dict) or value.get(head) is None:
        return []
    return _found(value[head], rest, style)


def _each(items: list[Any], rest: list[str | int], style: str) -> list[str]:
    if rest[:1] == [_WILD]:
        inner = [_found(item, rest[1:], _FLAT) for item in items]
    elif style == _QUOTED:
        inner = [_found(item, rest, _QUOTED) for item in items]
    else:
        inner = [_found(item, rest, _QUOTED if style == _RAW else _FLAT) for item in items]
        if sum(map(bool, inner)) == 1:
            return [",".join(text for texts in inner for text in texts)]
    texts = [text for found in inner for text in found]
    return ["[" + ",".join(texts) + "]"] if any(inner) else []


@valued("get_json_object", takes=(t.STRING, t.STRING), gives=t.STRING)
def get_json_object(text: str, path: str) -> str | None:
    steps = _steps(path)
    if steps is None:
        return None
    try:
        found = _found(_parsed(text), steps, _RAW)
    except ValueError:
        return None
    return "".join(found) if found else None


@valued("json_array_length", takes=(t.STRING,), gives=t.INT)
def _json_array_length(text: str) -> int | None:
    try:
        value = _parsed(text)
    except ValueError:
        return None
    return len(value) if isinstance(value, list) else None


@valued("json_object_keys", takes=(t.STRING,), gives=pa.list_(t.STRING))
def _json_object_keys(text: str) -> list[str] | None:
    try:
        value = _parsed(text)
    except ValueError:
        return None
    return list(value) if isinstance(value, dict) else None


@functools.lru_cache(maxsize=65_536)
def _cast(text: str, type_: pa.DataType) -> Any:
    """A text as a date, time or decimal; a date is its days and a time its microseconds."""
    made = converter(t.STRING, type_)
    assert made is not None
    value, bad = made(pa.array([text], t.STRING))
    if bad is not None:
        raise _Mismatch(text)
    return value[0].as_py() if t.is_decimal(type_) else value[0].value


_RANGES = {t.TINYINT: 2**7, t.SMALLINT: 2**15, t.INT: 2**31, t.BIGINT: 2**63}


def _fitted(value: Any, type_: pa.DataType) -> Any:
    """A parsed value as Spark's permissive reader gives it for a type; raises what does not fit."""
    if value is None:
        return None
    if t.is_struct(type_):
        return _fitted_struct(value, type_)
    if t.is_array(type_) and isinstance(value, list):
        return [_fitted(item, type_.value_type) for item in value]
    if t.is_map(type_) and isinstance(value, dict):
        return [(key, _fitted(item, type_.item_type)) for key, item in value.items()]
    return _FITS[_kind(type_)](value, type_)


def _fitted_struct(value: Any, type_: pa.DataType) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Mismatch(type_)
    out: dict[str, Any] = {}
    for field in type_:
        try:
            out[field.name] = _fitted(value.get(field.name), field.type)
        except _Mismatch:
            out[field.name] = None  # only this field is lost
    return out


def _kind(type_: pa.DataType) -> str:
    if t.is_integral(type_):
        return "whole"
    if t.is_fractional(type_):
        return "fraction"
    if type_ in (t.STRING, t.BOOLEAN, t.BINARY):
        return str(type_)
    return "decimal" if t.is_decimal(type_) else "time" if type_ != t.NULL and t.is_atomic(type_) else "none"


def _whole(value: Any, type_: pa.DataType) -> int:
    limit = _RANGES[type_]
    if type(value) is not int or not -limit <= value < limit:
        raise _Mismatch(value)
    return value


def _fraction(value: Any, type_: pa.DataType) -> float:
    if type(value) in (int, float):
        return float(value)
    if isinstance(value, str) and value in _DOUBLES:
        return _DOUBLES[value]
    raise _Mismatch(value)


def _time(value: Any, type_: pa.DataType) -> int:
    if isinstance(value, str):
        found: int = _cast(value, type_)
        return found
    if type(value) is int and type_ == t.TIMESTAMP:
        return value * 1_000_000
    raise _Mismatch(value)


def _decimal(value: Any, type_: pa.DataType) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _Mismatch(value)
    return _cast(value if isinstance(value, str) else repr(value), type_)


def _boolean(value: Any, type_: pa.DataType) -> bool:
    if not isinstance(value, bool):
        raise _Mismatch(value)
    return value


def _binary(value: Any, type_: pa.DataType) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError):
        raise _Mismatch(value) from None


def _none(value: Any, type_: pa.DataType) -> None:
    raise _Mismatch(value)


_FITS: dict[str, Callable[[Any, pa.DataType], Any]] = {
    "whole": _whole,
    "fraction": _fraction,
    "time": _time,
    "decimal": _decimal,
    "bool": _boolean,
    "binary": _binary,
    "string": lambda value, type_: value if isinstance(value, str) else _written(value),
    "none": _none,
}


def _raw(type_: pa.DataType) -> pa.DataType:
    """A type with its dates and times as numbers, which Python's own dates could not all hold."""
    if t.is_struct(type_):
        return pa.struct([(f.name, _raw(f.type)) for f in type_])
    if t.is_array(type_):
        return pa.list_(_raw(type_.value_type))
    if t.is_map(type_):
        return pa.map_(type_.key_type, _raw(type_.item_type))
    return pa.int32() if type_ == t.DATE else pa.int64() if t.is_timestamp(type_) else type_


@function("from_json", args=2, per_row=True)
def _from_json(call: Call) -> Node:
    given = call.constant(1, t.STRING, "schema").as_py()
    type_ = t.parse_fields(str(given))
    if not t.is_nested(type_):
        raise ExpressionError(
            f"The schema of from_json() must be such as 'a INT, b STRING' or ARRAY<INT>, not {given!r}, "
            f"in {call.text!r}."
        )
    empty = {field.name: None for field in type_} if t.is_struct(type_) else None

    def read(text: str) -> Any:
        if not text.strip():
            return None
        try:
            value = _parsed(text, _BY_SCHEMA)
            if t.is_array(type_) and t.is_struct(type_.value_type) and isinstance(value, dict):
                value = [value]
            found = _fitted(value, type_)
        except ValueError:
            return empty
        return empty if found is None else found

    raw = _raw(type_)
    run = per_value(read, raw)

    def typed(value: Value) -> tuple[Value, None]:
        array = run(as_array(value, 1))[0]
        return (array if raw == type_ else array.cast(type_)), None

    return fallible(type_, call.text, "", typed, call.cast(0, t.STRING))


@function("schema_of_json", args=1, per_row=True)
def _schema_of_json(call: Call) -> Node:
    text = call.constant(0, t.STRING, "JSON text").as_py()
    if text is None:
        return null_of(t.STRING, call.text)
    try:
        kind = _inferred(_parsed(text))
    except ValueError:
        raise ExpressionError(f"{text!r} is not JSON in {call.text!r}.") from None
    name = t.spark_name(_without_null(kind))
    return constant(pa.scalar(name, t.STRING), call.text)


def _inferred(value: Any) -> pa.DataType:
    if isinstance(value, dict):
        return pa.struct([(key, _inferred(value[key])) for key in sorted(value)])
    if isinstance(value, list):
        found = t.NULL
        for item in value:
            wider = t.common_type(found, _inferred(item), strings=False)
            found = t.STRING if wider is None else wider
        return pa.list_(found)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**63:
        return t.decimal(len(str(abs(value))), 0)
    kinds = {bool: t.BOOLEAN, int: t.BIGINT, float: t.DOUBLE, str: t.STRING, type(None): t.NULL}
    return kinds[type(value)]


def _without_null(type_: pa.DataType) -> pa.DataType:
    if t.is_struct(type_):
        return pa.struct([(f.name, _without_null(f.type)) for f in type_])
    if t.is_array(type_):
        return pa.list_(_without_null(type_.value_type))
    return t.STRING if type_ == t.NULL else type_


@function("to_json", args=1, per_row=True)
def _to_json(call: Call) -> Node:
    node = call.args[0]
    if not t.is_nested(node.type):
        raise call.mismatch("a STRUCT, MAP or ARRAY")

    def run(value: Value) -> tuple[Value, None]:
        return pa.array(json_texts(as_array(value, 1)), t.STRING), None

    return fallible(t.STRING, call.text, "", run, node)


def json_texts(array: pa.Array) -> list[str | None]:
    """Every value as JSON text; None for null."""
    type_ = array.type
    if t.is_struct(type_):
        names = [_quoted(field.name) + ":" for field in type_]
        columns = [json_texts(column) for column in array.flatten()]
        valid = array.is_valid().to_pylist()
        texts = zip(*columns, strict=True) if columns else [()] * len(array)
        return [_object(names, row) if ok else None for ok, row in zip(valid, texts, strict=True)]
    if t.is_array(type_) or t.is_map(type_):
        return _lists_as_texts(array)
    if t.is_timestamp(type_):
        zone = "XXX" if type_ == t.TIMESTAMP else ""
        array = formatter(f"yyyy-MM-dd'T'HH:mm:ss.SSS{zone}", "to_json()")(array)
    elif type_ == t.DATE:
        found = converter(type_, t.STRING)
        assert found is not None
        array = found(array)[0]
    elif type_ == t.FLOAT:
        return [None if v is None else _float(v) for v in array.to_pylist()]
    elif t.is_decimal(type_):
        return [None if v is None else f"{v:f}" for v in array.to_pylist()]
    elif type_ == t.BINARY:
        return [None if v is None else f'"{base64.b64encode(v).decode()}"' for v in array.to_pylist()]
    return [None if v is None else _written(v) for v in array.to_pylist()]


def _float(value: float) -> str:
    text = str(java_number(value, t.FLOAT))
    return text if math.isfinite(value) else f'"{text}"'


def _object(names: list[str], texts: tuple[str | None, ...]) -> str:
    # Spark leaves null fields out.
    return "{" + ",".join(n + x for n, x in zip(names, texts, strict=True) if x is not None) + "}"


def _lists_as_texts(array: pa.Array) -> list[str | None]:
    found = lists_of(array, len(array))
    if t.is_map(array.type):
        keys, items = found.flat.flatten()
        made = converter(keys.type, t.STRING)
        assert made is not None
        names = [_quoted(key) for key in made(keys)[0].to_pylist()]
        flat = [f"{k}:{v or 'null'}" for k, v in zip(names, json_texts(items), strict=True)]
        opening, closing = "{}"
    else:
        flat = [text or "null" for text in json_texts(found.flat)]
        opening, closing = "[]"
    ends = (found.starts + found.lengths).tolist()
    return [
        opening + ",".join(flat[low:high]) + closing if ok else None
        for ok, low, high in zip(found.valid.tolist(), found.starts.tolist(), ends, strict=True)
    ]
