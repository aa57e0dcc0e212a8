"""The driver alone: what it does for a step grows with the step's parts, not with their square."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import headgate as hg
from benchmarks.experiments.spark.at_once import AtOnce, DriverAlone
from benchmarks.experiments.spark.driver_worker import AllCores
from headgate.checkpoint.state_store import covers
from headgate.engines.spark.messages import WorkOrder

SPARK = "headgate.engines.spark"
CORES = 40


def test_a_keyed_step_looks_at_each_part_of_its_state_a_fixed_number_of_times(tmp_path: Path) -> None:
    """With a thousand cores, looking through all parts for each task took 1.5 s a step."""
    looks, orders, run = 0, [], AtOnce.run

    def counted(part: Any) -> Any:
        nonlocal looks
        looks += 1
        return covers(part)

    def watched(self: AtOnce, slot: int, order: WorkOrder, *given: Any) -> Any:
        orders.append(order)
        return run(self, slot, order, *given)

    app = hg.App("keyed")
    rows = app.source("rows", hg.from_rate(1_000_000, limit=1_000_000))
    rows.key_by("value").running("count(*) AS n").to("query", hg.to_function(lambda query, batch: None))
    with (
        mock.patch(f"{SPARK}.planner.Sharing", AllCores),
        mock.patch(f"{SPARK}.planner.LEAST_SHARED", 0.0),
        mock.patch(f"{SPARK}.planner.covers", counted),
        mock.patch.object(AtOnce, "run", watched),
    ):
        app.run(DriverAlone(CORES, str(tmp_path / "checkpoint"), 1e-6, CORES), until="drained")
    shared = [order for order in orders if order.stages is not None]
    assert max(max(order.stages.tasks) for order in shared if order.stages is not None) == CORES
    parts = sum(len(member.state) for order in orders for member in order.members.values())
    assert parts > CORES
    assert looks <= 2 * parts
    longest = max(len(member.state) for order in orders for member in order.members.values())
    assert longest <= 17 * CORES, "orders name the parts of a state, so these must stay few"
