"""What a query keeps: asked while the application runs, through the files that it has committed."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.control.socket import call
from headgate.engines.spark import engine as engines
from headgate.engines.spark.history import HistoryError, ask
from headgate.runtime.report import Report

pytestmark = pytest.mark.xdist_group("spark")


def engine(folder: Path) -> hg.Spark:
    return hg.Spark(workers=2, checkpoint=folder, options={"spark.ui.enabled": "false"})


def views() -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """What the running application says that it keeps."""
    kept = call("shop", "history")["outputs"]
    return {o["query"]: o["path"] for o in kept}, {o["query"]: o["schema"] for o in kept}


def test_history_is_asked_while_the_application_runs(tmp_path: Path) -> None:
    app = hg.App("shop")
    ticks = app.source("ticks", hg.from_rate(20))
    ticks.to("kept", hg.to_function(lambda *_: None), keep="7 days")
    ticks.filter("value < 0").to("never", hg.to_list([]), keep="1 hour")
    ticks.to("not kept", hg.to_list([]))
    answers: list[Any] = []

    def progress(report: Report) -> None:
        before = report.queries["kept"].tuples_out
        if before < 20:
            return
        paths, schemas = views()
        answers.append(sorted(paths))
        answers.append(ask(paths, "SELECT count(*) AS n, min(value) AS low FROM kept", schemas=schemas))
        answers.append(ask(paths, "SELECT count(*) AS n FROM never", schemas=schemas).to_pylist())
        with pytest.raises(HistoryError, match="There is no kept history called 'kep'"):
            ask(paths, "SELECT * FROM kep", schemas=schemas)
        answers.append(before)
        raise KeyboardInterrupt

    report = app.run(engine(tmp_path / "checkpoint"), until=None, progress=progress)
    names, counted, never, before = answers
    assert names == ["kept", "never"]
    (row,) = counted.to_pylist()
    assert before <= row["n"] <= report.queries["kept"].tuples_out
    assert row["low"] == 0
    assert never == [{"n": 0}]
    rows = ask({"kept": str(tmp_path / "checkpoint/history/kept")}, "SELECT value FROM kept ORDER BY value")
    assert rows.column("value").to_pylist() == list(range(report.queries["kept"].tuples_out))


def test_history_that_is_old_enough_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "CLEAN_EVERY", 3)
    folder = tmp_path / "checkpoint/history/kept"
    app = hg.App("shop")
    kept = app.source("ticks", hg.from_rate(20))
    kept.to("kept", hg.to_function(lambda *_: None), keep="1 hour")
    aged: set[str] = set()
    gone = threading.Event()

    def progress(report: Report) -> None:
        if not aged and (files := sorted(folder.glob("part-*.parquet"))):
            for file in files:
                os.utime(file, (0, 0))
            aged.update(file.name for file in files)
        elif aged and not aged.intersection(file.name for file in folder.iterdir()):
            gone.set()
            raise KeyboardInterrupt

    app.run(engine(tmp_path / "checkpoint"), until=None, progress=progress)
    assert gone.is_set()
    assert list(folder.glob("part-*.parquet"))
    values = ask({"kept": str(folder)}, "SELECT min(value) AS low FROM kept").to_pylist()
    assert values[0]["low"] > 0


def test_a_history_goes_on_in_the_next_run(tmp_path: Path) -> None:
    made = 0
    for _ in range(2):
        app = hg.App("shop")
        ticks = app.source("ticks", hg.from_rate(20))
        ticks.filter("value % 2 = 0").to("even", hg.to_list([]), keep="7 days")
        report = app.run(engine(tmp_path), until=None, progress=stop_at_20)
        made += report.queries["even"].tuples_out
    rows = ask({"even": str(tmp_path / "history/even")}, "SELECT value FROM even ORDER BY value")
    assert rows.column("value").to_pylist() == list(range(0, 2 * made, 2))
    assert rows.schema == pa.schema([("value", pa.int64())])


def stop_at_20(report: Report) -> None:
    if report.queries["even"].tuples_out >= 20:
        raise KeyboardInterrupt
