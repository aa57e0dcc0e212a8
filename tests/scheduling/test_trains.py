"""Trains: the five ways to say how many tuples a call takes, by what calls really take."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import headgate as hg
from headgate.errors import PipelineError
from headgate.scheduling.catalog import BoxEntry
from headgate.scheduling.events import QueueState
from headgate.scheduling.trains import Bytes, Count, PerBox, Share, Spread, Time, Train
from headgate.testing import calls


def taken(train: Train, tuples: int = 100, cost: float = 0.001) -> list[int]:
    """Tuples of the calls of one box, all of whose tuples are there from the beginning."""
    app = hg.App("train")
    batch = pa.record_batch({"n": pa.array(np.arange(tuples))})
    boxed = app.source("s", hg.from_batches([batch])).universal(cost=cost, name="box")
    boxed.to("q", hg.to_list([]))
    report = app.run(hg.Simulated(workers=1), hg.policies.get("round_robin", train=train))
    return [tuples for _, tuples in calls(report)]


def test_a_share_of_the_queue() -> None:
    assert taken(Share(1.0)) == [100]
    assert taken(Share(0.5))[:3] == [50, 25, 13]


def test_a_count_takes_so_many_tuples() -> None:
    assert taken(Count(40)) == [40, 40, 20]


def test_a_time_takes_what_can_be_done_in_it() -> None:
    assert taken(Time(0.03)) == [30, 30, 30, 10]
    assert taken(Time(1e-6), tuples=3) == [1, 1, 1]


def test_bytes_take_as_many_tuples_as_fit() -> None:
    """A tuple of one 64-bit number takes eight bytes."""
    assert taken(Bytes(8 * 60)) == [60, 40]
    assert taken(Bytes(1), tuples=2) == [1, 1]


def test_a_spread_of_latencies() -> None:
    """Ten tuples a second, of which those go together that arrived within 0.25 s."""
    app = hg.App("spread")
    slow = app.source("s", hg.from_rate(10, limit=9)).universal(cost=0.9, name="box")
    slow.to("q", hg.to_list([]))
    report = app.run(hg.Simulated(workers=1), hg.policies.get("round_robin", train=Spread(0.25)))
    assert [tuples for _, tuples in calls(report)] == [1, 3, 3, 2]


def test_without_the_engine_s_word_a_spread_takes_arrivals_for_even() -> None:
    box = BoxEntry("b", 1, (), (), ("q",), queue=QueueState(100, oldest=10.0, mean=15.0))
    assert Spread(2.5).size(box) == 25
    assert Spread(20.0).size(box) == 100
    assert Spread(0.0).size(box) == 1


def test_without_the_engine_s_word_memory_is_by_the_usual_tuple() -> None:
    box = BoxEntry("b", 1, (), (), ("q",), tuple_bytes=16.0, queue=QueueState(100))
    assert Bytes(160).size(box) == 10


@pytest.mark.parametrize("engine", [hg.Threads(1), hg.Simulated(workers=1)])
def test_a_rule_of_its_own_for_a_box(engine: hg.Threads | hg.Simulated) -> None:
    app = hg.App("two")
    batch = pa.record_batch({"n": pa.array(np.arange(60))})
    first = app.source("s", hg.from_batches([batch])).universal(cost=1e-6, name="first")
    results: list[dict[str, int]] = []
    first.universal(cost=1e-6, name="second").to("q", hg.to_list(results))
    train = PerBox({"second": Count(20)}, Count(30))
    found = calls(app.run(engine, hg.policies.get("round_robin", train=train)))
    assert [tuples for box, tuples in found if box == "first"] == [30, 30]
    assert {tuples for box, tuples in found if box == "second"} <= {20, 10}
    assert [row["n"] for row in results] == list(range(60))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Share(0.0),
        lambda: Share(1.5),
        lambda: Count(0),
        lambda: Count(2.5),  # type: ignore[arg-type]
        lambda: Count(True),
        lambda: Time(0.0),
        lambda: Spread(-1.0),
        lambda: Bytes(0),
    ],
)
def test_rules_that_make_no_sense(wrong: object) -> None:
    with pytest.raises(PipelineError, match="Train"):
        wrong()  # type: ignore[operator]


def test_an_option_that_a_policy_does_not_have() -> None:
    with pytest.raises(PipelineError, match="'mc' has no option 'k'; it takes train"):
        hg.policies.get("mc", k=3)
    with pytest.raises(PipelineError, match="it takes none"):
        hg.policies.get("tuple_at_a_time", train=Count(3))
