"""Random expressions: Spark agrees with them, and how the stream is cut does not matter."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest
from expression_grammar import expressions
from expression_oracle import Oracle, table
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import examples
from headgate.errors import BadRow
from headgate.sql import compile_expression


@pytest.fixture(scope="module")
def oracle(spark: Any) -> Oracle:
    return Oracle(spark, table(rows=64, seed=11))


@settings(max_examples=examples(6), phases=[p for p in settings().phases if p.name == "generate"])
@given(texts=st.lists(expressions(), min_size=40, max_size=40, unique=True))
def test_spark_agrees_with_random_expressions(oracle: Oracle, texts: list[str]) -> None:
    """Types, values and bad rows of nested random expressions are Spark's."""
    oracle.check(texts)


@settings(max_examples=examples(60))
@given(text=expressions(), cuts=st.lists(st.integers(0, 64), max_size=4))
def test_cuts_do_not_matter(text: str, cuts: list[int]) -> None:
    """Evaluating slices gives the slices of the whole, values and bad rows alike."""
    batch = table(rows=64, seed=3).combine_chunks().to_batches()[0]
    expression = compile_expression(text, batch.schema)
    whole, bad = expression.evaluate_safe(batch)
    edges = [0, *sorted(cuts), batch.num_rows]
    for low, high in itertools.pairwise(edges):
        part, part_bad = expression.evaluate_safe(batch.slice(low, high - low))
        assert part.type == whole.type == expression.type
        assert repr(part.to_pylist()) == repr(whole.slice(low, high - low).to_pylist())
        expected = [False] * (high - low) if bad is None else bad.slice(low, high - low).to_pylist()
        assert (part_bad.to_pylist() if part_bad is not None else [False] * (high - low)) == expected


@settings(max_examples=examples(40))
@given(text=expressions())
def test_the_first_bad_row_is_named(text: str) -> None:
    """``evaluate`` raises for the first row that ``evaluate_safe`` marks, and only then."""
    batch = table(rows=64, seed=5).combine_chunks().to_batches()[0]
    expression = compile_expression(text, batch.schema)
    values, bad = expression.evaluate_safe(batch)
    if bad is None:
        assert repr(expression.evaluate(batch).to_pylist()) == repr(values.to_pylist())
        return
    with pytest.raises(BadRow) as caught:
        expression.evaluate(batch)
    assert caught.value.index == bad.to_pylist().index(True)
    assert text in str(caught.value)
    assert isinstance(values, pa.Array)
