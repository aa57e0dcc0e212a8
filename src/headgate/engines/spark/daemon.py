"""Spark's Python daemon with what tasks import already loaded: workers are forks of it.

Spark starts it as ``python -m headgate.engines.spark.daemon`` in local sessions that this package makes
(``spark.python.daemon.module``).  Without it every worker imports Arrow, pandas and this package anew, a
second and more of processor time each, while the first tuple waits.

A fork keeps only the thread that forks, so no other may be there: what another thread was about to do, such
as giving a lock back, never happens in the worker.  That is why Spark's own daemon loads nothing.  Here
Arrow's jemalloc is told to start no background thread (Arrow's pool is another one by default), and if any
thread is found all the same, this process becomes Spark's own daemon.
"""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
import sys
from collections.abc import Callable
from typing import Any

TASKS = (
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "pyarrow.parquet",
    "headgate.connectors.parquet",
    "headgate.engines.spark.task",
)
"""What every task imports."""
PIPELINES = ("headgate.graph.aggregates", "headgate.graph.operators")
"""Packages whose modules a pipeline may consist of."""
_THREADS = "/proc/self/task"
_JEMALLOC = ("JE_ARROW_MALLOC_CONF", "background_thread:false")


def main() -> None:
    """Load, then serve as Spark's daemon does."""
    if not os.path.isdir(_THREADS):  # a system that does not tell its threads
        _become_plain()
    try:
        preload()
    except Exception:
        # A task will fail with the same error, and there it reaches the user.
        _become_plain()
    if len(os.listdir(_THREADS)) > 1:
        _become_plain()
    import pyspark.worker
    from pyspark.daemon import manager

    pyspark.worker.main = quiet(pyspark.worker.main)
    # Workers look for garbage after every task: not among what all of them share.
    gc.freeze()
    manager()


def quiet(main: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """A worker's ``main`` that ends without a word if Spark has closed the socket of an idle worker.

    Spark does so after a minute without a task.  Its own ``main`` answers with an error that no one
    reads, which leaves a traceback in the log of a healthy program (``BrokenPipeError``).
    """

    def run(infile: Any, outfile: Any) -> None:
        if not infile.peek(1):
            raise SystemExit(1)  # a worker that exits with 0 waits for its next task
        main(infile, outfile)

    return run


def preload() -> None:
    """Import what tasks need, without a thread of Arrow's."""
    name, value = _JEMALLOC
    mine = name not in os.environ
    os.environ.setdefault(name, value)
    try:
        for module in TASKS:
            importlib.import_module(module)
        for package in PIPELINES:
            for found in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
                importlib.import_module(found.name)
    finally:
        if mine:
            del os.environ[name]


def _become_plain() -> None:
    """Nothing has been said to Spark yet, so this process can still be its own daemon instead."""
    os.execv(sys.executable, [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]])


if __name__ == "__main__":
    main()
