"""Any text at all is an expression or our error, wherever a stream takes one."""

from __future__ import annotations

import pytest
from expression_grammar import expressions
from expression_oracle import table
from hypothesis import given, settings
from hypothesis import strategies as st

import headgate as hg
from depth import examples
from headgate.errors import HeadgateError, PipelineError
from headgate.sql import supported_functions

ROWS = table(rows=4, seed=1).combine_chunks().to_batches()[0]
CHARACTERS = st.characters() | st.characters(categories=["Cs", "Cc"])
"""Lone surrogates and control characters more often than chance would bring them."""
ODD = [
    *("x'0 '", "x'zz'", "0E", "1e", "1e+", "1e1.5", "5.", ".5", "1e99999", "9" * 50, "9" * 5000),
    *("'\\u12'", "'\\ud800'", "'\\U00110000'", "'\ud800'", "\0", "`", "'", '"', "r'\\d'", "b'01'", "--"),
    *("/*", ";", "date'2020-13-01'", "timestamp'zz'", "interval '1' day", "1." + "0" * 60),
    *("__suffix_l()", "__suffix_q(num)", ":name", "?", "{", "::"),
]
GRAMMAR = """
    || <=> -> => AND OR NOT IS NULL IN LIKE ESCAPE BETWEEN CASE WHEN THEN ELSE END CAST( TRY_CAST( AS INT
    DECIMAL(10,2) INTERVAL DAY DISTINCT FILTER (WHERE OVER extract( FROM position( trim( BOTH substring(
    array( sum( count( approx_percentile( DESC NULLS FIRST if( 1 -1 1.5 1L 9BD 'a' '' true
"""
WORDS = [
    *"()[],.+-*/%=<>~!&|^",
    *GRAMMAR.split(),
    *ROWS.schema.names,
    *(f"{name}(" for name in supported_functions()),
    *ODD,
]


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """An expression that was right, with some of it moved, missing or replaced."""
    text = draw(expressions())
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(start + 5, len(text))))
        text = text[:start] + draw(st.sampled_from(WORDS) | st.text(CHARACTERS, max_size=2)) + text[end:]
    return text


TEXTS = st.one_of(
    st.text(CHARACTERS, max_size=20),
    st.builds(str.join, st.sampled_from(["", " "]), st.lists(st.sampled_from(WORDS), max_size=9)),
    mutated(),
)


def stream() -> hg.Stream:
    return hg.App("fuzz").source("rows", hg.from_batches([ROWS]))


def compile_everywhere(text: str) -> None:
    """Errors that are not ours come out; ours must be printable."""
    rows = stream()
    keyed = rows.key_by("num")
    for given_to in (
        rows.filter,
        rows.select,
        rows.with_columns,
        keyed.running,
        lambda given: rows.top(3, by=given, every="1 day", on="ts"),
        lambda given: rows.filter("num > 0").to("q", hg.to_list([]), importance=given),
    ):
        try:
            given_to(text)
        except HeadgateError as error:
            str(error).encode()


@settings(max_examples=examples(300), deadline=None)
@given(TEXTS)
def test_any_text_is_an_expression_or_our_error(text: str) -> None:
    compile_everywhere(text)


@pytest.mark.parametrize("text", ODD, ids=lambda text: ascii(text[:20]))
def test_texts_that_libraries_choke_on(text: str) -> None:
    compile_everywhere(text)
    compile_everywhere(f"num + {text}")


@pytest.mark.parametrize(
    "text",
    [
        "(" * 3000 + "num" + ")" * 3000,
        "NOT " * 3000 + "true",
        "- " * 3000 + "num",
        "abs(" * 3000 + "num" + ")" * 3000,
        " OR ".join(["num > 1"] * 3000),
        "CASE WHEN " * 1000,
        "[" * 3000,
    ],
    ids=lambda text: text[:10],
)
def test_an_expression_that_is_nested_too_deeply_is_named(text: str) -> None:
    with pytest.raises(PipelineError, match="nested too deeply") as caught:
        stream().filter(text)
    assert len(str(caught.value)) < 500


def test_what_was_wrong_is_said() -> None:
    with pytest.raises(PipelineError, match=r"x'0 '.*hexadecimal"):
        stream().filter("x'0 ' IS NULL")
    with pytest.raises(PipelineError, match="0E"):
        stream().with_columns("0E AS x")
    with pytest.raises(PipelineError, match=r"Character 8 .* surrogate pair"):
        stream().filter("str = '\ud800'")
    with pytest.raises(PipelineError, match="no column"):
        stream().filter("num\0 > 1")
