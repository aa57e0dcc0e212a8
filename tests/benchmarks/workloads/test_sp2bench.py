"""SP²Bench's data: the same every time, in order, and the same in both forms."""

from __future__ import annotations

import filecmp
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pyoxigraph

from benchmarks.workloads import sp2bench
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
    triples = pq.read_table(tmp_path / "triples.parquet")
    columns = [store.terms.texts(column.combine_chunks()).to_pylist() for column in triples.columns]
    assert Counter(zip(*columns, strict=True)) == said
    assert set(said.values()) == {1}
    for number, known in store.predicates.items():
        mine = triples.filter(triples["p"].to_numpy() == number).select(["s", "o"]).to_pylist()
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
