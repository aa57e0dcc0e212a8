"""Runs of geometrically growing length: how rows are kept sorted while more of them keep coming.

New rows are a run of their own until the runs before it are not much longer; then they become one.  So a row
is sorted again a logarithm of times, and a search looks into few runs.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import TypeVar

_Run = TypeVar("_Run", bound=Sized)


def outgrown(runs: list[_Run], count: int) -> list[_Run]:
    """Take out the runs, oldest first, to join with a new run of ``count`` rows."""
    kept = len(runs)
    while kept and len(runs[kept - 1]) <= 2 * count:
        kept -= 1
        count += len(runs[kept])
    taken = runs[kept:]
    del runs[kept:]
    return taken
