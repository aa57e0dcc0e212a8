"""Whether a query may join: a forecast from what a run has measured."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

import headgate as hg
from headgate.errors import PipelineError
from headgate.recording.admitting import Figures, _model, forecast
from headgate.scheduling import policies
from tests.support.waiting import eventually

GOAL = hg.QoS([(0, 1), (0.5, 1), (2, 0)])


def nowhere(name: str, batch: pa.RecordBatch) -> None:
    """Takes results."""


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[hg.App, hg.Running]]:
    """A run whose one query costs, as it states, a tenth of a worker."""
    app = hg.App("admission")
    rows = app.source("rows", hg.from_rate(200))
    app.view("seen", rows)
    rows.universal(cost=0.0005).to("tight", hg.to_function(nowhere), qos=GOAL)
    rows.universal(cost=0.0005).to("cheap", hg.to_function(nowhere), qos=GOAL)
    rows.universal(cost=0.05).to("dear", hg.to_function(nowhere))
    changes = [hg.Change(at=1e6, add=["cheap"]), hg.Change(at=1e6, add=["dear"])]
    with app.start("threads", "mc", 1, admit="goals", changes=changes) as run:
        eventually(lambda: run.report().queries["tight"].tuples_out > 100)
        yield app, run


def test_a_forecast_says_whose_goal_breaks(running: tuple[hg.App, hg.Running]) -> None:
    _, run = running
    fits = run.forecast("cheap")
    assert fits.fits
    assert "All goals that are kept now would be kept" in str(fits)
    assert [goal.query for goal in fits.goals if goal.before is None] == ["cheap"]
    dear = run.forecast("dear")
    assert [goal.query for goal in dear.broken] == ["tight"]
    assert dear.need > 1 > dear.tight
    assert "'tight' would miss its goal: utility from 1.00" in str(dear)
    assert set(run.report().queries) == {"tight"}


def test_rates_and_goals_are_forecast_too(running: tuple[hg.App, hg.Running]) -> None:
    _, run = running
    assert run.forecast(rates={"rows": 2}).fits
    rush = run.forecast(rates={"rows": 50})
    assert [goal.query for goal in rush.broken] == ["tight"]
    assert "The queries with goals alone exceed the capacity" in str(rush)
    assert not run.forecast(qos={"tight": hg.QoS([(0, 1), (0.0001, 1), (0.0002, 0)])}).fits
    with pytest.raises(PipelineError, match=r"There is no source 'row'.*rows"):
        run.forecast(rates={"row": 2})
    with pytest.raises(PipelineError, match=r"There is no query 'tigth'.*tight"):
        run.forecast(qos={"tigth": GOAL})


def test_what_breaks_a_goal_is_refused(running: tuple[hg.App, hg.Running]) -> None:
    _, run = running
    with pytest.raises(PipelineError, match=r"'dear' is not admitted\. .*Query 'tight' would miss its goal"):
        run.add("dear")
    assert "dear" not in run.report().queries
    run.add("cheap")
    assert {goal.query for goal in run.forecast().goals} == {"tight", "cheap"}
    run.remove("cheap")
    assert {goal.query for goal in run.forecast().goals} == {"tight"}


def test_the_rule_has_two_names() -> None:
    with pytest.raises(PipelineError, match="admit='never': use 'all', or 'goals'"):
        hg.App("app").run("simulated", admit="never")


def test_a_box_that_cannot_be_tried_costs_what_it_states() -> None:
    """No row has come that it could be tried on: its cost is not that of the boxes that run."""
    app = hg.App("untried")
    rows = app.source("rows", hg.from_rate(100))
    rows.universal(cost=0.0001, name="runs").to("runs", hg.to_function(nowhere), qos=GOAL)
    network = app.network
    rows.universal(cost=0.02, selectivity=0.5, name="dear").to("dear", hg.to_function(nowhere), qos=GOAL)
    model = _model(1.0, 0.0001)
    figures = Figures(
        network,
        {network.boxes[0]: model},
        {"rows": 100.0},
        {},
        1,
        policies.get("mc"),
        64,
        None,
        {"rows": 1.0},
        0.0,
    )
    found = forecast(figures, app._pipeline.outputs_named(["dear"]))
    assert found.need == pytest.approx(100 * (0.0001 + 0.02))
    assert "dear" in [goal.query for goal in found.broken]
