"""Which box of a changed query takes over the state of which old one.

A box takes over a state that it could have made: the same kind of operator with the same keys and settings.
What feeds it may be another thing, as long as it has the columns: from then on the rows come from there.
Aggregates may be added, removed or moved: what an added one would have made of earlier rows is not known, so
it counts from then on.  Rows that a state remembers have no value in columns that are new.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

Data = dict[str, Any]
Layout = list[str | None]
"""The aggregates of a state in the order of its columns; None: one that no longer counts."""

_DERIVED = frozenset(
    {
        "_key_columns",
        "_right_columns",
        "_time_column",
        "aggregates",
        "candidates",
        "key_indices",
        "time_index",
    }
)
"""Settings that follow from the columns that come in, or that are looked at by themselves."""
_AGGREGATES = frozenset({"WindowAggregate", "Running"})
_KEYS_ONLY = frozenset({"DropDuplicates", "Limit"})
"""Their states hold no rows, so other columns may pass."""
_ROWS = frozenset({"Join", "Top", "TopPerKey"})
"""Their states hold rows as they came."""


def heirs(old: Sequence[Data], new: Sequence[Data]) -> dict[str, str]:
    """For boxes with state, in the network's order: by the key of a new one, that of the old one.

    Both are of one query, as ``Nodes.describe`` tells them.
    """
    pairs = [
        (_likeness(before, now), -there, -here)
        for here, now in enumerate(new)
        for there, before in enumerate(old)
        if can_take_over(before, now)
    ]
    found: dict[int, int] = {}
    for _, there, here in sorted(pairs, reverse=True):
        if -here not in found and -there not in found.values():
            found[-here] = -there
    return {new[here]["key"]: old[there]["key"] for here, there in found.items()}


def can_take_over(old: Data, new: Data) -> bool:
    """Whether a box could go on from the state of another one."""
    before, now = old.get("what"), new["what"]
    if not before:  # a checkpoint of version 0.3: the text is all that it says of a box
        return bool(old["does"] == new["does"])
    if before["type"] != now["type"] or _settings(before) != _settings(now):
        return False
    kind = now["type"]
    if kind in _AGGREGATES:
        names = (*now["settings"]["keys"], *now["settings"]["times_by_input"])
        shared = any(_same(one, two) for one in _aggregates(before) for two in _aggregates(now))
        return shared and _same_columns(names, before, now)
    if kind in _KEYS_ONLY:
        return _same_columns(now["settings"].get("keys", ()), before, now)
    if kind in _ROWS:
        return _same_types(before, now)
    return bool(before["outputs"] == now["outputs"])


def layout(what: Data) -> Layout:
    """The aggregates of a box, as what they compute, whatever their names."""
    return [_identity(each) for each in _aggregates(what)]


def added(old: Data, new: Data) -> list[str]:
    """The aggregates that a box has and the one before it had not, as they are written."""
    known = layout(old.get("what") or {})
    return [each["text"] for each in _aggregates(new["what"]) if _identity(each) not in known]


def _identity(aggregate: Data) -> str:
    told = [aggregate[name] for name in ("function", "argument", "filter", "parameters")]
    return json.dumps(told, default=str)


def _aggregates(what: Data) -> list[Data]:
    found: list[Data] = what.get("settings", {}).get("aggregates") or []
    return found


def _same(old: Data, new: Data) -> bool:
    """The same aggregate of columns of the same types."""
    if _identity(old) != _identity(new):
        return False
    before, now = _types([old["schema"]]), _types([new["schema"]])
    text = f"{new['argument']} {new['filter']}"
    return all(before.get(name, kind) == kind for name, kind in now.items() if name in text)


def _settings(what: Data) -> Data:
    return {name: value for name, value in what["settings"].items() if name not in _DERIVED}


def _same_columns(names: Sequence[str | None], old: Data, new: Data) -> bool:
    before, now = _types(_inputs(old)), _types(_inputs(new))
    return all(before.get(name) == now.get(name) for name in names if name is not None)


def _inputs(what: Data) -> list[list[list[str]]]:
    """The columns that come in; older checkpoints say only those of aggregates, or those that go out."""
    return what.get("inputs") or [own["schema"] for own in _aggregates(what)[:1]] or what["outputs"][:1]


def _types(schemas: Sequence[Sequence[Sequence[str]]]) -> dict[str, str]:
    return {name: kind for schema in schemas for name, kind in schema}


def _same_types(old: Data, new: Data) -> bool:
    """Whether the columns that come in now and came in before are of the same types."""
    if "inputs" not in old:
        return bool(old["outputs"] == new["outputs"])
    for before, now in zip(old["inputs"], new["inputs"], strict=True):
        known = dict(before)
        if any(known.get(name, kind) != kind for name, kind in now):
            return False
    return True


def _likeness(old: Data, new: Data) -> tuple[bool, int, bool]:
    """How much two boxes have in common: the name, the aggregates, what they read."""
    before = old.get("what") or {}
    same = len(set(layout(before)) & set(layout(new["what"])))
    return old["name"] == new["name"], same, before.get("reads") == new["what"]["reads"]
