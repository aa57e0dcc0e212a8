"""The documents of all years as numbers: who wrote, cites and contains whom.

Everything is drawn for a whole year at once.  A year's triples belong to its documents by their places in the
year, so that the last year can be cut behind the document with which there are enough triples.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.workloads.sp2bench import growth
from benchmarks.workloads.sp2bench.growth import ATTRIBUTES, CLASSES

Ints = npt.NDArray[np.int64]
ERDOES = -1
"""The person that has a name of his own."""
PAGES, LONGEST, PER_VOLUME = 400, 40, 12
"""First pages, pages of a document, numbers of a volume."""

WRITTEN = 1 << 20
"""Authorships of earlier years that are remembered."""
RANK_BITS = 32
_PROCEEDINGS = CLASSES.index("Proceedings")

OWN = ("ee", "url", "isbn", "note", "abstract")
"""Attributes whose value no other document has: they are numbered."""
_BY_YEAR = ("volume", "number", "month", "chapter")


Drawn = tuple[str, Ints, Ints]
"""An attribute, and pairs: documents and values, or by ``member-N`` bags and documents."""


@dataclass
class Counts:
    """How many there are of what; complete when all years are drawn."""

    documents: Ints = field(default_factory=lambda: np.zeros(len(CLASSES), dtype=np.int64))
    """By class."""
    own: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Of persons, bags, and attributes' own values."""
    erdoes: bool = False
    """Whether he has written anything."""
    year: int = growth.FIRST_YEAR
    """The last one."""
    triples: int = len(CLASSES)
    """At first: that they are classes of documents."""


def coded(kind: int | Ints, rank: int | Ints) -> Any:
    """A document as a number: its class, and its place in the class."""
    return np.left_shift(kind, RANK_BITS) + rank


def decoded(documents: Ints) -> tuple[Ints, Ints]:
    return documents >> RANK_BITS, documents & ((1 << RANK_BITS) - 1)


def draw(triples: int, seed: int, counts: Counts) -> Iterator[Drawn]:
    """Documents from 1936 on, year by year, until there are so many triples.

    What is held is one year, whose documents the curves bound, and ``WRITTEN`` authors of those before.
    """
    state = _State(np.random.default_rng(seed))
    while counts.triples < triples:
        yield from _Year(counts, state).settle(triples)
        counts.year += 1
    counts.year -= 1


@dataclass
class _State:
    """What a year needs of those before it."""

    random: np.random.Generator
    due: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Documents of each class that the curves promise, less those that were made: less than one."""
    documents: int = 0
    begins: list[int] = field(default_factory=list)
    """By year and class, how many documents there are before them."""
    firsts: list[int] = field(default_factory=list)
    """And the first one."""
    journals: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    proceedings: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """The last year's that had any."""
    written: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """An even sample of authorships: who has written much is drawn more often."""
    authorships: int = 0

    def remember(self, authors: Ints) -> None:
        """Keep the sample even (reservoir sampling)."""
        free = max(WRITTEN - len(self.written), 0)
        self.written = np.concatenate([self.written, authors[:free]])
        rest = authors[free:]
        if len(rest):
            place = self.authorships + min(free, len(authors)) + np.arange(len(rest))
            chosen = (self.random.random(len(rest)) * (place + 1)).astype(np.int64)
            kept = chosen < WRITTEN
            self.written[chosen[kept]] = rest[kept]
        self.authorships += len(authors)

    def document(self, numbers: Ints) -> Ints:
        """Documents of the years before, by their place in time."""
        which = np.searchsorted(self.begins, numbers, side="right") - 1
        found: Ints = np.array(self.firsts)[which] + numbers - np.array(self.begins)[which]
        return found


class _Year:
    def __init__(self, made: Counts, state: _State) -> None:
        self.made, self.state, self.year, self.random = made, state, made.year, state.random
        counts = [self._count(name) for name in CLASSES]
        first = counts[0] + counts[1]
        kinds = np.repeat(np.arange(len(CLASSES)), counts)
        kinds[first:] = self.random.permutation(kinds[first:])
        self.kinds = kinds
        self.size = len(kinds)
        self.start = state.documents
        self.documents = np.empty(self.size, dtype=np.int64)
        for kind, before in enumerate(made.documents):
            those = np.flatnonzero(kinds == kind)
            self.documents[those] = coded(kind, before + np.arange(len(those)))
        self.found: list[tuple[str, Ints, Ints, Ints]] = []
        """Attribute, places in the year, subjects, objects."""
        if counts[0]:
            state.journals = self.documents[: counts[0]]
        if counts[1]:
            state.proceedings = self.documents[counts[0] : first]
        self._attributes()
        self._authors()
        self._editors()
        self._citations()

    def _count(self, name: str) -> int:
        if name in growth.EVEN:
            return (
                int(self.random.integers(0, growth.EVEN[name] + 1)) if self.year >= growth.THESES_FROM else 0
            )
        due = self.state.due[name] + growth.documents(name, self.year)
        self.state.due[name] = due - int(due)
        return int(due)

    def _having(self, attribute: str) -> Ints:
        """Places of the documents that have an attribute."""
        shares = np.array(ATTRIBUTES[attribute])[self.kinds]
        return np.flatnonzero(self.random.random(self.size) < shares)

    def _add(self, attribute: str, places: Ints, objects: Ints, subjects: Ints | None = None) -> None:
        if len(places):
            self.found.append(
                (attribute, places, self.documents[places] if subjects is None else subjects, objects)
            )

    def _new(self, what: str, places: Ints) -> Ints:
        """Numbers for values of their own, in the order of documents."""
        return self.made.own[what] + np.arange(len(places))

    def _some(self, among: Ints, count: int) -> Ints:
        return among[self.random.integers(0, len(among), count)]

    def _attributes(self) -> None:
        everything = np.arange(self.size)
        self._add("type", everything, self.kinds)
        self._add("title", everything, self.start + everything)
        having = self._having("year")
        self._add("year", having, np.full(len(having), self.year))
        for name in ("ee", "url", "isbn", "note"):
            having = self._having(name)
            self._add(name, having, self._new(name, having))
        papers = np.isin(self.kinds, [CLASSES.index("Article"), CLASSES.index("Inproceedings")])
        having = np.flatnonzero(papers & (self.random.random(self.size) < growth.ABSTRACTS))
        self._add("abstract", having, self._new("abstract", having))
        for name, highest in zip(_BY_YEAR, (self.year - 1930, PER_VOLUME, 12, 20), strict=True):
            having = self._having(name)
            self._add(name, having, self.random.integers(1, highest + 1, len(having)))
        for name, kinds in (
            ("publisher", 200),
            ("school", 200),
            ("series", 100),
            ("cdrom", 100),
            ("address", 50),
        ):
            having = self._having(name)
            self._add(name, having, self.random.integers(0, kinds, len(having)))
        having = self._having("pages")
        first = self.random.integers(1, PAGES, len(having))
        self._add("pages", having, first * LONGEST + self.random.integers(0, LONGEST, len(having)))
        for name, parents in (("journal", self.state.journals), ("crossref", self.state.proceedings)):
            having = self._having(name)
            if len(parents):
                self._add(name, having, self._some(parents, len(having)))
        having = self._having("booktitle")
        known = self.state.proceedings if len(self.state.proceedings) else np.array([coded(_PROCEEDINGS, 0)])
        self._add("booktitle", having, self._some(known, len(having)))

    def _authors(self) -> None:
        """The year's persons share the places of authors among them, each at least one, some many.

        New persons are numbered in the order of the documents on which they come first.
        """
        state, year = self.state, self.year
        having = self._having("author")
        mean, deviation = growth.authors_per_document(year)
        each = np.maximum(np.rint(self.random.normal(mean, deviation, len(having))), 1).astype(np.int64)
        places = np.repeat(having, each)
        if not len(places):
            return
        distinct = max(round(growth.distinct_share(year) * len(places)), 1)
        new = max(round(growth.new_share(year) * distinct), 1)
        old = np.unique(self._some(state.written, distinct - new)) if len(state.written) else places[:0]
        new = distinct - len(old)
        known = self.made.own["person"]
        pool = np.concatenate([old, known + np.arange(new)])
        more = (distinct * self.random.random(len(places) - distinct) ** 3).astype(np.int64)
        persons = self.random.permutation(np.concatenate([pool, self.random.permutation(pool)[more]]))
        if year in growth.ERDOES:
            firsts = np.flatnonzero(np.diff(places, prepend=-1))
            persons[self.random.permutation(firsts)[: growth.ERDOES_WRITES]] = ERDOES
        fresh = persons >= known
        come, first, inverse = np.unique(persons[fresh], return_index=True, return_inverse=True)
        rank = np.empty(len(come), dtype=np.int64)
        rank[np.argsort(first)] = np.arange(len(come))
        persons[fresh] = known + rank[inverse]
        self._add("author", *_unique(places, persons))
        first_place = np.empty(len(come), dtype=np.int64)
        first_place[rank] = places[fresh][first]
        self._add("person", first_place, known + np.arange(len(come)), known + np.arange(len(come)))

    def _editors(self) -> None:
        having = self._having("editor")
        if not len(having) or not len(self.state.written):
            return
        each = np.maximum(np.rint(self.random.normal(*growth.EDITORS, len(having))), 1).astype(np.int64)
        places = np.repeat(having, each)
        persons = self._some(self.state.written, len(places))
        if self.year in growth.ERDOES:
            persons[
                self.random.permutation(np.flatnonzero(np.diff(places, prepend=-1)))[: growth.ERDOES_EDITS]
            ] = ERDOES
        self._add("editor", *_unique(places, persons))

    def _citations(self) -> None:
        """Who cites cites a bag; of the years before, old documents are cited most."""
        having = self._having("cite")
        if not len(having) or not self.start:
            return
        bags = self._new("bag", having)
        self._add("cite", having, bags)
        each = np.maximum(np.rint(self.random.normal(*growth.CITATIONS, len(having))), 1).astype(np.int64)
        places, bag = np.repeat(having, each), np.repeat(bags, each)
        drawn = (self.start * self.random.random(len(places)) ** 3).astype(np.int64)
        cited = self.state.document(drawn)
        member = np.arange(len(places)) - np.repeat(np.cumsum(each) - each, each)
        for number in range(int(each.max())):
            those = member == number
            self._add(f"member-{number + 1}", places[those], cited[those], bag[those])

    def settle(self, triples: int) -> Iterator[Drawn]:
        """Keep the year's documents, or as many of them as it takes."""
        made, state = self.made, self.state
        each = np.zeros(self.size, dtype=np.int64)
        for attribute, places, _, _ in self.found:
            # A person has a class and a name; so has a bag a class.
            each += np.bincount(places, minlength=self.size) * (2 if attribute in ("person", "cite") else 1)
        erdoes = not made.erdoes and self.year in growth.ERDOES
        total = made.triples + (2 if erdoes else 0) + np.cumsum(each)
        kept = int(np.searchsorted(total, triples)) + 1
        for attribute, places, subjects, objects in self.found:
            there = places < kept
            yield attribute, subjects[there], objects[there]
            if attribute in ("person", "cite", *OWN):
                made.own["bag" if attribute == "cite" else attribute] += int(there.sum())
            if attribute == "author":
                made.erdoes |= bool((objects[there] == ERDOES).any())
                state.remember(objects[there & (objects != ERDOES)])
        for kind, count in enumerate(np.bincount(self.kinds[:kept], minlength=len(CLASSES)).tolist()):
            if count:
                state.begins.append(state.documents)
                state.firsts.append(int(coded(kind, int(made.documents[kind]))))
                state.documents += count
                made.documents[kind] += count
        if self.size:
            made.triples = int(total[min(kept, self.size) - 1]) - (2 if erdoes and not made.erdoes else 0)


def _unique(places: Ints, persons: Ints) -> tuple[Ints, Ints]:
    """The pairs without repetition, by place: nobody is an author of a document twice."""
    pairs = np.unique((places << 32) + persons + 1)
    return pairs >> 32, (pairs & 0xFFFF_FFFF) - 1
