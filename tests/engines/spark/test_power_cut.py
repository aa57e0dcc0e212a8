"""Power cuts: what was not synced is gone, and after a restart results equal those of an undisturbed run."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

import pytest
from test_faults import Driver, assert_same, run_to_the_end, undisturbed, write_orders

from disk import Disk
from killed_driver import POINTS

pytestmark = pytest.mark.xdist_group("servers")


def cut_power(folder: Path, disk: Disk, point: str, times: int, seed: int, *, strict: bool) -> bool:
    """Run until a point is met that often, then lose power; false if the run was over before."""
    plan: dict[str, Any] = {"tuples": 150, "seed": seed, "follow": False, "enough": {}}
    driver = Driver(folder, plan | {"point": point, "times": times}, disk.environment)
    ended = driver.finish()
    assert ended in (0, -signal.SIGKILL), driver.last_words()
    disk.cut(None if strict else random.Random(seed))
    return ended != 0


PLACES = (("before record", 5), ("between names", 4))


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    (tmp_path / "shop").mkdir()
    return Disk(tmp_path / "shop", tmp_path / "notes", ("checkpoint", "out"))


def test_a_power_cut_takes_no_row_that_the_log_counts(tmp_path: Path, disk: Disk) -> None:
    """After a record that counts what is published, and between a commit and its files' names.

    Cuts at every other point, and kills without a power cut, which take less, are in ``make test-faults``.
    """
    folder = tmp_path / "shop"
    write_orders(folder / "in", files=3, rows_of_file=1000, seed=1)
    expected = undisturbed(folder)
    for seed, (point, times) in enumerate(PLACES):
        assert cut_power(folder, disk, point, times, seed, strict=seed == 0), "the run ended before"
    run_to_the_end(folder)
    assert_same(folder, expected)


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("strict", [True, False])
def test_power_cuts_at_every_point(tmp_path: Path, disk: Disk, strict: bool) -> None:
    folder, chance = tmp_path / "shop", random.Random(7)
    write_orders(folder / "in", files=6, rows_of_file=2000, seed=2)
    expected = undisturbed(folder)
    cuts = 0
    for seed, point in enumerate([*POINTS, *POINTS]):
        cuts += cut_power(folder, disk, point, chance.randint(1, 6), seed, strict=strict)
    assert cuts > len(POINTS)
    run_to_the_end(folder)
    assert_same(folder, expected)
