"""Operators for data that ends give what SQL says, however the stream was cut and wherever it was resumed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate import testing
from headgate.errors import OperatorError, PipelineError
from headgate.graph.operator import Operator
from headgate.graph.operators.distinct import Distinct
from headgate.graph.operators.hash_join import HashJoin
from headgate.graph.operators.limit import Limit
from headgate.graph.operators.merge_join import MergeJoin
from headgate.graph.operators.sort import Deal, MergeRuns, SortRun
from headgate.graph.packet import Order, Packet

KEY = st.one_of(st.none(), st.integers(0, 4))
LEFT = pa.schema([("k", pa.int32()), ("x", pa.int32())])
RIGHT = pa.schema([("l", pa.int32()), ("y", pa.int32())])
Row = tuple[Any, ...]


def rows(first: Any = KEY, second: Any = KEY, most: int = 12) -> Any:
    return st.lists(st.tuples(first, second), max_size=most)


def batch(schema: pa.Schema, values: Sequence[Row]) -> pa.RecordBatch:
    columns = [pa.array([row[place] for row in values], field.type) for place, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def fed(operator: Operator, inputs: Sequence[Sequence[Row]], cuts: Sequence[int], resume: bool) -> list[Row]:
    """What comes out if rows of the inputs come in turns, cut into packets after these many turns.

    ``resume``: after every packet the state is what its snapshot and its changes say.
    """
    turns = max(map(len, inputs), default=0)
    ends = sorted({min(cut, turns) for cut in cuts} | {turns})
    state, found, serials, start = operator.open(), [], [], 0
    assert state is not None
    state.track()
    tables = [state.snapshot()]
    for end in ends:
        packets = []
        for side, (schema, values) in enumerate(zip(operator.inputs, inputs, strict=True)):
            places = np.arange(start, min(end, len(values)), dtype=np.int64)
            part = batch(schema, values[start:end])
            packets.append(Packet(part, Order(places * len(inputs) + side, 0.0, part.num_rows)))
        result = operator.process(packets, state)[0]
        found += [tuple(row.values()) for row in result.batch.to_pylist()]
        serials += result.order.serials.tolist()
        if resume:
            tables.append(state.changes())
            state = operator.restore(tables)
            assert state is not None
            state.track()
        start = end
    last = operator.finish(state, Packet(batch(operator.inputs[0], []), Order(10**6, 0.0, 1)))
    found += [tuple(row.values()) for packet in last[:1] for row in packet.batch.to_pylist()]
    assert serials == sorted(serials)
    return found


cut = st.lists(st.integers(0, 12), max_size=4)


@given(rows(), rows(), cut, st.booleans(), st.sampled_from(["inner", "left", "semi", "anti"]), st.booleans())
def test_a_hash_join_pairs_equal_keys(
    left: list[Row], right: list[Row], cuts: list[int], resume: bool, how: str, condition: bool
) -> None:
    join = HashJoin(LEFT, RIGHT, [("k", "l")], ["k", "x", "y"], how=how, where="x < y" if condition else None)
    wanted: list[Row] = []
    for k, x in left:
        met = [y for key, y in right if k is not None and k == key]
        if condition:
            met = [y for y in met if x is not None and y is not None and x < y]
        if how in ("inner", "left"):
            wanted += [(k, x, y) for y in met]
        if how == "semi" and met:
            wanted.append((k, x, None))
        if how in ("left", "anti") and not met:
            wanted.append((k, x, None))
    assert fed(join, [left, right], cuts, resume) == wanted


@given(rows(), rows(), cut)
def test_without_keys_every_row_meets_every_other(left: list[Row], right: list[Row], cuts: list[int]) -> None:
    join = HashJoin(LEFT, RIGHT, [], ["x", "y"])
    assert fed(join, [left, right], cuts, False) == [(x, y) for _, x in left for _, y in right]


@given(rows(), rows(), cut)
def test_several_keys_must_all_be_equal(left: list[Row], right: list[Row], cuts: list[int]) -> None:
    join = HashJoin(LEFT, RIGHT, [("k", "l"), ("x", "y")], ["k", "x"])
    wanted = [row for row in left for other in right if row == other and None not in row]
    assert fed(join, [left, right], cuts, False) == wanted


SORTED = rows(st.integers(0, 6)).map(lambda found: sorted(found, key=lambda row: row[0]))


@given(SORTED, SORTED, cut, cut, st.booleans())
def test_a_merge_join_gives_the_same_however_it_is_cut(
    left: list[Row], right: list[Row], cuts: list[int], others: list[int], resume: bool
) -> None:
    join = MergeJoin(LEFT, RIGHT, ("k", "l"), ["k", "x", "y"])
    wanted = [(k, x, y) for k, x in left for key, y in right if k == key]
    assert fed(join, [left, right], cuts, resume) == wanted
    assert fed(join, [left, right], others, False) == wanted


def test_a_merge_join_refuses_what_is_not_sorted() -> None:
    join = MergeJoin(LEFT, RIGHT, ("k", "l"), ["k"])
    with pytest.raises(OperatorError, match="not sorted by 'k'"):
        fed(join, [[(2, 0), (1, 0)], []], [1], False)


@given(rows(), cut, st.booleans())
def test_distinct_rows_leave_where_they_come_first(values: list[Row], cuts: list[int], resume: bool) -> None:
    assert fed(Distinct(LEFT), [values], cuts, resume) == list(dict.fromkeys(values))
    single = pa.schema([("k", pa.int32())])
    keys = [row[:1] for row in values]
    assert fed(Distinct(single), [keys], cuts, resume) == list(dict.fromkeys(keys))


@given(rows(), cut, st.booleans(), st.integers(0, 13), st.one_of(st.none(), st.integers(0, 13)))
def test_a_limit_counts_rows(
    values: list[Row], cuts: list[int], resume: bool, offset: int, count: int | None
) -> None:
    wanted = values[offset:] if count is None else values[offset : offset + count]
    assert fed(Limit(LEFT, count, offset), [values], cuts, resume) == wanted


def test_runs_and_a_net_of_merges_sort_on_every_engine(
    engine: hg.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.graph.operators.sort.HAND", 3)
    draw = np.random.default_rng(1)
    values = [{"k": int(k) if k else None, "x": x} for x, k in enumerate(draw.integers(0, 9, 60))]

    def net(stream: hg.Stream) -> hg.Stream:
        from headgate.graph.network import Arrow

        by = "k DESC, x"
        dealt = stream._box("deal", Deal(stream.schema, 4), None)
        parts = [hg.Stream(stream._pipeline, (Arrow(dealt._port[0].node, way),)) for way in range(4)]
        runs = [part.apply(SortRun(stream.schema, by)) for part in parts]
        while len(runs) > 1:
            runs = [
                a.apply(MergeRuns(stream.schema, by), b) for a, b in zip(runs[::2], runs[1::2], strict=True)
            ]
        return runs[0]

    found = testing.run(values, net, schema=LEFT, engine=engine)
    assert found == sorted(values, key=lambda row: (-(row["k"] or -1), row["x"]))


def test_mistakes_are_named_where_the_plan_is_made() -> None:
    with pytest.raises(PipelineError, match="no column 'z'"):
        HashJoin(LEFT, RIGHT, [("k", "l")], ["z"])
    with pytest.raises(PipelineError, match="'name' is string"):
        HashJoin(pa.schema([("name", pa.string())]), RIGHT, [("name", "l")], ["y"])
    with pytest.raises(PipelineError, match="how='outer'"):
        HashJoin(LEFT, RIGHT, [("k", "l")], ["k"], how="outer")
