"""What Spark says about an expression, and how that is compared with what we say."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from headgate.sql import Expression, compile_expression
from headgate.sql.types import spark_name

_D = decimal.Decimal
_NAN, _INF = float("nan"), float("inf")

POOLS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, False, None]),
    "tiny": (pa.int8(), [0, 1, -1, 7, 127, -128, None]),
    "small": (pa.int16(), [0, 1, -3, 32767, -32768, None]),
    "num": (pa.int32(), [0, 1, -1, 2, 5, -7, 25, 35, 2**31 - 1, -(2**31), None]),
    "big": (pa.int64(), [0, 1, -1, 3, 10, -15, 2**63 - 1, -(2**63), 2**53 + 1, None]),
    "real": (pa.float32(), [0.0, -0.0, 1.5, -2.25, 0.1, 3.4e38, _NAN, _INF, -_INF, None]),
    "dbl": (
        pa.float64(),
        [0.0, -0.0, 1.0, 0.5, 2.5, -2.5, 1.255, 1e18, -1e300, 1e-9, _NAN, _INF, -_INF, None],
    ),
    "money": (
        pa.decimal128(10, 2),
        [_D("0.00"), _D("1.25"), _D("-1.25"), _D("2.50"), _D("99999999.99"), None],
    ),
    "exact": (
        pa.decimal128(20, 6),
        [_D("0.000000"), _D("3.141593"), _D("-0.500000"), _D("12345678901234.567891"), None],
    ),
    "text": (
        pa.string(),
        [
            "",
            "a",
            "abc",
            "ABC abc",
            "straße",
            "naïve café",
            "日本語",
            "😀x😀",
            " padded ",
            "a_b%c",
            "a\nb",
            "x,y,,z",
            None,
        ],
    ),
    "digits": (
        pa.string(),
        ["0", "12", " -7 ", "+5", "1.5", "abc", "", "1e3", "NaN", "inf", "99999999999", "007", None],
    ),
    "day": (
        pa.date32(),
        [
            dt.date(1970, 1, 1),
            dt.date(2024, 2, 29),
            dt.date(1969, 12, 31),
            dt.date(2021, 1, 3),
            dt.date(1900, 3, 1),
            None,
        ],
    ),
    "ts": (
        pa.timestamp("us", tz="UTC"),
        [
            dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
            dt.datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=dt.UTC),
            dt.datetime(1969, 12, 31, 23, 59, 59, 500000, tzinfo=dt.UTC),
            dt.datetime(2021, 3, 28, 1, 30, 0, 120000, tzinfo=dt.UTC),
            dt.datetime(1905, 5, 17, 12, 0, 1, tzinfo=dt.UTC),
            None,
        ],
    ),
    "wall": (
        pa.timestamp("us"),
        [dt.datetime(2020, 1, 31, 10, 11, 12), dt.datetime(1950, 6, 1, 0, 0, 0, 5), None],
    ),
    "stamp": (
        pa.string(),
        [
            "2020-01-02",
            "2020-1-2",
            "2020",
            "2020-02-30",
            "2020-01-02 10:11:12",
            "2020-01-02T10:11:12.5Z",
            " 2020-01-02 ",
            "2020-01-02 10:11:12+02:00",
            "2020-01-02 10:11",
            "2020-01-02 24:00:00",
            "nonsense",
            "2020-13-01",
            None,
        ],
    ),
    "items": (pa.list_(pa.int32()), [[], [1], [1, 2, 3], [None, 2], [3, 1, 3, None, 1], None]),
    "words": (pa.list_(pa.string()), [["b", "a"], ["é", None, "a"], [], ["日本", "a", "b", "a"], None]),
    "nest": (pa.list_(pa.list_(pa.int32())), [[[1], [2, 3]], [[]], [None, [1]], [], None]),
    "tags": (
        pa.map_(pa.string(), pa.int32()),
        [[("a", 1), ("b", None)], [("x", 3)], [], [("b", 7), ("a", -1)], None],
    ),
    "rec": (
        pa.struct([("a", pa.int32()), ("b", pa.string()), ("c", pa.list_(pa.float64()))]),
        [
            {"a": 1, "b": "x", "c": [0.5]},
            {"a": None, "b": None, "c": None},
            {"a": -3, "b": "é", "c": []},
            None,
        ],
    ),
    "recs": (
        pa.list_(pa.struct([("k", pa.string()), ("v", pa.int64())])),
        [[{"k": "a", "v": 1}, {"k": "b", "v": None}], [{"k": None, "v": 5}, None], [], None],
    ),
    "bytes": (pa.binary(), [b"", b"abc", b"\xff\x00", "é".encode(), None]),
    "js": (
        pa.string(),
        [
            '{"a": 1, "b": "x", "c": [1, 2], "d": {"e": 2.5}}',
            '{"a": "7", "b": 3, "c": null}',
            '{"a": null, "b": {"x": [1, {"y": true}]}, "t": "2020-01-02T03:04:05Z"}',
            "[1, 2, 3]",
            '[{"a": 1}, {"a": 2}]',
            '{"a": 1.5, "b": "é\\n\\u00e9", "c": "no"}',
            "not json",
            "{",
            "",
            "17",
            '"text"',
            None,
        ],
    ),
    "url": (
        pa.string(),
        [
            "https://user:pw@example.com:8080/a/b.html?x=1&y=%20z&x=2#top",
            "http://spark.apache.org/path?query=1",
            "ftp://h/f",
            "example.com/a",
            "a b+c&d=é/%41",
            "",
            None,
        ],
    ),
}


def table(rows: int = 48, seed: int = 7) -> pa.Table:
    """Rows that mix the awkward values of every type; each column has two shuffles, ``x`` and ``x2``."""
    chance = random.Random(seed)
    columns: dict[str, pa.Array] = {"id": pa.array(range(rows), pa.int32())}
    for name, (type_, pool) in POOLS.items():
        for suffix in ("", "2"):
            values = [pool[i % len(pool)] for i in range(rows)]
            chance.shuffle(values)
            columns[name + suffix] = pa.array(values, type=type_)
    return pa.table(columns)


class Oracle:
    """A table in Spark and here, and the comparison of what both say about expressions on it."""

    def __init__(self, spark: Any, data: pa.Table) -> None:
        self.spark = spark
        self.batch = data.combine_chunks().to_batches()[0]
        self.frame = spark.createDataFrame(data).coalesce(1).cache()
        self.frame.count()

    def check(self, texts: list[str], *, raising: int = 1) -> None:
        """Fails unless Spark agrees on type and value of every row, and raises on the rows that are bad.

        ``raising`` is how many bad rows per expression are tried in Spark one by one.
        """
        compiled = [compile_expression(text, self.batch.schema) for text in texts]
        ours = [expression.evaluate_safe(self.batch) for expression in compiled]
        guarded = []
        for text, (_, bad) in zip(texts, ours, strict=True):
            ids = [] if bad is None else [i for i, b in enumerate(bad.to_pylist()) if b]
            guarded.append(_guarded(text, ids, self.batch.num_rows))
        theirs = self._select(list(zip(texts, guarded, strict=True)))
        problems = []
        for expression, (values, bad), answer in zip(compiled, ours, theirs, strict=True):
            problems += self._compare(expression, values, bad, answer)
        failing = []
        for text, (_, bad) in zip(texts, ours, strict=True):
            if bad is not None and raising:
                ids = [i for i, b in enumerate(bad.to_pylist()) if b]
                failing.append((text, ids[:: max(1, len(ids) // raising)][:raising]))
        with ThreadPoolExecutor(4) as pool:
            for found in pool.map(lambda pair: self._must_raise(*pair), failing):
                problems += found
        assert not problems, "\n".join(problems)

    def _select(self, pairs: list[tuple[str, str]]) -> list[Any]:
        """Spark's (type name, values) for each expression; an exception in place of those that raise."""
        try:
            frame = self.frame.selectExpr(*[f"{guarded} AS c{i}" for i, (_, guarded) in enumerate(pairs)])
            names = [field.dataType.simpleString().upper() for field in frame.schema]
            arrow = frame.toArrow()
            return [(names[i], arrow.column(i).to_pylist()) for i in range(len(pairs))]
        except Exception as error:
            if len(pairs) == 1:
                return [error]
            half = len(pairs) // 2
            return self._select(pairs[:half]) + self._select(pairs[half:])

    def _compare(
        self, expression: Expression, values: pa.Array, bad: pa.Array | None, answer: Any
    ) -> list[str]:
        text = expression.text
        if isinstance(answer, Exception):
            return [f"{text}: Spark raises where we do not: {str(answer).splitlines()[0][:300]}"]
        name, theirs = answer
        if name != spark_name(expression.type).replace(", ", ",").replace(": ", ":").upper():
            return [f"{text}: type {spark_name(expression.type)}, Spark's {name}"]
        for row, (mine, spark_value) in enumerate(zip(values.to_pylist(), theirs, strict=True)):
            if bad is not None and bad[row].as_py():
                continue
            if not same(mine, spark_value, single=pa.types.is_float32(expression.type)):
                given = {c: self.batch.column(c)[row].as_py() for c in sorted(expression.columns)}
                return [f"{text}: row {row} {given}: {mine!r}, Spark's {spark_value!r}"]
        return []

    def _must_raise(self, text: str, ids: list[int]) -> list[str]:
        for row in ids:
            try:
                answer = (
                    self.frame.where(f"id = {row}").selectExpr(f"{text} AS c").toArrow().column(0).to_pylist()
                )
            except Exception as error:
                if "DATATYPE_MISMATCH" in str(error) or "PARSE_SYNTAX" in str(error):
                    return [f"{text}: Spark does not accept it: {str(error).splitlines()[0][:300]}"]
                continue
            return [f"{text}: row {row} is bad here, but Spark answers {answer}"]
        return []


def _guarded(text: str, bad: list[int], rows: int) -> str:
    if not bad:
        return f"({text})"
    if len(bad) == rows:
        return f"(CASE WHEN id < 0 THEN ({text}) END)"
    return f"(CASE WHEN id NOT IN ({', '.join(map(str, bad))}) THEN ({text}) END)"


def same(mine: Any, theirs: Any, *, single: bool = False) -> bool:
    """Equal, floating-point numbers within 1e-9 (relative; 1e-6 for FLOAT), NaN as itself."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return list(mine) == list(theirs) and same([*mine.values()], [*theirs.values()], single=single)
    if isinstance(mine, list | tuple) and isinstance(theirs, list | tuple):
        return len(mine) == len(theirs) and all(
            same(a, b, single=single) for a, b in zip(mine, theirs, strict=True)
        )
    if isinstance(mine, float) and isinstance(theirs, float):
        if math.isnan(mine) or math.isnan(theirs):
            return math.isnan(mine) and math.isnan(theirs)
        if mine == theirs:
            return True
        return math.isclose(mine, theirs, rel_tol=1e-6 if single else 1e-9, abs_tol=0.0)
    return mine == theirs and type(mine) is type(theirs)
