"""How many examples the tests of properties draw, and how many cases those of long lists take.

``make test`` draws a third of what a property was ever asked to hold for, always the same ones.  ``make
test-deep`` (``HYPOTHESIS_PROFILE=deep``) draws all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TypeVar

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
LEAST = 5
T = TypeVar("T")


def examples(deep: int) -> int:
    """Of so many examples in a deep run, how many this run draws."""
    return deep if DEEP else max(LEAST, deep // 3)


def some(cases: Iterable[T], one_of: int) -> Sequence[T]:
    """All cases in a deep run, one of so many in this one, spread over all."""
    return list(cases)[:: 1 if DEEP else one_of]
