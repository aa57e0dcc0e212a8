"""Aurora's artificial networks: trees of the shape asked for, at the load asked for."""

from __future__ import annotations

import pytest

import headgate as hg
from benchmarks.workloads import aurora
from headgate.errors import PipelineError


def paths(tree: aurora.Tree, above: tuple[aurora.Tree, ...] = ()) -> list[tuple[aurora.Tree, ...]]:
    """From every leaf to the root."""
    here = (tree, *above)
    return [path for child in tree.children for path in paths(child, here)] if tree.children else [here]


@pytest.mark.parametrize(("depth", "fan_out"), [(5, 3), (5, 1), (1, 3), (3, 2)])
def test_trees_have_the_depth_and_the_fan_out(depth: int, fan_out: int) -> None:
    drawn = aurora.plan(queries=4, depth=depth, fan_out=fan_out)
    assert len(drawn.trees) == 4
    for tree in drawn.trees:
        assert len(list(tree.boxes())) == sum(fan_out**level for level in range(depth))
        assert tree.inputs() == fan_out ** (depth - 1)
        assert {len(path) for path in paths(tree)} == {depth}
        assert all(len(box.children) in (0, fan_out) for box in tree.boxes())


def test_a_fraction_is_an_average_fan_out() -> None:
    trees = aurora.plan(queries=20, depth=6, fan_out=1.5).trees
    inner = [len(box.children) for tree in trees for box in tree.boxes() if box.children]
    assert set(inner) == {1, 2}
    assert sum(inner) / len(inner) == pytest.approx(1.5, abs=0.1)


@pytest.mark.parametrize("selectivity", [1.0, 0.7, (0.3, 0.9)])
@pytest.mark.parametrize("load", [0.1, 0.5, 0.9])
def test_the_rate_gives_the_load(selectivity: float | tuple[float, float], load: float) -> None:
    """Counted path by path: each box costs the share of an input's tuples that gets there."""
    drawn = aurora.plan(load=load, selectivity=selectivity)
    seconds = 0.0
    for tree in drawn.trees:
        for path in paths(tree):
            share = 1.0
            for box in path:
                seconds += drawn.rate * share * box.cost
                share *= box.selectivity
    assert seconds == pytest.approx(load)
    assert drawn.load == pytest.approx(load)


def test_several_workers_take_as_much_more() -> None:
    assert aurora.plan(workers=4).rate == pytest.approx(4 * aurora.plan().rate)


def test_costs_come_from_the_range_and_the_seed() -> None:
    costs = [box.cost for tree in aurora.plan(seed=1).trees for box in tree.boxes()]
    assert min(costs) >= 1e-4
    assert max(costs) <= 1e-3
    assert sum(costs) / len(costs) == pytest.approx(5.5e-4, rel=0.05)
    assert costs == [box.cost for tree in aurora.plan(seed=1).trees for box in tree.boxes()]
    assert costs != [box.cost for tree in aurora.plan(seed=2).trees for box in tree.boxes()]


def test_qos_graphs_are_drawn_from_those_given() -> None:
    assert set(aurora.plan(queries=20).qos) == {aurora.TIGHT, aurora.LOOSE}


def test_every_tuple_arrives_at_every_box_on_its_way() -> None:
    results: dict[str, list[dict[str, object]]] = {f"q{i}": [] for i in (1, 2)}
    app = aurora.network(
        queries=2, depth=3, fan_out=2, tuples=81, burst=3, sink=lambda name: hg.to_list(results[name])
    )
    report = app.run(engine=hg.Simulated(), policy="round_robin", until="drained")
    assert len(report.boxes) == 2 * 7
    assert report.tuples == 81
    assert len(results["q1"]) + len(results["q2"]) == 81
    assert {q: len(rows) for q, rows in results.items()} == {"q1": 41, "q2": 40}


def test_the_load_is_what_the_processor_is_busy() -> None:
    app = aurora.network(queries=2, depth=3, fan_out=2, tuples=4_000, load=0.5)
    report = app.run(engine=hg.Simulated(workers=1), policy="round_robin", until="drained")
    busy = sum(call.end - call.start for call in report.trace)
    assert busy / report.seconds == pytest.approx(0.5, rel=0.05)


def test_mistakes_are_named() -> None:
    with pytest.raises(PipelineError, match="cannot feed 405 inputs"):
        aurora.network(tuples=404)
    with pytest.raises(PipelineError, match="fan_out"):
        aurora.plan(fan_out=0)
    with pytest.raises(PipelineError, match="selectivity"):
        aurora.plan(selectivity=0.0)
    with pytest.raises(PipelineError, match="cost"):
        aurora.plan(cost=(0.0, 1.0))
    with pytest.raises(PipelineError, match="load"):
        aurora.plan(load=0)
    with pytest.raises(PipelineError, match="burst"):
        aurora.network(burst=0)
    with pytest.raises(PipelineError, match="qos"):
        aurora.plan(qos=[])


def test_a_burst_delivers_its_tuples_together_and_then_nothing() -> None:
    app = aurora.network(queries=1, depth=2, fan_out=1, tuples=12, burst=4, load=0.5)
    [source] = app.network.sources
    arrivals = source.origin.arrivals(0, 12)
    assert [len(set(arrivals[start : start + 4].tolist())) for start in (0, 4, 8)] == [1, 1, 1]
    assert arrivals[4] - arrivals[0] == pytest.approx(4 / source.origin.rate)


def test_sources_begin_apart_unless_told_otherwise() -> None:
    def first(together: bool) -> set[float]:
        app = aurora.network(queries=4, depth=2, fan_out=2, tuples=80, burst=2, together=together)
        return {source.origin.arrival(0) * source.origin.rate for source in app.network.sources}

    assert first(True) == {0.0}
    assert len(first(False)) == 8
    assert all(0 <= at < 2 for at in first(False))
