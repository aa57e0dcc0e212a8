"""An archive of the Java classes that a local session loads, so that Java maps them instead of reading jars.

Half of the processor time of a cold start is Java reading, checking and linking some 15,000 classes of Spark.
Java can keep them in a file that it maps (class data sharing).  ``headgate prepare`` makes that file once for
this Java and this Spark, and sessions use it where it is.  A run does not make it on the side: Java would
start more slowly, and be busy for ten more seconds when the program has ended.

    python -m headgate.engines.spark.class_archive FILE    runs what the archive is made from
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headgate.connectors import maven
from headgate.engines.spark.java import SMALL, find_java
from headgate.errors import RunError

_SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""Java does not use an archive that does not fit, and the user need not hear of it."""
_SECONDS = 600


def archive() -> Path:
    """The archive for the Java and the Spark that are here, whether it has been made or not."""
    java = Path(find_java()).resolve()
    parts = [java, java.parent.parent / "lib" / "modules", maven.spark_home() / "jars"]
    seen = [(str(part), part.stat().st_mtime_ns) for part in parts if part.exists()]
    name = hashlib.sha256(repr((maven.spark_version(), seen)).encode()).hexdigest()[:16]
    return maven.cache().parent / "classes" / f"{name}.jsa"


def java_options() -> str:
    """What Java has to be told beside its other options to use the archive; nothing where there is none."""
    found = archive()
    # Spark splits options at spaces.
    return f" -XX:SharedArchiveFile={found} {_SILENT}" if found.exists() and " " not in str(found) else ""


def make() -> Path:
    """Make the archive if it is not there.  It takes about half a minute."""
    wanted = archive()
    if wanted.exists():
        return wanted
    wanted.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="making-", dir=wanted.parent) as folder:
        written = Path(folder) / wanted.name
        # Java still writes when Python has ended: what it prints ends last.
        done = subprocess.run(
            [sys.executable, "-m", __name__, str(written)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_SECONDS,
        )  # fmt: skip
        if not written.exists():
            said = (done.stderr or done.stdout).strip().splitlines() or ["Java wrote no file"]
            raise RunError(f"The archive of Java's classes could not be made: {said[-1]}")
        os.replace(written, wanted)
    return wanted


def _run(written: str) -> None:
    """Jobs of every kind that steps consist of.  Java writes the archive when it ends."""
    from pyspark.sql import SparkSession

    options = f"{SMALL} -XX:ArchiveClassesAtExit={written} {_SILENT}"
    builder = SparkSession.builder.master("local[2]").appName("class archive")
    builder = builder.config("spark.driver.extraJavaOptions", options).config("spark.ui.port", "0")
    session = builder.config("spark.python.unix.domain.socket.enabled", "true").getOrCreate()

    def same(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches

    with tempfile.TemporaryDirectory() as folder:
        rows = session.range(0, 1000, 1, 2).selectExpr("id", "id % 5 AS key", "cast(id AS string) AS name")
        rows.mapInArrow(same, rows.schema).write.parquet(f"{folder}/rows")
        read = session.read.schema(rows.schema).parquet(f"{folder}/rows")
        sums = read.filter("id > 10").groupBy("key").agg({"id": "sum"}).orderBy("key")
        sums.toArrow()
        shuffled = read.repartition(2, "key").mapInArrow(same, rows.schema)
        shuffled.toArrow()
        shuffled.collect()
    session.stop()


if __name__ == "__main__":
    _run(sys.argv[1])
