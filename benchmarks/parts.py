"""Parts of a benchmark, so that a long one can run in pieces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from headgate.errors import PipelineError

Part = TypeVar("Part", int, str)


def chosen(bench: str, parts: Iterable[Part], part: str | None) -> list[Part]:
    """The part that ``--part`` names, or all of them."""
    known = list(parts)
    found = [each for each in known if part in (None, str(each))]
    if not found:
        raise PipelineError(
            f"Benchmark '{bench}' has no part '{part}'. There are: {', '.join(map(str, known))}."
        )
    return found
