"""Sources deliver every row once, in order, in chunks of the size asked for, and name what is wrong."""

from __future__ import annotations

import json
import os
import pickle
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import examples
from headgate.connectors.batches import from_batches
from headgate.connectors.files import from_files
from headgate.connectors.rate import from_rate
from headgate.connectors.refused import split_refused
from headgate.connectors.source import Chunk, Reader, Wait
from headgate.errors import HeadgateError, SourceError
from headgate.graph.needs import Needs, everything

FIXED = settings(derandomize=True, deadline=None, max_examples=examples(40))


def drain(reader: Reader, max_rows: int, now: float = 0.0) -> list[pa.RecordBatch]:
    """All chunks of a finite reader; every one but the last must be full."""
    batches = []
    while (chunk := reader.poll(now, max_rows)) is not None:
        assert isinstance(chunk, Chunk)
        assert 0 < chunk.batch.num_rows <= max_rows
        batches.append(chunk.batch)
    assert all(b.num_rows == max_rows for b in batches[:-1])
    assert reader.poll(now, max_rows) is None
    return batches


def values(batches: list[pa.RecordBatch], column: str) -> list[object]:
    return [v for b in batches for v in b.column(column).to_pylist()]


# -- from_batches ---------------------------------------------------------------------------------


@FIXED
@given(st.lists(st.integers(0, 12), min_size=1, max_size=8), st.integers(1, 15))
def test_batches_of_any_size_come_in_chunks_of_the_size_asked_for(sizes: list[int], max_rows: int) -> None:
    numbers = iter(range(1_000))
    batches = [pa.record_batch({"a": pa.array([next(numbers) for _ in range(n)], pa.int64())}) for n in sizes]
    source = from_batches(batches)
    for _ in range(2):  # a list can be run again
        assert values(drain(source.open(), max_rows), "a") == list(range(sum(sizes)))


def test_a_chunk_within_one_batch_is_a_slice_not_a_copy() -> None:
    batch = pa.record_batch({"a": np.arange(100)})
    chunk = from_batches([batch]).open().poll(7.0, 10)
    assert isinstance(chunk, Chunk)
    assert chunk.arrivals == 0.0
    assert chunk.batch.column("a").buffers()[1].address == batch.column("a").buffers()[1].address


def test_batches_may_come_from_a_generator_or_a_table_and_survive_pickling() -> None:
    generated = from_batches(pa.record_batch({"a": [i]}) for i in range(3))
    assert values(drain(generated.open(), 10), "a") == [0, 1, 2]
    table = from_batches(pa.table({"a": pa.chunked_array([[1], [2, 3]])}))
    assert table.finite
    assert values(drain(pickle.loads(pickle.dumps(table)).open(), 10), "a") == [1, 2, 3]
    assert drain(from_batches(pa.schema([("a", pa.int64())]).empty_table()).open(), 10) == []
    assert drain(from_batches([], schema=pa.schema([("a", pa.int64())])).open(), 10) == []


def test_types_are_brought_to_sparks() -> None:
    batch = pa.record_batch(
        {
            "s": pa.array(["x", None]).dictionary_encode(),
            "l": pa.array(["x", "y"], pa.large_string()),
            "t": pa.array([1, 2], pa.timestamp("ms", tz="Europe/Berlin")),
            "n": pa.array([1_999, 2], pa.timestamp("ns")),
            "u": pa.array([1, 2**32 - 1], pa.uint32()),
            "v": pa.array([1, 2**64 - 1], pa.uint64()),
            "d": pa.array([[1], None], pa.large_list(pa.uint8())),
        }
    )
    source = from_batches([batch])
    assert source.schema == pa.schema(
        [
            ("s", pa.string()),
            ("l", pa.string()),
            ("t", pa.timestamp("us", tz="UTC")),
            ("n", pa.timestamp("us")),
            ("u", pa.int64()),
            ("v", pa.decimal128(20, 0)),
            ("d", pa.list_(pa.int16())),
        ]
    )
    [read] = drain(source.open(), 10)
    assert read.schema == source.schema
    assert read.column("s").to_pylist() == ["x", None]
    assert read.column("t").cast(pa.int64()).to_pylist() == [1_000, 2_000]
    assert read.column("n").cast(pa.int64()).to_pylist() == [1, 0]
    assert int(read.column("v")[1].as_py()) == 2**64 - 1
    assert read.column("d").to_pylist() == [[1], None]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: from_batches(5), ["int", "iterable of record batches"]),  # type: ignore[arg-type]
        (lambda: from_batches([]), ["no batch", "schema="]),
        (lambda: from_batches([{"a": 1}]), ["item 0", "dict"]),  # type: ignore[list-item]
        (
            lambda: from_batches([pa.record_batch({"a": [1]}), pa.record_batch({"a": ["x"]})]),
            ["batch 1", "'a'", "string", "int64"],
        ),
        (
            lambda: from_batches([pa.record_batch({"a": [1]}), pa.record_batch({"b": [1]})]),
            ["batch 1", "no column 'a'"],
        ),
        (
            lambda: from_batches([pa.record_batch({"a": [1]}), pa.record_batch({"a": [1], "b": [1]})]),
            ["batch 1", "'b'"],
        ),
        (
            lambda: from_batches([pa.record_batch({"t": pa.array([1], pa.time32("s"))})]),
            ["'t'", "time32", "does not support"],
        ),
        (
            lambda: from_batches([pa.RecordBatch.from_arrays([pa.array([1])] * 2, names=["a", "a"])]),
            ["'a'", "twice"],
        ),
    ],
)
def test_what_is_wrong_with_batches_is_said(make: object, words: list[str]) -> None:
    with pytest.raises(HeadgateError) as error:
        make()  # type: ignore[operator]
    for word in words:
        assert word in str(error.value)


# -- from_rate ------------------------------------------------------------------------------------


def test_rate_gives_the_rows_that_are_due_and_says_when_to_come_back() -> None:
    reader = from_rate(10, limit=7, burst=2).open()
    first = reader.poll(0.0, 100)
    assert isinstance(first, Chunk)
    assert first.batch.column("value").to_pylist() == [0, 1]
    assert reader.poll(0.1, 100) == Wait(0.2)
    second = reader.poll(0.5, 3)
    assert isinstance(second, Chunk)
    assert second.batch.column("value").to_pylist() == [2, 3, 4]
    assert second.arrivals.tolist() == [0.2, 0.2, 0.4]  # type: ignore[union-attr]
    third = reader.poll(9.0, 100)
    assert isinstance(third, Chunk)
    assert third.batch.column("value").to_pylist() == [5, 6]
    assert reader.poll(9.0, 100) is None


def test_rate_timestamps_are_fixed_times_of_arrival() -> None:
    source = from_rate(4, limit=3)
    [batch] = drain(source.open(), 10, now=1.0)
    assert batch.schema == source.schema
    assert [t.isoformat() for t in batch.column("timestamp").to_pylist()] == [
        "2020-01-01T00:00:00+00:00",
        "2020-01-01T00:00:00.250000+00:00",
        "2020-01-01T00:00:00.500000+00:00",
    ]


@FIXED
@given(st.floats(0.01, 1e6), st.integers(1, 50), st.integers(0, 10**6))
def test_a_row_is_due_exactly_from_its_arrival_on(rate: float, burst: int, row: int) -> None:
    source = from_rate(rate, burst=burst)
    arrival = source.arrival(row)
    assert source.due(arrival) > row
    assert source.due(np.nextafter(arrival, -1)) <= row
    assert not source.finite


@pytest.mark.parametrize(
    "arguments", [{"rows_per_second": 0}, {"rows_per_second": "x"}, {"limit": -1}, {"burst": 0}]
)
def test_a_rate_that_makes_no_sense_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(SourceError, match=next(iter(arguments))):
        from_rate(**{"rows_per_second": 1, **arguments})  # type: ignore[arg-type]


# -- from_files -----------------------------------------------------------------------------------


def parquet(path: Path, **columns: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=3)


def test_a_folder_is_read_recursively_in_the_order_of_paths(tmp_path: Path) -> None:
    parquet(tmp_path / "b.parquet", a=[4, 5, 6, 7, 8])
    parquet(tmp_path / "a" / "z.parquet", a=[1, 2, 3])
    parquet(tmp_path / "c.parquet", a=pa.array([], pa.int64()))
    parquet(tmp_path / "d.parquet", a=[9])
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".hidden.parquet").write_text("not parquet")
    source = pickle.loads(pickle.dumps(from_files(tmp_path)))
    assert source.finite
    for max_rows in (1, 4, 100):
        assert values(drain(source.open(), max_rows), "a") == list(range(1, 10))
    assert source.open().poll(3.5, 1).arrivals == 3.5
    assert values(drain(from_files(str(tmp_path / "*.parquet")).open(), 4), "a") == [4, 5, 6, 7, 8, 9]
    assert values(drain(from_files(tmp_path / "b.parquet").open(), 4), "a") == [4, 5, 6, 7, 8]


def test_columns_that_are_not_needed_are_null_and_a_reader_goes_back(tmp_path: Path) -> None:
    parquet(tmp_path / "x.parquet", a=[1, 2, 3, 4, 5], b=list("vwxyz"), c=[2.0] * 5)
    source = from_files(tmp_path)
    reader = source.open()
    assert reader.selective
    reader.narrow(Needs(source.schema, frozenset(["a"])), 0)
    chunk = reader.poll(0.0, 4)
    assert isinstance(chunk, Chunk)
    assert chunk.batch.to_pylist() == [{"a": n, "b": None, "c": None} for n in (1, 2, 3, 4)]
    reader.narrow(everything(source.schema), 2)
    assert values(drain(reader, 10), "b") == ["x", "y", "z"]


def test_csv_and_json_by_suffix_and_with_a_schema(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('id,name,at\n1,"a,\nb",2020-01-01 00:00:01\n2,,\n')
    source = from_files(tmp_path / "x.csv")
    assert source.schema == pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us"))])
    [batch] = drain(source.open(), 10)
    assert batch.column("name").to_pylist() == ["a,\nb", None]
    lines = [{"id": 1, "tags": ["x"]}, {"tags": [], "id": 2, "other": True}, {"id": 3}]
    (tmp_path / "x.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    [batch] = drain(from_files(tmp_path / "x.jsonl").open(), 10)
    assert batch.to_pylist()[1] == {"id": 2, "tags": [], "other": True}
    chosen = from_files(
        tmp_path / "x.jsonl", format="json", schema=pa.schema([("id", pa.float64()), ("w", pa.string())])
    )
    [batch] = drain(chosen.open(), 10)
    assert batch.to_pylist() == [{"id": 1.0, "w": None}, {"id": 2.0, "w": None}, {"id": 3.0, "w": None}]


def test_following_reads_each_file_once_by_time_then_path(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", a=[3])
    parquet(tmp_path / "b.parquet", a=[1, 2])
    os.utime(tmp_path / "a.parquet", (200, 200))
    os.utime(tmp_path / "b.parquet", (100, 100))
    source = from_files(tmp_path, follow=True)
    assert not source.finite
    reader = source.open()
    first = reader.poll(1.0, 10)
    assert isinstance(first, Chunk)
    assert first.batch.column("a").to_pylist() == [1, 2, 3]
    assert reader.poll(2.0, 10) == Wait(None)
    parquet(tmp_path / "0.parquet", a=[4])
    second = reader.poll(3.0, 10)
    assert isinstance(second, Chunk)
    assert (second.batch.column("a").to_pylist(), second.arrivals) == ([4], 3.0)
    assert reader.poll(4.0, 10) == Wait(None)
    reader.close()


def test_following_an_empty_folder_needs_a_schema_and_a_format(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="schema="):
        from_files(tmp_path, format="csv", follow=True)
    reader = from_files(tmp_path, format="csv", schema=pa.schema([("a", pa.int64())]), follow=True).open()
    assert reader.poll(0.0, 10) == Wait(None)
    (tmp_path / "new.csv").write_text("a\n5\n")
    chunk = reader.poll(0.0, 10)
    assert isinstance(chunk, Chunk)
    assert chunk.batch.to_pylist() == [{"a": 5}]


def test_paths_and_formats_that_do_not_exist(tmp_path: Path) -> None:
    parquet(tmp_path / "clicks" / "x.parquet", a=[1])
    with pytest.raises(SourceError, match=r"no file or folder .*click'.* Did you mean 'clicks'\?"):
        from_files(tmp_path / "click")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="no files in"):
        from_files(tmp_path / "empty")
    with pytest.raises(SourceError, match="no files in"):
        from_files(str(tmp_path / "*.nothing"))
    with pytest.raises(SourceError, match=r"'parket'. Did you mean 'parquet'\? Known: parquet, json, csv"):
        from_files(tmp_path / "clicks", format="parket")
    (tmp_path / "x.dat").touch()
    with pytest.raises(SourceError, match=r"x\.dat.*format="):
        from_files(tmp_path / "x.dat")
    (tmp_path / "clicks" / "y.csv").write_text("a\n1\n")
    with pytest.raises(SourceError, match="several formats"):
        from_files(tmp_path / "clicks")
    with pytest.raises(SourceError, match="follow=True watches a folder"):
        from_files(tmp_path / "clicks" / "y.csv", follow=True)


def test_a_file_that_breaks_the_schema_is_named_when_the_pipeline_is_built(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", user=[1], item=[2])
    parquet(tmp_path / "b.parquet", usr=[1], item=[2])
    with pytest.raises(
        SourceError, match=r"b\.parquet' has no column 'user'.*Did you mean 'usr'.*'usr', 'item'"
    ):
        from_files(tmp_path)
    parquet(tmp_path / "b.parquet", user=["x"], item=[2])
    with pytest.raises(SourceError, match=r"b\.parquet': column 'user' is string.*int64"):
        from_files(tmp_path)
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(SourceError, match=r"b\.parquet' cannot be read"):
        from_files(tmp_path)
    with pytest.raises(SourceError, match=r"a\.parquet' has no column 'wanted'"):
        from_files(tmp_path / "a.parquet", schema=pa.schema([("wanted", pa.int64())]))


def test_csv_and_json_that_break_the_schema_are_named(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    (tmp_path / "x.csv").write_text("b,a\nx,1\ny,oops\n")
    reader = from_files(tmp_path / "x.csv", schema=schema).open()
    with pytest.raises(SourceError, match=r"x\.csv': column 'a' should be int64.*oops"):
        reader.poll(0.0, 10)
    with pytest.raises(SourceError, match=r"x\.csv' has no column 'c'.*'b', 'a'"):
        from_files(tmp_path / "x.csv", schema=pa.schema([("c", pa.int64())]))
    (tmp_path / "empty.csv").touch()
    with pytest.raises(SourceError, match=r"empty\.csv' is an empty csv"):
        from_files(tmp_path / "empty.csv")
    (tmp_path / "x.json").write_text('{"a": "text"}\n')
    chunk = from_files(tmp_path / "x.json", schema=schema).open().poll(0.0, 10)
    assert isinstance(chunk, Chunk)
    [(_, reason, row)] = split_refused(chunk.batch)[2]
    assert re.search(r"x\.json', line 1: .*column 'a' should be int64.*string", reason)
    assert json.loads(row) == {"file": str(tmp_path / "x.json"), "line": 1, "text": '{"a": "text"}'}
    with pytest.raises(SourceError, match=r"x\.json' has no column 'c'"):
        from_files(tmp_path / "x.json", schema=pa.schema([("c", pa.int64())]))
    (tmp_path / "bad.json").write_text('{"a": 1\n')
    with pytest.raises(SourceError, match=r"bad\.json' cannot be read"):
        from_files(tmp_path / "bad.json")
    (tmp_path / "ragged.csv").write_text("a,b\n1,x\n2\n")
    with pytest.raises(SourceError, match=r"ragged\.csv"):
        drain(from_files(tmp_path / "ragged.csv").open(), 10)


@pytest.mark.parametrize("block", [1, 4, 1 << 20])
def test_lines_of_text_end_as_windows_ends_them_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """Wherever a file is cut into blocks, no carriage return is left in a row."""
    monkeypatch.setattr("headgate.connectors.formats.BLOCK_BYTES", block)
    (tmp_path / "a.txt").write_bytes(b"a\r\nb\r\n\r\nc\nd\r\n")
    rows = pa.Table.from_batches(drain(from_files(tmp_path).open(), 2))
    assert rows.column("value").to_pylist() == ["a", "b", "", "c", "d"]


def test_text_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"good\nbad \xff\n")
    with pytest.raises(SourceError, match=r"a\.txt' cannot be read: 'utf-8' codec"):
        drain(from_files(tmp_path).open(), 10)
