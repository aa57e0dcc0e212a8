"""The dictionary: what every number is called, such that the order of numbers is the order of terms.

Terms come in families (articles, names, titles …).  A family's terms share a beginning that no other's have,
and then follow a number of fixed width, so a term's place in the whole order is computed, not sorted for, and
the text of any term can be made when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headgate.connectors.triples import BLANK, INTEGER, IRI, STRING

Ints = npt.NDArray[np.int64]
Text = Callable[[Ints], pa.Array]

FIRST = sorted(
    [
        "Ada",
        "Alan",
        "Anna",
        "Barbara",
        "Bela",
        "Boris",
        "Carla",
        "Cecil",
        "Dana",
        "David",
        "Edgar",
        "Elena",
        "Emil",
        "Erik",
        "Fiona",
        "Frank",
        "Georg",
        "Grace",
        "Hana",
        "Hugo",
        "Ida",
        "Igor",
        "Ines",
        "Ivan",
        "Jan",
        "Jana",
        "John",
        "Judith",
        "Karel",
        "Karin",
        "Klaus",
        "Lars",
        "Lea",
        "Leo",
        "Lena",
        "Marta",
        "Max",
        "Mila",
        "Milan",
        "Nora",
        "Olga",
        "Oskar",
        "Paula",
        "Petr",
        "Rita",
        "Robert",
        "Rosa",
        "Ruth",
        "Sara",
        "Simon",
        "Sofia",
        "Stefan",
        "Tamar",
        "Tomas",
        "Ulla",
        "Uwe",
        "Vera",
        "Viktor",
        "Walter",
        "Wanda",
        "Xenia",
        "Yuri",
        "Zdenek",
        "Zora",
    ]
)
_SYLLABLES = [a + b for a, b in product("bdfgklmnprstvz", "aeiou")]
LAST = sorted((a + b).capitalize() for a, b in product(_SYLLABLES[::5], _SYLLABLES[2::3]))
WORDS = sorted(a + b for a, b in product(_SYLLABLES[::2], _SYLLABLES[1::2]))
_LONG = 150
"""Words of an abstract."""
ERDOES_NAME = "Paul Erdoes"


@dataclass(frozen=True)
class Family:
    """Terms that differ in a number."""

    name: str
    kind: int
    size: int
    text: Text


def numbered(before: str, width: int = 8, after: str = "") -> Text:
    """``before00000012after``."""
    return lambda numbers: _joined(pa.scalar(before), _padded(numbers, width), pa.scalar(after))


def fixed(text: str) -> Text:
    return lambda numbers: pa.array([text] * len(numbers), pa.string())


def names(size: int) -> Text:
    """First and last name, and a number where there are more persons than names; one of them is Erdoes."""
    every = len(FIRST) * len(LAST)
    again = -(-size // every)
    width = len(str(again))
    firsts, lasts = pa.array(FIRST), pa.array(LAST)

    def drawn(numbers: Ints) -> pa.Array:
        spread = numbers * (every * again) // max(size, 1)
        which = spread // again
        text = _joined(firsts.take(which // len(LAST)), " ", lasts.take(which % len(LAST)))
        return text if again == 1 else _joined(text, " ", _padded(spread % again, width))

    low, high = 0, size - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (middle + 1, high) if drawn(np.array([middle]))[0].as_py() < ERDOES_NAME else (low, middle)
        )
    erdoes = low

    def text(numbers: Ints) -> pa.Array:
        made = drawn(numbers - (numbers > erdoes))
        return pc.if_else(pa.array(numbers == erdoes), ERDOES_NAME, made)

    text.erdoes = erdoes  # type: ignore[attr-defined]
    return text


def worded(before: str, paragraphs: Sequence[str], size: int) -> Text:
    """Three words that tell which of ``size`` texts it is, then words that may repeat."""
    words, texts, base = pa.array(WORDS), pa.array(paragraphs), len(WORDS)
    apart = base**3 // max(size, 1)

    def text(numbers: Ints) -> pa.Array:
        numbers = numbers * apart
        parts = [
            words.take(numbers // base**2 % base),
            words.take(numbers // base % base),
            words.take(numbers % base),
        ]
        return _joined(
            before, " ", parts[0], " ", parts[1], " ", parts[2], " ", texts.take(numbers % len(texts))
        )

    return text


def pages(longest: int) -> Text:
    return lambda n: _joined(_padded(n // longest, 3), "-", _padded(n // longest + n % longest, 3))


def paragraphs(seed: int, count: int, words: int) -> list[str]:
    random = np.random.default_rng(seed)
    return [" ".join(np.array(WORDS)[random.integers(0, len(WORDS), words)]) for _ in range(count)]


def abstracts(seed: int) -> list[str]:
    return paragraphs(seed, 64, _LONG)


def _padded(numbers: Ints, width: int) -> pa.Array:
    return pc.utf8_lpad(pa.array(numbers).cast(pa.string()), width, "0")


def _joined(*parts: object) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


class Dictionary:
    """Families in the order of their terms; a term's number is its family's begin plus its own."""

    def __init__(self, families: Sequence[Family]) -> None:
        there = [family for family in families if family.size]
        self.families = sorted(there, key=_place)
        sizes = [family.size for family in self.families]
        self.begins = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._begin = {f.name: int(b) for f, b in zip(self.families, self.begins[:-1], strict=True)}

    def __len__(self) -> int:
        return int(self.begins[-1])

    def begin(self, family: str) -> int:
        return self._begin[family]

    def kinds(self) -> list[int]:
        """Where the terms of each kind begin, and where the last end."""
        kinds = np.array([family.kind for family in self.families])
        return [int(self.begins[int(np.searchsorted(kinds, kind))]) for kind in range(STRING + 2)]

    def chunks(self, rows: int) -> Iterator[pa.RecordBatch]:
        """All terms in order, with their kinds."""
        for family in self.families:
            for begin in range(0, family.size, rows):
                text = family.text(np.arange(begin, min(begin + rows, family.size)))
                kind = pa.array(np.full(len(text), family.kind, dtype=np.int8))
                yield pa.record_batch([kind, text], ["kind", "text"])

    def spelled(self, ids: Ints) -> pa.Array:
        """Terms as N-Triples writes them."""
        if not len(ids):
            return pa.array([], pa.string())
        of = np.searchsorted(self.begins, ids, side="right") - 1
        order = np.argsort(of, kind="stable")
        parts = []
        for number in np.unique(of):
            family = self.families[number]
            text = family.text(ids[of == number] - self.begins[number])
            before, after = _MARKS[family.kind]
            parts.append(_joined(before, text, after))
        back = np.empty(len(ids), dtype=np.int64)
        back[order] = np.arange(len(ids))
        return pa.concat_arrays(parts).take(pa.array(back))


_MARKS = {
    BLANK: ("", ""),
    IRI: ("<", ">"),
    INTEGER: ('"', '"^^<http://www.w3.org/2001/XMLSchema#integer>'),
    STRING: ('"', '"'),
}


def _place(family: Family) -> tuple[int, str]:
    return family.kind, str(family.text(np.zeros(1, dtype=np.int64))[0].as_py())
