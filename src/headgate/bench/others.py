"""The overhead benchmark's chain in bytewax and in Pathway, as their users would write it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa


def bytewax_chain(data: pa.RecordBatch) -> float:
    """Seconds for filter, compute, filter, sum by key, on one worker."""
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.testing import TestingSink, TestingSource, run_main

    rows = list(zip(*(column.to_pylist() for column in data.columns), strict=True))
    out: list[Any] = []
    flow = Dataflow("overhead")
    stream = op.input("rows", flow, TestingSource(rows, batch_size=1000))
    stream = op.filter("cut", stream, lambda row: row[1] > 0.2)
    stream = op.map("compute", stream, lambda row: (str(row[0]), row[1] * row[2]))
    stream = op.filter("limit", stream, lambda pair: pair[1] < 0.5)
    sums = op.reduce_final("sum", stream, lambda a, b: a + b)
    op.output("out", sums, TestingSink(out))
    start = time.perf_counter()
    run_main(flow)
    return time.perf_counter() - start


def pathway_chain(data: pa.RecordBatch) -> float:
    """Seconds for the same in Pathway, streamed from a Python connector."""
    import pathway as pw

    rows = data.to_pylist()

    class Row(pw.Schema):  # type: ignore[misc]
        k: int
        x: float
        y: float

    class Rows(pw.io.python.ConnectorSubject):  # type: ignore[misc]
        def run(self) -> None:
            for row in rows:
                self.next(**row)

    table = pw.io.python.read(Rows(), schema=Row, autocommit_duration_ms=100)
    chain = table.filter(pw.this.x > 0.2)
    chain = chain.select(k=pw.this.k, z=pw.this.x * pw.this.y)
    chain = chain.filter(pw.this.z < 0.5)
    sums = chain.groupby(pw.this.k).reduce(pw.this.k, z_sum=pw.reducers.sum(pw.this.z))
    pw.io.null.write(sums)
    logging.disable(logging.WARNING)  # it logs every batch
    try:
        start = time.perf_counter()
        pw.run(monitoring_level=pw.MonitoringLevel.NONE)
        return time.perf_counter() - start
    finally:
        logging.disable(logging.NOTSET)


CHAINS: dict[str, Callable[[pa.RecordBatch], float]] = {"bytewax": bytewax_chain, "pathway": pathway_chain}
