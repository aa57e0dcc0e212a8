"""SP²Bench's data: the same every time, in order, and the same in both forms."""

from __future__ import annotations

import filecmp
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow.parquet as pq
import pyoxigraph
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.workloads import sp2bench
from headgate.connectors import sorted_runs, triples
from headgate.connectors.sorted_runs import SortedRuns, Tally, pieces
from headgate.connectors.triples import INTEGER, Store


def text(term: object) -> str:
    value = str(term.value)  # type: ignore[attr-defined]
    return f"_:{value}" if isinstance(term, pyoxigraph.BlankNode) else value


def test_the_indices_hold_what_the_lines_say(tmp_path: Path) -> None:
    count = sp2bench.generate(tmp_path, 12_000, seed=3)
    store = Store(tmp_path)
    assert 12_000 <= count < 12_100
    assert store.all.rows == count
    said = Counter(
        tuple(
            f"_:{t.value}" if isinstance(t, pyoxigraph.BlankNode) else t.value
            for t in (q.subject, q.predicate, q.object)
        )
        for q in pyoxigraph.parse(path=str(tmp_path / "data.nt"), format=pyoxigraph.RdfFormat.N_TRIPLES)
    )
    everything = pq.read_table(tmp_path / "triples.parquet")
    columns = [store.terms.texts(column.combine_chunks()).to_pylist() for column in everything.columns]
    assert Counter(zip(*columns, strict=True)) == said
    assert set(said.values()) == {1}
    for number, known in store.predicates.items():
        mine = everything.filter(everything["p"].to_numpy() == number).select(["s", "o"]).to_pylist()
        for by, other in (("s", "o"), ("o", "s")):
            rows = pq.read_table(store.file(number, by)).to_pylist()
            assert rows == sorted(mine, key=lambda row: (row[by], row[other]))
        assert (known.rows, known.subjects) == (len(mine), len({row["s"] for row in mine}))
        assert known.objects == len({row["o"] for row in mine})


def test_the_order_of_numbers_is_that_of_terms(tmp_path: Path) -> None:
    sp2bench.generate(tmp_path, 5_000)
    store = Store(tmp_path)
    terms = pq.read_table(tmp_path / "terms.parquet").to_pylist()
    keys = [(t["kind"], int(t["text"]) if t["kind"] == INTEGER else t["text"].encode()) for t in terms]
    assert keys == sorted(set(keys))
    for place in (0, 1, len(terms) // 2, len(terms) - 1, *store.predicates):
        assert store.place(terms[place]["kind"], terms[place]["text"]) == (place, True)
    place, there = store.place(INTEGER, "100000")
    assert (place, there) == (store.kinds[INTEGER + 1], False)


def test_a_seed_fixes_every_file(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        sp2bench.generate(tmp_path / name, 3_000, seed=seed)
    files = [p.relative_to(tmp_path / "a").as_posix() for p in (tmp_path / "a").rglob("*") if p.is_file()]
    assert filecmp.cmpfiles(tmp_path / "a", tmp_path / "b", files, shallow=False) == (files, [], [])
    assert not filecmp.cmp(tmp_path / "a" / "data.nt", tmp_path / "c" / "data.nt", shallow=False)


def test_no_part_of_the_data_is_held_that_grows_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks are small whatever the number of triples; cut into many, the files are the same."""
    sp2bench.generate(tmp_path / "whole", 12_000)
    parts: list[int] = []

    class Looks(Tally):
        def new(self, part: sorted_runs.Longs) -> sorted_runs.Longs:
            parts.append(len(part))
            return super().new(part)

    monkeypatch.setattr(sorted_runs, "RUN", 700)
    monkeypatch.setattr(sp2bench, "CHUNK", 500)
    monkeypatch.setattr(triples, "_GROUP", 600)
    monkeypatch.setattr(triples, "Tally", Looks)
    rows = {"largest": 0}
    merged = sorted_runs.merged

    def watched(runs: Sequence[Iterator[sorted_runs.Longs]]) -> Iterator[sorted_runs.Longs]:
        for part in merged(runs):
            rows["largest"] = max(rows["largest"], len(part))
            yield part

    monkeypatch.setattr(sorted_runs, "merged", watched)
    sp2bench.generate(tmp_path / "cut", 12_000)
    assert 0 < rows["largest"] <= 700
    assert max(parts) <= 700
    assert sum(parts) > 3 * 12_000, "both indices and the whole went through in parts"
    for file in ("data.nt", "store.json"):
        assert (tmp_path / "cut" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    assert not list((tmp_path / "cut").glob("*waiting")), "what waited in files is gone"


@given(st.lists(st.lists(st.integers(0, 50), max_size=40), max_size=6), st.integers(1, 9))
def test_runs_on_disk_are_merged_in_order(chunks: list[list[int]], size: int) -> None:
    with TemporaryDirectory() as folder:
        runs = SortedRuns(Path(folder) / "numbers")
        for chunk in chunks:
            runs.add(np.array(chunk, dtype=np.int64))
        found = [part.tolist() for part in pieces(runs.read(), size)]
    wanted = sorted(number for chunk in chunks for number in chunk)
    assert [number for part in found for number in part] == wanted
    assert all(len(part) == size for part in found[:-1])
