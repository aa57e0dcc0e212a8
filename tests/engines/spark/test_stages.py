"""Steps that several tasks share give what one task gives: slices, shards by key, groups behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet
import pytest

import headgate as hg
from headgate.engines.spark.jobs import Jobs
from headgate.engines.spark.messages import WorkOrder
from headgate.engines.spark.sharing import Shape, Sharing

pytestmark = pytest.mark.xdist_group("spark")
SPARK = "headgate.engines.spark"
ROWS = 4_000


@contextmanager
def shared(shape: bool = True, cluster: bool = False, **settings: Any) -> Iterator[list[WorkOrder]]:
    """However small a step is, let it be shared out; gives the work orders that were.

    ``cluster``: as where tasks share no disk, packets travel in Spark's shuffle and workers are asked by TCP.
    """
    orders: list[WorkOrder] = []
    run = Jobs.run

    def watched(self: Jobs, slot: int, order: WorkOrder, *given: Any) -> Any:
        orders.append(order)
        order.exchange = "" if cluster else order.exchange
        return run(self, slot, order, *given)

    usual = {"planner.LEAST_SHARED": 0.0, "planner.EVEN": 0.0, "planner.FIRST_ROWS": 500}
    settings = usual | settings

    def last(self: Sharing, shapes: list[Shape], *_: Any) -> Shape:
        return shapes[-1]

    with ExitStack() as stack:
        for name, value in settings.items():
            stack.enter_context(mock.patch(f"{SPARK}.{name}", value))
        stack.enter_context(mock.patch.object(Jobs, "run", watched))
        if shape:
            stack.enter_context(mock.patch.object(Sharing, "best", last))
        yield orders


def build() -> tuple[hg.App, dict[str, list[Any]]]:
    """Keyed boxes behind filters, one behind the other, a join, a window over all, and bad rows."""
    app = hg.App("lanes")
    found: dict[str, list[Any]] = {}

    def to(name: str, stream: hg.Stream) -> None:
        found[name] = []
        stream.to(name, hg.to_list(found[name]))

    table = pa.table(
        {
            "k": [(i * 7) % 23 for i in range(ROWS)],
            "x": [i % 11 for i in range(ROWS)],
            "ts": pa.array([(i + (i * 13) % 29) * 1_000_000 for i in range(ROWS)], pa.timestamp("us")),
        }
    )
    rows = app.source("rows", hg.from_batches(table))
    kept = rows.filter("x <> 3")
    to("kept", kept)
    window = kept.key_by("k").window(hg.tumbling("40 seconds", on="ts", lateness="5 seconds"))
    counts = window.agg("count(*) AS n", "sum(x) AS x")
    to("counts", counts)
    to("late", window.late())
    to("best", counts.top(2, by="n DESC, k", every="2 minutes", on="window_end"))
    sliding = kept.key_by("k").window(hg.sliding("60 seconds", every="20 seconds", on="ts"))
    to("gathered", sliding.agg("count(*) AS n", "sum(x) AS x", "max(x) AS high"))
    sums = rows.key_by("k").running("sum(x) AS total")
    to("sums", sums.filter("total % 5 = 0"))
    to("all", rows.window(hg.tumbling("90 seconds", on="ts")).agg("count(*) AS n"))
    pairs = (
        kept.filter("x = 1").key_by("k").join(rows.filter("x = 2").key_by("k"), within="9 seconds", on="ts")
    )
    to("pairs", pairs.select("k", "x", "ts"))
    return app, found


@pytest.mark.parametrize(
    "settings",
    [{}, {"placement.SMALL_MERGE": 0}, {"cluster": True}],
    ids=["one merge", "ranges", "on a cluster"],
)
def test_shared_steps_give_what_threads_give(
    settings: dict[str, Any], ends: Callable[[Callable[[], Any]], Any]
) -> None:
    app, expected = build()
    app.run("threads")
    app, found = build()
    with shared(**settings) as orders:
        ends(lambda: app.run(hg.Spark(buckets=5), workers=1))
    shapes = [order.stages for order in orders if order.stages is not None]
    assert len(shapes) >= 2
    assert any(stages.split for stages in shapes)
    assert any(stages.home for stages in shapes)
    assert any(len(stages.tasks) > 4 for stages in shapes)
    assert any(stages.tasks[2] > 1 for stages in shapes if len(stages.tasks) > 2) == (
        "placement.SMALL_MERGE" in settings
    )
    assert found == expected


def test_whole_queries_are_shared_out(ends: Callable[[Callable[[], Any]], Any]) -> None:
    """Each task runs some queries; a filter that both need runs in both and is counted once."""
    app, expected = build()
    app.run("threads")
    app, found = build()
    with shared(**{"planner.EVEN": 2.0}) as orders:
        report = ends(lambda: app.run(hg.Spark(), workers=1))
    assert any(len(order.shares) == 2 for order in orders)
    assert found == expected
    assert report.boxes["filter-1"].tuples_in == ROWS


def test_state_moves_when_the_number_of_buckets_changes(
    tmp_path: Any, ends: Callable[[Callable[[], Any]], Any]
) -> None:
    """Three runs over a folder that grows, with other shards and buckets each time."""
    table = pa.table({"k": [(i * 7) % 23 for i in range(ROWS)], "x": list(range(ROWS))})
    folder = tmp_path / "in"
    folder.mkdir()
    found: list[Any] = []
    options: list[dict[str, Any]] = [{}, {"planner.LEAST_SHARED": 1e9}, {}]
    third = ROWS // 3 + 1
    for number, (settings, buckets) in enumerate(zip(options, (4, 7, 3), strict=True)):
        part = table.slice(number * third, third)
        pa.parquet.write_table(part, folder / f"part-{number}.parquet")
        app = hg.App("growing")
        rows = app.source("rows", hg.from_files(folder, follow=True))
        rows.key_by("k").running("sum(x) AS total").to("sums", hg.to_list(found))
        wanted = min((number + 1) * third, ROWS)
        engine = hg.Spark(checkpoint=tmp_path / "checkpoint", buckets=buckets)
        with shared(**settings):
            _until(app, engine, found, wanted, ends)
    app, expected = hg.App("once"), []
    rows = app.source("rows", hg.from_batches(table))
    rows.key_by("k").running("sum(x) AS total").to("sums", hg.to_list(expected))
    app.run("threads")
    assert found == expected


def _until(app: hg.App, engine: hg.Engine, found: list[Any], rows: int, ends: Any) -> None:
    """Run until so many results are there."""

    class Enough(Exception):
        pass

    def check(report: hg.Report) -> None:
        if len(found) >= rows:
            raise Enough

    with pytest.raises(Enough):
        ends(lambda: app.run(engine, until=None, workers=1, progress=check))
