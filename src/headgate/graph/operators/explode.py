"""``stream.explode("items AS item")``: one row for every element of a list, or every entry of a map."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.errors import BadRow, PipelineError, TypeMismatch
from headgate.graph.columns import Ints, from_words, invalid, taken
from headgate.graph.operator import Operator
from headgate.graph.operators._user import located
from headgate.graph.packet import Packet
from headgate.sql import compile_expression

_PAIR = re.compile(r"^(.*\S)\s+AS\s*\(\s*([^,()]+?)\s*,\s*([^,()]+?)\s*\)\s*$", re.IGNORECASE | re.DOTALL)


class Explode(Operator):
    """The input's columns and the element; of a map ``"tags AS (tag, value)"``.

    A column of the element's name is replaced.  A row whose list is empty or null goes, unless ``outer``:
    then its element is null.  ``position`` names a column for the element's place, from 0.
    """

    def __init__(
        self, schema: pa.Schema, expression: str, outer: bool = False, position: str | None = None
    ) -> None:
        self.text, self.outer, self.position = expression, outer, position
        super().__init__([schema], [])
        self._compile()

    def _compile(self) -> None:
        schema = self.inputs[0]
        pair = _PAIR.match(self.text) if isinstance(self.text, str) else None
        self.expression = compile_expression(pair.group(1) if pair else self.text, schema)
        kind, name = self.expression.type, self.expression.name
        if pa.types.is_map(kind):
            names = pair.groups()[1:] if pair else ("key", "value")
            new = list(zip((n.strip("`") for n in names), (kind.key_type, kind.item_type), strict=True))
        elif not pa.types.is_list(kind):
            raise TypeMismatch(
                f"explode: {self.text!r} is {kind}, not a list or a map; give a column or an expression "
                "whose values are lists, e.g. split(words, ' ') AS word."
            )
        elif pair:
            raise PipelineError(f"explode: {self.text!r} gives two names, but a list's element needs one.")
        else:
            new = [(name, kind.value_type)]
        if self.position is not None:
            new.insert(0, (self.position, pa.int32()))
        self._added = len(new)
        names_ = [n.lower() for n, _ in new]
        if len(set(names_)) < len(names_):
            raise PipelineError(f"explode: two columns would be called '{new[0][0]}'; rename one of them.")
        self._kept = [place for place, field in enumerate(schema) if field.name.lower() not in names_]
        kept = [schema.field(place) for place in self._kept]
        self.outputs = (pa.schema([*kept, *(pa.field(n, type_) for n, type_ in new)]),)

    @property
    def label(self) -> str:
        return f"explode({self.text})"

    def needed(self, wanted: Sequence[frozenset[str]]) -> tuple[frozenset[str], ...]:
        kept = {self.inputs[0].field(place).name for place in self._kept}
        return (self.expression.columns | (wanted[0] & kept),)

    def process(self, packets: Sequence[Packet], state: Any) -> list[Packet]:
        packet = packets[0]
        try:
            lists = self.expression.evaluate(packet.batch)
        except BadRow as bad:
            raise located(bad, self.label, packet) from bad
        causes, places, ordinals, missing = _elements(lists, self.outer)
        children = [lists.keys, lists.items] if pa.types.is_map(lists.type) else [lists.values]
        new = [_taken(child, places, missing) for child in children]
        if self.position is not None:
            new.insert(0, from_words(ordinals.astype(np.int32), pa.int32(), missing))
        kept = [taken(packet.batch.column(place), causes) for place in self._kept]
        return [packet.caused(pa.RecordBatch.from_arrays([*kept, *new], schema=self.outputs[0]), causes)]


def _elements(lists: pa.Array, outer: bool) -> tuple[Ints, Ints, Ints, Any]:
    """For every result its row, its place among the children, its place in the list, and what is missing."""
    offsets = lists.offsets.to_numpy().astype(np.int64)
    starts, counts = offsets[:-1], np.diff(offsets)
    null = invalid(lists)
    if null is not None:
        counts = np.where(null, 0, counts)
    rows = np.maximum(counts, 1) if outer else counts
    causes = np.repeat(np.arange(len(counts), dtype=np.int64), rows)
    ordinals = np.arange(len(causes), dtype=np.int64) - np.repeat(rows.cumsum() - rows, rows)
    missing = counts[causes] == 0
    return causes, starts[causes] + ordinals, ordinals, missing if missing.any() else None


def _taken(child: pa.Array, places: Ints, missing: Any) -> pa.Array:
    if missing is None:
        return taken(child, places)
    return child.take(pa.array(np.where(missing, 0, places), mask=missing))
