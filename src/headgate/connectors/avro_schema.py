"""Avro schemas: what a writer's JSON says, as a tree of types with the Arrow type that each becomes.

Types become what Spark's ``from_avro`` gives: enums are strings, a union with null is a nullable value, any
other union a struct with one field per branch, ``member0`` and so on; times of day stay numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from headgate.errors import HeadgateError

_PRIMITIVE = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_TIMES = {
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "timestamp-nanos": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "local-timestamp-nanos": pa.timestamp("us"),
}
MISSING = object()
"""The default of a field that has none."""


class AvroError(HeadgateError):
    """An Avro schema that cannot be read, or that does not fit."""


@dataclass(frozen=True)
class Avro:
    """One type.  ``parts`` are a record's fields, a union's branches, or what an array or a map holds."""

    kind: str
    arrow: pa.DataType
    logical: str = ""
    size: int = 0
    names: tuple[str, ...] = ()
    """Of a record's fields, or an enum's symbols."""
    parts: tuple[Avro, ...] = ()
    defaults: tuple[Any, ...] = ()

    @property
    def nulls(self) -> int | None:
        """Which branch of a union is null."""
        return next((at for at, part in enumerate(self.parts) if part.kind == "null"), None)

    @property
    def values(self) -> tuple[int, ...]:
        """Which branches of a union are not null."""
        return tuple(at for at, part in enumerate(self.parts) if part.kind != "null")

    @property
    def schema(self) -> pa.Schema:
        """A record's columns."""
        return pa.schema([pa.field(n, p.arrow) for n, p in zip(self.names, self.parts, strict=True)])


def parse(schema: Any, *imported: str) -> Avro:
    """The record that ``schema`` (JSON, or what it stands for) describes.

    Names may refer to types of the ``imported`` schemas, which are JSON too.
    """
    known: dict[str, Avro | None] = {}
    for text in imported:
        _type(_loaded(text), "", known)
    found = _type(_loaded(schema), "", known)
    if found.kind != "record":
        raise AvroError(
            f"The Avro schema is of type {found.kind}; rows need a record, whose fields are columns."
        )
    return found


def _loaded(schema: Any) -> Any:
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except ValueError as error:
        raise AvroError(f"The Avro schema is not JSON: {error}.") from None


def _type(schema: Any, space: str, known: dict[str, Avro | None]) -> Avro:
    if isinstance(schema, str):
        return _named(schema, space, known)
    if isinstance(schema, Sequence):
        return _union([_type(branch, space, known) for branch in schema])
    if not isinstance(schema, Mapping) or "type" not in schema:
        raise AvroError(f"{schema!r} is no Avro type.")
    kind = schema["type"]
    logical = str(schema.get("logicalType", ""))
    if kind in ("record", "error", "enum", "fixed"):
        return _definition(schema, str(kind), logical, space, known)
    if kind == "array":
        item = _holds(_type(schema.get("items"), space, known))
        return Avro("array", pa.list_(item.arrow), parts=(item,))
    if kind == "map":
        item = _holds(_type(schema.get("values"), space, known))
        return Avro("map", pa.map_(pa.string(), item.arrow), parts=(item,))
    found = _type(kind, space, known)
    return _logical(found, logical, schema) if found.kind in _PRIMITIVE else found


def _holds(item: Avro) -> Avro:
    if item.kind == "null":
        raise AvroError("The Avro schema has an array or a map of nulls, which holds nothing.")
    return item


def _named(name: str, space: str, known: dict[str, Avro | None]) -> Avro:
    if name in _PRIMITIVE:
        return Avro(name, _PRIMITIVE[name])
    full = name if "." in name or not space or f"{space}.{name}" not in known else f"{space}.{name}"
    if full not in known:
        raise AvroError(f"The Avro schema names type '{name}', which it does not define.")
    found = known[full]
    if found is None:
        raise AvroError(f"The Avro schema's type '{name}' contains itself; rows cannot have such columns.")
    return found


def _definition(
    schema: Mapping[str, Any], kind: str, logical: str, space: str, known: dict[str, Avro | None]
) -> Avro:
    name = str(schema.get("name", ""))
    space = str(schema.get("namespace") or (name.rpartition(".")[0] if "." in name else space))
    full = name if "." in name or not space else f"{space}.{name}"
    known[full] = None
    if kind == "fixed":
        size = schema.get("size")
        if not isinstance(size, int) or size < 1:
            raise AvroError(f"The Avro schema's fixed type '{name}' has size {size!r}.")
        found = _logical(Avro("fixed", pa.binary(), size=size), logical, schema)
    elif kind == "enum":
        found = Avro("enum", pa.string(), names=tuple(schema.get("symbols", ())))
    else:
        found = _record(schema, name, space, known)
    known[full] = found
    return found


def _record(schema: Mapping[str, Any], name: str, space: str, known: dict[str, Avro | None]) -> Avro:
    fields = schema.get("fields")
    if not fields:
        raise AvroError(f"The Avro schema's record '{name}' has no fields, so there are no columns.")
    names, parts = [], []
    for field in fields:
        names.append(str(field["name"]))
        parts.append(_type(field["type"], space, known))
    # A column that is always null is a string to Spark's readers.
    arrow = [pa.string() if part.kind == "null" else part.arrow for part in parts]
    parts = [Avro("null", pa.string()) if part.kind == "null" else part for part in parts]
    return Avro(
        "record",
        pa.struct([pa.field(n, a) for n, a in zip(names, arrow, strict=True)]),
        names=tuple(names),
        parts=tuple(parts),
        defaults=tuple(field.get("default", MISSING) for field in fields),
    )


def _union(branches: Sequence[Avro]) -> Avro:
    values = [branch for branch in branches if branch.kind != "null"]
    kinds = {branch.kind for branch in values}
    if not values:
        return Avro("null", pa.string())
    if len(values) == 1:
        arrow = values[0].arrow
    elif kinds <= {"int", "long"} and not any(branch.logical for branch in values):
        arrow = pa.int64()
    elif kinds <= {"float", "double"}:
        arrow = pa.float64()
    else:
        arrow = pa.struct([(f"member{at}", value.arrow) for at, value in enumerate(values)])
    return Avro("union", arrow, parts=tuple(branches))


def _logical(plain: Avro, logical: str, schema: Mapping[str, Any]) -> Avro:
    """The type with its logical one; unknown ones, and those on the wrong type, do not count (Avro 1.12)."""
    arrow = None
    if logical == "date" and plain.kind == "int":
        arrow = pa.date32()
    elif logical in _TIMES and plain.kind == "long":
        arrow = _TIMES[logical]
    elif logical == "decimal" and plain.kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision:
            if precision > 38:
                raise AvroError(f"The Avro schema has a decimal of {precision} digits; 38 is the most.")
            arrow = pa.decimal128(precision, scale)
    return plain if arrow is None else Avro(plain.kind, arrow, logical, plain.size)


def describing(schema: pa.Schema, name: str) -> dict[str, Any]:
    """An Avro schema for rows of ``schema``, every field nullable; AvroError for what Avro does not have."""
    return {"type": "record", "name": name, "fields": _fields(schema, name)}


def _fields(fields: Any, path: str) -> list[dict[str, Any]]:
    found = []
    for field in fields:
        if not field.name.isascii() or not field.name.isidentifier():
            raise AvroError(
                f"column '{field.name}' cannot be a field of an Avro record: names are of letters, digits "
                "and _; rename it."
            )
        type_ = _written(field.type, f"{path}_{field.name}", field.name)
        found.append({"name": field.name, "type": ["null", type_], "default": None})
    return found


def _written(type_: pa.DataType, path: str, column: str) -> Any:
    plain = {arrow: name for name, arrow in _PRIMITIVE.items() if name != "null"}
    if type_ in plain:
        return plain[type_]
    if type_ in (pa.int8(), pa.int16()):
        return "int"
    if type_ == pa.date32():
        return {"type": "int", "logicalType": "date"}
    if pt.is_timestamp(type_):
        return {"type": "long", "logicalType": ("" if type_.tz else "local-") + "timestamp-micros"}
    if pt.is_decimal(type_):
        return {
            "type": "bytes", "logicalType": "decimal", "precision": type_.precision, "scale": type_.scale
        }  # fmt: skip
    if pt.is_struct(type_):
        return {"type": "record", "name": path, "fields": _fields(type_.fields, path)}
    if pt.is_list(type_):
        return {"type": "array", "items": ["null", _written(type_.value_type, f"{path}_item", column)]}
    if pt.is_map(type_) and type_.key_type == pa.string():
        return {"type": "map", "values": ["null", _written(type_.item_type, f"{path}_value", column)]}
    raise AvroError(f"column '{column}' is {type_}, which Avro does not have; cast it first.")
