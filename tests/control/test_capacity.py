"""Whether the queries with the tightest goals alone exceed the capacity, from two observations of a run."""

from __future__ import annotations

from dataclasses import replace

import headgate as hg
from headgate.control.capacity import overloaded_by
from headgate.runtime.observing import BoxSeen, Observation, SourceSeen

TIGHT, LOOSE = hg.QoS([(0, 1), (0.5, 1), (2, 0)]), hg.QoS([(0, 1), (5, 1), (9, 0)])


def observations(tight: float, loose: float, workers: int) -> tuple[Observation, Observation]:
    """A shared filter that keeps half, a tight box and a loose one; seconds per tuple of the two.

    In ten seconds came 10,000 rows; the loose box is behind and has worked on a tenth of its.
    """
    app = hg.App("shop")
    kept = app.source("rows", hg.from_rate(1_000)).filter("value % 2 = 0", name="half")
    kept.select("value", name="tight").to("alerts", hg.to_list([]), qos=TIGHT)
    kept.select("value AS v", name="loose").to("report", hg.to_list([]), qos=LOOSE)
    kept.to("rest", hg.to_list([]))
    network = app.network
    names = [box.name for box in network.boxes]
    assert names == ["half", "tight", "loose"]
    before = Observation(
        "threads",
        5.0,
        network,
        "qos",
        {},
        workers,
        {},
        [BoxSeen(0, 0, 0, 0.0, 0)] * 3,
        [SourceSeen(0, 0.0)],
        [],
        0,
        [],
    )
    after = [
        BoxSeen(0, 10_000, 5_000, 1.0, 9),
        BoxSeen(0, 5_000, 5_000, 5_000 * tight, 9),
        BoxSeen(4_500, 500, 500, 500 * loose, 9),
    ]
    return before, replace(before, now=15.0, boxes=after, sources=[SourceSeen(10_000, 0.0)])


def test_what_fits_is_not_told() -> None:
    assert overloaded_by(*observations(0.001, 0.001, 2)) == ""


def test_tight_queries_that_alone_exceed_the_capacity_are_told() -> None:
    said = overloaded_by(*observations(0.006, 0.001, 2))
    assert said.startswith(
        "Queries with goals of 500 ms or less alone exceed the capacity: they need 3.1 workers of 2"
    )


def test_with_the_loose_ones_it_is_their_goal_that_is_named() -> None:
    """What waits counts as what has been done: 500 rows a second of the loose box, although it did 50."""
    said = overloaded_by(*observations(0.001, 0.006, 2))
    assert said.startswith("Queries with goals of 5 seconds or less alone exceed")
    assert "3.6 workers of 2" in said
    assert overloaded_by(*observations(0.001, 0.006, 4)) == ""


def test_nothing_is_told_of_a_network_that_has_just_changed() -> None:
    before, now = observations(0.006, 0.001, 2)
    assert overloaded_by(replace(before, network=observations(1, 1, 1)[0].network), now) == ""
    assert overloaded_by(now, now) == ""
