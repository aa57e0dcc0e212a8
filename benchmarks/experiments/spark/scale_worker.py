"""One side of ``headgate bench spark-scale``, in a process of its own, asked over standard input.

python -m benchmarks.experiments.spark.scale_worker --side headgate --master 'local[2]'
{"query": "tumbling", "clicks": "data/clicks", "answers": "out/tumbling"}
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import headgate as hg
from benchmarks import apart
from benchmarks.cluster import HOST
from benchmarks.workloads import click_queries

SIDES = ("headgate", "threads", "structured", "duckdb")
ON_CLUSTER = {
    "spark.ui.port": "0",
    "spark.driver.host": HOST,
    "spark.executor.cores": "1",
    "spark.executor.memory": "1g",
}
CORES = 2
"""Of all sides that have no master."""
Request = dict[str, str]


def answerer(side: str, master: str) -> Callable[[Request], dict[str, Any]]:
    """What answers requests on this side; sessions are made with the first one."""
    if side == "structured":
        return _structured
    if side == "duckdb":
        return _duckdb

    def ours(request: Request) -> dict[str, Any]:
        app = click_queries.app(request["query"], request["clicks"], request["answers"])
        checkpoint = request["answers"] + "-checkpoint"
        options = {} if master.startswith("local") else ON_CLUSTER
        engine: hg.Engine = (
            hg.Threads(workers=CORES)
            if side == "threads"
            else hg.Spark(master=master, checkpoint=checkpoint, options=options)
        )
        report = app.run(engine)
        for query in report.queries.values():
            if query.error is not None:
                raise query.error
            if query.late:
                raise AssertionError(f"{query.late} rows were late, so the sides answer different questions")
        # A run's seconds begin when the session and the Python workers are there and admission begins; they
        # end with the last commit.
        return {"seconds": report.seconds, "steps": report.steps, "rows": report.tuples}

    return ours


def _structured(request: Request) -> dict[str, Any]:
    from benchmarks.peers import structured_files

    spark = structured_files.session(CORES)
    return structured_files.ask(spark, request["query"], request["clicks"], request["answers"])


def _duckdb(request: Request) -> dict[str, Any]:
    from benchmarks.peers import batch

    return {"seconds": batch.ask(request["query"], request["clicks"], request["answers"], CORES)}


def main() -> None:
    """Answer until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=SIDES, required=True)
    parser.add_argument("--master", default="local[2]")
    given = parser.parse_args()
    apart.converse(answerer(given.side, given.master))


if __name__ == "__main__":
    main()
