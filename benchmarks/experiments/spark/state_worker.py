"""One side of ``headgate bench spark-state``, in a process of its own, asked over standard input.

python -m benchmarks.experiments.spark.state_worker --side headgate
{"rows": "in", "new": 300000, "checkpoint": "checkpoint", "answers": "out"}
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from pathlib import Path
from typing import Any

import headgate as hg
from benchmarks import apart

SIDES = ("headgate", "structured")
MASTER = "local[2]"
KEPT = "n % 1000 = 0"
"""Sums that are written: few, as the state is measured here."""
Request = dict[str, Any]


def headgate(request: Request) -> dict[str, Any]:
    """Follow the files until so many rows have gone through the running sum."""
    app = hg.App("spark-state")
    rows = app.source("rows", hg.from_files(request["rows"], follow=True))
    sums = rows.key_by("k").running("sum(x) AS s")
    sums.filter(KEPT).to("sums", hg.to_parquet(request["answers"], append=True))
    memory: dict[str, float] = {}

    def stop_when_done(report: hg.Report) -> None:
        first = next(iter(report.boxes.values()))
        if first.tuples_in >= request["new"]:
            memory.update(memory_below())
            raise KeyboardInterrupt  # as if it was pressed: the run ends, and still reports

    begin = time.time()
    # One worker of the scheduler: steps follow each other, so the next one's start is the last one's end.
    engine = hg.Spark(master=MASTER, checkpoint=request["checkpoint"], workers=1)
    report = app.run(engine, until=None, progress=stop_when_done)
    took = time.time() - begin
    for query in report.queries.values():
        if query.error is not None:
            raise query.error
    starts = sorted({call.start for call in report.trace})
    found: dict[str, Any] = {
        # Recovery, and the first step, which reads the state.
        "restart": took - report.seconds + starts[1] if len(starts) > 1 else None,
        # Without the first, and the last, whose end the trace does not tell.
        "steps": [after - start for start, after in itertools.pairwise(starts[1:])],
        "memory": memory,
    }
    state = getattr(report, "state", None)
    if state is not None and state.found + state.loaded:
        found["hits"] = state.found / (state.found + state.loaded)
        found["bytes"] = state.bytes / report.steps
    return found


def structured(request: Request) -> dict[str, Any]:
    """The newest sum of each key, a batch for each file; results go nowhere, which favours this side."""
    from pyspark.sql import DataFrame

    from benchmarks.peers import structured_files
    from benchmarks.peers.structured import check

    def ignore(batch: DataFrame, number: int) -> None:
        batch.write.format("noop").mode("append").save()

    spark = structured_files.session()
    schema = "n BIGINT, k BIGINT, x BIGINT"
    files = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(request["rows"])
    before = _size(request["checkpoint"])
    query = (
        files.groupBy("k")
        .agg({"x": "sum"})
        .writeStream.outputMode("update")
        .option("checkpointLocation", request["checkpoint"])
        .trigger(availableNow=True)
        .foreachBatch(ignore)
        .start()
    )
    query.awaitTermination()
    check([query])
    batches = [each for each in query.recentProgress if each["numInputRows"]]
    steps = [each["durationMs"]["triggerExecution"] / 1000 for each in batches]
    written = _size(request["checkpoint"]) - before
    return {
        "restart": steps[0],
        "steps": steps[1:],
        "memory": memory_below(),
        "bytes": written / len(steps),
    }


def _size(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def memory_below() -> dict[str, float]:
    """MiB of the JVM and of the Python workers that this process has started; shared pages count once."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):  # it has just ended
                continue
    held = {"jvm": 0.0, "python": 0.0}
    for process in parents:
        ancestor = parents[process]
        while ancestor not in (os.getpid(), 0) and ancestor in parents:
            ancestor = parents[ancestor]
        if ancestor != os.getpid():
            continue
        try:
            name = Path(f"/proc/{process}/comm").read_text()
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        pss = sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        held["jvm" if name.startswith("java") else "python"] += pss / 1024
    return held


def main() -> None:
    """Answer until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=SIDES, required=True)
    apart.converse(headgate if parser.parse_args().side == "headgate" else structured)


if __name__ == "__main__":
    main()
