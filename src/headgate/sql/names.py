"""Columns by name, as Spark finds them: upper and lower case are the same."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import pyarrow as pa


def places(schema: pa.Schema) -> Mapping[str, Sequence[int]]:
    """By lower-case name, where a schema has columns of that name.

    The answers for the last few schemas are cached by identity.  Compiling a thousand expressions against a
    thousand columns asks a thousand times, and even a schema's hash looks at all its columns.
    """
    known = _PLACES.get(id(schema))
    if known is not None:
        return known[1]
    found: dict[str, list[int]] = {}
    for place, name in enumerate(schema.names):
        found.setdefault(name.lower(), []).append(place)
    _PLACES[id(schema)] = schema, found  # the reference keeps the schema alive, so its id stays unique
    while len(_PLACES) > _SCHEMAS:
        _PLACES.popitem(last=False)
    return found


_SCHEMAS = 16
_PLACES: OrderedDict[int, tuple[pa.Schema, Mapping[str, Sequence[int]]]] = OrderedDict()


def quoted(name: str) -> str:
    """A column's name as an expression says it, whatever characters are in it."""
    return f"`{name.replace('`', '``')}`"
