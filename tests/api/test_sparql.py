"""Requests over triples: the answers are those of another engine, and mistakes are named."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyoxigraph
import pytest

import headgate as hg
from benchmarks.workloads import sp2bench
from benchmarks.workloads.sp2bench.queries import PREFIXES, QUERIES
from headgate.errors import PipelineError, SourceError
from headgate.graph.operators.sort import DealByKey

Row = tuple[str | None, ...]


class Oracle:
    """pyoxigraph with the same triples."""

    def __init__(self, folder: Path) -> None:
        self._store = pyoxigraph.Store()
        lines = pyoxigraph.parse(path=str(folder / "data.nt"), format=pyoxigraph.RdfFormat.N_TRIPLES)
        self._store.bulk_extend(lines)

    def answers(self, text: str) -> list[Row]:
        def plain(term: object) -> str | None:
            if term is None:
                return None
            value = str(term.value)  # type: ignore[attr-defined]
            return f"_:{value}" if isinstance(term, pyoxigraph.BlankNode) else value

        return [tuple(map(plain, row)) for row in self._store.query(text)]


SAME = {
    "q5a": ("?person2 foaf:name ?name2\n  FILTER (?name = ?name2)", "?person2 foaf:name ?name"),
    "q6": (
        "dc:creator ?author2\n    FILTER (?author = ?author2 && ?yr2 < ?yr)\n  }\n"
        "  FILTER (!bound(?author2))",
        "dc:creator ?author\n    FILTER (?yr2 < ?yr)\n  }\n  FILTER (!bound(?document2))",
    ),
}
"""The same questions, as the oracle can answer them in less than minutes: equal variables have one name."""


def asked(name: str) -> str:
    before, after = SAME.get(name, ("", ""))
    assert before in QUERIES[name]
    return QUERIES[name].replace(before, after) if before else QUERIES[name]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Oracle]:
    folder = tmp_path_factory.mktemp("sp2bench")
    sp2bench.generate(folder, 50_000)
    return folder, Oracle(folder)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Oracle]:
    folder = tmp_path_factory.mktemp("sp2bench-small")
    sp2bench.generate(folder, 2_000, seed=2)
    return folder, Oracle(folder)


def answers(
    data: Path, *texts: str, engine: str | hg.Engine = "threads", policy: str = "las"
) -> list[list[Row]]:
    """All of the questions at once."""
    app, found = hg.App("requests"), list[list[pa.RecordBatch]]()
    for number, text in enumerate(texts):
        found.append([])
        sink = hg.to_function(lambda query, batch, into=found[-1]: into.append(batch))
        app.sparql(text, data).to(f"r{number}", sink)
    report = app.run(engine, "las")
    assert [query.error for query in report.queries.values()] == [None] * len(texts)
    return [[tuple(row.values()) for batch in batches for row in batch.to_pylist()] for batches in found]


@pytest.mark.parametrize("name", QUERIES)
def test_the_answers_are_the_oracles(name: str, large: tuple[Path, Oracle]) -> None:
    data, oracle = large
    found, wanted = answers(data, QUERIES[name])[0], oracle.answers(asked(name))
    assert Counter(found) == Counter(wanted)
    if name == "q11":
        assert found == wanted
        assert len(found) == 10
    if name == "q2":
        years = [row[8] for row in found]
        assert years == sorted(years)


def test_many_requests_at_once_on_every_engine(engine: hg.Engine, small: tuple[Path, Oracle]) -> None:
    data, oracle = small
    names = ["q2", "q5a", "q6", "q8", "q11"]  # merge, hash and anti joins, a union, sorts
    texts = [QUERIES[name] for name in names]
    for name, found in zip(names, answers(data, *texts, engine=engine), strict=True):
        assert Counter(found) == Counter(oracle.answers(asked(name))), name


def test_plans_are_decomposed_where_there_is_much_to_sort_and_to_join(
    engine: hg.Engine, small: tuple[Path, Oracle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bobox, section 2: sorts become runs and merges, joins several joins; answers stay what they are."""
    data, oracle = small
    names = ["q2", "q6"]
    monkeypatch.setattr("headgate.api.finite.RUN", 5)
    app = hg.App("plans")
    for name in names:
        app.sparql(QUERIES[name], data).to(name, hg.to_list([]))
    labels = Counter(box.operator.label for box in app.network.boxes)
    assert sum(count for label, count in labels.items() if label.startswith("sort")) >= 2
    dealt = [box for box in app.network.boxes if isinstance(box.operator, DealByKey)]
    assert len(dealt) >= 2
    for name, found in zip(names, answers(data, *(QUERIES[n] for n in names), engine=engine), strict=True):
        assert Counter(found) == Counter(oracle.answers(asked(name))), name


QUESTIONS = {
    "a constant that no triple has": "SELECT ?s WHERE { ?s foaf:name 'Nobody' }",
    "a predicate that no triple has": "SELECT ?s WHERE { ?s foaf:nothing ?o }",
    "a pattern without a variable": """SELECT ?s WHERE {
        ?s foaf:name 'Paul Erdoes' . <http://localhost/persons/Paul_Erdoes> a foaf:Person }""",
    "one variable twice": "SELECT ?d WHERE { ?d swrc:journal ?j . ?j ?p ?j }",
    "a path of blank nodes": "SELECT DISTINCT ?n WHERE { [] dc:creator [ foaf:name ?n ] }",
    "relations without a key": """SELECT ?a ?b WHERE {
        ?a rdfs:subClassOf ?x . ?b a foaf:Person . ?b foaf:name 'Paul Erdoes' }""",
    "a year that is not there": """SELECT ?d WHERE {
        ?d dcterms:issued ?y FILTER (?y <= 193600 && ?y > -5 && 1938 >= ?y) }""",
    "a name that is not there": """SELECT ?n WHERE {
        ?p foaf:name ?n FILTER (?n >= 'Paul D' && ?n < 'Paul F') }""",
    "either of two, and not a third": """SELECT ?d WHERE {
        ?d dcterms:issued ?y FILTER ((?y = 1940 || ?y = 1938) && !(?y = 1940)) }""",
    "a number is no text": "SELECT ?d ?x WHERE { ?d ?p ?x FILTER (?x < 1937) }",
    "not equal to a number": "SELECT ?d ?x WHERE { ?d a bench:Journal . ?d ?p ?x FILTER (?x != 1937) }",
    "a choice with different variables": """SELECT ?n ?t WHERE {
        { ?p foaf:name ?n . ?p a foaf:Person } UNION { ?d dc:title ?t . ?d a bench:Journal } }""",
    "what is there if it is": """SELECT ?d ?a ?n WHERE { ?d a bench:Article
        OPTIONAL { ?d bench:abstract ?a } OPTIONAL { ?d bench:note ?n FILTER (?n > 'note 00000003') } }""",
    "two keys": """SELECT ?a ?b WHERE { ?a dc:creator ?p . ?a swrc:journal ?j .
        ?b dc:creator ?p . ?b swrc:journal ?j FILTER (?a != ?b) }""",
    "a variable that nothing binds": "SELECT ?s ?nothing WHERE { ?s rdfs:subClassOf ?o }",
}


@pytest.mark.parametrize("what", QUESTIONS)
def test_other_questions_have_the_oracles_answers(what: str, small: tuple[Path, Oracle]) -> None:
    data, oracle = small
    text = PREFIXES + QUESTIONS[what]
    assert Counter(answers(data, text)[0]) == Counter(oracle.answers(text))


def test_what_is_sorted_leaves_in_order(small: tuple[Path, Oracle]) -> None:
    data, oracle = small
    text = PREFIXES + (
        "SELECT ?y ?a ?d WHERE { ?d dcterms:issued ?y OPTIONAL { ?d bench:note ?a } } "
        "ORDER BY DESC(?y) ?a ?d LIMIT 300 OFFSET 7"
    )
    assert answers(data, text)[0] == oracle.answers(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELECT (COUNT(*) AS ?n) WHERE { ?s ?p ?o }", "aggregate is not supported"),
        ("ASK { ?s ?p ?o }", "ASK is not supported"),
        ("SELECT ?s WHERE { ?s ?p ?o FILTER regex(?o, 'x') }", "REGEX in FILTER is not supported"),
        ("SELECT ?s WHERE { ?s dc:title/dc:title ?o }", "property path is not supported"),
        ("SELECT ?s WHERE { ?s ?p 1.5 }", "literal of type .*decimal is not supported"),
        ("SELECT ?s WHERE { ?s ?p ?o MINUS { ?s a ?o } }", "MINUS is not supported"),
        (
            "SELECT ?s WHERE { ?s ?p ?o FILTER (?x = 1) }",
            r"FILTER looks at \?x, which its group does not bind",
        ),
        ("SELECT ?s WHERE { ?s ?p ?o } ORDER BY (?o + 1)", "ORDER BY an expression is not supported"),
        ("SELECT ?N ?n WHERE { ?n ?p ?N }", "'n' comes out twice"),
        ("SELECT ?s WHERE { ?s ?p }", "does not parse: line 1"),
        ("SELECT ?s WHERE { ?s unknown:p ?o }", r"what the prefix 'unknown:' stands for. Begin with 'PREFIX"),
        ("INSERT DATA { <a:b> <a:c> <a:d> }", r"INSERT \(triples are only read\) is not supported"),
        ("CONSTRUCT { ?s ?p ?o } WHERE { ?s ?p ?o }", "CONSTRUCT is not supported"),
        ("DESCRIBE <http://a/b>", "DESCRIBE is not supported"),
        ("SELECT ?s FROM <http://a/> WHERE { ?s ?p ?o }", "FROM is not supported"),
        ("SELECT REDUCED ?s WHERE { ?s ?p ?o }", "REDUCED is not supported"),
        ("SELECT ?s WHERE { VALUES ?s { <a:b> } ?s ?p ?o }", "VALUES or a query inside a query is not"),
        ("SELECT ?s WHERE { ?s ?p ?o BIND(?o AS ?x) }", "BIND, AS or an aggregate is not supported"),
        ("SELECT ?s WHERE { SERVICE <http://a/> { ?s ?p ?o } }", "SERVICE is not supported"),
        ("SELECT ?s WHERE { GRAPH ?g { ?s ?p ?o } }", "GRAPH is not supported"),
        ("SELECT ?s WHERE { ?s ?p ?o FILTER NOT EXISTS { ?s a ?o } }", "NOT EXISTS in FILTER is not"),
        ("SELECT ?s WHERE { ?s ?p ?o FILTER (?o IN (1, 2)) }", "'IN' in FILTER is not supported"),
        ("SELECT ?s WHERE { ?s ?p ?o FILTER (?o + 1 < 3) }", r"\+ or - in FILTER is not supported"),
        ("SELECT ?s WHERE { ?s ?p 'x'@en }", 'the term "x"@en is not supported'),
        ("SELECT ?s WHERE { }", "a group without a triple pattern is not supported"),
        ("SELECT ?s WHERE { ?s ?p ?o FILTER (1 = 1) }", "compares two constants"),
        ("  ", "give the question as text"),
        ("SELECT ?s WHERE { ?s ?p ?o OPTIONAL { ?s dc:title ?t } ?t ?q ?z }", r"\?t joins patterns"),
    ],
)
def test_what_is_not_supported_is_named(text: str, said: str, small: tuple[Path, Oracle]) -> None:
    with pytest.raises(PipelineError, match=said):
        hg.App("test").sparql(text, small[0])


def test_data_that_cannot_be_read_is_named(tmp_path: Path, small: tuple[Path, Oracle]) -> None:
    def refused(data: Path, said: str) -> None:
        with pytest.raises(SourceError, match=said):
            hg.App("test").sparql("SELECT ?s WHERE { ?s ?p ?o }", data)

    refused(tmp_path / "nowhere", "there is no folder '.*nowhere'. 'headgate generate sp2bench")
    refused(tmp_path, "there are no triples in")
    data = tmp_path / "copy"
    shutil.copytree(small[0], data)
    known = json.loads((data / "store.json").read_text())
    for changed, said in (
        (
            known | {"format": 7},
            r"another version of Headgate \(format 7, this one reads 1\). Write it again",
        ),
        ({"format": 1}, "store.json' is damaged"),
        ([], "store.json' is damaged"),
    ):
        (data / "store.json").write_text(json.dumps(changed))
        refused(data, said)
    (data / "store.json").write_text("{")
    refused(data, "store.json' cannot be read")
    (data / "store.json").write_text(json.dumps(known))
    (data / "triples.parquet").unlink()
    refused(data, "triples.parquet' is missing")


def test_the_command_prints_an_answer(headgate: Callable[..., str], small: tuple[Path, Oracle]) -> None:
    text = "SELECT ?c WHERE { ?c rdfs:subClassOf ?d } ORDER BY ?c LIMIT 2"
    assert headgate("request", text, "--data", small[0], "--csv").splitlines() == [
        '"c"',
        '"http://localhost/vocabulary/bench/Article"',
        '"http://localhost/vocabulary/bench/Book"',
    ]
    assert "bench/Article" in headgate("request", text, "--data", small[0])
    assert "sort" in headgate("request", text, "--data", small[0], "--show")
    with pytest.raises(PipelineError, match=r"there is no file .nothing\.rq."):
        headgate("request", "nothing.rq", "--data", small[0])
