"""Task policies and the allocator on this machine, in interleaved pairs."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.apart import Conversation, converse
from benchmarks.experiments.requests.cases import BASELINES, BOBOX, LAS, MANY, PAPERS, Data, Sizes, asked
from benchmarks.findings import checked
from benchmarks.paired import Paired, interleaved
from benchmarks.result import Result
from benchmarks.workloads import xquery
from headgate.api import App
from headgate.engines.threads import Threads

LOCAL, MALLOC = "local", "default"
LIMIT = 120.0
"""Seconds that an answer of an allocator's process may take."""
FEW = ("q2", "q4", "q6", "q11")
"""Questions that the allocators are compared with: those that the paper names, and one that it does not."""


def policies(sizes: Sizes, data: Data, console: Console) -> list[Result]:
    """Each question by one request and by sixteen, under both papers' policies and their baselines."""
    title = f"times as fast, {sizes.pairs} interleaved pairs, two workers"
    results = []
    for count, triples in ((1, sizes.alone), (MANY, sizes.many)):
        table = _table("requests", "policies", title)
        for name in sizes.questions:
            app, label = asked(data.of(triples), name, count), f"{name}, {_many(count)}, {triples:,} triples"
            for policy in BASELINES:
                results.append(_contest(app, label, policy, sizes, table))
        console.print(table)
    table = _table("requests", "policies", title)
    document = xquery.document(sizes.document)
    for count in sizes.loads:
        label = f"{xquery.OPERATORS} operators, {_many(count)}, {document.num_rows:,} nodes"
        app = xquery.network(document, count)
        results.append(_contest(app, label, BOBOX, sizes, table))
    console.print(table)
    return results


def allocators(sizes: Sizes, data: Data, console: Console) -> list[Result]:
    """Sixteen requests at once with the allocator and with malloc, each in a process of its own."""
    table = _table("requests", "allocators", "times as fast")
    folder, results = str(data.of(sizes.many)), []
    sides = {
        which: Conversation(f"allocator {which}", "experiments.requests.host", folder, which)
        for which in (LOCAL, MALLOC)
    }
    try:
        for name in [name for name in sizes.questions if name in FEW]:

            def seconds(which: str, name: str = name) -> Callable[[], float]:
                return lambda: float(sides[which].ask(name, LIMIT)["seconds"])

            paired, ones, others = interleaved(
                max(sizes.pairs - 1, 1), seconds(LOCAL), seconds(MALLOC), sizes.least
            )
            label = f"{name}, {_many(MANY)}"
            _add(table, label, f"{LOCAL} : {MALLOC}", paired, ones, others)
            results.append(
                _judged(f"requests, allocator, {label}, host", "LAS, figures 9 and 10", LOCAL, MALLOC, paired)
            )
    finally:
        for side in sides.values():
            side.close()
    console.print(table)
    return results


def _contest(app: App, label: str, policy: str, sizes: Sizes, table: Table) -> Result:
    baseline = BASELINES[policy]
    paired, ones, others = interleaved(
        sizes.pairs, lambda: _seconds(app, policy), lambda: _seconds(app, baseline), sizes.least
    )
    _add(table, label, f"{policy} : {baseline}", paired, ones, others)
    return _judged(
        f"requests, {policy}, {label}, host", f"{PAPERS[policy]}, section 6", policy, baseline, paired
    )


def _judged(name: str, source: str, one: str, other: str, paired: Paired) -> Result:
    low, high = paired.interval
    claim = (
        f"times as fast as {other}: not slower beyond the interval ({low:.3f} to {high:.3f}) of "
        f"{len(paired.ratios)} pairs"
    )
    return Result(name, source, claim, paired.median, 1.0, paired.not_slower)


def _seconds(app: App, policy: str, allocator: str = MALLOC) -> float:
    return checked(app.run(Threads(workers=2, allocator=allocator), policy)).seconds


def _many(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"


def _table(first: str, second: str, title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in (first, second, "times (95 %)", "seconds", "the other"):
        table.add_column(column, justify="left" if column in (first, second) else "right")
    return table


def _add(
    table: Table, label: str, sides: str, paired: Paired, ones: Sequence[float], others: Sequence[float]
) -> None:
    table.add_row(label, sides, str(paired), *(f"{statistics.median(each):.3f}" for each in (ones, others)))


def _answers(folder: str, allocator: str) -> None:
    """An allocator's process."""
    apps: dict[str, App] = {}

    def answer(name: str) -> dict[str, float]:
        if name not in apps:
            apps[name] = asked(Path(folder), name, MANY)
        return {"seconds": _seconds(apps[name], LAS, allocator)}

    converse(answer)


if __name__ == "__main__":
    _answers(*sys.argv[1:])
