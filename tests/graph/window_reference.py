"""Windows, running values and top rows, tuple by tuple in plain Python: slow, obvious, and what is right.

Rows are dicts; a time is an int of microseconds or None.  Every function returns a list of
(index of the causing row, or None for the end of the stream; result).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

Row = dict[str, Any]
Result = tuple[int | None, tuple[Any, ...]]
Fold = Callable[[list[Row]], tuple[Any, ...]]


def key_order(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Ascending, nulls first, NaN last."""
    return tuple(
        (0, 0, 0) if k is None else (1, 1, 0) if isinstance(k, float) and math.isnan(k) else (1, 0, k)
        for k in key
    )


class Now:
    """Time: the maximum of what has been seen, minus lateness."""

    def __init__(self, lateness: int) -> None:
        self.lateness = lateness
        self.maximum: int | None = None

    def reached(self, time: int) -> bool:
        return self.maximum is not None and time <= self.maximum - self.lateness

    def advance(self, time: int | None) -> None:
        if time is not None and (self.maximum is None or time > self.maximum):
            self.maximum = time

    def lap(self, step: int) -> int | None:
        return None if self.maximum is None else (self.maximum - self.lateness) // step


def windows(
    rows: list[Row],
    keys: list[str],
    size: int,
    every: int,
    lateness: int,
    fold: Fold,
    early: int | None = None,
) -> tuple[list[Result], list[int]]:
    """Tumbling and sliding windows: results, and the rows that came late."""
    now = Now(lateness)
    open_: dict[tuple[int, tuple[Any, ...]], list[Row]] = {}
    changed: set[tuple[int, tuple[Any, ...]]] = set()
    results: list[Result] = []
    late: list[int] = []

    def emit(cause: int | None, which: Iterable[tuple[int, tuple[Any, ...]]], is_early: bool) -> None:
        for window in sorted(which, key=lambda w: (w[0] + size, key_order(w[1]))):
            flag = () if early is None else (is_early,)
            results.append((cause, (*window[1], window[0], window[0] + size, *fold(open_[window]), *flag)))

    for index, row in enumerate(rows):
        time = row["ts"]
        lap = now.lap(early) if early else None
        found = False
        if time is not None:
            start = time // every * every
            while start + size > time:
                if not now.reached(start + size):
                    found = True
                    window = (start, tuple(row[k] for k in keys))
                    open_.setdefault(window, []).append(row)
                    changed.add(window)
                start -= every
        if not found:
            late.append(index)
        now.advance(time)
        due = [w for w in open_ if now.reached(w[0] + size)]
        emit(index, due, False)
        for window in due:
            del open_[window]
        changed -= set(due)
        if early and lap is not None and now.lap(early) > lap:
            emit(index, changed, True)
            changed.clear()
    emit(None, open_, False)
    return results, late


def sessions(
    rows: list[Row], keys: list[str], gap: int, lateness: int, fold: Fold, early: int | None = None
) -> tuple[list[Result], list[int]]:
    """Session windows: results, and the rows that came late."""
    now = Now(lateness)
    open_: list[tuple[tuple[Any, ...], list[tuple[int, Row]]]] = []
    changed: list[Any] = []
    results: list[Result] = []
    late: list[int] = []

    def bounds(session: Any) -> tuple[int, int]:
        times = [row["ts"] for _, row in session[1]]
        return min(times), max(times) + gap

    def emit(cause: int | None, which: list[Any], is_early: bool) -> None:
        for session in sorted(which, key=lambda s: (bounds(s)[1], key_order(s[0]), bounds(s)[0])):
            flag = () if early is None else (is_early,)
            members = [row for _, row in sorted(session[1], key=lambda m: m[0])]
            results.append((cause, (*session[0], *bounds(session), *fold(members), *flag)))

    for index, row in enumerate(rows):
        time = row["ts"]
        lap = now.lap(early) if early else None
        if time is None or now.reached(time + gap):
            late.append(index)
        else:
            key = tuple(row[k] for k in keys)
            mine = [
                s
                for s in open_
                if key_order(s[0]) == key_order(key) and bounds(s)[0] - gap < time < bounds(s)[1]
            ]
            session = (key, [(index, row), *(m for s in mine for m in s[1])])
            open_ = [s for s in open_ if not any(s is m for m in mine)] + [session]
            changed = [s for s in changed if not any(s is m for m in mine)] + [session]
        now.advance(time)
        due = [s for s in open_ if now.reached(bounds(s)[1])]
        emit(index, due, False)
        open_ = [s for s in open_ if not any(s is d for d in due)]
        changed = [s for s in changed if not any(s is d for d in due)]
        if early and lap is not None and now.lap(early) > lap:
            emit(index, changed, True)
            changed = []
    emit(None, open_, False)
    return results, late


def running(rows: list[Row], keys: list[str], fold: Fold, expire: int | None = None) -> list[tuple[Any, ...]]:
    """For every row the values of its key after including it."""
    kept: dict[Any, list[Row]] = {}
    seen: dict[Any, int | None] = {}
    now = Now(0)
    results = []
    for row in rows:
        key = key_order(tuple(row[k] for k in keys))
        now.advance(row.get("ts"))
        last = seen.get(key)
        if expire is not None and now.maximum is not None and (last is None or now.maximum - last > expire):
            kept.pop(key, None)
        kept.setdefault(key, []).append(row)
        seen[key] = now.maximum
        results.append(fold(kept[key]))
    return results


def top(
    rows: list[Row], n: int, rank: Callable[[Row], Any], every: int, lateness: int
) -> tuple[list[tuple[int | None, int]], list[int]]:
    """The best rows of tumbling windows: (cause, row's index), and the rows that came late."""
    now = Now(lateness)
    open_: dict[int, list[int]] = {}
    results: list[tuple[int | None, int]] = []
    late: list[int] = []

    def emit(cause: int | None, ends: Iterable[int]) -> None:
        for end in sorted(ends):
            best = sorted(open_.pop(end), key=lambda i: (rank(rows[i]), i))[:n]
            results.extend((cause, i) for i in best)

    for index, row in enumerate(rows):
        end = None if row["ts"] is None else (row["ts"] // every + 1) * every
        if end is None or now.reached(end):
            late.append(index)
        else:
            open_.setdefault(end, []).append(index)
        now.advance(row["ts"])
        emit(index, [e for e in open_ if now.reached(e)])
    emit(None, list(open_))
    return results, late


def aggregate(text: str) -> Fold:
    """The functions that the tests use, of a group's rows in order of arrival."""
    name, _, column = text.partition(":")

    def values(rows: list[Row]) -> list[Any]:
        return [r[column] for r in rows if r[column] is not None]

    def deviation(rows: list[Row]) -> float | None:
        v = values(rows)
        if len(v) < 2:
            return None
        mean = math.fsum(v) / len(v)
        return math.sqrt(math.fsum((x - mean) ** 2 for x in v) / (len(v) - 1))

    functions: dict[str, Callable[[list[Row]], Any]] = {
        "rows": len,
        "count": lambda rows: len(values(rows)),
        "distinct": lambda rows: len({key_order((v,)) for v in values(rows)}),
        "sum": lambda rows: sum(values(rows)) if values(rows) else None,
        "positive": lambda rows: (
            sum(v for v in values(rows) if v > 0) if any(v > 0 for v in values(rows)) else None
        ),
        "avg": lambda rows: sum(values(rows)) / len(values(rows)) if values(rows) else None,
        "min": lambda rows: min(values(rows), key=lambda v: key_order((v,))) if values(rows) else None,
        "max": lambda rows: max(values(rows), key=lambda v: key_order((v,))) if values(rows) else None,
        "stddev": deviation,
        "first": lambda rows: rows[0][column],
        "last": lambda rows: rows[-1][column],
        "first_known": lambda rows: (values(rows) or [None])[0],
        "last_known": lambda rows: (values(rows) or [None])[-1],
        "before": lambda rows: rows[-2][column] if len(rows) > 1 else None,
        "before_or_7": lambda rows: rows[-2][column] if len(rows) > 1 else 7,
        "list": values,
        "median": lambda rows: (
            sorted(values(rows))[math.ceil(0.5 * len(values(rows))) - 1] if values(rows) else None
        ),
    }
    function = functions[name]
    return lambda rows: (function(rows),)


def together(*texts: str) -> Fold:
    folds = [aggregate(text) for text in texts]
    return lambda rows: tuple(value for fold in folds for value in fold(rows))
