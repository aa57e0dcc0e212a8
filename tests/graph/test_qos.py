"""QoS graphs: what a result is worth, how fast that falls, and how long until it does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.errors import PipelineError

GRAPH = hg.QoS([(0, 1), (0.5, 1), (2.5, 0.5), (5, 0)])


@pytest.mark.parametrize(
    ("latency", "utility", "gradient", "slack"),
    [
        (0.0, 1.0, 0.0, 0.5),
        (0.25, 1.0, 0.0, 0.25),
        (0.5, 1.0, 0.25, 2.0),
        (1.5, 0.75, 0.25, 1.0),
        (2.5, 0.5, 0.2, 2.5),
        (4.0, 0.2, 0.2, 1.0),
        (5.0, 0.0, 0.0, math.inf),
        (100.0, 0.0, 0.0, math.inf),
    ],
)
def test_utility_gradient_and_slack(latency: float, utility: float, gradient: float, slack: float) -> None:
    """The gradient at a critical point is that of the piece which begins there."""
    assert GRAPH.utility(latency) == pytest.approx(utility)
    assert GRAPH.gradient(latency) == pytest.approx(gradient)
    assert GRAPH.slack(latency) == pytest.approx(slack)


def test_before_the_first_point_utility_is_that_of_the_first() -> None:
    late_start = hg.QoS([(1, 0.8), (2, 0.2)])
    assert (late_start.utility(0.0), late_start.gradient(0.0), late_start.slack(0.25)) == (0.8, 0.0, 0.75)


def test_one_point_is_a_constant() -> None:
    flat = hg.QoS([(0, 0.3)])
    assert (flat.utility(0), flat.utility(9), flat.gradient(3), flat.slack(3)) == (0.3, 0.3, 0, math.inf)


def test_a_graph_may_fall_at_once() -> None:
    """A deadline: just in time is in time.  What the step takes is at stake from the point before it on."""
    deadline = hg.QoS([(0, 1), (1, 1), (1, 0.25), (3, 0.25)])
    assert [deadline.utility(latency) for latency in (0, 0.9, 1, 1.001, 9)] == [1, 1, 1, 0.25, 0.25]
    assert deadline.utilities(np.array([0.5, 1.0, 2.0])).tolist() == [1, 1, 0.25]
    assert [deadline.gradient(latency) for latency in (0, 0.9, 1, 5)] == [0.75, 0.75, 0, 0]
    assert deadline.slack(0.75) == 0.25
    app = hg.App("deadlines")
    rows = app.source("rows", hg.from_rate(10, limit=20))
    # Alone 0.06 s each and 0.12 s together: the one with a deadline has to go first.
    rows.universal(cost=0.045, name="late").to("late", hg.to_list([]), qos=hg.QoS([(0, 1), (9, 0)]))
    rows.universal(cost=0.045, name="soon").to(
        "soon", hg.to_list([]), qos=hg.QoS([(0, 1), (0.05, 1), (0.05, 0)])
    )
    for policy in ("qos", "qos_bucketed"):
        assert app.run("simulated", policy).queries["soon"].qos > 0.8


graphs = st.lists(
    st.tuples(st.integers(0, 20).map(lambda tenths: tenths * 50.0), st.floats(0, 1)), min_size=1, max_size=6
).map(
    lambda points: hg.QoS(
        list(zip(sorted(x for x, _ in points), sorted((y for _, y in points), reverse=True), strict=True))
    )
)


@given(graphs, st.lists(st.floats(0, 2000), min_size=2, max_size=10))
def test_utility_never_rises_and_stays_between_0_and_1(graph: hg.QoS, latencies: list[float]) -> None:
    found = graph.utilities(np.array(sorted(latencies)))
    assert np.all(np.diff(found) <= 1e-12)
    assert np.all((found >= 0) & (found <= 1))
    assert found.tolist() == pytest.approx([graph.utility(latency) for latency in sorted(latencies)])


def test_graphs_are_values() -> None:
    assert hg.QoS([(0, 1), (1, 0)]) == hg.QoS([(0.0, 1.0), (1.0, 0.0)])
    assert len({hg.QoS([(0, 1)]), hg.QoS([(0, 1)]), hg.QoS([(0, 0.5)])}) == 2
    assert repr(hg.QoS([(0, 1)])) == "QoS([(0.0, 1.0)])"


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([], "no points; give at least one"),
        ([(1, 1), (0.5, 0)], "latencies must not fall, but 0.5 s follows 1 s; sort them"),
        ([(0, 0.2), (1, 0.9)], "utility rises from 0.2 at 0 s to 0.9 at 1 s"),
        ([(0, 1.5)], "utility 1.5 at 0 s lies outside 0 to 1"),
        ([(0, -0.1)], "utility -0.1 at 0 s lies outside 0 to 1"),
        ([(0, float("nan"))], "utility nan at 0 s lies outside 0 to 1"),
        ([(-1, 1)], "latency -1 of point 1 must be seconds, zero or more"),
        ([(0, 1), (float("inf"), 0)], "latency inf of point 2"),
        ([1, 2], "give points as"),
        ([(0, 1, 2)], "give points as"),
        ([("soon", 1)], "give points as"),
        (5, "give points as"),
        (None, "give points as"),
    ],
)
def test_a_malformed_graph_is_refused_in_the_users_words(points: Any, message: str) -> None:
    with pytest.raises(PipelineError, match="QoS graph") as caught:
        hg.QoS(points)
    assert message in str(caught.value)
