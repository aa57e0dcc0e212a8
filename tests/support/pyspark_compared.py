"""PySpark's programs, adopted and as they are, and what is different in their results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import headgate as hg
import pyspark_programs as programs

DAY_LATER = datetime(2024, 1, 1, 12)
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Verdict:
    """A program's rows here, without those of the end, and those that only one side has."""

    program: str
    rows: int
    only_ours: list[Row]
    only_theirs: list[Row]


def plain(value: Any) -> Any:
    """A value that compares: structs as tuples, times without zone."""
    if isinstance(value, dict):
        return tuple(plain(v) for v in value.values())
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    return round(value, 9) if isinstance(value, float) else value


def of_the_end(row: tuple[Any, ...]) -> bool:
    """Whether it comes from the rows that only close what was before them."""
    times = [v for value in row for v in (value if isinstance(value, tuple) else (value,))]
    late = any(isinstance(v, datetime) and v > DAY_LATER for v in times)
    return late or any(v in (programs.LAST, programs.LAST.upper(), -1, -2, 100) for v in row)


def started(frame: Any, name: str, mode: str) -> Any:
    query = frame.writeStream.format("memory").queryName(name).outputMode(mode)
    return query.trigger(availableNow=True).start()


def by_spark(frame: Any, name: str, query: Any) -> list[tuple[Any, ...]]:
    query.awaitTermination()
    rows = frame.sparkSession.table(name).collect()
    return [tuple(plain(v) for v in row.asDict(recursive=True).values()) for row in rows]


def compare(
    session: Any, folder: Path, compared: Sequence[str], only: Sequence[str] = ()
) -> tuple[hg.App, list[Verdict]]:
    """Run all programs, or ``only`` some, as one application; those compared by Structured Streaming too."""
    app, found = hg.App("programs"), dict[str, list[dict[str, Any]]]()
    every = {**programs.APPEND, **programs.UPDATE}
    frames = {name: program(session, folder) for name, program in every.items() if name in (only or every)}
    for name, frame in frames.items():
        found[name] = []
        stream = app.from_spark(frame, follow=False, update=name in programs.UPDATE)
        stream.to(name, hg.to_list(found[name]))
    app.run("threads")
    queries = {
        name: started(frames[name], name, "update" if name in programs.UPDATE else "append")
        for name in compared
    }
    verdicts = []
    for name, query in queries.items():
        ours = [tuple(plain(v) for v in row.values()) for row in found[name]]
        if name in programs.UPDATE:  # the last value of every group
            keys = 1 if name != "windows_in_update_mode" else 2
            ours = list({row[:keys]: row for row in ours}.values())
        one = Counter(row for row in ours if not of_the_end(row))
        two = Counter(row for row in by_spark(frames[name], name, query) if not of_the_end(row))
        verdicts.append(Verdict(name, one.total(), list(one - two), list(two - one)))
    return app, verdicts
