"""TPCx-BB's files: the same seed gives the same bytes, and they hold the streams."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.workloads import tpcx_bb
from benchmarks.workloads.tpcx_bb.streams import SCHEMAS, STREAMS, stream


def test_files_are_byte_identical_and_hold_the_stream(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    for folder in ("a", "b"):
        tpcx_bb.generate(
            tmp_path / folder, 5_000, seed=5, rows_per_file=2_000, progress=lambda *step: seen.append(step)
        )
    files = sorted(p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*.parquet"))
    assert [str(f) for f in files if f.parts[0] == "store_sales"] == [
        f"store_sales/part-0000{i}.parquet" for i in range(3)
    ]
    assert {f.parts[0] for f in files} == set(SCHEMAS)
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    for name, schema in SCHEMAS.items():
        stored = pq.read_table(tmp_path / "a" / name)
        assert stored.schema.equals(schema)
        if name in STREAMS:
            assert stored.equals(pa.Table.from_batches(stream(5_000, seed=5, table=name)))
    assert seen[:3] == [("web_clickstreams", done, 5_000) for done in (2_000, 4_000, 5_000)]


def test_a_new_run_replaces_files_of_the_old(tmp_path: Path) -> None:
    tpcx_bb.generate(tmp_path, 3_000, rows_per_file=1_000)
    tpcx_bb.generate(tmp_path, 1_000, rows_per_file=1_000)
    assert pq.read_table(tmp_path / "web_clickstreams").num_rows == 1_000


def test_no_rows_still_have_a_schema(tmp_path: Path) -> None:
    tpcx_bb.generate(tmp_path, 0)
    assert pq.read_table(tmp_path / "store_sales").schema.equals(SCHEMAS["store_sales"])
