"""Pathway, as its users would write it: the same chain of four steps as in ``bytewax``."""

from __future__ import annotations

import logging
import time

import pyarrow as pa


def chain(data: pa.RecordBatch) -> float:
    """Seconds for filter, compute, filter, sum by key, streamed from a Python connector."""
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
