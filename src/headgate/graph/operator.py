"""What an operator is: a function of packets and of its state.

Three kinds (ordered processing, section 1.1): *stateless*, *keyed* (partitioned stateful: rows of
different keys touch disjoint state) and *stateful*.  The kind says how many workers may be inside the
operator at once.  The same operator object runs in a worker thread, in a Spark task and in simulation;
it pickles, knows no engine, and never loops over tuples in Python unless it runs a user's function that
works row by row (``slow`` is then true).
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import pyarrow as pa

from headgate.graph.gathered import Gathered
from headgate.graph.packet import Packet, empty_batch
from headgate.graph.time import LIMIT


class Kind(enum.Enum):
    STATELESS = "stateless"
    KEYED = "keyed"
    STATEFUL = "stateful"


class State:
    """State of an operator: everything it remembers between packets.

    ``snapshot`` writes it as one Arrow table and ``Operator.restore`` reads it back.  A keyed state's
    table has the key columns first, so that an engine can split it by bucket, and restoring several
    tables gives the union of their keys.

    A large state need not be written whole each time: a snapshot followed by ``changes``, applied in
    turn, is the same state.  What time alone brings about (a window closes, a key expires, a row can find
    no partner any more) is not among the changes: every table's metadata has the time, and ``apply`` draws
    the same conclusions from it.  The rows of some keys in every table are the state of these keys.

    A small state implements ``snapshot`` and ``apply`` only: by default its changes are all of it.
    """

    late: int = 0
    """Rows that came after their window had closed."""
    nbytes: int = 0
    """Bytes that a call touches, where they are known: a simulation with a memory model charges for them."""
    ended: Mapping[int, int] = MappingProxyType({})
    """Inputs whose sources have ended, and the serial from which on they do not hold time back.  An engine
    sets it before a call, if the operator ``holds_time``."""
    idle: Collection[int] = frozenset()
    """Inputs that do not hold time back now, after their last row in the call; set like ``ended``."""

    def snapshot(self) -> pa.Table:
        raise NotImplementedError

    def track(self) -> None:
        """From now on remember what changes, for ``changes``."""

    def changes(self) -> pa.Table:
        """What has changed since ``track``, the last ``changes`` or ``apply``, key columns first.

        It costs time and rows in proportion to what has changed.  Call ``track`` first.
        By default it is the whole snapshot, which serves a state that forgets no key.
        """
        return self.snapshot()

    def apply(self, changes: pa.Table) -> None:
        """Take over the ``changes`` of a state that was equal to this one: their rows replace ours."""
        raise NotImplementedError


class Operator:
    """One box's work.  Subclasses say what they are and implement ``process``."""

    kind: ClassVar[Kind] = Kind.STATELESS
    slow: bool = False
    """Runs Python per row."""
    fn: Any = None
    """The user's function; a slow operator calls it once for every row, so bad rows can be found."""
    cost: float | None = None
    """Stated seconds per tuple, for the papers' synthetic boxes; None: measure it."""
    selectivity: float | None = None
    """Stated tuples out per tuple in, for the same boxes."""
    keys_by_input: tuple[tuple[str, ...], ...] = ()
    """A keyed operator's key columns in each input."""
    ranges: tuple[Any, ...] | None = None
    """Ascending boundaries of the one key column, where buckets are ranges of it; None: by a hash."""
    times_by_input: tuple[str | None, ...] = ()
    """For each input the column by which event time moves a keyed operator; None if it looks at none."""
    holds_time: ClassVar[bool] = False
    """It looks at its state's ``ended`` and ``idle``: a join's time is held back by its slower input."""
    ties_by_output: tuple[tuple[str, ...], ...] = ()
    """For each output of a keyed operator the columns by which results of one cause leave, where they may be
    of different keys; without any, results of one cause have its key."""

    time_grain: tuple[int, int] | None = None
    """A length and a lateness, if event time matters only where it passes a whole number of lengths plus the
    lateness: shards then need not hear of every other move."""
    gathers: bool = False
    """Whether ``gather`` may be used for its first output, if its others are not looked at."""
    extends: bool = False
    """Whether every row of its only input leaves in order, as it came, with columns added behind it."""
    time_limit: int = LIMIT
    """Microseconds from 1970 up to which the operator can count event times."""

    _nothing: tuple[pa.RecordBatch, ...]

    def __init__(self, inputs: Sequence[pa.Schema], outputs: Sequence[pa.Schema]) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)

    def event_columns(self) -> tuple[str | None, ...]:
        """For each input the column whose times the operator counts with; None if it looks at none."""
        return self.times_by_input

    def needed(self, wanted: Sequence[frozenset[str]]) -> tuple[frozenset[str], ...]:
        """For each input the columns that must be read if only ``wanted`` of each output are looked at.

        The other columns may be null.  An operator that does not say needs all of its inputs.  So does one
        whose state keeps whole rows: a query that shares the box later may look at other columns of them.
        """
        return tuple(frozenset(schema.names) for schema in self.inputs)

    @property
    def label(self) -> str:
        """What it does, in the user's words, for pictures and errors."""
        return type(self).__name__.lower()

    def nothing(self, output: int = 0) -> pa.RecordBatch:
        """No rows of an output; made once, as that costs as much as working on a small packet."""
        try:
            return self._nothing[output]
        except AttributeError:
            self._nothing = tuple(empty_batch(schema) for schema in self.outputs)
            return self._nothing[output]

    def in_simulation(self) -> Operator:
        """The operator as a simulation runs it: what takes time by itself takes virtual time there."""
        return self

    def open(self) -> State | None:
        """A fresh state; None for stateless operators."""
        return None

    def restore(self, tables: Sequence[pa.Table]) -> State | None:
        """The state that was snapshotted to ``tables``."""
        state = self.open()
        if state is None:
            if any(t.num_rows for t in tables):
                raise NotImplementedError(f"{self.label} has no state to restore")
            return None
        for table in tables:
            state.apply(table)
        return state

    def process(self, packets: Sequence[Packet], state: Any) -> list[Packet]:
        """Results for one packet per input, one packet per output.

        Packets on several inputs hold all rows of one common range of serials.  Results must not depend
        on how the stream was cut into packets, and leave in the order of the rows that caused them.
        """
        raise NotImplementedError

    def gather(self, packets: Sequence[Packet]) -> Gathered | None:
        """What the packets of a range come to, without the state; None if that saves nothing."""
        return None

    def absorb(self, gathered: Gathered, state: Any) -> list[Packet]:
        """What ``process`` gives for the rows of a range that was gathered."""
        raise NotImplementedError

    def finish(self, state: Any, end: Packet) -> list[Packet]:
        """What is still open when the stream has ended, caused by the final punctuation.

        ``end`` is a packet with one row of unspecified content whose order is the punctuation's; results
        are ``end.caused(batch, zeros)``.
        """
        return []
