"""SP²Bench's bibliography as triples: a dictionary, indices by predicate, and N-Triples.

    from benchmarks.workloads import sp2bench

    sp2bench.generate("data/sp2bench", triples=1_000_000)

The same number of triples and seed give the same files.  ``queries`` has the benchmark's questions.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.workloads.sp2bench import documents, terms
from benchmarks.workloads.sp2bench.documents import ERDOES, LONGEST, PAGES, Counts, Ints, decoded
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

    An earlier run's files there are replaced.  What is held at a time is a year's documents and a few chunks
    of triples, however many there are: they wait in files of the folder.
    """
    root, tell = Path(directory), progress or (lambda *_: None)
    root.mkdir(parents=True, exist_ok=True)
    (root / "store.json").unlink(missing_ok=True)
    for folder in ("by_subject", "by_object"):
        shutil.rmtree(root / folder, ignore_errors=True)
    counts = Counts()
    with tempfile.TemporaryDirectory(prefix="drawn-", dir=root) as folder:
        drawn = _Drawn(Path(folder))
        for attribute, s, o in documents.draw(triples, seed, counts):
            drawn.add(attribute, s, o)
            tell("years", min(counts.triples, triples), triples)
        dictionary = _dictionary(counts, drawn.attributes, seed)
        writer = StoreWriter(root, dictionary.kinds())
        done = 0
        for batch in dictionary.chunks(CHUNK):
            writer.terms(batch)
            tell("terms", done := done + batch.num_rows, len(dictionary))
        numbers = _Numbers(counts, dictionary)
        for predicate, parts in sorted(numbers.predicates(drawn).items()):
            writer.predicate(predicate, chain.from_iterable(part() for part in parts))
            tell("indices", writer.rows, counts.triples)
    with open(root / "data.nt", "wb") as file:
        for done, batch in writer.all_triples(CHUNK):
            file.write(_lines(dictionary, batch))
            tell("triples", done, writer.rows)
    writer.close()
    return writer.rows


class _Drawn:
    """Pairs by attribute, in files until all are drawn and everything can be numbered."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.attributes: list[str] = []

    def add(self, attribute: str, s: Ints, o: Ints) -> None:
        if not len(s):
            return
        if attribute not in self.attributes:
            self.attributes.append(attribute)
        with open(self._folder / attribute, "ab") as file:
            file.write(np.column_stack([s, o]).tobytes())

    def chunks(self, attribute: str) -> Iterator[tuple[Ints, Ints]]:
        with open(self._folder / attribute, "rb") as file:
            while data := file.read(16 * CHUNK):
                pairs = np.frombuffer(data, dtype=np.int64).reshape(-1, 2)
                yield pairs[:, 0], pairs[:, 1]


def _lines(dictionary: Dictionary, batch: pa.RecordBatch) -> bytes:
    parts = [dictionary.spelled(batch.column(place).to_numpy().astype(np.int64)) for place in range(3)]
    lines = pc.binary_join_element_wise(*parts, " ")
    lines = pc.binary_join_element_wise(lines, " .\n", "")
    # The lines stand one after the other in the array's buffer already.
    _, offsets, data = lines.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)
    return bytes(data[int(ends[lines.offset]) : int(ends[lines.offset + len(lines)])])


def _dictionary(counts: Counts, attributes: Sequence[str], seed: int) -> Dictionary:
    own, size = counts.own, int(counts.documents.sum())
    persons, proceedings = own["person"], int(counts.documents[_PROCEEDINGS])
    texts = [
        Family("person", BLANK, persons, numbered("_:person")),
        Family("bag", BLANK, own["bag"], numbered("_:references")),
        Family("ee", IRI, own["ee"], numbered("http://ee.localhost/document", after=".html")),
        Family("url", IRI, own["url"], numbered("http://homepage.localhost/document", after=".html")),
        Family("integer", INTEGER, counts.year + 1, _integers),
        Family("pages", STRING, PAGES * LONGEST, terms.pages(LONGEST)),
        Family("name", STRING, persons + 1, terms.names(persons)),
        Family(
            "abstract",
            STRING,
            own["abstract"],
            terms.worded("abstract", terms.abstracts(seed), own["abstract"]),
        ),
        Family("address", STRING, 50, numbered("address ", 4)),
        Family("booktitle", STRING, max(proceedings, 1), numbered("conference ")),
        Family("cdrom", STRING, 100, numbered("cdrom ", 4)),
        Family("isbn", STRING, own["isbn"], numbered("isbn 0-")),
        Family("note", STRING, own["note"], numbered("note ")),
        Family("publisher", STRING, 200, numbered("publisher ", 4)),
        Family("school", STRING, 200, numbered("school ", 4)),
        Family("series", STRING, 100, numbered("series ", 4)),
        Family("title", STRING, size, terms.worded("title", terms.paragraphs(seed + 1, 256, 4), size)),
    ]
    for number, name in enumerate(CLASSES):
        path = f"{_PLACE}{name.lower()}/{name}"
        texts.append(Family(name, IRI, int(counts.documents[number]), numbered(path)))
        texts.append(Family(_BENCH + name, IRI, 1, fixed(_BENCH + name)))
    members = [_member(name) for name in attributes if name.startswith("member-")]
    for iri in {*PREDICATES.values(), *members, _DOCUMENT, _PERSON, _BAG, _ERDOES}:
        texts.append(Family(iri, IRI, 1, fixed(iri)))
    return Dictionary(texts)


def _integers(numbers: Ints) -> pa.Array:
    return pa.array(numbers).cast(pa.string())


def _member(attribute: str) -> str:
    return f"{_RDF}_{attribute.removeprefix('member-')}"


def _scattered(numbers: Ints, size: int) -> Ints:
    """Each of so many numbers as another of them: neighbours are far from each other."""
    step = max(int(size * 0.618), 1)
    while math.gcd(step, size) > 1:
        step += 1
    return numbers * step % max(size, 1)


class _Numbers:
    """What was drawn as numbers of the dictionary."""

    def __init__(self, counts: Counts, terms_: Dictionary) -> None:
        self._counts, self._begin = counts, terms_.begin
        self._size = int(counts.documents.sum())
        self._classes = np.array([terms_.begin(_BENCH + name) for name in CLASSES])
        self._firsts = np.array(
            [terms_.begin(name) if counts.documents[n] else 0 for n, name in enumerate(CLASSES)]
        )
        name: Any = next(family for family in terms_.families if family.name == "name").text
        self._erdoes = int(name.erdoes)

    def predicates(self, drawn: _Drawn) -> dict[int, list[Callable[[], Iterator[tuple[Ints, Ints]]]]]:
        """By predicate, what gives chunks of its subjects and objects."""
        found: dict[int, list[Callable[[], Iterator[tuple[Ints, Ints]]]]] = defaultdict(list)

        def add(iri: str, chunks: Callable[[], Iterator[tuple[Ints, Ints]]]) -> None:
            found[self._begin(iri)].append(chunks)

        begin = self._begin
        for attribute in drawn.attributes:
            if attribute == "person":
                add(PREDICATES["type"], partial(self._persons, drawn, self._is_person))
                add(PREDICATES["name"], partial(self._persons, drawn, self._named))
            elif attribute.startswith("member-"):
                add(_member(attribute), partial(self._members, drawn, attribute))
            else:
                add(PREDICATES[attribute], partial(self._attribute, drawn, attribute))
                if attribute == "cite":
                    add(PREDICATES["type"], partial(self._bags, drawn))
        add(
            PREDICATES["subclass"],
            lambda: iter([(self._classes, np.full(len(CLASSES), begin(_DOCUMENT)))]),
        )
        return found

    def _document(self, documents: Ints) -> Ints:
        kinds, ranks = decoded(documents)
        found: Ints = self._firsts[kinds] + ranks
        return found

    def _person(self, numbers: Ints) -> Ints:
        return np.where(numbers == ERDOES, self._begin(_ERDOES), self._begin("person") + numbers)

    def _persons(self, drawn: _Drawn, objects: Callable[[Ints], Ints]) -> Iterator[tuple[Ints, Ints]]:
        for s, _ in drawn.chunks("person"):
            yield self._person(s), objects(s)
        if self._counts.erdoes:
            himself = np.array([ERDOES])
            yield self._person(himself), objects(himself)

    def _is_person(self, persons: Ints) -> Ints:
        return np.full(len(persons), self._begin(_PERSON))

    def _named(self, persons: Ints) -> Ints:
        rank = _scattered(persons, self._counts.own["person"])
        rank = np.where(persons == ERDOES, self._erdoes, rank + (rank >= self._erdoes))
        return self._begin("name") + rank

    def _members(self, drawn: _Drawn, attribute: str) -> Iterator[tuple[Ints, Ints]]:
        for s, o in drawn.chunks(attribute):
            yield self._begin("bag") + s, self._document(o)

    def _bags(self, drawn: _Drawn) -> Iterator[tuple[Ints, Ints]]:
        for _, o in drawn.chunks("cite"):
            yield self._begin("bag") + o, np.full(len(o), self._begin(_BAG))

    def _attribute(self, drawn: _Drawn, attribute: str) -> Iterator[tuple[Ints, Ints]]:
        for s, o in drawn.chunks(attribute):
            yield self._document(s), self._objects(attribute, o)

    def _objects(self, attribute: str, numbers: Ints) -> Ints:
        begin = self._begin
        if attribute == "type":
            return self._classes[numbers]
        if attribute == "title":
            return begin("title") + _scattered(numbers, self._size)
        if attribute in ("author", "editor"):
            return self._person(numbers)
        if attribute in ("journal", "crossref"):
            return self._document(numbers)
        if attribute == "booktitle":  # of a conference
            return begin("booktitle") + decoded(numbers)[1]
        if attribute in ("year", "volume", "number", "month", "chapter"):
            return begin("integer") + numbers
        return begin("bag" if attribute == "cite" else attribute) + numbers
