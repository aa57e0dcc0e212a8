"""Haren's live change: another policy every 100 ms under load, and what that does to the answers: nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import cycle

import pyarrow as pa
from rich.console import Console

from benchmarks.experiments.haren.load import Chain, chains
from benchmarks.result import Result
from headgate.api import App
from headgate.connectors.python import to_function
from headgate.connectors.rate import from_rate
from headgate.engines.simulated import Simulated
from headgate.engines.threads import Threads
from headgate.runtime.change import Change
from headgate.runtime.report import Report
from headgate.scheduling import policies

EVERY = 0.1
LOAD = 0.9
"""The share of the cores' time that the load takes."""
BURST = 50


class Answers:
    """What every query gave, in order: how many rows, and a digest, however they were cut."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self._digests: dict[str, hashlib._Hash] = {}

    def take(self, query: str, batch: pa.RecordBatch) -> None:
        self.rows[query] = self.rows.get(query, 0) + batch.num_rows
        digest = self._digests.setdefault(query, hashlib.sha256())
        values = [batch.column(name).to_numpy() for name in ("value", "n")]
        digest.update(b"".join([pair.tobytes() for row in zip(*values, strict=True) for pair in row]))

    @property
    def digests(self) -> dict[str, str]:
        return {query: digest.hexdigest() for query, digest in self._digests.items()}


def application(queries: list[Chain], rate: float, seconds: float, answers: Answers) -> App:
    """Chains over one source, so that tuples are always admitted in the same order; each counts by key."""
    app = App("change")
    numbers = app.source("numbers", from_rate(rate, limit=int(rate * seconds), burst=BURST))
    for chain in queries:
        stream = numbers
        for place, (cost, selectivity) in enumerate(chain.operators):
            stream = stream.universal(cost=cost, selectivity=selectivity, name=f"{chain.name}-{place}")
        keyed = stream.with_columns("value % 16 AS k", name=f"{chain.name}-key").key_by("k")
        counted = keyed.running("count(*) AS n", name=f"{chain.name}-count")
        counted.to(chain.name, to_function(answers.take), query_class=chain.query_class)
    return app


def changes(seconds: float, cores: int, console: Console) -> list[Result]:
    """The same tuples without any change in virtual time, and with changes all the time on threads."""
    queries = chains(6, 4) + chains(2, 4, seed=1, query_class=1, name="high")
    rate = LOAD * cores / sum(query.seconds for query in queries)
    turns = cycle(policies.names())
    planned = [Change(EVERY * (i + 1), next(turns)) for i in range(int(2 * seconds / EVERY))]

    def run(go: Callable[[App], Report]) -> tuple[Answers, Report]:
        answers = Answers()
        return answers, go(application(queries, rate, seconds, answers))

    still, _ = run(lambda app: app.run(Simulated(workers=1), "round_robin"))
    changed, report = run(lambda app: app.run(Threads(cores), "lp", changes=planned))
    done = sum(change.at <= report.seconds for change in planned)
    same = changed.digests == still.digests and not report.problems
    console.print(
        f"{done} changes of policy in {report.seconds:.1f} s at {LOAD:.0%} load: "
        f"{sum(changed.rows.values()):,} results, {'' if same else 'not '}the same as without any change"
    )
    return [
        Result(
            "haren, change of policy every 100 ms",
            "Haren, live change",
            f"results, the same in the same order as without changes; {done} changes",
            float(sum(changed.rows.values())),
            float(sum(still.rows.values())),
            same,
        )
    ]
