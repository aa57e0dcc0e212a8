"""Every shipped policy on every engine, over several graphs: the answers of serial execution, in order, with
nobody starving; and policies that differ decide differently.
"""

from __future__ import annotations

import itertools
from functools import cache

import pyarrow as pa
import pytest

import headgate as hg
from graphs import Rows, graphs
from headgate import testing
from headgate.scheduling.haren.policy import FAVOUR, Haren
from serial import serial

MANY_PACKETS = ["threads-4-small-packets", "spark", "simulated-3-small-packets"]
FEW_PACKETS = ["threads-1", "threads-2", "simulated-1"]
"""Here a source's rows are one packet, so a policy has little to decide: each policy runs on one of them."""
PAIRS = [
    (engine, policy)
    for place, policy in enumerate(hg.policies.names())
    for engine in (*MANY_PACKETS, FEW_PACKETS[place % len(FEW_PACKETS)])
]


@cache
def answers(rows: int) -> dict[str, Rows]:
    """Those of serial execution."""
    return serial(graphs(rows)[0].network)


@pytest.mark.parametrize(("engine", "policy"), PAIRS, indirect=["engine"])
def test_every_policy_gives_the_answers_of_serial_execution(engine: hg.Engine, policy: str) -> None:
    """Order included; and every box ran, so nobody was forgotten."""
    small = policy == "tuple_at_a_time"
    rows = 20 if small and engine.name == "spark" else 60 if small else 120
    app, found = graphs(rows)
    expected = answers(rows)
    report = app.run(engine, policy)
    assert report.policy == policy
    assert report.problems == []
    for query, results in found.items():
        assert results == expected[query], query
    assert len(found["pairs"]) > 10
    assert all(box.calls > 0 for box in report.boxes.values())


BY_PRIORITY = [name for name in hg.policies.names() if isinstance(hg.policies.get(name), Haren)]


@pytest.mark.parametrize("policy", BY_PRIORITY)
def test_no_query_starves_when_there_is_twice_the_work_that_can_be_done(policy: str) -> None:
    """Strict priorities for two thirds of a minute, in queues that nothing holds back.

    With eight boxes whose calls take 16 ms at most, none waits longer than 1 + 8 * 0.016 * 202 seconds.
    """
    app = hg.App("too much")
    found: dict[str, Rows] = {}
    for number in range(4):
        found[f"q{number}"] = []
        bursts = [(i / 2, [{"a": j} for j in range(25)]) for i in range(80)]
        source = app.source(f"s{number}", testing.Timed(bursts))
        first = source.universal(cost=0.004 * (number + 1), selectivity=0.5, name=f"first-{number}")
        first.universal(cost=0.002, name=f"second-{number}").to(
            f"q{number}", hg.to_list(found[f"q{number}"]), query_class=number % 2
        )
    report = app.run(hg.Simulated(workers=1), policy, until=40.0)
    bound = 1 + 8 * 0.016 * (1 / FAVOUR + 2)
    assert report.overhead.scheduler == 0
    for box in report.boxes:
        times = [0.0, *(call.start for call in report.trace if call.box == box), 40.0]
        longest = max(after - before for before, after in itertools.pairwise(times))
        assert longest <= bound + 1, f"{box} waited {longest:.1f} s"
    assert all(found.values())


ALIKE = [{"mc", "ml", "mm", "auto_traversal"}, {"qos", "qos_bucketed"}]
"""On chains with nothing waiting in the middle traversals are one; such goals have a bucket each."""


def decisions(policy: str) -> list[tuple[int, str, int]]:
    """Chains of varying cost and selectivity, and tuples that come in bursts, on two simulated workers."""
    app = hg.App("decisions")
    shapes = [(1.0, 0.9, 3.0), (2.0, 0.1, 1.0), (0.5, 1.0, 0.5), (3.0, 0.5, 0.2)]
    for number, (cost, selectivity, tail) in enumerate(shapes):
        bursts = [(0.05 * i * (number + 1), [{"a": j} for j in range(20)]) for i in range(6)]
        stream = app.source(f"s{number}", testing.Timed(bursts, pa.schema([("a", pa.int64())])))
        stream = stream.universal(cost=cost * 1e-3, selectivity=selectivity, name=f"first-{number}")
        stream = stream.universal(cost=tail * 1e-3, selectivity=0.5, name=f"second-{number}")
        stream.universal(cost=1e-3, name=f"third-{number}").to(
            f"q{number}",
            hg.to_list([]),
            query_class=number % 2,
            qos=hg.QoS([(0, 1), (0.1 * number + 0.1, 0)]),
        )
    report = app.run(hg.Simulated(workers=2, call_overhead=1e-4), policy)
    return [(call.worker, call.box, call.tuples) for call in report.trace]


def test_policies_that_differ_decide_differently() -> None:
    traces = {policy: decisions(policy) for policy in hg.policies.names()}
    for one, other in itertools.combinations(traces, 2):
        if not any({one, other} <= alike for alike in ALIKE):
            assert traces[one] != traces[other], f"{one} and {other} ran the same calls in the same order"
