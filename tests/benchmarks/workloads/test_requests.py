"""Requests to measure with: each is whole and its own, and the scheduling changes nothing of it."""

from __future__ import annotations

from typing import Any

import pytest

import headgate as hg
from benchmarks.workloads import requests
from headgate.errors import PipelineError

Results = dict[str, list[dict[str, Any]]]


def run(count: int, rows: int, size: int, policy: str, engine: Any) -> Results:
    results: Results = {}

    def to(name: str) -> Any:
        return hg.to_list(results.setdefault(name, []))

    requests.pipelines(count, rows, size, to=to).run(engine, policy)
    return results


def test_answers_do_not_depend_on_the_schedule() -> None:
    expected = run(4, 3000, 4, "lp", hg.Simulated())
    assert [len(rows) > 1000 for rows in expected.values()] == [True] * 4
    assert expected["r0"] != expected["r2"], "each has its own data"
    for policy in ("bobox", "bobox_baseline", "las", "nls"):
        for engine in (hg.Threads(workers=2, packet_rows=512), hg.Simulated(topology="e7540", memory=True)):
            assert run(4, 3000, 4, policy, engine) == expected


def test_requests_share_nothing_and_the_first_is_the_oldest() -> None:
    network = requests.pipelines(3, 10, 4).network
    assert sorted(set(network.requests)) == [0, 1, 2]
    assert all(len(queries) == 1 for queries in network.queries_of)
    for place, queries in enumerate(network.queries_of):
        assert queries == (f"r{network.requests[place]}",)


def test_mistakes_are_named_with_the_option() -> None:
    with pytest.raises(PipelineError, match="rows=0"):
        requests.pipelines(rows=0)
