"""What is different about a box, in words: which of the things that make its key are others than before."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from headgate.graph.durations import spell_duration

Data = dict[str, Any]
Leaves = dict[tuple[str, ...], Any]
_DURATIONS = frozenset({"size", "every", "lateness", "within", "expire", "early"})
"""Settings in microseconds."""
_MOST = 3
"""Differences that are told; one change often shows in several places."""
_LONGEST = 120


def difference(old: Data, new: Data) -> str:
    """How a box of an earlier pipeline differs from the one that stands in its place now.

    Both are as ``Nodes.describe`` tells them.  All that makes a box's key is in that, so the text shows where
    two boxes of different keys differ.
    """
    if old["does"] != new["does"]:
        return f"'{old['name']}' was {old['does']}, now '{new['name']}' is {new['does']}"
    what = f"'{new['name']}' ({new['does']})"
    told = _leaves(old.get("what", {})), _leaves(new.get("what", {}))
    if not told[0]:
        return f"{what} was set in another way"  # a checkpoint that does not yet say how
    before, now = told
    paths = sorted({p for p in (*before, *now) if before.get(p) != now.get(p)}, key=_plainness)
    if not paths:
        return f"{what} is one of several equal boxes, and there were more or fewer of them"
    return f"{what} has " + "; ".join(_told(path, before, now) for path in paths[:_MOST])


def _leaves(data: Data, prefix: tuple[str, ...] = ()) -> Leaves:
    """Every setting by its path; a list is one value unless it is a list of settings."""
    found: Leaves = {}
    for name, value in data.items():
        path = (*prefix, name)
        if isinstance(value, dict):
            found |= _leaves(value, path)
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            for place, item in enumerate(value):
                found |= _leaves(item, (*path, str(place + 1)))
        else:
            found[path] = value
    return found


def _plainness(path: tuple[str, ...]) -> tuple[bool, bool, tuple[str, ...]]:
    """What people wrote comes before what follows from it."""
    return any(part.startswith("_") for part in path), path[0] != "settings", path


def _told(path: tuple[str, ...], old: Leaves, new: Leaves) -> str:
    name = " ".join(part.lstrip("_") for part in path if part not in ("settings", "window"))
    before, now = _shortened(_shown(path, old), _shown(path, new))
    return f"{name} {before} before and {now} now"


def _shown(path: tuple[str, ...], data: Leaves) -> str:
    value = data.get(path)
    if value is None:
        return "none"
    if path[-1] in _DURATIONS and isinstance(value, int):
        return spell_duration(value)
    return _listed(value)


def _shortened(*texts: str) -> list[str]:
    """Long texts from a little before where they differ on."""
    if max(map(len, texts)) <= _LONGEST:
        return list(texts)
    same = takewhile(lambda characters: len(set(characters)) == 1, zip(*texts, strict=False))
    start = max(len(list(same)) - _LONGEST // 4, 0)
    before = "..." if start else ""
    return [
        before + text[start : start + _LONGEST] + ("..." if len(text) > start + _LONGEST else "")
        for text in texts
    ]


def _listed(value: Any) -> str:
    if not isinstance(value, list):
        return str(value)
    if len(value) == 1 and isinstance(value[0], list):
        return _listed(value[0])
    return "[" + ", ".join(map(_listed, value)) + "]"
