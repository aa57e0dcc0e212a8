"""Requests to measure with: each is whole and its own, and the scheduling changes nothing of it."""

from __future__ import annotations

from typing import Any

import pytest

import headgate as hg
from benchmarks.workloads import requests
from benchmarks.workloads.merging import Merge
from headgate.errors import PipelineError

Results = dict[str, list[dict[str, Any]]]


def run(kind: str, count: int, rows: int, size: int, policy: str, engine: Any) -> tuple[Results, hg.Report]:
    results: Results = {}

    def to(name: str) -> Any:
        return hg.to_list(results.setdefault(name, []))

    app = requests.network(count, kind, rows, size, to=to)
    return results, app.run(engine, policy)


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_a_sort_merge_net_sorts_every_hour_and_loses_nothing(size: int) -> None:
    results, report = run("sort_merge", 1, 4000, size, "lp", hg.Simulated(packet_rows=100))
    assert report.queries["r0"].late == 0
    merging = [box for box in requests.network(1, "sort_merge", 10, size).network.boxes if len(box.ports) > 1]
    assert len(merging) == size - 1
    assert all(isinstance(box.operator, Merge) for box in merging), "they merge and do not sort again"
    keys = [(row["at"].hour, row["y"], row["x"]) for row in results["r0"]]
    assert keys == sorted(keys)
    rows = [row for batch in requests.batches(4000, 0) for row in batch.to_pylist()]
    given = [row | {"y": row["y"] * 0.5} for row in rows]
    assert sorted(map(repr, given)) == sorted(map(repr, results["r0"]))


@pytest.mark.parametrize("policy", ["bobox", "bobox_baseline", "las", "nls"])
@pytest.mark.parametrize("engine", [hg.Threads(workers=2, packet_rows=512), hg.Simulated(topology="e7540")])
def test_answers_do_not_depend_on_the_schedule(policy: str, engine: hg.Engine) -> None:
    expected, _ = run("mixed", 4, 3000, 4, "lp", hg.Simulated())
    found, _ = run("mixed", 4, 3000, 4, policy, engine)
    assert found == expected
    assert [len(rows) > 1000 for rows in found.values()] == [True] * 4
    assert found["r0"] != found["r2"], "each has its own data"


@pytest.mark.parametrize("kind", ["parallel", "merges"])
def test_parts_that_are_read_by_themselves_meet_in_order(kind: str) -> None:
    """On the papers' machine with its memory, too; every stage of merges has about as much to do."""
    expected, report = run(kind, 2, 8000, 4, "lp", hg.Simulated(workers=1))
    assert len(requests.network(2, kind, 8000, 4).network.sources) == 8
    for policy in ("las", "bobox"):
        engine = hg.Simulated(topology="e7540", memory=True, packet_rows=512)
        assert run(kind, 2, 8000, 4, policy, engine)[0] == expected
    stage = "merge" if kind == "merges" else "filter"
    stages = [box.tuples_in for name, box in report.boxes.items() if name.startswith(stage)]
    assert len(stages) == (6 if kind == "merges" else 16)
    assert max(stages) < 2.5 * min(stages)


def test_requests_share_nothing_and_the_first_is_the_oldest() -> None:
    network = requests.network(3, "pipeline", 10, 4).network
    assert sorted(set(network.requests)) == [0, 1, 2]
    assert all(len(queries) == 1 for queries in network.queries_of)
    for place, queries in enumerate(network.queries_of):
        assert queries == (f"r{network.requests[place]}",)


def test_mistakes_are_named_with_the_option() -> None:
    with pytest.raises(PipelineError, match=r"kind='pipelin'.*Did you mean 'pipeline'"):
        requests.network(kind="pipelin")
    with pytest.raises(PipelineError, match="rows=0"):
        requests.network(rows=0)
