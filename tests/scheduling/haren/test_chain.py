"""Chain's priorities are the slopes of the lower envelope of the progress chart."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.scheduling.catalog import BoxEntry
from headgate.scheduling.haren import priorities  # noqa: F401
from headgate.scheduling.haren.feature_table import FeatureTable


def entry(
    cost: float, selectivity: float, up: tuple[int, ...], down: tuple[int, ...], sources: int = 0
) -> BoxEntry:
    made = BoxEntry(f"{cost}", 1, up, down, ("q",), cost, sources)
    made._recent_in, made._recent_out = 1000.0, 1000.0 * selectivity
    return made


def line(*operators: tuple[float, float]) -> list[BoxEntry]:
    last = len(operators) - 1
    return [
        entry(c, s, (i - 1,) if i else (), (i + 1,) if i < last else (), not i)
        for i, (c, s) in enumerate(operators)
    ]


def slopes(entries: list[BoxEntry]) -> list[float]:
    table = FeatureTable(entries, 1)
    return [box.chain_slopes[box.number] for box in table.boxes]


def envelope(*operators: tuple[float, float]) -> list[float]:
    """By the definition, on the chart itself: from each point the steepest line to a later one."""
    points = [(0.0, 1.0)]
    size = 1.0
    for place, (cost, selectivity) in enumerate(operators):
        time = points[-1][0] + size * cost
        size = 0.0 if place == len(operators) - 1 else size * selectivity
        points.append((time, size))
    found: list[float] = []
    while len(found) < len(operators):
        start = points[len(found)]
        steepest = -math.inf
        end = 0
        for place in range(len(found) + 1, len(points)):
            slope = (start[1] - points[place][1]) / (points[place][0] - start[0])
            if slope >= steepest - 1e-12 * abs(steepest):
                steepest, end = max(slope, steepest), place
        found += [steepest] * (end - len(found))
    return found


def test_the_papers_example() -> None:
    """Babcock et al., section 2: a tuple takes one unit of time in the first box, which leaves a fifth of it,
    and what is left takes one unit in the second.
    """
    assert slopes(line((1, 0.2), (5, 0.0))) == pytest.approx([0.8, 0.2])


def test_a_box_that_frees_nothing_is_run_for_the_one_behind_it() -> None:
    assert envelope((1, 1.0), (1, 0.1), (10, 1.0)) == pytest.approx([0.45, 0.45, 0.1])
    assert slopes(line((1, 1.0), (1, 0.1), (10, 1.0))) == pytest.approx([0.45, 0.45, 0.1])


costs = st.floats(0.01, 10.0)
selectivities = st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0, 1.5, 3.0])


@given(st.lists(st.tuples(costs, selectivities), min_size=1, max_size=6))
def test_a_chain_has_the_slopes_of_its_envelope(operators: list[tuple[float, float]]) -> None:
    """From the source on, as long as tuples get that far."""
    found, expected = slopes(line(*operators)), envelope(*operators)
    size = 1.0
    for (_, selectivity), one, other in zip(operators, found, expected, strict=True):
        if size == 0:
            break
        assert one == pytest.approx(other, rel=1e-6)
        size *= selectivity


def test_where_a_chart_branches_the_steeper_branch_is_joined_first() -> None:
    """A box copies each tuple to two: one frees it fast, the other slowly."""
    entries = [
        entry(1, 1.0, (), (1, 2), 1),
        entry(1, 0.0, (0,), ()),
        entry(100, 0.0, (0,), ()),
    ]
    # Alone -1 per second; with the fast branch 0 over 2 seconds; the slow one has 1 over 100.
    assert slopes(entries) == pytest.approx([1 / 102, 1 / 102, 1 / 102])
    entries[0].tuple_bytes = 3.0
    # 3 - 2 freed in 1 s, and the branches free less per second than that: the fast one as much.
    assert slopes(entries) == pytest.approx([1.0, 1.0, 0.01])


def test_a_chart_ends_where_arrows_meet() -> None:
    entries = [
        entry(1, 0.5, (), (2,), 1),
        entry(2, 1.0, (), (2,), 1),
        entry(0.001, 0.0, (0, 1), ()),
    ]
    assert slopes(entries) == pytest.approx([0.5, 0.0, 1000.0])


def test_costs_that_are_not_known_come_first() -> None:
    assert slopes(line((0, 0.5), (1, 0.5)))[0] == math.inf
