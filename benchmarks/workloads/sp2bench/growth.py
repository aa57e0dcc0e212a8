"""How many documents of which class a year has, and with which attributes (SP²Bench, sections III and IV).

The curves and tables are those that the benchmark's paper fits to DBLP (Schmidt, Hornung, Lausen, Pinkel:
"SP²Bench: A SPARQL Performance Benchmark", ICDE 2009).
"""

from __future__ import annotations

import math

FIRST_YEAR = 1936
THESES_FROM = 1980
"""Theses and web pages are drawn evenly between none and so many a year, from this year on."""
EVEN = {"PhDThesis": 20, "MastersThesis": 10, "Www": 10}
ERDOES = range(1940, 1997)
ERDOES_WRITES, ERDOES_EDITS = 10, 2
"""Paul Erdoes writes and edits so many documents in each of these years."""
EDITORS = (2.15, 1.18)
CITATIONS = (16.82, 10.07)
"""Mean and deviation, for a document that has any."""
ABSTRACTS = 0.01

CLASSES = (
    "Journal",
    "Proceedings",
    "Article",
    "Inproceedings",
    "Book",
    "Incollection",
    "PhDThesis",
    "MastersThesis",
    "Www",
)
"""Journals and proceedings come first in a year: its other documents refer to them."""

_CURVES = {
    "Journal": (740.43, 426.28, 0.12, 1950),
    "Proceedings": (5502.31, 1250.26, 0.14, 1965),
    "Article": (58519.12, 876.80, 0.12, 1950),
    "Inproceedings": (337132.34, 1901.05, 0.15, 1965),
    "Book": (52.97, 40739.38, 0.32, 1950),
    "Incollection": (3577.31, 196.49, 0.09, 1980),
}

_COLUMNS = (
    "Proceedings",
    "Article",
    "Inproceedings",
    "Book",
    "Incollection",
    "PhDThesis",
    "MastersThesis",
    "Www",
)
_SHARES = {
    "address": (0.0004, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    "author": (0.0001, 0.9895, 0.9970, 0.8937, 0.8459, 1.0, 1.0, 0.9973),
    "booktitle": (0.9579, 0.0006, 1.0, 0.0183, 1.0, 0.0, 0.0, 0.0001),
    "cdrom": (0.0, 0.0112, 0.0162, 0.0032, 0.0138, 0.0, 0.0, 0.0),
    "chapter": (0.0, 0.0, 0.0, 0.0, 0.0005, 0.0, 0.0, 0.0),
    "cite": (0.0001, 0.0048, 0.0104, 0.0079, 0.0047, 0.0, 0.0, 0.0),
    "crossref": (0.0016, 0.0006, 0.8003, 0.0, 0.6951, 0.0, 0.0, 0.0),
    "editor": (0.7992, 0.0, 0.0, 0.1040, 0.0, 0.0, 0.0, 0.0004),
    "ee": (0.0019, 0.6781, 0.6519, 0.0079, 0.3610, 0.1444, 0.0, 0.0),
    "isbn": (0.8592, 0.0, 0.0, 0.9294, 0.0073, 0.0222, 0.0, 0.0),
    "journal": (0.0004, 0.9994, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    "month": (0.0001, 0.0065, 0.0, 0.0008, 0.0, 0.0333, 0.0, 0.0),
    "note": (0.0002, 0.0297, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0273),
    "number": (0.0009, 0.9224, 0.0001, 0.0, 0.0, 0.0333, 0.0, 0.0),
    "pages": (0.0, 0.9261, 0.9489, 0.0, 0.6849, 0.0, 0.0, 0.0),
    "publisher": (0.9737, 0.0006, 0.0, 0.9992, 0.0237, 0.0444, 0.0, 0.0),
    "school": (0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0),
    "series": (0.5791, 0.0, 0.0, 0.5365, 0.0, 0.0222, 0.0, 0.0),
    "title": (1.0,) * 8,
    "url": (0.9860, 0.9986, 1.0, 0.2373, 0.9992, 0.0222, 0.3750, 0.9624),
    "volume": (0.5670, 0.9982, 0.0, 0.5024, 0.0, 0.0111, 0.0, 0.0),
    "year": (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0011),
}

ATTRIBUTES = {
    name: tuple(
        (1.0 if name in ("title", "year") else 0.0) if each == "Journal" else shares[_COLUMNS.index(each)]
        for each in CLASSES
    )
    for name, shares in _SHARES.items()
}
"""By attribute, for every class of ``CLASSES``, the share of documents that have it."""


def _logistic(high: float, slow: float, rate: float, year: float) -> float:
    return high / (1 + slow * math.exp(-rate * year))


def documents(name: str, year: int) -> float:
    """How many documents of a class a year has, by its curve."""
    high, slow, rate, start = _CURVES[name]
    return _logistic(high, slow, rate, year - start)


def authors_per_document(year: int) -> tuple[float, float]:
    """Mean and deviation."""
    return 2.05 * _logistic(1, 17.59, 0.11, year - 1975) + 1.05, _logistic(1, 6.46, 0.10, year - 1975) + 0.50


def distinct_share(year: int) -> float:
    """The year's different authors by all places that authors have on its documents."""
    return 0.84 - 0.67 * _logistic(1, 169.41, 0.07, year - 1936)


def new_share(year: int) -> float:
    """The year's authors who have not written before, by its different authors."""
    return 0.628 - 0.29 * _logistic(1, 749.00, 0.14, year - 1937)
