"""``stream.drop("a")`` and ``stream.rename(a="b")``: the same rows with fewer columns, or other names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headgate.errors import PipelineError
from headgate.graph.operator import Operator
from headgate.graph.packet import Packet


class Pick(Operator):
    """Columns of the input, each under a name; nothing is computed and nothing is copied."""

    def __init__(self, schema: pa.Schema, columns: Sequence[tuple[str, str]], label: str) -> None:
        if not columns:
            raise PipelineError(f"{label}: no column would be left.")
        seen: set[str] = set()
        for _, new in columns:
            if not isinstance(new, str) or not new:
                raise PipelineError(f"{label}: {new!r} is not a column name.")
            if new.lower() in seen:
                raise PipelineError(f"{label}: two columns would be called '{new}'; drop one of them first.")
            seen.add(new.lower())
        self._label = label
        self._old = {new: old for old, new in columns}
        self._places = [schema.get_field_index(old) for old, _ in columns]
        output = pa.schema([schema.field(old).with_name(new) for old, new in columns])
        super().__init__([schema], [output])

    @property
    def label(self) -> str:
        return self._label

    def needed(self, wanted: Sequence[frozenset[str]]) -> tuple[frozenset[str], ...]:
        return (frozenset(self._old[name] for name in wanted[0]),)

    def process(self, packets: Sequence[Packet], state: Any) -> list[Packet]:
        columns = packets[0].batch.columns
        batch = pa.RecordBatch.from_arrays([columns[p] for p in self._places], schema=self.outputs[0])
        return [packets[0].with_batch(batch)]
