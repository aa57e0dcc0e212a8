"""SP²Bench's bibliography as triples: a dictionary, indices by predicate, and N-Triples.

    from benchmarks.workloads import sp2bench

    sp2bench.generate("data/sp2bench", triples=1_000_000)

The same number of triples and seed give the same files.  ``queries`` has the benchmark's questions.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.workloads.sp2bench import documents, terms
from benchmarks.workloads.sp2bench.documents import ERDOES, LONGEST, PAGES, Bibliography, Ints
from benchmarks.workloads.sp2bench.growth import CLASSES
from benchmarks.workloads.sp2bench.terms import Dictionary, Family, fixed, numbered
from headgate.connectors.triples import BLANK, INTEGER, IRI, STRING, StoreWriter

CHUNK = 131_072
Progress = Callable[[str, int, int], None]
"""Called with what is written, how much of it is done, and how much there will be."""

_DC, _DCTERMS = "http://purl.org/dc/elements/1.1/", "http://purl.org/dc/terms/"
_SWRC, _FOAF = "http://swrc.ontoware.org/ontology#", "http://xmlns.com/foaf/0.1/"
_RDF, _RDFS = "http://www.w3.org/1999/02/22-rdf-syntax-ns#", "http://www.w3.org/2000/01/rdf-schema#"
_BENCH = "http://localhost/vocabulary/bench/"
_PLACE = "http://localhost/publications/"

PREDICATES = {
    "type": _RDF + "type",
    "name": _FOAF + "name",
    "subclass": _RDFS + "subClassOf",
    "title": _DC + "title",
    "year": _DCTERMS + "issued",
    "author": _DC + "creator",
    "editor": _SWRC + "editor",
    "journal": _SWRC + "journal",
    "crossref": _DCTERMS + "partOf",
    "booktitle": _BENCH + "booktitle",
    "pages": _SWRC + "pages",
    "volume": _SWRC + "volume",
    "number": _SWRC + "number",
    "month": _SWRC + "month",
    "chapter": _SWRC + "chapter",
    "note": _BENCH + "note",
    "isbn": _SWRC + "isbn",
    "series": _SWRC + "series",
    "publisher": _DC + "publisher",
    "school": _DC + "publisher",
    "address": _SWRC + "address",
    "cdrom": _BENCH + "cdrom",
    "abstract": _BENCH + "abstract",
    "ee": _RDFS + "seeAlso",
    "url": _FOAF + "homepage",
    "cite": _DCTERMS + "references",
}
"""What DBLP's attributes are called in RDF (SP²Bench, table of the translation)."""
_DOCUMENT, _PERSON, _BAG = _FOAF + "Document", _FOAF + "Person", _RDF + "Bag"
_ERDOES = "http://localhost/persons/Paul_Erdoes"
_PROCEEDINGS = CLASSES.index("Proceedings")


def generate(directory: str | Path, triples: int, seed: int = 0, progress: Progress | None = None) -> int:
    """Write at least so many triples, up to the end of the document that has the last; how many it were.

    An earlier run's files there are replaced.  What is held at a time are the numbers of all triples (some 30
    bytes each), never their texts.
    """
    root, tell = Path(directory), progress or (lambda *_: None)
    made = documents.draw(triples, seed)
    dictionary = _dictionary(made, seed)
    pairs = dict(_pairs(made, dictionary, seed))
    del made
    if root.is_dir():
        (root / "store.json").unlink(missing_ok=True)
        for folder in ("by_subject", "by_object"):
            shutil.rmtree(root / folder, ignore_errors=True)
    writer = StoreWriter(root, dictionary.kinds())
    done = 0
    for batch in dictionary.chunks(CHUNK):
        writer.terms(batch)
        tell("terms", done := done + batch.num_rows, len(dictionary))
    total = sum(len(s) for s, _ in pairs.values())
    for predicate in sorted(pairs):
        writer.predicate(predicate, *pairs.pop(predicate))
        tell("indices", writer.rows, total)
    with open(root / "data.nt", "wb") as file:
        for done, batch in writer.all_triples(CHUNK):
            file.write(_lines(dictionary, batch))
            tell("triples", done, total)
    writer.close()
    return total


def _lines(dictionary: Dictionary, batch: pa.RecordBatch) -> bytes:
    parts = [dictionary.spelled(batch.column(place).to_numpy().astype(np.int64)) for place in range(3)]
    lines = pc.binary_join_element_wise(*parts, " ")
    lines = pc.binary_join_element_wise(lines, " .\n", "")
    # The lines stand one after the other in the array's buffer already.
    _, offsets, data = lines.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)
    return bytes(data[int(ends[lines.offset]) : int(ends[lines.offset + len(lines)])])


def _dictionary(made: Bibliography, seed: int) -> Dictionary:
    counts, kinds = made.counts, np.concatenate(made.classes)
    persons, size = counts["person"], len(kinds)
    texts = [
        Family("person", BLANK, persons, numbered("_:person")),
        Family("bag", BLANK, counts["bag"], numbered("_:references")),
        Family("ee", IRI, counts["ee"], numbered("http://ee.localhost/document", after=".html")),
        Family("url", IRI, counts["url"], numbered("http://homepage.localhost/document", after=".html")),
        Family("integer", INTEGER, max(int(made.column("year")[1].max()), 100) + 1, _integers),
        Family("pages", STRING, PAGES * LONGEST, terms.pages(LONGEST)),
        Family("name", STRING, persons + 1, terms.names(persons)),
        Family(
            "abstract",
            STRING,
            counts["abstract"],
            terms.worded("abstract", terms.abstracts(seed), counts["abstract"]),
        ),
        Family("address", STRING, 50, numbered("address ", 4)),
        Family("booktitle", STRING, max(int((kinds == _PROCEEDINGS).sum()), 1), numbered("conference ")),
        Family("cdrom", STRING, 100, numbered("cdrom ", 4)),
        Family("isbn", STRING, counts["isbn"], numbered("isbn 0-")),
        Family("note", STRING, counts["note"], numbered("note ")),
        Family("publisher", STRING, 200, numbered("publisher ", 4)),
        Family("school", STRING, 200, numbered("school ", 4)),
        Family("series", STRING, 100, numbered("series ", 4)),
        Family("title", STRING, size, terms.worded("title", terms.paragraphs(seed + 1, 256, 4), size)),
    ]
    for number, name in enumerate(CLASSES):
        path = f"{_PLACE}{name.lower()}/{name}"
        texts.append(Family(name, IRI, int((kinds == number).sum()), numbered(path)))
        texts.append(Family(_BENCH + name, IRI, 1, fixed(_BENCH + name)))
    members = [_member(name) for name in made.pairs if name.startswith("member-")]
    for iri in {*PREDICATES.values(), *members, _DOCUMENT, _PERSON, _BAG, _ERDOES}:
        texts.append(Family(iri, IRI, 1, fixed(iri)))
    return Dictionary(texts)


def _integers(numbers: Ints) -> pa.Array:
    return pa.array(numbers).cast(pa.string())


def _member(attribute: str) -> str:
    return f"{_RDF}_{attribute.removeprefix('member-')}"


def _pairs(made: Bibliography, terms_: Dictionary, seed: int) -> Iterator[tuple[int, tuple[Any, Any]]]:
    """By predicate the numbers of subjects and objects in the dictionary."""
    kinds = np.concatenate(made.classes)
    document = np.empty(len(kinds), dtype=np.int64)
    for number, name in enumerate(CLASSES):
        those = np.flatnonzero(kinds == number)
        if len(those):
            document[those] = terms_.begin(name) + np.arange(len(those))
    random = np.random.default_rng(seed + 2)
    title = random.permutation(len(kinds))
    named = random.permutation(made.counts["person"])
    begin = terms_.begin
    first = document[np.argmax(kinds == _PROCEEDINGS)]

    def person(numbers: Ints) -> Ints:
        return np.where(numbers == ERDOES, begin(_ERDOES), begin("person") + numbers)

    def objects(attribute: str, numbers: Ints) -> Ints:
        if attribute == "type":
            return np.array([begin(_BENCH + name) for name in CLASSES])[numbers]
        if attribute == "title":
            return begin("title") + title[numbers]
        if attribute in ("author", "editor"):
            return person(numbers)
        if attribute in ("journal", "crossref"):
            return document[numbers]
        if attribute == "booktitle":  # of a conference; before there are any, of the first
            known = kinds[numbers] == _PROCEEDINGS
            return begin("booktitle") + np.where(known, document[numbers] - first, 0)
        if attribute in ("year", "volume", "number", "month", "chapter"):
            return begin("integer") + numbers
        return begin("bag" if attribute == "cite" else attribute) + numbers

    found: dict[int, list[tuple[Ints, Ints]]] = {}

    def add(iri: str, s: Ints, o: Ints) -> None:
        found.setdefault(begin(iri), []).append((s, o))

    for attribute in list(made.pairs):
        s, o = made.column(attribute)
        if not len(s):
            continue
        if attribute == "person":
            everybody = begin("person") + s
            add(PREDICATES["type"], everybody, np.full(len(s), begin(_PERSON)))
            rank = named[s]
            text: Any = next(f for f in terms_.families if f.name == "name").text
            add(PREDICATES["name"], everybody, begin("name") + rank + (rank >= text.erdoes))
            himself = np.array([begin(_ERDOES)])
            if (made.column("author")[1] == ERDOES).any():
                add(PREDICATES["type"], himself, np.array([begin(_PERSON)]))
                add(PREDICATES["name"], himself, np.array([begin("name") + text.erdoes]))
        elif attribute.startswith("member-"):
            add(_member(attribute), begin("bag") + s, document[o])
        else:
            add(PREDICATES[attribute], document[s], objects(attribute, o))
            if attribute == "cite":
                add(PREDICATES["type"], begin("bag") + o, np.full(len(o), begin(_BAG)))
    classes = np.array([begin(_BENCH + name) for name in CLASSES])
    add(PREDICATES["subclass"], classes, np.full(len(classes), begin(_DOCUMENT)))
    for predicate, parts in found.items():
        subjects, values = (
            np.concatenate([pair[side] for pair in parts]).astype(np.int32) for side in (0, 1)
        )
        yield predicate, (subjects, values)
