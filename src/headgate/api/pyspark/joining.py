"""Joins of a streaming plan: by key and interval with another stream, by key with a table."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pyarrow as pa

from headgate.api.pyspark.catalyst import (
    Columns,
    column,
    elements,
    kind,
    number,
    references,
    refused,
    text,
    unique,
)
from headgate.api.pyspark.taken import Taken
from headgate.engines.spark.analyst import rows_of
from headgate.graph.schema import normalise
from headgate.sql import compile_expression

Take = Callable[[Any], Taken]
"""Takes a node of the plan over."""

_HOW = {
    "INNER": "inner",
    "LEFT OUTER": "left",
    "RIGHT OUTER": "right",
    "FULL OUTER": "full",
    "LEFT SEMI": "semi",
    "LEFT ANTI": "anti",
}
_COMPARED = {
    "GreaterThanOrEqual": (1, 0),
    "GreaterThan": (1, 1),
    "LessThanOrEqual": (-1, 0),
    "LessThan": (-1, 1),
}
_SHIFTED = re.compile(r"^(?:CAST\()?`(.+)` ([+-]) (INTERVAL .*?)(?: AS TIMESTAMP\))?$")
_FOUND = "_found"
_FAR = 1 << 60


@dataclass
class _Condition:
    """What a join's condition says."""

    keys: list[tuple[str, str]]
    """Equal expressions of both sides."""
    on: tuple[str, str] | None = None
    low: int = -_FAR
    high: int = _FAR
    rest: list[Any] | None = None


def join(take: Take, node: Any) -> Taken:
    left, right = elements(node.children())
    how = _HOW.get(str(node.joinType().sql()))
    if how is None:
        raise refused(node, f"a {node.joinType().sql()} join is not taken over.")
    if not left.isStreaming() or not right.isStreaming():
        return _with_table(take, node, how)
    one, two = take(left), take(right)
    clashing = unique(list(two.columns.items()), set(one.stream.schema.names))
    texts = [f"{column(two.columns[place])} AS {column(name)}" for place, name in clashing.items()]
    two = replace(
        two,
        stream=two.stream.select(*texts),
        columns=clashing,
        watermarks={clashing[p]: two.watermarks[n] for p, n in two.columns.items() if n in two.watermarks},
    )
    said = _condition(node, one.columns, two.columns)
    both = {**one.columns, **two.columns}
    if said.rest and how != "inner":
        raise refused(node, f"condition {said.rest[0].sql()} is neither equality nor a bound in time.")
    names = [f"_key{place}" for place in range(len(said.keys))]
    left_keys = [f"{mine} AS {name}" for (mine, _), name in zip(said.keys, names, strict=True)]
    right_keys = [f"{other} AS {name}" for (_, other), name in zip(said.keys, names, strict=True)]
    keyed = one.stream.with_columns(*left_keys).key_by(*names)
    other = two.stream.with_columns(*right_keys).key_by(*names)
    if said.on is None:
        stream = keyed.join(other, how=how)
    else:
        within = (timedelta(microseconds=said.low), timedelta(microseconds=said.high))
        late = max([0, *one.watermarks.values(), *two.watermarks.values()])
        stream = keyed.join(other, within=within, on=said.on, how=how, lateness=timedelta(microseconds=late))
    for rest in said.rest or ():
        stream = stream.filter(text(rest, both))
    columns = one.columns if how in ("semi", "anti") else both
    return replace(
        one, stream=stream.drop(*names), columns=columns, watermarks={**two.watermarks, **one.watermarks}
    )


def _condition(node: Any, left: Columns, right: Columns) -> _Condition:
    if node.condition().isEmpty():
        raise refused(node, "it has no condition; streams are joined by key.")
    found = _Condition([], rest=[])
    todo = [node.condition().get()]
    while todo:
        part = todo.pop(0)
        what = kind(part)
        if what == "And":
            todo += [part.left(), part.right()]
        elif what == "EqualTo" and (sides := _sides(part.left(), part.right(), left, right)) is not None:
            found.keys.append(sides)
        elif not _bounds(part, left, right, found):
            assert found.rest is not None
            found.rest.append(part)
    if not found.keys:
        raise refused(node, "no condition says that two columns are equal; streams are joined by key.")
    return found


def _sides(one: Any, two: Any, left: Columns, right: Columns) -> tuple[str, str] | None:
    """The texts of two expressions if one is of the left side and the other of the right."""
    for mine, other in ((one, two), (two, one)):
        ours = [number(a) in left for a in references(mine)]
        theirs = [number(a) in right for a in references(other)]
        if ours and theirs and all(ours) and all(theirs):
            return text(mine, left), text(other, right)
    return None


def _bounds(part: Any, left: Columns, right: Columns, found: _Condition) -> bool:
    """Takes in a condition on the times of both rows; False if it is none."""
    if kind(part) == "Between":
        middle, low, high = (part.productElement(place) for place in range(3))
        lower = _bound(middle, low, 1, 0, left, right, found)
        return lower and _bound(middle, high, -1, 0, left, right, found)
    sign = _COMPARED.get(kind(part))
    return sign is not None and _bound(part.left(), part.right(), *sign, left, right, found)


def _bound(
    one: Any, two: Any, sign: int, strict: int, left: Columns, right: Columns, found: _Condition
) -> bool:
    """Takes in ``one >= two`` (``sign`` 1) or ``one <= two`` (-1); False if it is no bound in time."""
    if _sides(one, two, left, right) is None:
        return False
    both = {**left, **right}
    first, second = _shifted(text(one, both)), _shifted(text(two, both))
    if first is None or second is None:
        return False
    # one + a >= two + b: how much later the right row is, at least or at most.
    if first[0] in right.values():
        on, bound, low = (second[0], first[0]), second[1] - first[1], sign > 0
    else:
        on, bound, low = (first[0], second[0]), first[1] - second[1], sign < 0
    if found.on not in (None, on):
        return False
    found.on = on
    if low:
        found.low = max(found.low, bound + strict)
    else:
        found.high = min(found.high, bound - strict)
    return True


def _shifted(said: str) -> tuple[str, int] | None:
    """A column and by how many microseconds it is shifted."""
    if said.startswith("`") and said.endswith("`") and "`" not in said[1:-1]:
        return said[1:-1], 0
    shifted = _SHIFTED.match(said)
    if shifted is None:
        return None
    row = pa.record_batch({"zero": [0]})
    moment = compile_expression(f"unix_micros(timestamp_seconds(zero) + {shifted.group(3)})", row.schema)
    [micros] = moment.evaluate(row).to_pylist()
    return shifted.group(1), micros if shifted.group(2) == "+" else -micros


def _with_table(take: Take, node: Any, how: str) -> Taken:
    """A stream with a table that does not change: its columns are looked up."""
    left, right = elements(node.children())
    if not left.isStreaming() or how not in ("inner", "left"):
        raise refused(node, "a table may be the right side of an inner or left join only.")
    one = take(left)
    table = rows_of(right)
    there = {number(a): str(a.name()) for a in elements(right.output())}
    said = _condition(node, one.columns, there)
    if said.rest or said.on:
        raise refused(node, "a table is joined by equality alone.")
    columns = unique(list(there.items()), set(one.stream.schema.names))
    keys = {f"_key{place}": pair for place, pair in enumerate(said.keys)}
    batch = normalise(table.schema)
    arrays = [table.column(place).cast(batch.field(place).type) for place in range(len(batch))]
    names = [columns[place] for place in there]
    for name, (_, other) in keys.items():
        arrays.append(arrays[list(there.values()).index(other.strip("`"))])
        names.append(name)
    arrays.append(pa.array([True] * table.num_rows))
    made = pa.Table.from_arrays(arrays, names=[*names, _FOUND])
    computed = one.stream.with_columns(*[f"{mine} AS {name}" for name, (mine, _) in keys.items()])
    stream = computed.lookup(made, on=list(keys))
    if how == "inner":
        stream = stream.filter(_FOUND)
    return replace(one, stream=stream.drop(_FOUND, *keys), columns={**one.columns, **columns})
