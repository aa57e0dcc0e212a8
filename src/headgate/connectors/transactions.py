"""Sinks that take the rows of a step in one transaction, together with the number of the step.

After a crash the last step may come again.  The number says whether it is outside already: the transaction
that brought the rows brought the number too, so neither is there without the other.  Checkpoint and query are
part of the number's name; two applications that write to one table do not meet.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterable

import pyarrow as pa

from headgate.connectors.sink import Sink, Writer
from headgate.errors import SinkError

NOTHING = -1
"""The number of the last step before there is one."""


class OtherSteps(SinkError):
    """What is outside does not fit the checkpoint; trying again cannot help."""


class Transactions(Writer):
    """One query's results outside.  Used by one thread at a time, not always the same."""

    @abstractmethod
    def take(self, step: int, batches: Iterable[pa.RecordBatch], repeated: bool) -> None:
        """Make the rows of a step and its number visible together; nothing if it is there already.

        ``repeated``: the step was announced before, so it may be there.  After an exception nothing is known:
        the step may be there or not, and is repeated.
        """

    def write(self, batch: pa.RecordBatch) -> None:
        """Rows that no checkpoint numbers: a transaction of their own."""
        if batch.num_rows:
            self.take(NOTHING, [batch], False)


class TransactionalSink(Sink):
    """A sink with transactions."""

    target: str
    """What is written to; two queries of one target have their turns, others write at the same time."""

    @abstractmethod
    def transactions(self, query: str, schema: pa.Schema, checkpoint: str, known: bool) -> Transactions:
        """Connect and make ready.  ``checkpoint`` is its identity; "": no step will ever be repeated.

        ``known``: the checkpoint has opened it before, so a number that is missing was lost.
        """

    def open(self, query: str, schema: pa.Schema) -> Writer:
        return self.transactions(query, schema, "", False)


def plain_name(query: str) -> str:
    """A name for a query's number that every system takes, whatever the query is called."""
    return hashlib.sha256(query.encode()).hexdigest()[:16]


def is_taken(last: int | None, step: int, repeated: bool, what: str) -> bool:
    """Whether step ``step`` is outside, where ``last`` is the last one known there.

    A number that cannot be means that rows would be lost or written twice, which only the user can tell.
    """
    if last is None:
        if not repeated:
            return False
        raise OtherSteps(
            f"{what} no longer knows the last step of this checkpoint, and step {step} may have been written "
            "before a crash. Look whether its rows are there; then start with a new checkpoint, or from a "
            "savepoint."
        )
    if last > step or (last == step and not repeated):
        raise OtherSteps(
            f"{what} has step {last} of this checkpoint already, but the checkpoint is only at step {step}: "
            "it was copied, or restored from an older copy. Restore both to the same time, or start with a "
            "new checkpoint."
        )
    return last == step
