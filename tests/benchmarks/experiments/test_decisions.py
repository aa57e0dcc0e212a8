"""What the bench of decisions counts; how long they take is its own to say."""

from __future__ import annotations

import pytest

from benchmarks.experiments import decisions
from headgate.scheduling.events import Finished, Idle, Started
from headgate.scheduling.interface import Run


@pytest.mark.parametrize("policy", ["qos", "qos_bucketed"])
def test_side_by_side_a_decision_is_an_arrival_a_call_and_the_question(policy: str) -> None:
    cost = decisions.measure(policy, boxes=10, depth=1, decisions=20, warm_up=5)
    assert cost.events == pytest.approx(4, abs=0.2)
    assert cost.seconds > 0


def test_every_box_has_tuples_and_time_passes() -> None:
    world = decisions.World(10, 5, seed=1)
    decide = decisions._started("qos_bucketed", world.catalog)
    for event in world.beginning():
        decide(event)
    began = world.now
    for _ in range(50):
        [run] = decide(Idle(world.now, 0))
        assert isinstance(run, Run)
        first, *_, last = world.events(run.plan)
        assert isinstance(first, Started)
        assert isinstance(last, Idle)
        for event in world.events(run.plan)[:-1]:
            decide(event)
            if isinstance(event, Finished):
                assert world.catalog.boxes[event.box].cost > 0
        assert len(world.catalog.ready) == 10
    assert world.now > began
