"""How a step is shared out follows what steps were measured to take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_stages import shared

import headgate as hg
from headgate.engines.spark import exchange
from headgate.engines.spark.cuts import moved, slices
from headgate.engines.spark.sharing import ALONE, STAGED, Shape, Sharing
from headgate.graph.packet import Order, Packet

TWO = Shape(STAGED, 2)


def took(sharing: Sharing, shape: Shape, work: float) -> float:
    """Seconds of a step on a machine where sharing out wins or loses by as much as ``shape`` says."""
    fixed, per_work = (0.05, 1.0) if shape == ALONE else (0.15, COSTS[shape])
    sharing.learn(shape, work, per_work * work, fixed + per_work * work)
    return fixed + per_work * work


COSTS = {TWO: 1.5, Shape(STAGED, 4): 3.0}


def test_many_steps_lose_at_most_a_twentieth_by_trying_and_find_out_when_sharing_wins() -> None:
    sharing = Sharing(4, 0.5, bulk=True)
    shapes = [ALONE, *COSTS]
    spent = work = 0.0
    kinds = []
    for _ in range(2_000):
        shape = sharing.best(shapes, 10.0)
        done = sharing.room(shape)
        spent += took(sharing, shape, done)
        work += done
        kinds.append(shape)
    assert set(kinds[:20]) == set(shapes), "each shape was tried"
    # One task takes 1.1 s a second of work, in steps of half a second; trials begin at once.
    assert spent < 1.1 * work * 1.08
    assert kinds[100:].count(ALONE) > 1_500
    with mock.patch.dict(COSTS, {TWO: 0.6}):
        for _ in range(2_000):
            kinds.append(sharing.best(shapes, 10.0))
            took(sharing, kinds[-1], sharing.room(kinds[-1]))
    assert kinds[-500:].count(TWO) > 400, "conditions have changed"


def test_the_first_step_of_a_shape_tells_of_start_up_and_not_of_the_shape() -> None:
    sharing = Sharing(2, 0.5, bulk=True)
    for _ in range(2):
        assert sharing.best([ALONE, TWO], 10.0) == ALONE, "one task is the measure"
        took(sharing, ALONE, 0.5)
    assert sharing.best([ALONE, TWO], 10.0) == TWO
    sharing.learn(TWO, 0.5, 5.0, 6.0)
    assert sharing.best([ALONE, TWO], 10.0) == TWO
    sharing.learn(TWO, 0.5, 0.3, 0.4)
    assert sharing.best([ALONE, TWO], 10.0) == TWO
    assert sharing.best([ALONE, TWO], 0.05) == ALONE, "small work stays in one task"


def test_steps_grow_with_what_sharing_costs_where_only_the_rate_counts() -> None:
    goal, bulk = Sharing(2, 0.25), Sharing(2, 0.5, bulk=True)
    for sharing in (goal, bulk):
        for _ in range(20):
            sharing.learn(ALONE, 1.0, 1.0, 1.05)
        for _ in range(20):
            sharing.learn(TWO, 1.0, 0.5, 0.65)
    assert goal.room(TWO) == pytest.approx(0.5, rel=0.01)
    assert bulk.room(ALONE) == pytest.approx(0.5, rel=0.01)
    assert bulk.room(TWO) == pytest.approx(2 * 8 * 0.15, rel=0.01)
    bulk.learn(ALONE, 0.3, 0.3, 0.35)
    assert bulk.room(TWO) == pytest.approx(2 * 0.5, rel=0.01), "a shape that is tried again begins small"
    bulk.learn(TWO, 0.5, 0.25, 0.4)
    assert bulk.room(TWO) == pytest.approx(3 * 0.5, rel=0.01), "and grows step by step"


def test_cuts_move_to_row_groups_that_are_near() -> None:
    assert slices(0, 100, 2, [48]) == [(0, 48), (48, 100)]
    assert slices(0, 100, 2, [10]) == [(0, 50), (50, 100)]
    assert moved(50, [], 30) == 50


@pytest.mark.parametrize("inline", [True, False])
def test_packets_arrive_as_they_were_sent(inline: bool, tmp_path: Path) -> None:
    """A slice takes no more than its rows along, and a column without values none."""
    schema = pa.schema([("n", pa.int64()), ("text", pa.string()), ("gone", pa.float64())])
    columns = [pa.array(range(1000)), pa.array([str(i) for i in range(1000)]), pa.nulls(1000, pa.float64())]
    whole = Packet(pa.RecordBatch.from_arrays(columns, schema=schema), Order(7, 1.5, 1000))
    outbox = exchange.Outbox("" if inline else str(tmp_path / "packets"))
    outbox.add(1, 0, exchange.Parcel(3, (0, 0), [whole.slice(10, 5)]))
    [row] = list(outbox.rows())
    [parcel] = exchange.parcels_of(row.column("payload").to_pylist())
    [packet] = parcel.packets
    assert packet.batch.to_pylist() == whole.slice(10, 5).batch.to_pylist()
    assert packet.schema == schema
    assert packet.order.serials.tolist() == list(range(17, 22))
    size = len(row.column("payload")[0].as_py()) + (0 if inline else (tmp_path / "packets").stat().st_size)
    assert size < 4_000


@pytest.mark.xdist_group("spark")
def test_the_order_of_keys_alone_keeps_the_rows_of_each_key_in_order(
    tmp_path: Path, ends: Callable[[Callable[[], Any]], Any]
) -> None:
    rows = pa.table({"k": [(i * 7) % 5 for i in range(4_000)], "x": list(range(4_000))})
    app = hg.App("keys")
    sums = app.source("rows", hg.from_batches(rows)).key_by("k").running("sum(x) AS total")
    sums.filter("x <> 3").to("sums", hg.to_parquet(tmp_path / "out", order="key"))
    with shared() as orders:
        ends(lambda: app.run("spark", workers=1))
    assert any(order.stages is not None and order.stages.riders for order in orders)
    found: dict[int, list[int]] = {}
    for file in sorted((tmp_path / "out").glob("*.parquet")):
        for row in pq.read_table(file).to_pylist():
            found.setdefault(row["k"], []).append(row["x"])
    expected: dict[int, list[int]] = {}
    for row in rows.to_pylist():
        if row["x"] != 3:
            expected.setdefault(row["k"], []).append(row["x"])
    assert found == expected


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(hg.HeadgateError, match="choose 'serial' or 'key'"):
        hg.to_parquet("out", order="time")
