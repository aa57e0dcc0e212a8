"""Load shedding and recovery on Spark: a step that runs again drops what it dropped before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import headgate as hg
from checkpoints import Crash, Rows, crashing, put_file
from headgate.checkpoint.graph import Nodes
from headgate.checkpoint.log import Log
from headgate.checkpoint.opening import open_storage
from headgate.scheduling.catalog import Catalog
from headgate.scheduling.interface import Decision, Shed
from killed_driver import QUICK, Trains

pytestmark = pytest.mark.xdist_group("spark")

COUNT = 900


class Dropping(Trains):
    """Short trains, and a share dropped before each box."""

    def __init__(self, share: float, reason: str, seed: int) -> None:
        super().__init__(60, seed)
        self._share, self._reason = share, reason

    def start(self, catalog: Catalog, workers: int, seed: int = 0) -> Sequence[Decision]:
        sheds = [Shed(place, self._share, self._reason) for place in range(len(catalog.boxes))]
        return [*super().start(catalog, workers, seed), *sheds]


def app(folder: Path, seen: Rows) -> hg.App:
    made = hg.App("drops")
    rows = made.source("rows", hg.from_files(folder)).filter("i >= 0")
    rows.key_by("k").running("sum(i) AS total").to("q", hg.to_list(seen), importance="amount")
    return made


@pytest.mark.parametrize("reason", ["random", "semantic"])
def test_a_step_that_was_seen_and_not_committed_drops_the_same_again(tmp_path: Path, reason: str) -> None:
    """Every run has another share, and would drop others; what was announced comes again to the row."""
    folder = tmp_path / "rows"
    folder.mkdir()
    i = pa.array(range(COUNT))
    amount = pa.array([n * 7919 % 1000 for n in range(COUNT)])
    put_file(
        folder,
        "part-0.parquet",
        pa.table({"i": i, "k": pa.array([n % 5 for n in range(COUNT)]), "amount": amount}),
    )
    runs: list[Rows] = []
    while True:
        runs.append([])
        engine = hg.Spark(checkpoint=tmp_path / "checkpoint", workers=2, options=QUICK)
        try:
            with crashing(7 - 2 * (len(runs) % 2)):
                app(folder, runs[-1]).run(engine, Dropping(0.1 + 0.3 * (len(runs) % 3), reason, len(runs)))
            break
        except Crash:
            assert len(runs) < 60
    kept: Rows = []
    for seen in runs:
        # Each run begins with what the one before it had announced.
        start = next(i for i in range(len(kept) + 1) if kept[i:] == seen[: len(kept) - i])
        kept[start:] = seen
    assert len(runs) > 2
    assert [row["i"] for row in kept] == sorted({row["i"] for row in kept})
    totals: dict[int, int] = {}
    for row in kept:
        totals[row["k"]] = totals.get(row["k"], 0) + row["i"]
        assert row["total"] == totals[row["k"]], "the state has seen exactly what is left"
    network = app(folder, []).network
    position, _, _ = Log(open_storage(str(tmp_path / "checkpoint"), durable=True)).recover(
        Nodes(network), "drops"
    )
    shed = sum(own.shed.get(reason, 0) for own in position.nodes.values())
    assert shed == COUNT - len(kept) > 0, "every drop that was ever committed is in the log"
