"""The engine, its commit protocol and its sinks under simulated faults: nothing is lost, nothing comes twice.

``make simulate-faults`` runs as many seeds as one likes; ``scripts/simulate_faults.py --replay N`` shows one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from fault_simulation import runs
from fault_simulation.bugs import BUGS, find
from fault_simulation.disk import ROOT, Disk
from fault_simulation.edges import entered
from fault_simulation.world import Thread, World
from headgate.checkpoint.disk import make_folder

SEEDS, PARTS = 320, 4
ENOUGH = 150
"""Seeds within which a planted bug must be found."""


@pytest.fixture(scope="module", autouse=True)
def simulated() -> Iterator[None]:
    with runs.many():
        for name in runs.APPS:
            runs.application(name)
        yield


@pytest.mark.parametrize("part", range(PARTS))
def test_faults_change_neither_output_nor_state_and_leave_no_file_behind(part: int) -> None:
    struck = sum(len(runs.simulate(seed).world.struck) for seed in range(part, SEEDS, PARTS))
    assert struck > SEEDS / PARTS / 2, "faults do strike"


def test_a_seed_replays_a_run_exactly() -> None:
    for seed in (6, 7):
        first: list[str] = []
        again: list[str] = []
        runs.simulate(seed, first)
        runs.simulate(seed, again)
        assert first == again
        assert len(first) > 50


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    found = find(BUGS[name], ENOUGH)
    assert found.seed is not None, f"{ENOUGH} seeds do not find it: {name}"
    print(f"{name}: found by seed {found.seed}: {found.why[:120]}")


def test_a_folder_that_a_killed_process_made_survives_a_power_cut_once_another_has_used_it() -> None:
    """The first was killed between making the name and syncing it; to the second the folder is there."""
    world = World(0)
    disk = Disk(world)
    strict = next(seed for seed in range(9) if random.Random(seed).random() < 0.5)

    def make_in(name: str) -> Thread:
        thread = Thread(world.process(name), lambda: make_folder(f"{ROOT}/a/b", durable=True), "main")
        world.run(lambda: thread.done)
        return thread

    with entered(world, disk):
        world.faults[3] = lambda what: world.current.process.die()
        make_in("first")
        assert disk.files() == []
        assert "b" in disk.find(f"{ROOT}/a").names
        assert "b" not in disk.find(f"{ROOT}/a").synced
        make_in("second")
        disk.lose_power(random.Random(strict))
        assert "b" in disk.find(f"{ROOT}/a").names
