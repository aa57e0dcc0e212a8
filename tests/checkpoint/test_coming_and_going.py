"""Queries are added and removed, and drivers killed and restarted, in any order: answers stay right.

Without Spark.  A query that is there gets every row once, from where it was told to begin; one that was
removed and comes back begins as if it were new, with the earliest row that the source has, whatever the
checkpoint has let go of meanwhile.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import headgate as hg
from headgate.checkpoint.verdicts import Choices
from stepping import Driver, Rows, forget_states

SCHEMA = pa.schema([("x", pa.int64())])
QUERIES = ["plain", "sums", "sums too", "large"]


class Comings(RuleBasedStateMachine):
    """A folder that grows and a rate, over which queries come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="headgate-comings-"))
        (self.folder / "in").mkdir()
        self.rows = 0
        self.files = 0
        self.driver: Driver | None = None
        self.there: dict[str, int | None] = {}
        """Queries, and with which row of each source they began."""
        self.out: dict[str, Rows] = {}
        self.seen = 0
        """Rows that a driver has found and logged."""

    @initialize(rate=st.booleans())
    def begin(self, rate: bool) -> None:
        self.rate = rate
        self.there = {"plain": 0}

    def app(self, later: dict[str, str]) -> hg.App:
        app = hg.App("comings")
        if self.rate:
            rows = app.source("rows", hg.from_rate(10)).select("value AS x")
        else:
            source = hg.from_files(self.folder / "in", format="json", schema=SCHEMA, follow=True)
            rows = app.source("rows", source)
        sums = rows.filter("x % 2 = 0")
        total = sums.with_columns("x % 3 AS k").key_by("k").running("sum(x) AS total", "count(*) AS n")
        made = {
            "plain": rows.filter("x >= 0"),
            "sums": total,
            "sums too": total,
            "large": total.filter("total > 30"),
        }
        for query in self.there:
            made[query].to(query, hg.to_list([]), start=later.get(query, "earliest"))
        return app

    def start(self, later: dict[str, str] | None = None, **choices: Any) -> None:
        forget_states()
        self.driver = Driver(self.app(later or {}), self.folder / "checkpoint", self.out, Choices(**choices))

    # --- what can happen ----------------------------------------------------------------------------------

    @rule(rows=st.integers(1, 5))
    def arrive(self, rows: int) -> None:
        first, self.rows = self.rows, self.rows + rows
        if not self.rate:
            lines = "".join(json.dumps({"x": x}) + "\n" for x in range(first, first + rows))
            (self.folder / "in" / f"{self.files:04d}.json").write_text(lines)
            self.files += 1

    @precondition(lambda self: self.driver is None)
    @rule()
    def restart(self) -> None:
        self.start()

    @precondition(lambda self: self.driver is not None)
    @rule()
    def kill(self) -> None:
        self.driver = None

    @precondition(lambda self: self.driver is not None)
    @rule(behind=st.integers(0, 4), query=st.sampled_from([None, *QUERIES]))
    def step(self, behind: int, query: str | None) -> None:
        assert self.driver is not None
        self.driver.poll((self.rows - 0.5) / 10)
        wanted = [query] if query in self.there else None
        self.driver.step(wanted, self.driver.position.offsets.next_serial - behind)  # type: ignore[arg-type]
        self.seen = self.driver.position.offsets.next_serial

    @precondition(lambda self: self.driver is not None)
    @rule()
    def trim(self) -> None:
        assert self.driver is not None
        self.driver.trim()

    @precondition(lambda self: self.seen)
    @rule(query=st.sampled_from(QUERIES))
    def add(self, query: str) -> None:
        if query not in self.there:
            self.there[query] = 0
            self.out[query] = []
            self.start()

    @precondition(lambda self: self.seen)
    @rule(query=st.sampled_from(QUERIES))
    def remove(self, query: str) -> None:
        if query in self.there and len(self.there) > 1:
            del self.there[query]
            self.start()

    @precondition(lambda self: self.seen)
    @rule(query=st.sampled_from(QUERIES))
    def replay(self, query: str) -> None:
        if query in self.there:
            self.out[query] = []
            self.start(replay=[query])

    def teardown(self) -> None:
        if not self.there:
            return
        if self.driver is None:
            self.start()
        assert self.driver is not None
        for _ in range(3):
            self.driver.poll((self.rows - 0.5) / 10)
            self.driver.step()
        for query in self.there:
            assert self.out.get(query, []) == self.expected(query), query

    def expected(self, query: str) -> Rows:
        every = self.rows
        if query == "plain":
            return [{"x": x} for x in range(every)]
        totals, counts, rows = [0, 0, 0], [0, 0, 0], []
        for x in range(0, every, 2):
            totals[x % 3] += x
            counts[x % 3] += 1
            rows.append({"x": x, "k": x % 3, "total": totals[x % 3], "n": counts[x % 3]})
        return [row for row in rows if query != "large" or row["total"] > 30]


Comings.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestComings = Comings.TestCase
