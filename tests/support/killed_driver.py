"""A driver to be killed: ``python killed_driver.py FOLDER PLAN`` runs the shop over FOLDER until it is done.

``PLAN`` says how: rows of a train, a seed for the plans, whether the folder is followed, and, where the run
shall kill itself, at which point and at the how manieth time.
"""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import headgate as hg
from headgate.checkpoint import log
from headgate.checkpoint.local_folder import Folder
from headgate.connectors import folder as folders
from headgate.engines.spark import engine, jobs, planner
from headgate.scheduling.interface import Call, Plan
from headgate.scheduling.pull import Pull
from headgate.scheduling.trains import WHOLE_QUEUE, Count

SCHEMA = pa.schema([("user", pa.int64()), ("amount", pa.int64()), ("ts", pa.timestamp("us", tz="UTC"))])
NUMBERED = pa.schema([("user", pa.int64()), ("n", pa.int64()), ("before", pa.int64())])
QUERIES = ("big", "sums", "windows", "sessions", "numbered")
POINTS = (
    "order written",
    "tasks answered",
    "before record",
    "after record",
    "between names",
    "after publish",
    "before snapshot",
    "after snapshot",
    "file removed",
)
QUICK = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
}
"""Settings of a Spark that lives for seconds only."""


def shop(folder: Path, out: Path, *, follow: bool = False) -> hg.App:
    """Stateless, running, windowed, sessions and a function with a state over the one folder of orders."""
    app = hg.App("killed shop")
    orders = app.source("orders", hg.from_files(folder / "in", schema=SCHEMA, follow=follow))
    dear = orders.filter("amount > 20")
    dear.select("user", "amount * 2 AS twice", "ts").to("big", hg.to_parquet(out / "big"))
    users = dear.key_by("user")
    users.running("sum(amount) AS total", "count(*) AS n").to("sums", hg.to_parquet(out / "sums"))
    minutes = users.window(hg.tumbling("1 minute", on="ts", lateness="10 seconds"))
    minutes.agg("count(*) AS n", "sum(amount) AS total").to("windows", hg.to_parquet(out / "windows"))
    visits = users.window(hg.session("20 seconds", on="ts", lateness="10 seconds"))
    visits.agg("count(*) AS n", "max(amount) AS dearest").to("sessions", hg.to_parquet(out / "sessions"))
    numbered = users.process(number, schema=NUMBERED, state={"n": 0, "last": None})
    numbered.to("numbered", hg.to_parquet(out / "numbered"))
    return app


def number(row: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """The user's how-manieth order it is, and what the one before was worth."""
    before = state["last"]
    state["n"], state["last"] = state["n"] + 1, row["amount"]
    return {"user": row["user"], "n": state["n"], "before": before}


def rows(out: Path) -> dict[str, list[dict[str, Any]]]:
    """What the queries have written, in order."""
    found = {}
    for query in QUERIES:
        parts = sorted((out / query).glob("part-*.parquet"))
        found[query] = [row for part in parts for row in pq.read_table(part).to_pylist()]
    return found


class Trains(Pull):
    """Short trains, now through all boxes and now through one, so that rows also wait between boxes."""

    name = "trains"

    def __init__(self, tuples: int, seed: int) -> None:
        self._train = Count(tuples) if tuples else WHOLE_QUEUE
        self._random = random.Random(seed)

    def begin(self, workers: int) -> None:
        pass

    def choose(self, worker: int, now: float) -> Plan | None:
        ready = self.catalog.ready
        if not ready:
            return None
        if self._random.random() < 0.6:
            return tuple(Call(box, self._train) for box in range(len(self.catalog.boxes)))
        return (Call(self._random.choice(list(ready)), self._train),)


class Killer:
    """Kills this process, Java and all, when it comes to a point for the n-th time."""

    def __init__(self, point: str, times: int) -> None:
        self._point, self._left = point, times

    def reach(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if not self._left:
                os.killpg(0, signal.SIGKILL)

    def wrap(self, place: Any, name: str, before: Any = None, after: Any = None) -> None:
        """Let calls of a function come to points; ``before`` and ``after`` name them from its arguments."""
        inner: Callable[..., Any] = getattr(place, name)

        @functools.wraps(inner)
        def outer(*given: Any, **options: Any) -> Any:
            if before is not None:
                self.reach(before(*given))
            found = inner(*given, **options)
            if after is not None:
                self.reach(after(*given))
            return found

        setattr(place, name, outer)

    def install(self) -> None:
        def created(when: str) -> Callable[..., str]:
            kinds = {"log": "record", "snapshots": "snapshot"}
            return lambda _, name, data: f"{when} {kinds.get(name.partition('/')[0], 'other')}"

        self.wrap(Folder, "create", created("before"), created("after"))
        self.wrap(Folder, "remove", None, lambda *_: "file removed")
        self.wrap(Folder, "replace", None, lambda *_: "order written")
        self.wrap(jobs.Jobs, "run", None, lambda *_: "tasks answered")
        self.wrap(folders, "give_name", None, lambda *_: "between names")
        self.wrap(folders, "publish", None, lambda files: "after publish" if files else "nothing published")


def main(folder: Path, plan: dict[str, Any]) -> None:
    # Everything that happens once in a while happens often here.
    log.COMPACT_EVERY = 6
    engine.CLEAN_EVERY = 4
    planner.LONGEST_CHAIN = 3
    if "point" in plan:
        Killer(plan["point"], plan["times"]).install()
    app = shop(folder, folder / "out", follow=plan["follow"])
    spark = hg.Spark(master=plan["master"], checkpoint=folder / "checkpoint", workers=2, options=QUICK)
    policy = Trains(plan["tuples"], plan["seed"])

    def enough(report: hg.Report) -> None:
        found = {query: len(made) for query, made in rows(folder / "out").items()}
        if all(found[query] >= wanted for query, wanted in plan["enough"].items()):
            raise KeyboardInterrupt

    if plan["follow"]:
        report = app.run(spark, policy, until=None, progress=enough if plan["enough"] else None)
    else:
        report = app.run(spark, policy, until="drained")
    for query in report.queries.values():
        if query.error is not None:
            raise query.error


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
