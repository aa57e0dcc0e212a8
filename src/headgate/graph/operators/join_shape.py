"""What a join is, apart from how it is done: keys, interval, columns, and its state as a table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import pyarrow as pa

from headgate.errors import PipelineError, TypeMismatch, nearest
from headgate.graph.columns import Ints, check_key
from headgate.graph.durations import Duration, parse_duration
from headgate.graph.keys import KeyIndex
from headgate.graph.operator import Kind, Operator
from headgate.graph.operators.interval import Run
from headgate.graph.schema import require_columns
from headgate.graph.time import check_length, event_times, time_column

LEFT, RIGHT = 0, 1
SIDES = (LEFT, RIGHT)
HOW = ("inner", "left", "right", "full", "semi", "anti")
_FAR = 1 << 60


class JoinShape(Operator):
    """Two inputs, joined by key and, if ``within`` and ``on`` say so, by time."""

    kind = Kind.KEYED
    holds_time = True

    def __init__(
        self,
        left_schema: pa.Schema,
        right_schema: pa.Schema,
        left_keys: Sequence[str],
        right_keys: Sequence[str],
        within: Duration | tuple[Duration, Duration] | None,
        on: str | Sequence[str] | None,
        how: str = "inner",
        lateness: Duration = 0,
    ) -> None:
        schemas = (left_schema, right_schema)
        if how not in HOW:
            raise PipelineError(f"join: how={how!r}: use {', '.join(HOW)}.{nearest(str(how), HOW)}")
        self.how = how
        self.watched = (how in ("left", "full", "semi", "anti"), how in ("right", "full"))
        """The inputs whose rows must remember whether they had a partner."""
        self.alone = (how in ("left", "full", "anti"), self.watched[RIGHT])
        """The inputs whose rows leave alone if they had none."""
        if (within is None) is not (on is None):
            raise PipelineError(
                "join: within= and on= go together: how far apart a pair may be, and the time column. "
                "Leave both out to join by key alone, which remembers every row."
            )
        late = parse_duration(lateness, "join: lateness")
        self.lateness = check_length(late, lateness, "join: lateness")
        low, high = _interval(within)
        self.reach = (high, -low)
        """How far behind a row of each input its last possible partner may be."""
        self.keys_by_input = (
            tuple(require_columns(left_schema, left_keys, "join: left key")),
            tuple(require_columns(right_schema, right_keys, "join: right key")),
        )
        self._check_keys(schemas)
        self.times_by_input = self._times(schemas, on)
        super().__init__(schemas, [self._output(left_schema, right_schema)])
        if any(self.watched):
            self.ties_by_output = (self.keys_by_input[LEFT],)

    def _times(
        self, schemas: tuple[pa.Schema, pa.Schema], on: str | Sequence[str] | None
    ) -> tuple[str | None, str | None]:
        if on is None:
            return None, None
        pair = (on, on) if isinstance(on, str) else tuple(on)
        if len(pair) != 2:
            raise PipelineError(f"join: on= takes one time column or a pair (left, right), not {on!r}.")
        left, right = (
            require_columns(schema, [name], f"join: on, {side}")[0]
            for schema, name, side in zip(schemas, pair, ("left", "right"), strict=True)
        )
        time_column(schemas[LEFT], left, "join: on, left")
        time_column(schemas[RIGHT], right, "join: on, right")
        return left, right

    def _check_keys(self, schemas: tuple[pa.Schema, pa.Schema]) -> None:
        left, right = self.keys_by_input
        if not left or len(left) != len(right):
            raise PipelineError(
                f"join: the left stream has {len(left)} key columns and the right one {len(right)}; "
                "key both by the same columns."
            )
        for mine, other in zip(left, right, strict=True):
            one, two = schemas[LEFT].field(mine), schemas[RIGHT].field(other)
            check_key(one, "join: left key")
            if one.type != two.type:
                raise TypeMismatch(
                    f"join: key '{mine}' is {one.type} on the left, but '{other}' is {two.type} on the "
                    "right; CAST one of them with .with_columns first."
                )
        self.key_types = [schemas[LEFT].field(name).type for name in left]

    def _output(self, left: pa.Schema, right: pa.Schema) -> pa.Schema:
        if self.how in ("semi", "anti"):
            self._right_columns: list[str] = []
            return left
        self._right_columns = [name for name in right.names if name not in self.keys_by_input[RIGHT]]
        fields = list(left)
        names = set(left.names)
        for name in self._right_columns:
            new = name if name not in left.names else f"{name}_right"
            if new in names:
                raise PipelineError(f"join: two columns would be named '{new}'; rename one of them first.")
            names.add(new)
            fields.append(right.field(name).with_name(new))
        return pa.schema(fields)

    @property
    def label(self) -> str:
        pairs = zip(*self.keys_by_input, strict=True)
        how = "" if self.how == "inner" else f"{self.how} "
        return f"{how}join({', '.join(a if a == b else f'{a} = {b}' for a, b in pairs)})"

    def rows(self, left: pa.RecordBatch | None, right: pa.RecordBatch | None) -> pa.RecordBatch:
        """Rows side by side.  Of an input that has none, the columns are null, except for the key."""
        if left is not None:
            columns = list(left.columns)
        else:
            assert right is not None
            keys = dict(zip(*self.keys_by_input, strict=True))
            columns = [
                right.column(keys[field.name]) if field.name in keys else pa.nulls(len(right), field.type)
                for field in self.inputs[LEFT]
            ]
        for name in self._right_columns:
            kind = self.inputs[RIGHT].field(name).type
            columns.append(pa.nulls(len(columns[0]), kind) if right is None else right.column(name))
        return pa.RecordBatch.from_arrays(columns, schema=self.outputs[0])

    def snapshot_schema(self) -> pa.Schema:
        """Key columns, then the side, the place in the input, and the row itself."""
        keys = [self.inputs[LEFT].field(name) for name in self.keys_by_input[LEFT]]
        flags = [pa.field("_matched", pa.bool_())] if any(self.watched) else []
        rows = [
            pa.field(f"_{side}", pa.struct(list(self.inputs[i]))) for i, side in enumerate(("left", "right"))
        ]
        head = [pa.field("_side", pa.int8()), pa.field("_sequence", pa.int64())]
        return pa.schema([*keys, *head, *flags, *rows])

    def marks(self, keys: Sequence[pa.Array], side: int, sequence: Ints) -> pa.RecordBatch:
        """Rows of a table that say which remembered rows have had partners."""
        schema, count = self.snapshot_schema(), len(sequence)
        columns = [*keys, pa.array(np.full(count, side, dtype=np.int8)), pa.array(sequence)]
        columns.append(pa.array(np.ones(count, dtype=bool)))
        columns += [pa.nulls(count, field.type) for field in list(schema)[-2:]]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def written(self, rows: pa.RecordBatch, side: int, index: KeyIndex) -> Run:
        """The run of rows that were written, all of ``side``."""
        content = rows.column("_left" if side == LEFT else "_right").flatten()
        batch = pa.RecordBatch.from_arrays(content, schema=self.inputs[side])
        slots = index.slots([batch.column(n) for n in self.keys_by_input[side]], len(batch))
        flags = rows.column("_matched").to_numpy(zero_copy_only=False).copy() if self.watched[side] else None
        return Run(batch, slots, self.times(batch, side), rows.column("_sequence").to_numpy(), flags)

    def times(self, batch: pa.RecordBatch, side: int) -> Ints:
        """Event times of rows of an input; all the same if the join looks at none."""
        name = self.times_by_input[side]
        return np.zeros(len(batch), np.int64) if name is None else event_times(batch.column(name))


def _interval(within: Duration | tuple[Duration, Duration] | None) -> tuple[int, int]:
    """How much later than the left row the right one of a pair may be: at least, and at most."""
    if within is None:
        return -_FAR, _FAR
    if not isinstance(within, (tuple, list)):
        reach = min(parse_duration(within, "join: within"), _FAR)
        return -reach, reach
    if len(within) != 2:
        raise PipelineError(
            f"join: within={within!r}: give one duration, or how much later the right row is at least and at "
            "most, e.g. within=('-5 minutes', '10 minutes')."
        )
    low, high = (_signed(bound) for bound in within)
    if low > high:
        raise PipelineError(f"join: within={within!r}: the first bound is later than the second.")
    return low, high


def _signed(bound: Duration) -> int:
    what = "join: within"
    if isinstance(bound, str) and bound.strip().startswith("-"):
        return -min(parse_duration(bound.strip()[1:], what), _FAR)
    if isinstance(bound, timedelta) and bound < timedelta(0):
        return -min(parse_duration(-bound, what), _FAR)
    if isinstance(bound, (int, float)) and bound < 0:
        return -min(parse_duration(-bound, what), _FAR)
    return min(parse_duration(bound, what), _FAR)
