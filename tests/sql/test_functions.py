"""What people see of the functions: the list, hints, functions of their own, and refused comparisons."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import headgate as hg
from headgate import testing
from headgate.cli.main import cli
from headgate.errors import ExpressionError
from headgate.sql import compile_expression, described_functions, supported_functions
from headgate.sql.registry import AGGREGATES

SCHEMA = pa.schema([("n", pa.int32()), ("s", pa.string()), ("ts", pa.timestamp("us", tz="UTC"))])


def test_the_list_has_every_function_and_is_generated() -> None:
    """``timestampdiff`` and ``timestampadd`` are keywords in Spark, so Spark does not list them."""
    listed = {one.name for one in described_functions() if one.kind != "udf"}
    assert listed == {*supported_functions(), *AGGREGATES} - {"timestampdiff", "timestampadd"}
    assert len(listed) >= 300
    found = CliRunner().invoke(cli, ["functions", "json_*"])
    assert found.exit_code == 0
    assert "json_array_length(" in found.output
    assert "per distinct value or row" in found.output
    assert CliRunner().invoke(cli, ["functions", "nothing at all"]).exit_code == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("explode(s)", "use explode\\(\\) of the stream"),
        ("json_extract(s, '$.a')", "Did you mean 'get_json_object'"),
        ("lenght(s)", "Did you mean 'length'"),
        ("n = 'abc'", "'abc' is compared with n"),
        ("ts > 'yesterday'", "no TIMESTAMP"),
        ("n IN (1, 'x')", "'x' is compared"),
        ("rank(n)", "use top\\(\\)"),
    ],
)
def test_a_mistake_is_answered_with_what_is_meant(text: str, words: str) -> None:
    with pytest.raises(ExpressionError, match=words):
        compile_expression(text, SCHEMA)


def test_names_of_pyspark_are_answered() -> None:
    stream = hg.App("t").source("r", hg.from_batches([pa.record_batch({"a": [1]})]))
    for name in ("withColumn", "where", "groupBy", "withWatermark", "dropDuplicates"):
        with pytest.raises(AttributeError, match="Write"):
            getattr(stream, name)


def test_functions_of_the_user_run_on_every_engine(engine: Any) -> None:
    @hg.udf("bigint")
    def twice(number: int | None) -> int | None:
        return None if number is None else 2 * number

    @hg.udf("string", kind="arrow", name="shout")
    def louder(texts: pa.Array) -> pa.Array:
        return pa.compute.utf8_upper(texts)

    rows = [{"n": 1, "s": "a"}, {"n": None, "s": "b"}, {"n": 3, "s": "c"}]
    found = testing.run(
        rows, lambda s: s.select("twice(n) + 1 AS m", "shout(s) AS u").filter("twice(m) > 6"), engine=engine
    )
    assert found == [{"m": 7, "u": "C"}]
    with pytest.raises(ExpressionError, match="Spark's functions"):
        hg.udf("int", name="abs")(lambda x: x)
