"""What an expression is to its users: names, errors, bad rows, packets, pickling; no Spark needed."""

from __future__ import annotations

import datetime as dt
import decimal
import pickle

import pyarrow as pa
import pytest

from headgate.errors import BadRow, ExpressionError, TypeMismatch, UnknownColumn, UnsupportedFunction
from headgate.sql import (
    compile_aggregate,
    compile_expression,
    compile_ordering,
    compile_predicate,
    compile_projection,
)

SCHEMA = pa.schema(
    [
        ("user_id", pa.int64()),
        ("price", pa.float64()),
        ("amount", pa.int32()),
        ("name", pa.string()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("cost", pa.decimal128(10, 2)),
        ("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
        ("odd name", pa.int32()),
    ]
)
BATCH = pa.RecordBatch.from_pylist(
    [
        {
            "user_id": 1,
            "price": 1.5,
            "amount": 2,
            "name": "ann",
            "place": {"city": "Ulm", "zip": 1},
            "odd name": 7,
        },
        {"user_id": 2, "price": float("nan"), "amount": 0, "name": None, "place": None},
        {
            "user_id": None,
            "price": None,
            "amount": 2**31 - 1,
            "name": "bob",
            "place": {"city": None, "zip": 3},
        },
    ],
    schema=SCHEMA,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("amount + 0L", [2, 0, 2**31 - 1]),
        ("AMOUNT", [2, 0, 2**31 - 1]),
        ("`odd name`", [7, None, None]),
        ("place.city", ["Ulm", None, None]),
        ("place.ZIP + 1", [2, None, 4]),
        ("price > 1", [True, True, None]),
        ("price = price", [True, True, None]),
        ("1 + 1", [2, 2, 2]),
        ("CASE WHEN amount != 0 THEN 10 / amount END", [5.0, None, 10 / (2**31 - 1)]),
        ("name IN ('ann', NULL)", [True, None, None]),
        ("'it''s'", ["it's"] * 3),
        ("'tab\\tend'", ["tab\tend"] * 3),
        ("-128Y", [-128] * 3),
        ("0.5", [decimal.Decimal("0.5")] * 3),
        ("date'2020-02-28' + 2", [dt.date(2020, 3, 1)] * 3),
    ],
)
def test_small_cases_have_the_values_that_the_eye_sees(text: str, expected: list[object]) -> None:
    """Small cases that can be checked by eye."""
    assert compile_expression(text, SCHEMA).evaluate(BATCH).to_pylist() == expected


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("price * amount AS revenue", "revenue"),
        ("price * amount", "(price * amount)"),
        ("AMOUNT", "amount"),
        ("place.city", "city"),
        ("upper(name)", "upper(name)"),
        ("name IS NOT NULL", "(name IS NOT NULL)"),
        ("CAST(amount AS STRING)", "amount"),
        ("CAST(amount + 1 AS STRING)", "CAST((amount + 1) AS STRING)"),
        ("name LIKE 'a%'", "name LIKE a%"),
        ("substring(name, 2, 3)", "substring(name, 2, 3)"),
    ],
)
def test_a_column_without_an_alias_is_named_as_spark_names_it(text: str, name: str) -> None:
    """A column without an alias is named as Spark names it."""
    assert compile_expression(text, SCHEMA).name == name


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("pric > 1", UnknownColumn, ["'pric'", "Did you mean 'price'", "user_id, price, amount"]),
        ("place.town", UnknownColumn, ["'town'", "city, zip"]),
        ("uper(name)", UnsupportedFunction, ["uper()", "Did you mean 'upper'"]),
        ("xpath(name, 256)", UnsupportedFunction, ["xpath()"]),
        ("current_timestamp()", UnsupportedFunction, ["must not depend on when"]),
        ("current_date", UnsupportedFunction, ["must not depend on when"]),
        ("now()", UnsupportedFunction, ["must not depend on when"]),
        ("unix_timestamp()", UnsupportedFunction, ["must not depend on when"]),
        ("rand()", UnsupportedFunction, ["must not depend on chance"]),
        ("uuid()", UnsupportedFunction, ["must not depend on chance"]),
        ("sum(price)", UnsupportedFunction, ["sum()", "aggregate", "agg()"]),
        ("sum(price) OVER ()", ExpressionError, ["OVER"]),
        ("price + ts", TypeMismatch, ["+", "DOUBLE", "TIMESTAMP"]),
        ("amount = ts", TypeMismatch, ["=", "INT", "TIMESTAMP"]),
        ("amount AND true", TypeMismatch, ["AND", "INT", "BOOLEAN"]),
        ("if(amount, 1, 2)", TypeMismatch, ["BOOLEAN", "INT"]),
        ("CASE WHEN true THEN 1 ELSE ts END", TypeMismatch, ["INT", "TIMESTAMP"]),
        ("CAST(day AS INT)", TypeMismatch, ["DATE", "INT"]),
        ("CAST(price AS GEOMETRY)", ExpressionError, ["not supported"]),
        ("ts - ts", ExpressionError, ["interval", "timestampdiff"]),
        ("day - day", ExpressionError, ["interval", "datediff"]),
        ("greatest(1, 'a')", TypeMismatch, ["greatest()", "INT", "STRING"]),
        ("substring(name)", ExpressionError, ["substring() takes 2 to 3 operands, not 1"]),
        ("name LIKE name", ExpressionError, ["constant pattern"]),
        ("name RLIKE '(?=a)'", ExpressionError, ["(?=a", "RE2"]),
        ("name RLIKE '(a)\\\\1'", ExpressionError, ["RE2"]),
        ("name LIKE 'a\\\\bc'", ExpressionError, ["escape character"]),
        ("date_format(ts, 'YYYY')", ExpressionError, ["'YYYY'", "pattern"]),
        ("date_trunc('decade', ts)", ExpressionError, ["'decade'", "month"]),
        ("amount & amount | 1", ExpressionError, ["parentheses"]),
        ("amount = 1 = true", ExpressionError, ["parentheses"]),
        ("amount IN (SELECT 1)", ExpressionError, []),
        ("*", ExpressionError, ["'*'"]),
        ("cost % 2", ExpressionError, ["DECIMAL(10,2)", "%"]),
        ("", ExpressionError, ["empty"]),
    ],
)
def test_mistakes_are_named(text: str, error: type[Exception], words: list[str]) -> None:
    """A mistake is found when the expression is compiled, and the message names it."""
    with pytest.raises(error) as caught:
        compile_expression(text, SCHEMA)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "text", ["amount +", "amount + * 2", "(amount", "amount 'x' 3", "SELECT 1", "a; b", "'open"]
)
def test_what_does_not_parse_is_shown(text: str) -> None:
    """A text that does not parse is quoted in the error."""
    with pytest.raises(ExpressionError) as caught:
        compile_expression(text, SCHEMA)
    assert text in str(caught.value) or repr(text) in str(caught.value)


def test_a_parse_error_has_a_caret() -> None:
    """The place of a mistake is pointed at."""
    with pytest.raises(ExpressionError) as caught:
        compile_expression("(amount + 1", SCHEMA)
    assert str(caught.value).splitlines()[-1].strip() == "^"


def test_columns_that_differ_only_in_case_are_ambiguous() -> None:
    """Names are looked up without regard to case, so two that differ only in case cannot be told apart."""
    schema = pa.schema([("a", pa.int32()), ("A", pa.int32())])
    with pytest.raises(ExpressionError, match="ambiguous"):
        compile_expression("a + 1", schema)


def test_predicates_are_boolean() -> None:
    """A filter takes a condition and says so."""
    with pytest.raises(TypeMismatch, match=r"must be BOOLEAN.*INT"):
        compile_predicate("amount + 1", SCHEMA)
    assert compile_predicate("NULL", SCHEMA).type == pa.bool_()


def test_bad_rows_say_which_and_why() -> None:
    """The first bad row is named with its values."""
    expression = compile_expression("10 / amount + user_id", SCHEMA)
    with pytest.raises(BadRow) as caught:
        expression.evaluate(BATCH)
    assert caught.value.index == 1
    assert "division by zero" in str(caught.value)
    assert "amount = 0" in str(caught.value)
    with pytest.raises(BadRow, match="INT overflow"):
        compile_expression("amount + 1", SCHEMA).evaluate(BATCH)


def test_the_culprit_is_the_branch_that_was_taken() -> None:
    """A branch that fails but is not taken is not blamed."""
    expression = compile_expression("CASE WHEN amount = 0 THEN amount div 0 ELSE amount + 1 END", SCHEMA)
    values, bad = expression.evaluate_safe(BATCH)
    assert values.to_pylist() == [3, None, None]
    assert bad is not None
    assert bad.to_pylist() == [False, True, True]
    with pytest.raises(BadRow, match="INT overflow in \\(amount \\+ 1\\)"):
        expression.evaluate(BATCH.slice(2))


def test_a_failing_constant_is_bad_only_where_there_are_rows() -> None:
    """1/0 makes every row bad, and no rows none."""
    expression = compile_expression("1 / 0", SCHEMA)
    assert expression.evaluate(BATCH.slice(0, 0)).to_pylist() == []
    with pytest.raises(BadRow):
        expression.evaluate(BATCH)


def test_a_star_is_every_column_and_no_name_comes_out_twice() -> None:
    """``*`` is every column, and a name that comes out twice is an error."""
    names = [e.name for e in compile_projection(["*", "price * 2 AS double_price"], SCHEMA)]
    assert names == [*SCHEMA.names, "double_price"]
    with pytest.raises(ExpressionError, match="'price' comes out twice"):
        compile_projection(["price", "amount AS price"], SCHEMA)


def test_nulls_come_first_ascending_and_last_descending_unless_told_otherwise() -> None:
    """Nulls come first when ascending and last when descending, unless it says otherwise."""
    keys = compile_ordering("amount DESC, user_id, price * 2 DESC NULLS FIRST, name ASC NULLS LAST", SCHEMA)
    assert [(e.name, d, n) for e, d, n in keys] == [
        ("amount", True, False),
        ("user_id", False, True),
        ("(price * 2)", True, True),
        ("name", False, False),
    ]
    for text in ("", "amount DESC LIMIT 3", "amount DESCENDING x", "place"):
        with pytest.raises(ExpressionError):
            compile_ordering(text, SCHEMA)


@pytest.mark.parametrize(
    ("text", "function", "name", "parameters", "type_"),
    [
        ("count(*) AS n", "count", "n", (), pa.int64()),
        ("count(*)", "count", "count(1)", (), pa.int64()),
        ("count(name)", "count", "count(name)", (), pa.int64()),
        ("count(DISTINCT name) d", "count_distinct", "d", (), pa.int64()),
        ("sum(amount * 2L)", "sum", "sum((amount * 2))", (), pa.int64()),
        ("sum(price)", "sum", "sum(price)", (), pa.float64()),
        ("sum(cost)", "sum", "sum(cost)", (), pa.decimal128(20, 2)),
        ("avg(cost)", "avg", "avg(cost)", (), pa.decimal128(14, 6)),
        ("avg(amount)", "avg", "avg(amount)", (), pa.float64()),
        ("mean(amount)", "avg", "mean(amount)", (), pa.float64()),
        ("min(name)", "min", "min(name)", (), pa.string()),
        ("max(ts) AS latest", "max", "latest", (), pa.timestamp("us", tz="UTC")),
        ("stddev(amount)", "stddev", "stddev(amount)", (), pa.float64()),
        ("var_pop(price)", "var_pop", "var_pop(price)", (), pa.float64()),
        ("first(name, true)", "first", "first(name, true)", (True,), pa.string()),
        ("last(name) IGNORE NULLS AS l", "last", "l", (True,), pa.string()),
        ("first(name)", "first", "first(name)", (False,), pa.string()),
        ("collect_list(amount) c", "collect_list", "c", (), pa.list_(pa.int32())),
        ("approx_percentile(price, 0.5) p", "approx_percentile", "p", (0.5, 10000), pa.float64()),
        (
            "approx_percentile(amount, array(0.5, 0.9), 100) p",
            "approx_percentile",
            "p",
            ((0.5, 0.9), 100),
            pa.list_(pa.int32()),
        ),
    ],
)
def test_an_aggregate_is_parsed_and_typed_as_spark_does(
    text: str, function: str, name: str, parameters: tuple[object, ...], type_: pa.DataType
) -> None:
    """An aggregate call is parsed and typed as Spark does."""
    made = compile_aggregate(text, SCHEMA)
    assert (made.function, made.name, made.parameters, made.type) == (function, name, parameters, type_)


def test_the_filter_of_an_aggregate_is_an_expression_of_its_own() -> None:
    """FILTER is an expression of its own."""
    made = compile_aggregate("sum(amount) FILTER (WHERE price > 1) AS s", SCHEMA)
    assert made.filter is not None
    assert made.argument is not None
    assert made.filter.evaluate(BATCH).to_pylist() == [True, True, None]
    assert made.argument.type == pa.int64()
    assert made.columns == {"amount", "price"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sum(amount) / count(*)", ["with_columns"]),
        ("round(avg(price), 2)", ["with_columns"]),
        ("upper(name)", ["upper()"]),
        ("summ(amount)", ["Did you mean 'sum'"]),
        ("amount", ["aggregate call"]),
        ("sum(sum(amount))", ["inside"]),
        ("sum(name, 1)", ["sum()"]),
        ("sum(ts)", ["TIMESTAMP"]),
        ("approx_percentile(price, 1.5)", ["between 0 and 1"]),
        ("sum(DISTINCT amount)", ["DISTINCT"]),
        ("sum(amount) FILTER (WHERE amount)", ["BOOLEAN"]),
        ("sum(nothing)", ["nothing"]),
    ],
)
def test_mistakes_in_aggregates_are_named(text: str, words: list[str]) -> None:
    """What is not one aggregate call is refused with advice."""
    with pytest.raises(ExpressionError) as caught:
        compile_aggregate(text, SCHEMA)
    for word in words:
        assert word in str(caught.value)


def test_a_pickled_expression_gives_the_same() -> None:
    """Expressions and aggregates travel as text and schema."""
    expression = pickle.loads(pickle.dumps(compile_expression("amount * 2L AS x", SCHEMA)))
    assert (expression.name, expression.evaluate(BATCH).to_pylist()) == ("x", [4, 0, 2**32 - 2])
    aggregate = pickle.loads(pickle.dumps(compile_aggregate("sum(price) AS s", SCHEMA)))
    assert (aggregate.name, aggregate.function, aggregate.type) == ("s", "sum", pa.float64())
    whole = compile_aggregate("sum(amount) FILTER (WHERE name = 'a')", SCHEMA)
    assert pickle.loads(pickle.dumps(whole.argument)).type == pa.int64()
    key = pickle.loads(pickle.dumps(compile_ordering("concat(name, 'x') DESC, amount", SCHEMA)[0][0]))
    assert key.evaluate(BATCH).to_pylist() == ["annx", None, "bobx"]
    predicate = pickle.loads(pickle.dumps(compile_predicate("NULL", SCHEMA)))
    assert predicate.type == pa.bool_()


def test_packets_may_order_columns_differently() -> None:
    """A packet with the same columns elsewhere works; one without them is an error that says so."""
    expression = compile_expression("amount + user_id", SCHEMA)
    swapped = BATCH.select(["user_id", "name", "amount"])
    assert expression.evaluate(swapped).to_pylist() == expression.evaluate(BATCH).to_pylist()
    with pytest.raises(ExpressionError, match="amount"):
        expression.evaluate(BATCH.select(["user_id"]))


def test_arrow_types_that_spark_lacks() -> None:
    """Columns of related Arrow types are read as the Spark type; others are only passed through."""
    schema = pa.schema(
        [
            ("a", pa.uint8()),
            ("b", pa.large_string()),
            ("c", pa.dictionary(pa.int32(), pa.string())),
            ("d", pa.timestamp("ns")),
        ]
    )
    batch = pa.RecordBatch.from_pylist(
        [{"a": 200, "b": "x", "c": "y", "d": dt.datetime(2020, 1, 1)}], schema=schema
    )
    assert compile_expression("a + 1S", schema).type == pa.int16()
    assert compile_expression("concat(b, c)", schema).evaluate(batch).to_pylist() == ["xy"]
    assert compile_expression("d", schema).type == pa.timestamp("ns")
    with pytest.raises(TypeMismatch, match="timestamp"):
        compile_expression("year(d)", schema)


def test_expressions_cannot_be_changed() -> None:
    """An expression is shared between threads."""
    expression = compile_expression("amount", SCHEMA)
    with pytest.raises(AttributeError):
        expression.text = "price"
