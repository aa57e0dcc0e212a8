"""Boxes that are made once: equal parts of several queries are one box, found by themselves.

Two parts are equal if they do the same, in the same words once names are resolved, with the same input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headgate.api.finite import expected_runs, hash_joins, sort_net
from headgate.api.streams import KeyedStream, Stream
from headgate.graph.operators.hash_join import HashJoin
from headgate.graph.windows import Window


class Boxes:
    """The streams that SQL has made of an application, by what they do."""

    def __init__(self) -> None:
        self._made: dict[Any, Stream] = {}

    def _once(self, key: Any, make: Callable[[], Stream]) -> Stream:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def filter(self, stream: Stream, condition: str) -> Stream:
        return self._once(("filter", stream._port, condition), lambda: stream.filter(condition))

    def select(self, stream: Stream, texts: Sequence[str]) -> Stream:
        return self._once(("select", stream._port, *texts), lambda: stream.select(*texts))

    def with_columns(self, stream: Stream, texts: Sequence[str]) -> Stream:
        if not texts:
            return stream
        return self._once(("with", stream._port, *texts), lambda: stream.with_columns(*texts))

    def window(self, stream: Stream, keys: Sequence[str], window: Window, texts: Sequence[str]) -> Stream:
        key = ("window", stream._port, tuple(keys), window, *texts)
        keyed = stream.key_by(*keys) if keys else stream
        return self._once(key, lambda: keyed.window(window).agg(*texts))

    def running(self, stream: Stream, keys: Sequence[str], texts: Sequence[str]) -> Stream:
        key = ("running", stream._port, tuple(keys), *texts)
        return self._once(key, lambda: KeyedStream(stream, keys).running(*texts))

    def explode(self, stream: Stream, text: str, outer: bool, position: str | None) -> Stream:
        key = ("explode", stream._port, text, outer, position)
        return self._once(key, lambda: stream.explode(text, outer=outer, position=position))

    def distinct(self, stream: Stream, columns: Sequence[str]) -> Stream:
        return self._once(("distinct", stream._port, *columns), lambda: stream.drop_duplicates(*columns))

    def top(self, stream: Stream, keys: Sequence[str], n: int, by: str, **options: Any) -> Stream:
        key = ("top", stream._port, tuple(keys), n, by, *sorted(options.items()))
        keyed = KeyedStream(stream, keys) if keys else stream
        return self._once(key, lambda: keyed.top(n, by=by, **options))

    def limit(self, stream: Stream, n: int) -> Stream:
        return self._once(("limit", stream._port, n), lambda: stream.limit(n))

    def sort(self, stream: Stream, by: str, limit: int | None) -> Stream:
        return self._once(("sort", stream._port, by, limit), lambda: _sorted(stream, by, limit))

    def join(self, left: KeyedStream, right: KeyedStream, **options: Any) -> Stream:
        sides = [(side._stream._port, side._keys) for side in (left, right)]
        return self._once(("join", *sides, *sorted(options.items())), lambda: left.join(right, **options))

    def hash_join(self, left: KeyedStream, right: KeyedStream, how: str, where: str) -> Stream:
        """A join of streams that end by key and any condition."""
        one, two = left._stream, right._stream
        more = [] if how in ("semi", "anti") else [n for n in two.schema.names if n not in right._keys]
        on = list(zip(left._keys, right._keys, strict=True))
        key = ("hash join", one._port, two._port, tuple(on), how, where)
        join = HashJoin(one.schema, two.schema, on, [*one.schema.names, *more], how=how, where=where)
        return self._once(key, lambda: hash_joins(one, two, join, expected_runs(one, two)))


def _sorted(stream: Stream, by: str, limit: int | None) -> Stream:
    """Many rows are sorted in runs; the first few of any number are kept in one place."""
    ways = expected_runs(stream) if limit is None else 1
    return stream.sort(by, limit=limit) if ways == 1 else sort_net(stream, by, ways)
