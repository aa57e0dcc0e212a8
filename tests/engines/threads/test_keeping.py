"""What queries keep on threads: files that ``headgate query`` reads, while the run is on or later."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import headgate as hg
from headgate import testing
from headgate.control.socket import call
from headgate.engines.kept import KeepingWriter
from headgate.errors import PipelineError
from headgate.runtime.report import Report


def values(folder: str | Path) -> list[int]:
    files = sorted(Path(folder).glob("part-*.parquet"))
    return [value for file in files for value in pq.read_table(file).column("a").to_pylist()]


def test_history_is_there_while_the_application_runs_and_gone_with_it() -> None:
    found: list[Any] = []
    app = hg.App("shop on threads")
    ticks = app.source("ticks", hg.from_rate(1_000)).select("value AS a")
    ticks.to("odd/name", hg.to_list([]), keep="7 days")
    ticks.filter("a < 0").to("never", hg.to_list([]), keep="1 hour")
    ticks.to("not kept", hg.to_list([]))

    def progress(report: Report) -> None:
        before = report.queries["odd/name"].tuples_out
        if before:
            kept = {one["query"]: one for one in call("shop on threads", "history")["outputs"]}
            found.append((before, kept, values(kept["odd/name"]["path"])))
            raise KeyboardInterrupt

    report = app.run(hg.Threads(workers=1), until=None, progress=progress)
    [(before, kept, rows)] = found
    assert set(kept) == {"odd/name", "never"}
    assert (kept["never"]["schema"], kept["never"]["keep"]) == ({"a": "BIGINT"}, "1 hour")
    assert before <= len(rows) <= report.queries["odd/name"].tuples_out, "all that was delivered is there"
    assert rows == list(range(len(rows)))
    assert not Path(kept["odd/name"]["path"]).exists()


def test_a_history_in_a_folder_stays_and_goes_on_in_the_next_run(tmp_path: Path) -> None:
    for _ in range(2):
        app = hg.App("kept")
        rows = app.source("rows", testing.from_rows([{"a": i} for i in range(100)]))
        rows.filter("a % 2 = 0").to("even", hg.to_list([]), keep="7 days")
        app.run(hg.Threads(workers=1, packet_rows=10, history=tmp_path))
    assert values(tmp_path / "history" / "even") == 2 * list(range(0, 100, 2))
    assert (tmp_path / "history" / "even").stat().st_mode & 0o077 == 0


def test_history_that_is_old_enough_is_removed(tmp_path: Path) -> None:
    batch = testing.batch([{"a": 1}])
    written: list[Any] = []
    inner = hg.to_function(lambda query, rows: written.append(rows)).open("q", batch.schema)
    writer = KeepingWriter(inner, tmp_path, batch.schema, seconds=3600)
    writer.write(batch)
    writer.flush()
    [first] = tmp_path.glob("part-*.parquet")
    os.utime(first, (0, 0))
    writer.write(batch)
    writer.close(False)
    [second] = tmp_path.glob("part-*.parquet")
    assert second.name > first.name
    assert written == [batch, batch]


def test_a_simulation_keeps_nothing_and_says_so() -> None:
    app = hg.App("kept")
    rows = app.source("rows", testing.from_rows([{"a": 1}]))
    rows.to("even", hg.to_list([]), keep="7 days")
    with pytest.raises(PipelineError, match=r"'even' asks for its history .*'spark' or 'threads'"):
        app.run("simulated")
