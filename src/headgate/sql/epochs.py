"""Times as numbers since 1970 and back."""

from __future__ import annotations

import numpy as np

from headgate.sql import types as t
from headgate.sql.node import FallibleKernel, Node, fallible, strict
from headgate.sql.registry import Call, function
from headgate.sql.values import Bad, Value, as_array, checked, computed, numbers

for _name, _step in (("unix_seconds", 1_000_000), ("unix_millis", 1_000), ("unix_micros", 1)):

    def _build_unix(call: Call, step: int = _step) -> Node:
        run = computed(t.BIGINT, lambda micros: micros // step)
        return strict(t.BIGINT, call.text, run, call.cast(0, t.TIMESTAMP))

    function(_name, args=1)(_build_unix)


@function("unix_date", args=1)
def _unix_date(call: Call) -> Node:
    return strict(t.INT, call.text, lambda v: as_array(v, 1).view(t.INT), call.cast(0, t.DATE))


@function("date_from_unix_date", args=1)
def _date_from_unix_date(call: Call) -> Node:
    return strict(t.DATE, call.text, lambda v: as_array(v, 1).view(t.DATE), call.cast(0, t.INT))


def _from_epoch(step: int) -> FallibleKernel:
    limit = (2**63 - 1) // step

    def run(value: Value) -> tuple[Value, Bad]:
        data = numbers(value)
        outside = (data > limit) | (data < -limit)
        return checked(np.where(outside, 0, data) * step, outside, t.TIMESTAMP, value)

    return run


for _name, _step in (("timestamp_seconds", 1_000_000), ("timestamp_millis", 1_000), ("timestamp_micros", 1)):

    def _build_epoch(call: Call, step: int = _step) -> Node:
        if not (t.is_integral(call.args[0].type) or call.args[0].type == t.NULL):
            raise call.mismatch("a whole number (other types are not supported)")
        reason = f"the timestamp {call.text} is out of range"
        return fallible(t.TIMESTAMP, call.text, reason, _from_epoch(step), call.cast(0, t.BIGINT))

    function(_name, args=1)(_build_epoch)
