"""A line of a file that is no object of the schema is a dead letter, or ends the queries that read it."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headgate as hg
from depth import examples
from headgate.connectors import json_lines
from headgate.connectors.json_decode import DEEPEST, depth
from headgate.connectors.refused import has_refused, split_refused
from headgate.errors import HeadgateError

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
Rows = list[dict[str, Any]]
DEEP = b'{"id": 1, "more": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"
BAD = {
    "no JSON": b"rubbish",
    "cut off": b'{"id": 1',
    "two objects": b'{"id": 1}{"id": 2}',
    "no object": b"7",
    "null": b"null",
    "another type": b'{"id": "x"}',
    "no text": b'{"id": 1, "name": "\xff\xfe"}',
    "no text in a field that is ignored": b'{"id": 1, "more": "\xff\xfe"}',
    "half a character": b'{"id": 1, "name": "\\ud800"}',
    "too deep": DEEP,
    "too deep and broken": b'{"id": 1, "more": ' + b'{"a":' * 20_000,
}
GOOD = [b'{"id": 1, "name": "a"}', b'  {"id": 2}\r', b"", b'{"id": 3, "more": [[[]]]}', b'{"name": "[{"}']


def write(file: Path, lines: list[bytes], end: bytes = b"\n") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"\n".join(lines) + end)


def build(folder: Path, found: Rows, others: Rows, letters: Rows | None) -> hg.App:
    app = hg.App("lines")
    lines = app.source("lines", hg.from_files(folder, format="json", schema=SCHEMA))
    lines.filter("id IS NULL OR id > 0").to("reads", hg.to_list(found))
    app.source("others", hg.from_batches(pa.table({"a": [1, 2, 3]}))).to("others", hg.to_list(others))
    if letters is not None:
        app.dead_letter(hg.to_list(letters))
    return app


def test_bad_lines_are_dead_letters_with_file_line_and_text(tmp_path: Path, engine: hg.Engine) -> None:
    lines = [GOOD[0], *BAD.values(), *GOOD[1:]]
    write(tmp_path / "in" / "a.json", lines)
    write(tmp_path / "in" / "b.json", [b"rubbish"], end=b"")
    found, others, letters = Rows(), Rows(), Rows()
    report = build(tmp_path / "in", found, others, letters).run(engine)
    assert [report.queries[name].error for name in ("reads", "others")] == [None, None]
    assert [row["id"] for row in found] == [1, 2, 3, None]
    assert found[-1]["name"] == "[{"
    assert [row["a"] for row in others] == [1, 2, 3]
    told = [json.loads(letter["row"]) for letter in letters]
    assert [Path(row["file"]).name for row in told] == ["a.json"] * len(BAD) + ["b.json"]
    assert [row["line"] for row in told] == [*range(2, 2 + len(BAD)), 1]
    expected = [text.decode("utf-8", "backslashreplace") for text in [*BAD.values(), b"rubbish"]]
    assert [row["text"] for row in told] == expected
    for letter, row in zip(letters, told, strict=True):
        assert letter["reason"].startswith(f"File '{row['file']}', line {row['line']}: ")
        assert (letter["box"], letter["queries"]) == ("lines", "reads")
    assert "column 'id' should be int64" in letters[list(BAD).index("another type")]["reason"]
    assert "levels deep" in letters[list(BAD).index("too deep")]["reason"]
    assert [letter["serial"] for letter in letters] == sorted(letter["serial"] for letter in letters)


@pytest.mark.parametrize("case", ["no JSON", "no text in a field that is ignored", "too deep"])
def test_without_dead_letters_a_bad_line_ends_the_queries_that_read_it(
    case: str, tmp_path: Path, engine: hg.Engine
) -> None:
    write(tmp_path / "in" / "a.json", [GOOD[0], b"", BAD[case], GOOD[1]])
    found, others = Rows(), Rows()
    report = build(tmp_path / "in", found, others, None).run(engine)
    error = report.queries["reads"].error
    assert isinstance(error, HeadgateError)
    assert f"Source 'lines': File '{tmp_path / 'in' / 'a.json'}', line 3: " in str(error)
    assert report.queries["others"].error is None
    assert [row["a"] for row in others] == [1, 2, 3]


def test_a_line_reaches_every_reader_and_so_does_its_letter(tmp_path: Path, engine: hg.Engine) -> None:
    """A box, a second one, and a query right behind the source."""
    write(tmp_path / "in" / "a.json", [*GOOD, b"rubbish", *GOOD] * 20)
    app, letters = hg.App("lines"), Rows()
    lines = app.source("lines", hg.from_files(tmp_path / "in", format="json", schema=SCHEMA))
    found: dict[str, Rows] = {"one": [], "two": [], "all": []}
    lines.filter("id = 1").to("one", hg.to_list(found["one"]))
    lines.filter("id = 2").with_columns("1 / (id - 2) AS x").to("two", hg.to_list(found["two"]))
    lines.to("all", hg.to_list(found["all"]))
    app.dead_letter(hg.to_list(letters))
    app.run(engine)
    assert [len(rows) for rows in found.values()] == [40, 0, 160]
    serials = [letter["serial"] for letter in letters]
    assert serials == sorted(serials)
    rubbish = [letter for letter in letters if letter["box"] == "lines"]
    assert [letter["queries"] for letter in rubbish] == ["one", "two", "all"] * 20
    assert len(letters) == 60 + 40


def test_a_schema_is_taken_from_the_lines_that_are_objects(tmp_path: Path, engine: hg.Engine) -> None:
    file = tmp_path / "in.json.gz"
    with gzip.open(file, "wb") as stream:
        stream.write(b"\n".join([DEEP, b"rubbish", *GOOD]))
    found, letters = Rows(), Rows()
    app = hg.App("lines")
    app.source("lines", hg.from_files(file)).to("q", hg.to_list(found))
    app.dead_letter(hg.to_list(letters))
    app.run(engine)
    assert [row["id"] for row in found] == [1, 2, 3, None]
    assert [json.loads(letter["row"])["line"] for letter in letters] == [1, 2]


def test_a_process_survives_a_line_that_is_too_deep(tmp_path: Path) -> None:
    """In a process of its own, since a defect here takes the process with it."""
    write(tmp_path / "a.json", [b'{"id": 1}', DEEP])
    program = (
        "import headgate as hg, pyarrow as pa\n"
        "app, found = hg.App('deep'), []\n"
        f"lines = app.source('l', hg.from_files({str(tmp_path)!r}, schema=pa.schema([('id', pa.int64())])))\n"
        "lines.to('q', hg.to_list(found))\n"
        "app.dead_letter(hg.to_list([]))\n"
        "app.run('threads')\n"
        "print(found)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout) == (0, "[{'id': 1}]\n"), run.stderr[-500:]


@given(
    st.integers(DEEPEST - 2, DEEPEST + 2),
    st.booleans(),
    st.sampled_from([b"", b'"]}"', b'"\\"[{["', b'"\\\\"']),
)
def test_depth_counts_what_is_outside_of_strings(levels: int, lists: bool, text: bytes) -> None:
    opens, ends = (b"[", b"]") if lists else (b'{"a":', b"}")
    value = b'{"s":' + (text or b"1") + b',"v":' + opens * (levels - 1) + b"1" + ends * (levels - 1) + b"}"
    assert (depth(value) > DEEPEST) == (levels > DEEPEST)
    assert depth(b'{"s":"' + b"[{" * 2 * DEEPEST + b'"}') <= DEEPEST


LINES = st.lists(
    st.sampled_from([*GOOD, *[bad for name, bad in BAD.items() if "deep" not in name]]), max_size=30
)


@settings(max_examples=examples(60))
@given(LINES, st.integers(1, 80), st.booleans())
def test_lines_are_the_same_however_a_file_is_cut_into_blocks(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], block: int, last_ends: bool
) -> None:
    file = tmp_path_factory.mktemp("lines") / "a.json"
    file.write_bytes(b"\n".join(lines) + (b"\n" if last_ends else b""))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_lines, "BLOCK_BYTES", block)
        batches = [json_lines.rows(found, SCHEMA, "f") for found in json_lines.blocks(str(file))]
    good: Rows = []
    numbers: list[int] = []
    for batch in batches:
        if has_refused(batch):
            rows, places, refusals = split_refused(batch)
            assert sorted([*places.tolist(), *(r.place for r in refusals)]) == list(range(batch.num_rows))
            good += rows.to_pylist()
            numbers += [json.loads(refusal.row)["line"] for refusal in refusals]
        else:
            good += batch.to_pylist()
    fine = [line for line in lines if line in GOOD and line.strip()]
    assert [row["id"] for row in good] == [json.loads(line).get("id") for line in fine]
    assert numbers == [at for at, line in enumerate(lines, 1) if line.strip() and line not in GOOD]
