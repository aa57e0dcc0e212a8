"""What a task reads of a parquet file: rows by offset, needed columns only, every row group once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.checkpoint.local_folder import Folder
from headgate.checkpoint.offsets import PARQUET, Piece
from headgate.engines.spark import reading
from headgate.graph.needs import Needs
from headgate.sql.ranges import compile_ranges

SCHEMA = pa.schema([("n", pa.int64()), ("word", pa.string()), ("half", pa.float64())])


def numbers(path: Path, rows: int = 100, group: int = 30) -> str:
    table = pa.table(
        [range(rows), [f"word {n}" for n in range(rows)], [n / 2 for n in range(rows)]], schema=SCHEMA
    )
    pq.write_table(table, path, row_group_size=group)
    return str(path)


def rows_of(path: str, needs: Needs, first: int, rows: int) -> list[dict[str, Any]]:
    piece = Piece(f"{PARQUET}:{path}", first, rows, 0.0, 1_000 + first)
    found = reading.read(None, needs, [piece], Folder(""), 0.0)
    assert not found.failed
    serials = [serial for packet in found.packets for serial in packet.order.serials.tolist()]
    assert serials == list(range(1_000 + first, 1_000 + first + rows)), "rows that are not read keep serials"
    return [row for packet in found.packets for row in packet.batch.to_pylist()]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, tuple[str, ...]]]:
    """The row groups that were decoded, with their columns."""
    found: Counter[tuple[int, tuple[str, ...]]] = Counter()
    original = pq.ParquetFile.read_row_group

    def watched(self: Any, group: int, columns: Any = None, **options: Any) -> Any:
        found[group, tuple(columns)] += 1
        return original(self, group, columns=columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", watched)
    return found


def test_ranges_that_follow_each_other_decode_a_row_group_once(
    tmp_path: Path, decoded: Counter[tuple[int, tuple[str, ...]]]
) -> None:
    path = numbers(tmp_path / "a.parquet")
    needs = Needs(SCHEMA, frozenset(["n", "half"]))
    found = [row for first in range(0, 100, 20) for row in rows_of(path, needs, first, 20)]
    assert found == [{"n": n, "word": None, "half": n / 2} for n in range(100)]
    assert decoded == {(group, ("n", "half")): 1 for group in range(4)}


def test_row_groups_that_no_filter_lets_pass_are_rows_of_nulls(
    tmp_path: Path, decoded: Counter[tuple[int, tuple[str, ...]]]
) -> None:
    path = numbers(tmp_path / "a.parquet")
    filters = [compile_ranges(text, SCHEMA) for text in ("n < 10", "n = 95")]
    needs = Needs(SCHEMA, frozenset(["n"]), tuple(each for each in filters if each is not None))
    found = rows_of(path, needs, 0, 100)
    assert [row["n"] for row in found] == [*range(30), *[None] * 60, *range(90, 100)]
    assert sorted(decoded) == [(0, ("n",)), (3, ("n",))]


def test_row_groups_of_other_needs_are_decoded_for_them(tmp_path: Path) -> None:
    path = numbers(tmp_path / "a.parquet")
    assert rows_of(path, Needs(SCHEMA, frozenset(["n"])), 31, 1) == [{"n": 31, "word": None, "half": None}]
    whole = Needs(SCHEMA, frozenset(SCHEMA.names))
    assert rows_of(path, whole, 31, 1) == [{"n": 31, "word": "word 31", "half": 15.5}]


def test_decoded_row_groups_are_bounded_in_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: Counter[tuple[int, tuple[str, ...]]]
) -> None:
    path, needs = numbers(tmp_path / "a.parquet"), Needs(SCHEMA, frozenset(["n"]))
    monkeypatch.setattr(reading, "GROUP_BYTES", 1)
    for first in (0, 10, 40, 0):
        rows_of(path, needs, first, 5)
    assert decoded == {(0, ("n",)): 2, (1, ("n",)): 1}


def test_the_rows_at_which_row_groups_start(tmp_path: Path) -> None:
    path = numbers(tmp_path / "a.parquet")
    assert reading.row_groups(path) == [0, 30, 60, 90]
    numbers(tmp_path / "a.parquet", 120, 60)
    assert reading.row_groups(path) == [0, 60]
    assert reading.row_groups(numbers(tmp_path / "b.parquet", 0)) == []
