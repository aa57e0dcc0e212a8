"""Where arrays that travel in packets come from: numpy's own allocator, unless an engine provides another.

Only the memory differs, never a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

Empty = Callable[[int, Any], npt.NDArray[Any]]
"""Of a number of values and their type: an array that may hold anything."""

_providers: list[Empty] = []
"""The last one serves all.  There are several during several runs; each of them may serve any run."""
_numbers = np.arange(1 << 16, dtype=np.int64)


@contextmanager
def provided(empty: Empty) -> Iterator[None]:
    """As long as this lasts, arrays come from there."""
    _providers.append(empty)
    try:
        yield
    finally:
        _providers.remove(empty)


def empty(count: int, dtype: Any) -> npt.NDArray[Any]:
    """An array that may hold anything."""
    return _providers[-1](count, dtype) if _providers else np.empty(count, dtype)


def arange(start: int, end: int) -> npt.NDArray[np.int64]:
    """``start``, ``start`` + 1, … up to ``end``."""
    global _numbers
    if not _providers:
        return np.arange(start, end, dtype=np.int64)
    count = max(end - start, 0)
    numbers = _numbers
    if len(numbers) < count:
        numbers = _numbers = np.arange(2 * count, dtype=np.int64)
    out: npt.NDArray[np.int64] = empty(count, np.int64)
    np.add(numbers[:count], start, out=out)
    return out


def selected(values: npt.NDArray[Any], selection: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values where a mask is true, or at places (which must exist)."""
    if not _providers:
        return values[selection]  # type: ignore[no-any-return]
    places = np.flatnonzero(selection) if selection.dtype == np.bool_ else selection
    return np.take(values, places, out=empty(len(places), values.dtype), mode="clip")


def concatenated(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Arrays of one type, one after the other."""
    if not _providers or any(part.dtype != parts[0].dtype for part in parts):
        return np.concatenate(parts)
    return np.concatenate(parts, out=empty(sum([len(part) for part in parts]), parts[0].dtype))
