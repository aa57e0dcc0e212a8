"""A file of measurements of a machine: prices of memory, and what operators cost when they run alone.

``headgate calibrate`` writes one, ``hg.Simulated(costs=FILE, memory=FILE)`` predicts with it.  In addition to
the tables of ``machine/memory_model.py`` it has

    [engine]
    call = 45.0           # microseconds of a box call without its operator
    scale = 1.08          # how much dearer operators are in a whole query than alone

    [operators]           # microseconds of a call; nanoseconds of a tuple, of a result, of a key
    "filter(a > 5)" = [20.0, 3.5, 1.0, 0.0]

Operators are known by what they do (their label), so costs hold for any application that does the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headgate.errors import PipelineError
from headgate.graph.operator import Kind, Operator
from headgate.graph.packet import Packet
from headgate.machine import toml
from headgate.machine.memory_model import MemoryModel, parse, read_file

_MICRO, _NANO = 1e-6, 1e-9
_UNITS = (_MICRO, _NANO, _NANO, _NANO)


def keys_of(operator: Operator, packets: Sequence[Packet]) -> int:
    """How many different keys there are in a keyed operator's packets, each packet's counted."""
    if operator.kind is not Kind.KEYED:
        return 0
    found = 0
    for packet, keys in zip(packets, operator.keys_by_input, strict=True):
        codes = np.zeros(len(packet), dtype=np.int64)
        for key in keys:
            encoded = packet.batch.column(key).dictionary_encode(null_encoding="encode")
            codes = codes * (len(encoded.dictionary) + 1) + encoded.indices.to_numpy()
        found += len(np.unique(codes))
    return found


class OperatorCost(NamedTuple):
    """Seconds of a call on one packet, of each of its tuples, of its results, and of the keys it holds."""

    call: float
    tuple: float
    result: float
    key: float = 0.0

    def seconds(self, packets: int, tuples: int, results: int, keys: int = 0) -> float:
        return self.call * packets + self.tuple * tuples + self.result * results + self.key * keys


@dataclass(frozen=True)
class Calibration:
    """A machine's measurements."""

    memory: MemoryModel
    operators: Mapping[str, OperatorCost] = field(default_factory=dict)
    """By label."""
    call_overhead: float = 0.0
    scale: float = 1.0

    def cost(self, label: str) -> OperatorCost | None:
        """What an operator costs as part of a query; None: it was not measured."""
        alone = self.operators.get(label)
        return None if alone is None else OperatorCost(*(part * self.scale for part in alone))

    def save(self, path: str | Path) -> None:
        operators = {
            label: [part / unit for part, unit in zip(cost, _UNITS, strict=True)]
            for label, cost in sorted(self.operators.items())
        }
        data = {"name": self.memory.name, "notes": self.memory.notes}
        data |= self.memory.to_data() | {
            "engine": {"call": self.call_overhead / _MICRO, "scale": self.scale},
            "operators": operators,
        }
        try:
            Path(path).write_text(toml.dumps(data), encoding="utf-8")
        except OSError as error:
            raise PipelineError(f"The calibration cannot be written to '{path}': {error.strerror}.") from None

    @staticmethod
    def load(path: str | Path) -> Calibration:
        data, where = read_file(path), str(path)
        engine = toml.table(data, "engine", where)
        operators = data.get("operators", {})
        if not isinstance(operators, dict):
            raise PipelineError(f"'{where}': 'operators' must be a table.")
        costs: dict[str, OperatorCost] = {}
        for label, parts in operators.items():
            if not isinstance(parts, list) or len(parts) != len(_UNITS):
                raise PipelineError(
                    f"'{where}': operator '{label}' must be [call, tuple, result, key], not {parts!r}."
                )
            named = dict(enumerate(parts))
            values = [toml.number({label: named[place]}, label, where) for place in range(len(_UNITS))]
            costs[label] = OperatorCost(*(value * unit for value, unit in zip(values, _UNITS, strict=True)))
        return Calibration(
            parse(data, where),
            costs,
            toml.number(engine, "call", where) * _MICRO,
            toml.number(engine, "scale", where),
        )
