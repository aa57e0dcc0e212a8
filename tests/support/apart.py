"""A process of its own with a Spark of its own: for tests that need settings which the shared one lacks."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from servers import LOCAL
from waiting import PATIENCE

T = TypeVar("T")


class Apart:
    """``apart(fn, ...)`` is ``fn(...)`` in the other process; ``start`` does not wait for it."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def __call__(self, fn: Callable[..., T], *given: Any, **options: Any) -> T:
        return self.start(fn, *given, **options).result(timeout=PATIENCE)

    def start(self, fn: Callable[..., T], *given: Any, **options: Any) -> Future[T]:
        return self._pool.submit(fn, *given, **options)


def _prepare(env: Mapping[str, str]) -> None:
    os.environ.update(env)


@contextmanager
def apart(env: Mapping[str, str] | None = None) -> Iterator[Apart]:
    """The process lives as long as this, so what it started once it has."""
    given = {**os.environ, **LOCAL, **(env or {})}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=_prepare, initargs=(given,)) as pool:
        yield Apart(pool)
