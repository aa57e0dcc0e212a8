"""How many examples the tests of properties draw.

``make test`` draws a third of what a property was ever asked to hold for, always the same ones.  ``make
test-deep`` (``HYPOTHESIS_PROFILE=deep``) draws all of them.
"""

from __future__ import annotations

import os

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
LEAST = 5


def examples(deep: int) -> int:
    """Of so many examples in a deep run, how many this run draws."""
    return deep if DEEP else max(LEAST, deep // 3)
