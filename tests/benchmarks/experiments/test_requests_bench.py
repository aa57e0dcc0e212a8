"""What ``headgate bench requests`` measures with: its sides, its machines, and its verdicts."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from benchmarks.experiments.requests import host, machines, peer
from benchmarks.experiments.requests.cases import MANY, Data, asked
from benchmarks.experiments.requests.experiment import QUICK, sized
from benchmarks.experiments.requests.machines import LEVELS, MEASURED, NUMA, ROW, SMP, Case, Machines
from benchmarks.registry import BENCHES
from benchmarks.workloads.sp2bench.queries import QUERIES
from headgate.machine import host as topologies
from headgate.machine.calibration import OperatorCost

TINY = dataclasses.replace(
    QUICK,
    peer=2_000,
    alone=2_000,
    many=1_000,
    pairs=1,
    document=1_500,
    simulated_alone=2_000,
    simulated_many=500,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return Data(tmp_path_factory.mktemp("triples"))


def quiet() -> Console:
    return Console(quiet=True)


def test_the_command_knows_it_and_its_sizes() -> None:
    assert "requests" in BENCHES
    assert sized(QUICK, None, None) == QUICK
    assert sized(QUICK, 7, 3) == dataclasses.replace(QUICK, peer=7, pairs=3)


def test_sixteen_requests_each_read_for_themselves(data: Data) -> None:
    app = asked(data.of(2_000), "q11", MANY)
    assert sorted(set(app.network.requests)) == list(range(MANY))


def test_each_side_is_paired_and_judged(data: Data) -> None:
    table = Table("requests", "policies", "times", "seconds", "the other")
    result = host._contest(asked(data.of(2_000), "q11"), "q11", "las", TINY, table)
    assert (result.name, result.source) == ("requests, las, q11, host", "LAS, section 6")
    assert result.measured > 0
    assert table.row_count == 1


def test_a_question_that_takes_too_long_ends_the_other_side_which_starts_again(data: Data) -> None:
    other = peer.Peer(data.of(2_000) / "data.nt")
    try:
        assert (other.ask("q11", 60.0) or 0) > 0
        asked = other._process
        assert asked is not None
        os.kill(asked._process.pid, signal.SIGSTOP)  # so it cannot be done in time, however short
        assert other.ask("q11", 0.1) is None
        assert other._process is None
        assert (other.ask("q11", 60.0) or 0) > 0
    finally:
        other.close()


# --- the papers' machines -------------------------------------------------------------------------------


def test_caches_shrink_with_the_data() -> None:
    machine = topologies.get(NUMA)
    small = machines.scaled(machine, 20)
    assert [cache.size for cache in small.caches] == [cache.size // 20 for cache in machine.caches]
    assert small.nodes == machine.nodes


def test_costs_are_measured_once_and_the_simulation_repeats_with_them(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for: list[int] = []
    measure = machines.measured

    def noted(*given: object) -> dict[str, OperatorCost]:
        asked_for.append(1)
        return measure(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(machines, "measured", noted)
    simulated = Machines(TINY, data)
    times = [simulated.run(Case(SMP, "q11", 1, MEASURED), "las").seconds for _ in range(2)]
    assert times[0] == times[1] > 0
    assert asked_for == [1]
    free = simulated.run(Case(SMP, "q11", 1, ROW), "las").seconds
    assert 0 < free != times[0]


def test_every_claim_of_the_figures_has_a_verdict(data: Data) -> None:
    simulated = Machines(TINY, data)
    results = machines.las(simulated, quiet(), ("q11",)) + machines.allocator(simulated, quiet(), ("q11",))
    figures = {result.source.removeprefix("LAS, figure ") for result in results}
    assert figures == {"5", "6", "7", "8", "9", "10"}
    assert all(result.holds is not None for result in results)
    loads = machines.bobox(simulated, quiet(), (1,))
    assert [result.source for result in loads] == ["Bobox, figure 3"] * len(LEVELS)


def test_verdicts_are_computed_from_the_ratios() -> None:
    alike = dict.fromkeys(QUERIES, 1.0)
    good = {**alike, "q2": 3.3, "q4": 2.1, "q6": 2.2}
    fives = {r.name: r.holds for r in machines.numa_claims(alike, good, ROW)}
    assert list(fives.values()) == [True] * 4
    assert [r.holds for r in machines.numa_claims({**alike, "q9": 0.9}, alike, ROW)] == [
        False,
        False,
        False,
        True,
    ]
    gains = dict.fromkeys(QUERIES, 1.1)
    assert [r.holds for r in machines.smp_claims({**gains, "q2": 1.9}, gains, ROW)] == [True] * 6
    assert [r.holds for r in machines.smp_claims(gains, alike, ROW)] == [False, True, True, True, False, True]


def test_data_is_written_once(tmp_path: Path) -> None:
    data = Data(tmp_path)
    file = data.of(500) / "store.json"
    before = file.stat().st_mtime_ns
    assert data.of(500) / "store.json" == file
    assert file.stat().st_mtime_ns == before
