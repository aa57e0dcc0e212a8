"""Counts the files, functions and calls of one packet's way from a source to a sink, on each engine.

    python scripts/packet_way.py threads simulated spark

Packets go through a filter and a sum per key to a function, one packet in each call.  A short run and one
with twice as many packets (on Spark: steps) are profiled; their difference is what a packet takes, without
start-up.  A function is on the way if it is called at least once for eight packets, since the feeder admits
some at a time.  On Spark the tasks' Python workers are profiled too.  What operators do (``graph`` and
``sql``) does not count, nor do comprehensions.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa

import headgate as hg

PACKAGE = str(Path(hg.__file__).parent)
ROWS, PACKETS, SECONDS = 8192, 64, 6.0
OFTEN = 1 / 8
Calls = Counter[tuple[str, str]]
COMPREHENSIONS = {"<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>"}
SCHEMA = pa.schema([("key", pa.int64()), ("n", pa.int64())])


class Profile:
    """Calls of the package's functions, by file and name."""

    def __init__(self) -> None:
        self.calls: Calls = Counter()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE) or code.co_name in COMPREHENSIONS:
            return
        file = code.co_filename.removeprefix(PACKAGE)
        if not file.startswith(("/graph/", "/sql/")):
            self.calls[file, code.co_qualname] += 1


def in_process(engine: str, packets: int) -> tuple[Calls, int]:
    batch = pa.RecordBatch.from_arrays([[row % 100 for row in range(ROWS)], list(range(ROWS))], schema=SCHEMA)
    app = hg.App("way")
    stream = app.source("rows", hg.from_batches([batch] * packets)).filter("n >= 0")
    stream.key_by("key").running("sum(n) AS total").to("sums", hg.to_function(lambda name, rows: None))
    made = hg.Threads(workers=1, packet_rows=ROWS) if engine == "threads" else hg.Simulated(packet_rows=ROWS)
    profile = Profile()
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        app.run(made, hg.policies.get("round_robin", train=hg.trains.Count(ROWS)), workers=1)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return profile.calls, packets


def in_tasks(folder: str) -> Any:
    """A function of packets that profiles the Python worker around it."""

    def observe(batch: pa.RecordBatch) -> pa.RecordBatch:
        profile = sys.getprofile()
        if profile is None:
            sys.setprofile(Profile())
        else:
            counts = [[file, name, count] for (file, name), count in profile.calls.items()]
            Path(folder, str(os.getpid())).write_text(json.dumps(counts))
        return batch

    return observe


def on_spark(seconds: float) -> tuple[Calls, int]:
    with tempfile.TemporaryDirectory() as folder:
        app = hg.App("way")
        stream = app.source("rows", hg.from_rate(1000)).filter("value >= 0")
        stream = stream.map_packets(in_tasks(folder), schema=stream.schema)
        stream = stream.with_columns("value % 100 AS key").key_by("key").running("sum(value) AS total")
        stream.to("sums", hg.to_function(lambda name, rows: None))
        profile = Profile()
        threading.setprofile(profile)
        try:
            report = app.run(hg.Spark(master="local[1]", workers=1), until=seconds)
        finally:
            threading.setprofile(None)  # type: ignore[arg-type]
        calls = Counter(profile.calls)
        for file in Path(folder).iterdir():
            calls.update({(place, name): count for place, name, count in json.loads(file.read_text())})
    return calls, report.steps


def measure(engine: str) -> str:
    if engine == "spark":
        (short, few), (long, many) = on_spark(SECONDS), on_spark(2 * SECONDS)
    else:
        in_process(engine, 2)  # caches and imports
        (short, few), (long, many) = in_process(engine, PACKETS), in_process(engine, 2 * PACKETS)
    count = max(many - few, 1)
    way = {key: (calls - short[key]) / count for key, calls in long.items()}
    way = {key: calls for key, calls in way.items() if calls >= OFTEN}
    if "-v" in sys.argv:
        for (file, name), calls in sorted(way.items()):
            print(f"    {file} {name} {calls:.1f}")
    files = len({file for file, _ in way})
    per = "step" if engine == "spark" else "packet"
    return f"{engine}: {files} files, {len(way)} functions, {sum(way.values()):.0f} calls per {per}"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        if name != "-v":
            print(measure(name))
