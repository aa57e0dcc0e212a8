"""Sinks hand over every row in order, and a Parquet folder is whole at any moment."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from headgate.connectors import folder
from headgate.connectors import parquet as parquet_sink
from headgate.connectors.console import ConsoleWriter, to_console
from headgate.connectors.parquet import to_parquet
from headgate.connectors.python import to_function, to_list
from headgate.errors import SinkError

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([list(numbers), [f"r{n}" for n in numbers]], schema=SCHEMA)


def read(folder: Path) -> list[int]:
    return [a for p in sorted(folder.glob("*.parquet")) for a in pq.read_table(p).column("a").to_pylist()]


def test_a_list_gets_one_dict_per_row() -> None:
    rows: list[dict[str, object]] = [{"before": True}]
    writer = to_list(rows).open("q", SCHEMA)
    writer.write(batch(1, 2))
    writer.write(batch(3))
    writer.close(error=False)
    assert rows == [{"before": True}, {"a": 1, "b": "r1"}, {"a": 2, "b": "r2"}, {"a": 3, "b": "r3"}]
    with pytest.raises(SinkError, match="not a tuple"):
        to_list(())  # type: ignore[arg-type]


def test_a_function_gets_the_query_and_the_batch_and_its_failure_is_explained() -> None:
    got: list[tuple[str, int]] = []
    writer = to_function(lambda query, b: got.append((query, b.num_rows))).open("orders", SCHEMA)
    writer.write(batch(1, 2))
    writer.write(batch())
    assert got == [("orders", 2)]

    def broken(query: str, b: pa.RecordBatch) -> None:
        raise ValueError("disk on fire")

    with pytest.raises(SinkError, match=r"'orders'.*'broken'.*2 rows.*ValueError: disk on fire") as error:
        to_function(broken).open("orders", SCHEMA).write(batch(1, 2))
    assert isinstance(error.value.__cause__, ValueError)
    with pytest.raises(SinkError, match="not a function"):
        to_function(3)  # type: ignore[arg-type]


def test_the_console_shows_so_many_rows_per_second_and_counts_the_rest() -> None:
    out, now = io.StringIO(), [0.0]
    writer = ConsoleWriter("q", 2, Console(file=out, width=20), lambda: now[0])
    writer.write(batch(1))
    writer.write(batch(2, 3, 4))
    now[0] = 1.2
    writer.write(batch(5, 6, 7))
    writer.close(error=False)
    assert out.getvalue().splitlines() == [
        "q  a=1  b=r1",
        "q  a=2  b=r2",
        "q  ... 2 rows left out",
        "q  a=5  b=r5",
        "q  a=6  b=r6",
        "q  ... 1 row left out",
    ]
    with pytest.raises(SinkError, match="rows_per_second"):
        to_console(0)


def test_the_console_does_not_obey_what_is_in_the_rows() -> None:
    out = io.StringIO()
    writer = ConsoleWriter("q", 2, Console(file=out, width=80), lambda: 0.0)
    writer.write(pa.record_batch([[1], ["\x1b[2Jx"]], schema=SCHEMA))
    assert out.getvalue() == "q  a=1  b=\\x1b[2Jx\n"


def test_values_are_printed_as_they_are_not_as_markup() -> None:
    out = io.StringIO()
    writer = ConsoleWriter("q", 2, Console(file=out, width=80), lambda: 0.0)
    writer.write(pa.record_batch([[1], ["[red]x[/]"]], schema=SCHEMA))
    assert out.getvalue() == "q  a=1  b=[red]x[/]\n"


def test_parquet_parts_appear_whole_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_sink, "PART_ROWS", 3)
    sink = to_parquet(tmp_path / "out")
    assert sink.path == str(tmp_path / "out")
    writer = sink.open("q", SCHEMA)
    writer.write(batch(1, 2))
    assert list((tmp_path / "out").glob("*.parquet")) == []
    writer.write(batch(3, 4, 5, 6, 7, 8, 9, 10))
    assert read(tmp_path / "out") == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    writer.close(error=False)
    assert read(tmp_path / "out") == list(range(1, 11))
    assert sorted(os.listdir(tmp_path / "out")) == [f"part-{i:06d}.parquet" for i in range(4)]
    assert pq.read_schema(tmp_path / "out" / "part-000003.parquet").equals(SCHEMA)


def test_parts_also_roll_over_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_sink, "PART_BYTES", 30)
    writer = to_parquet(tmp_path).open("q", SCHEMA)
    for n in range(4):
        writer.write(batch(n))
    writer.close(error=False)
    assert len(os.listdir(tmp_path)) == 2
    assert read(tmp_path) == [0, 1, 2, 3]


def test_a_query_without_results_leaves_one_empty_file(tmp_path: Path) -> None:
    to_parquet(tmp_path / "ok").open("q", SCHEMA).close(error=False)
    assert pq.read_table(tmp_path / "ok" / "part-000000.parquet").schema.equals(SCHEMA)
    to_parquet(tmp_path / "failed").open("q", SCHEMA).close(error=True)
    assert os.listdir(tmp_path / "failed") == []


def test_what_was_written_before_a_failure_stays(tmp_path: Path) -> None:
    writer = to_parquet(tmp_path).open("q", SCHEMA)
    writer.write(batch(1))
    writer.close(error=True)
    assert read(tmp_path) == [1]


def test_a_folder_in_use_is_refused_replaced_or_added_to(tmp_path: Path) -> None:
    def write(number: int, **options: bool) -> None:
        writer = to_parquet(tmp_path, **options).open("q", SCHEMA)
        writer.write(batch(number))
        writer.close(error=False)

    write(1)
    with pytest.raises(SinkError, match=r"'q'.*not empty.*part-000000\.parquet.*append=True.*overwrite=True"):
        write(2)
    write(2, append=True)
    assert read(tmp_path) == [1, 2]
    write(3, overwrite=True)
    assert read(tmp_path) == [3]
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SinkError, match=r"notes\.txt"):
        write(4, overwrite=True)
    assert read(tmp_path) == [3]
    with pytest.raises(SinkError, match="not both"):
        to_parquet(tmp_path, overwrite=True, append=True)
    with pytest.raises(SinkError, match="is a file"):
        to_parquet(tmp_path / "notes.txt")


def test_two_queries_in_one_folder_do_not_overwrite_each_other(tmp_path: Path) -> None:
    one, two = to_parquet(tmp_path).open("one", SCHEMA), to_parquet(tmp_path).open("two", SCHEMA)
    one.write(batch(1))
    two.write(batch(2))
    one.close(error=False)
    with pytest.raises(SinkError, match=r"'two'.*its own folder"):
        two.close(error=False)
    assert os.listdir(tmp_path) == ["part-000000.parquet"]
    assert read(tmp_path) == [1]


def test_a_file_system_without_hard_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*names: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    for number in range(3):
        writer = to_parquet(tmp_path, append=True).open("q", SCHEMA)
        writer.write(batch(number))
        writer.close(error=False)
    assert read(tmp_path) == [0, 1, 2]
    assert not list(tmp_path.glob(".*"))
    # Publishing, and publishing again after a crash.
    files = [[str(tmp_path / "written"), str(tmp_path / "final")]]
    (tmp_path / "written").write_text("rows")
    for _ in range(2):
        folder.publish(files, durable=True)
    assert (tmp_path / "final").read_text() == "rows"
    (tmp_path / "written").write_text("other rows")
    with pytest.raises(SinkError, match="is there already"):
        folder.publish(files, durable=True)
    assert (tmp_path / "final").read_text() == "rows"


def test_a_folder_that_cannot_be_written_names_query_and_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SinkError, match=r"'orders': cannot write to .*file/below"):
        to_parquet(tmp_path / "file" / "below").open("orders", SCHEMA)


def test_a_full_disk_names_query_and_path_and_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = to_parquet(tmp_path).open("orders", SCHEMA)
    writer.write(batch(1))

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_batch", full)
    with pytest.raises(SinkError, match=r"'orders': cannot write to .*No space left"):
        writer.write(batch(2))
    assert os.listdir(tmp_path) == []
