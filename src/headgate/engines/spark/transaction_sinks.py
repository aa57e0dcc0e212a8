"""Sinks with transactions of their own: the step's rows and its number in one.

Tasks stage a query's rows as files of the checkpoint.  The driver reads them as Arrow batches, without Python
per row, and gives them to the sink before the commit.  A step that comes again has the same number and the
same rows, so the sink can tell that it has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from headgate.checkpoint.checks import opened
from headgate.checkpoint.storage import Storage
from headgate.connectors.transactions import OtherSteps, TransactionalSink, Transactions
from headgate.engines.spark.messages import Delivery, OutputPart
from headgate.engines.spark.sinks import Claim, Outlet
from headgate.errors import SinkError
from headgate.graph.network import Output

StagedFile = tuple[str, int | None]
"""The name of rows that a task has staged, and their checksum."""


class Transacted(Outlet):
    """``checkpoint``: its identity, or "" if it does not outlive the run, and nothing is repeated."""

    visible = True

    def __init__(self, output: Output, history: str, storage: Storage, retries: int, checkpoint: str) -> None:
        super().__init__(output, history)
        self._storage, self._retries, self._checkpoint = storage, retries, checkpoint
        self._sink: TransactionalSink = output.sink
        self.target = self._sink.target
        self._own: Transactions | None = None

    def open(self, claim: Claim) -> Claim:
        super().open(claim)
        known = claim.get("marks") == self.target
        self._own = self._sink.transactions(self.output.name, self.output.schema, self._checkpoint, known)
        return {"marks": self.target}

    def delivery(self) -> Delivery:
        return Delivery("staged", keep=self.history)

    def hand_over(self, parts: Sequence[OutputPart], step: int, repeated: bool) -> None:
        assert self._own is not None
        files = staged_files(parts)
        for left in range(self._retries, -1, -1):
            try:
                self._own.take(step, staged_rows(self._storage, files), repeated)
                return
            except OtherSteps:
                raise
            except SinkError:
                if not left:
                    raise
            repeated = True  # the attempt may have worked all the same

    def close(self, error: bool, rows: int) -> None:
        if self._own is not None:
            self._own.close(error)


def staged_files(parts: Sequence[OutputPart]) -> list[StagedFile]:
    return [(part.file, None if part.queue is None else part.queue.check) for part in parts]


def staged_rows(storage: Storage, files: Sequence[StagedFile]) -> Iterator[pa.RecordBatch]:
    """Staged rows, in order."""
    for name, check in files:
        for batch in pa.ipc.open_stream(opened(storage, name, "queue", check)):
            yield batch.select(batch.schema.names[:-2])  # the last two are its order
