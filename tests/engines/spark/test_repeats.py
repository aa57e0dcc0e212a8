"""Steps that come again after a crash keep their number, so a sink that knows it takes them once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from checkpoints import Crash, Rows, crashing, read, write_orders
from headgate.checkpoint.local_folder import Folder
from headgate.engines.spark import connector_sinks as staged
from headgate.scheduling.interface import Call
from killed_driver import QUICK, Trains

pytestmark = pytest.mark.xdist_group("spark")


Ledger = dict[str, list[tuple[str, int, Rows]]]
"""By path, the transactions that a table has taken: application, version, rows."""


@pytest.fixture
def delta(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """The format "delta", which Spark does not bring along: a version that it has seen is dropped."""
    from pyspark.sql.readwriter import DataFrameWriter

    ledger: Ledger = {}
    given: dict[int, dict[str, str]] = {}
    option, save = DataFrameWriter.option, DataFrameWriter.save

    def noted(self: Any, name: str, value: str) -> Any:
        given.setdefault(id(self), {})[name] = value
        return option(self, name, value)

    def all_noted(self: Any, **options: str) -> Any:
        for name, value in options.items():
            noted(self, name, value)
        return self

    def named(self: Any, name: str) -> Any:
        given.setdefault(id(self), {})["format"] = name
        return self

    def saved(self: Any) -> None:
        own = given.pop(id(self))
        if own["format"] != "delta":
            return save(self)
        known, name, version = ledger.setdefault(own["path"], []), own["txnAppId"], int(own["txnVersion"])
        rows = self._df.toArrow().to_pylist()
        if all(other < version for app, other, _ in known if app == name):
            known.append((name, version, rows))
        return None

    monkeypatch.setattr(DataFrameWriter, "option", noted)
    monkeypatch.setattr(
        DataFrameWriter, "options", lambda self, **all: [noted(self, *o) for o in all.items()][-1]
    )
    monkeypatch.setattr(DataFrameWriter, "format", named)
    monkeypatch.setattr(DataFrameWriter, "save", saved)
    return ledger


def app(tmp_path: Path) -> hg.App:
    made = hg.App("shop")
    orders = made.source("orders", hg.from_files(tmp_path / "orders"))
    table = {"format": "delta", "options": {"path": str(tmp_path / "table")}}
    kept = orders.select("user", "amount").filter("amount >= 0")
    kept.to("orders", hg.to_table(table))
    return made


def spark(tmp_path: Path, checkpoint: str = "checkpoint") -> hg.Spark:
    return hg.Spark(checkpoint=tmp_path / checkpoint, workers=2, options=QUICK)


def amounts(tmp_path: Path) -> Rows:
    found: Rows = []
    made = hg.App("shop")
    orders = made.source("orders", hg.from_files(tmp_path / "orders"))
    orders.select("user", "amount").to("all", hg.to_list(found))
    made.run("threads")
    return found


@pytest.mark.parametrize("compact", [3, 100])
def test_a_table_that_knows_transactions_gets_each_row_once(
    tmp_path: Path, delta: Ledger, monkeypatch: pytest.MonkeyPatch, compact: int
) -> None:
    """Each run writes a step to the table and dies before its commit; the next one writes it again."""
    monkeypatch.setattr("headgate.checkpoint.log.COMPACT_EVERY", compact)
    write_orders(tmp_path / "orders", 2, 300, seed=1)
    crashes = 0
    while True:
        try:
            # The records: a start, then for each step an intent and the step, which is not written.
            with crashing(3 + 2 * (crashes % 2)):
                app(tmp_path).run(spark(tmp_path), Trains(80, crashes))
            break
        except Crash:
            crashes += 1
            assert crashes < 60
    assert crashes > 2
    found = delta[str(tmp_path / "table")]
    assert [row for _, _, rows in found for row in rows] == amounts(tmp_path)
    assert len({name for name, _, _ in found}) == 1


def test_a_new_checkpoint_is_another_application_to_a_table(tmp_path: Path, delta: Ledger) -> None:
    write_orders(tmp_path / "orders", 1, 100, seed=1)
    for checkpoint in ("one", "other"):
        app(tmp_path).run(spark(tmp_path, checkpoint))
    app(tmp_path).run(hg.Spark(workers=2))
    found = delta[str(tmp_path / "table")]
    assert [row for _, _, rows in found for row in rows] == amounts(tmp_path) * 3
    names = {name for name, _, _ in found}
    assert len(names) == 3
    assert all(name.endswith("/shop/orders") for name in names)


class Whole(Trains):
    """Every step goes through all boxes."""

    def choose(self, worker: int, now: float) -> Any:
        return tuple(Call(box, self._train) for box in range(len(self.catalog.boxes)))


def test_a_step_that_fails_when_it_comes_again_still_is_the_same_step(tmp_path: Path, delta: Ledger) -> None:
    """One of its queries fails the second time: the other gets the very rows that were announced."""
    write_orders(tmp_path / "orders", 1, 200, seed=1)
    broken = tmp_path / "broken"

    def touchy(batch: pa.RecordBatch) -> pa.RecordBatch:
        if broken.exists():
            raise ValueError("broken")
        return batch

    def two() -> hg.App:
        both = hg.App("shop")
        orders = both.source("orders", hg.from_files(tmp_path / "orders")).select("user", "amount")
        for query in ("good", "bad"):
            table = {"format": "delta", "options": {"path": str(tmp_path / query)}}
            kept = orders.filter(f"amount >= 0 OR '{query}' = ''")
            if query == "bad":
                kept = kept.map_packets(touchy, schema=kept.schema)
            kept.to(query, hg.to_table(table))
        return both

    with pytest.raises(Crash), crashing(5):
        two().run(spark(tmp_path), Whole(50, 1))
    broken.touch()
    report = two().run(hg.Spark(checkpoint=tmp_path / "checkpoint", retries=0), Whole(70, 2))
    assert report.queries["good"].error is None
    assert "broken" in str(report.queries["bad"].error)
    broken.unlink()
    two().run(spark(tmp_path), Whole(90, 3))
    for query in ("good", "bad"):
        assert [row for _, _, rows in delta[str(tmp_path / query)] for row in rows] == amounts(tmp_path), (
            query
        )


def test_rows_that_a_sink_refused_come_again_as_they_were(tmp_path: Path) -> None:
    """They are kept as history once, when the sink has taken them."""
    write_orders(tmp_path / "orders", 1, 200, seed=1)
    refuses, taken = [True], []

    def take(query: str, batch: pa.RecordBatch) -> None:
        if refuses[0] and len(taken) == 2:
            raise OSError("away")
        taken.append(batch.to_pylist())

    def made() -> hg.App:
        own = hg.App("shop")
        orders = own.source("orders", hg.from_files(tmp_path / "orders")).select("user", "amount")
        orders.filter("amount >= 0").to("orders", hg.to_function(take), keep="1 day")
        orders.filter("amount >= 50").to("others", hg.to_list([]))
        return own

    engine = hg.Spark(checkpoint=tmp_path / "checkpoint", workers=1, retries=0, options=QUICK)
    report = made().run(engine, Whole(60, 1))
    assert "away" in str(report.queries["orders"].error)
    refuses[0] = False
    made().run(engine, Whole(90, 1))
    assert [row for rows in taken for row in rows] == amounts(tmp_path)
    assert [len(rows) for rows in taken[:3]] == [60, 60, 60]
    assert read(tmp_path / "checkpoint" / "history" / "orders") == amounts(tmp_path)


def test_records_of_kafka_name_their_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "staged.arrow"
    batch = pa.RecordBatch.from_pydict({"x": [1, 2], "__serial": [0, 1], "__arrival": [0.0, 0.0]})
    with pa.ipc.new_stream(str(file), batch.schema) as writer:
        writer.write_batch(batch)
    sink = hg.to_kafka("localhost:1", "topic", exactly_once=False)
    records = staged._Records(Folder(str(tmp_path)), [(file.name, None)], sink, "alerts", 7, "abc")
    [made] = records(iter([batch]))
    headers = made.column("headers").to_pylist()
    wanted = {"headgate-query": b"alerts", "headgate-step": b"7", "headgate-checkpoint": b"abc"}
    assert [{h["key"]: h["value"] for h in own} for own in headers] == [wanted] * 2
