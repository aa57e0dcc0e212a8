"""``app.sql``: queries give what SQL says they give, equal parts are one box, and mistakes are explained."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import headgate as hg
from headgate.api.app import load_app

Rows = list[dict[str, Any]]
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SALES = [
    {
        "id": i,
        "user": i * 7 % 5,
        "price": None if i % 11 == 0 else (i * 37) % 23,
        "tags": ["a", "b", "c"][: i % 4],
        "note": f"it's\\{i % 3}",
        "ts": START + dt.timedelta(seconds=i),
    }
    for i in range(60)
]
CLICKS = [
    {"user": i * 3 % 6, "page": f"p{i % 4}", "ts": START + dt.timedelta(seconds=1.5 * i)} for i in range(40)
]


def application() -> hg.App:
    app = hg.App("shop")
    app.source("sales", hg.from_batches([pa.RecordBatch.from_pylist(SALES)]))
    app.source("clicks", hg.from_batches([pa.RecordBatch.from_pylist(CLICKS)]))
    return app


def asked(*queries: str, engine: str | hg.Engine = "threads", app: hg.App | None = None) -> list[Rows]:
    app = app or application()
    found: list[Rows] = [[] for _ in queries]
    for number, (query, rows) in enumerate(zip(queries, found, strict=True)):
        app.sql(query).to(f"q{number}", hg.to_list(rows))
    app.run(engine)
    return found


def expected(query: str) -> Rows:
    """DuckDB's answer."""
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        for name, rows in (("sales", SALES), ("clicks", CLICKS)):
            database.register(name, pa.Table.from_pylist(rows))
        return database.sql(query).to_arrow_table().to_pylist()


def sorted_rows(rows: Rows) -> list[str]:
    plain = [
        {k: v.replace(tzinfo=None) if hasattr(v, "tzinfo") else v for k, v in row.items()} for row in rows
    ]
    return sorted(str(list(row.items())) for row in plain)


BUCKET = "time_bucket(INTERVAL '10 seconds', ts)"
SAME_IN_BOTH = [
    "SELECT * FROM sales WHERE price > 5 AND note LIKE 'it''s%1'",
    "SELECT s.user AS who, price * 2 AS p, upper(note) AS n FROM sales s WHERE price IS NOT NULL",
    "WITH big AS (SELECT id, price FROM sales WHERE price > 9) SELECT id FROM big "
    "UNION ALL SELECT user FROM clicks WHERE page = 'p1'",
    "SELECT CASE WHEN price > 9 THEN 'high' WHEN price > 3 THEN 'middle' ELSE 'low' END AS kind, id FROM sales",  # noqa: E501
    "SELECT DISTINCT user, page FROM clicks",
    "SELECT s.id, c.page FROM sales s JOIN clicks c ON s.user = c.user "
    "AND c.ts BETWEEN s.ts - INTERVAL 2 SECONDS AND s.ts + INTERVAL 7 SECONDS",
    "SELECT s.id, c.page FROM sales s, clicks c WHERE s.user = c.user AND s.id < 9 AND c.ts > s.ts AND page = 'p2'",  # noqa: E501
    "SELECT s.id, c.user AS other, c.page FROM sales s LEFT JOIN clicks c ON s.user = c.user AND c.page = 'p3' "  # noqa: E501
    "AND c.ts >= s.ts AND c.ts < s.ts + INTERVAL 3 SECONDS",
    "SELECT s.id, c.page FROM sales s FULL JOIN clicks c ON s.id = c.user + 55",
    "SELECT id FROM sales WHERE user IN (SELECT user FROM clicks WHERE page = 'p0') AND price > 3",
    "SELECT id FROM sales s WHERE EXISTS (SELECT 1 FROM clicks c WHERE c.user = s.price)",
    "SELECT id FROM sales s WHERE NOT EXISTS (SELECT 1 FROM clicks c WHERE c.user = s.price)",
    "SELECT id, user, CAST(sum(price) OVER (PARTITION BY user ORDER BY ts) AS BIGINT) AS total, "
    "row_number() OVER (PARTITION BY user ORDER BY ts) AS number FROM sales",
    "SELECT id, lag(price) OVER (PARTITION BY user ORDER BY ts) AS before, "
    "lag(id, 1, -1) OVER (ORDER BY ts) AS number FROM sales",
    "SELECT id, price FROM sales ORDER BY price DESC NULLS LAST, id LIMIT 7",
    "SELECT s.id, c.page, c.user AS other FROM sales s LEFT JOIN clicks c ON s.id = c.user AND s.price > length(c.page)",  # noqa: E501
    "SELECT id FROM sales s WHERE EXISTS (SELECT 1 FROM clicks c WHERE c.user = s.user AND c.page > 'p2' AND s.id < length(c.page) * 9)",  # noqa: E501
    "SELECT id, user FROM sales s WHERE NOT EXISTS (SELECT 1 FROM clicks c WHERE c.user = s.user AND s.price > length(c.page))",  # noqa: E501
    "SELECT a.id, b.id AS other FROM sales a JOIN sales b ON a.id = b.id + 1 WHERE a.price < b.price",
    "SELECT user, n + 1 AS m FROM (SELECT user, price + 1 AS n FROM sales WHERE price > 20) AS inner_query",
]


@pytest.mark.parametrize("query", SAME_IN_BOTH)
def test_a_query_that_is_the_same_in_both_dialects_gives_the_oracles_rows(query: str) -> None:
    (found,) = asked(query)
    assert found
    assert sorted_rows(found) == sorted_rows(expected(query))


def test_many_rows_of_finite_sources_are_sorted_in_runs_and_joined_by_parts(
    engine: hg.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.api.finite.RUN", 20)
    ordered = "SELECT id, price, user FROM sales ORDER BY price DESC NULLS LAST, id"
    joined = (
        "SELECT s.id, c.page FROM sales s LEFT JOIN clicks c ON s.user = c.user AND s.price > length(c.page)"
    )
    app = application()
    found = asked(ordered, joined, engine=engine, app=app)
    kinds = Counter(type(box.operator).__name__ for box in app.network.boxes)
    assert kinds == {**kinds, "SortRun": 4, "MergeRuns": 3, "DealByKey": 2, "HashJoin": 8}
    assert found[0] == expected(ordered)
    assert sorted_rows(found[1]) == sorted_rows(expected(joined))


WINDOWED = [
    (
        "SELECT user, window.start AS s, window.end AS e, count(*) AS n, sum(price) + 1 AS p, "
        "count(DISTINCT note) FILTER (WHERE price > 5) AS d FROM sales GROUP BY user, window(ts, '10 seconds') "  # noqa: E501
        "HAVING count(*) > 1",
        f"SELECT user, {BUCKET} AS s, {BUCKET} + INTERVAL '10 seconds' AS e, count(*) AS n, "
        "sum(price)::BIGINT + 1 AS p, count(DISTINCT note) FILTER (WHERE price > 5) AS d "
        "FROM sales GROUP BY ALL HAVING count(*) > 1",
    ),
    (
        "SELECT w.start AS s, max(n) AS most FROM (SELECT user, window(ts, INTERVAL 10 SECONDS) AS w, "
        "count(*) AS n FROM sales GROUP BY 1, 2) GROUP BY w",
        f"SELECT s, max(n) AS most FROM (SELECT user, {BUCKET} AS s, count(*) AS n FROM sales GROUP BY ALL) "
        "GROUP BY s",
    ),
    (
        "SELECT user, count(*) AS n, window.end AS e FROM sales GROUP BY user, window(ts, '10 seconds') "
        "ORDER BY n DESC, user DESC LIMIT 2",
        f"SELECT * FROM (SELECT user, count(*) AS n, {BUCKET} + INTERVAL '10 seconds' AS e FROM sales GROUP BY ALL) "  # noqa: E501
        "QUALIFY row_number() OVER (PARTITION BY e ORDER BY n DESC, user DESC) <= 2",
    ),
    (
        "SELECT user, n FROM (SELECT user, n, row_number() OVER (PARTITION BY e, page ORDER BY n DESC, user) AS r "  # noqa: E501
        "FROM (SELECT user, page, count(*) AS n, window.end AS e FROM clicks "
        "GROUP BY user, page, window(ts, '20 seconds'))) WHERE r <= 1",
        "SELECT user, n FROM (SELECT user, page, time_bucket(INTERVAL '20 seconds', ts) AS e, count(*) AS n "
        "FROM clicks GROUP BY ALL) QUALIFY row_number() OVER (PARTITION BY e, page ORDER BY n DESC, user) = 1",  # noqa: E501
    ),
    (
        "SELECT window_time(window) AS t, count(*) AS n FROM sales GROUP BY window(ts, '10 seconds')",
        f"SELECT {BUCKET} + INTERVAL '9.999999 seconds' AS t, count(*) AS n FROM sales GROUP BY ALL",
    ),
    (
        "SELECT session_window.end AS e, count(*) AS n FROM clicks WHERE user = 3 "
        "GROUP BY session_window(ts, '4 seconds')",
        "SELECT max(ts) + INTERVAL '4 seconds' AS e, count(*) AS n FROM (SELECT ts, sum(new::INT) OVER (ORDER "  # noqa: E501
        "BY ts) AS number FROM (SELECT ts, (ts - lag(ts) OVER (ORDER BY ts) < INTERVAL '4 seconds') "
        "IS NOT TRUE AS new FROM clicks WHERE user = 3)) GROUP BY number",
    ),
    (
        "SELECT id, tag FROM sales LATERAL VIEW explode(tags) t AS tag WHERE tag <> 'b'",
        "SELECT id, tag FROM (SELECT id, unnest(tags) AS tag FROM sales) WHERE tag <> 'b'",
    ),
    (
        "SELECT id, posexplode(tags) AS (place, tag) FROM sales",
        "SELECT id, unnest(range(len(tags)))::INT AS place, unnest(tags) AS tag FROM sales",
    ),
    (
        "SELECT p.user, p.s, n, m FROM (SELECT user, window.start s, window.end e, count(*) n FROM sales "
        "GROUP BY user, window(ts, '10 seconds')) p JOIN (SELECT user, window.start s, window.end e, count(*) m "  # noqa: E501
        "FROM clicks GROUP BY user, window(ts, '10 seconds')) c ON p.user = c.user AND p.s = c.s AND p.e = c.e",  # noqa: E501
        f"SELECT user, s, n, m FROM (SELECT user, {BUCKET} s, count(*) n FROM sales GROUP BY ALL) JOIN "
        f"(SELECT user, {BUCKET} s, count(*) m FROM clicks GROUP BY ALL) USING (user, s)",
    ),
]


@pytest.mark.parametrize(("query", "oracle"), WINDOWED)
def test_windows_generators_and_best_rows_give_the_oracles_rows(query: str, oracle: str) -> None:
    (found,) = asked(query)
    assert found
    assert sorted_rows(found) == sorted_rows(expected(oracle))


def test_a_group_without_a_window_gives_its_new_value_with_every_row() -> None:
    (found,) = asked(
        "SELECT user, count(*) AS n, avg(price) AS a FROM sales WHERE price IS NOT NULL GROUP BY user"
    )
    wanted = expected(
        "SELECT user, count(*) OVER w AS n, avg(price) OVER w AS a FROM sales WHERE price IS NOT NULL "
        "WINDOW w AS (PARTITION BY user ORDER BY ts) ORDER BY ts"
    )
    assert found == wanted


def test_row_number_per_key_gives_every_row_that_is_among_the_best_when_it_comes() -> None:
    (found,) = asked(
        "SELECT id, user, place FROM (SELECT *, row_number() OVER (PARTITION BY user ORDER BY price DESC) AS place "  # noqa: E501
        "FROM sales WHERE price IS NOT NULL) WHERE place <= 2"
    )
    best: dict[int, list[int]] = {}
    wanted = []
    for row in SALES:
        if row["price"] is None:
            continue
        own = best.setdefault(row["user"], [])
        place = 1 + sum(price >= row["price"] for price in own)
        if place <= 2:
            wanted.append({"id": row["id"], "user": row["user"], "place": place})
        own.append(row["price"])
    assert found == wanted


def test_views_are_tables_and_lateness_waits_for_rows_that_come_late() -> None:
    rows = [{"ts": START + dt.timedelta(seconds=second)} for second in (1, 12, 3, 25)]
    counts = []
    for lateness in (0, "10 seconds"):
        app = hg.App("late")
        stream = app.source("raw", hg.from_batches([pa.RecordBatch.from_pylist(rows)]))
        app.view("Times", stream.filter("ts IS NOT NULL"), lateness=lateness)
        (found,) = asked("SELECT count(*) AS n FROM times GROUP BY window(ts, '10 seconds')", app=app)
        counts.append([row["n"] for row in found])
    assert counts == [[1, 1, 1], [2, 1, 1]]


def test_a_struct_and_a_window_give_their_fields_for_a_star() -> None:
    inner = "(SELECT id, named_struct('a', 1, 'b', named_struct('c', 'x')) AS j FROM sales) t"
    windows = "(SELECT window, count(*) AS n FROM sales GROUP BY window(ts, '1 day')) w"
    plain, inside, less, bounds = asked(
        f"SELECT id, j.* FROM {inner} WHERE j.a = 1",
        f"SELECT t.j.b.* FROM {inner}",
        f"SELECT t.j.* EXCEPT (b) FROM {inner}",
        f"SELECT window.*, n FROM {windows}",
    )
    assert plain == [{"id": row["id"], "a": 1, "b": {"c": "x"}} for row in SALES]
    assert inside == [{"c": "x"}] * len(SALES)
    assert less == [{"a": 1}] * len(SALES)
    assert [list(row) for row in bounds] == [["start", "end", "n"]] * len(bounds)
    assert sum(row["n"] for row in bounds) == len(SALES)


def test_fifty_selects_over_one_filtered_stream_filter_once() -> None:
    app = application()
    for number in range(50):
        app.sql(f"SELECT id, price + {number} AS p FROM sales WHERE price > 3 AND user <> 2").to(
            f"q{number}", hg.to_list([])
        )
    does = [box.operator.label for box in app.network.boxes]
    assert len(does) == 51
    assert does.count("filter(price > 3 AND user <> 2)") == 1
    # Windows, joins and CTEs are shared as well, however the columns and tables are called.
    more = application()
    for number in range(10):
        more.sql(
            f"WITH t{number} AS (SELECT user AS u{number}, window.end AS e, count(*) AS n FROM sales "
            f"GROUP BY user, window(ts, '10 seconds')) SELECT u{number} + {number} AS u, n FROM t{number} AS x"  # noqa: E501
        ).to(f"q{number}", hg.to_list([]))
    assert len(more.network.boxes) == 11


MISTAKES = [
    ("SELEC * FROM sales", "An operand is missing"),
    ("price > 3", "A query begins with SELECT or WITH"),
    (
        "SELECT * FROM sale",
        "There is no source or view 'sale'. Did you mean 'sales'? There are: clicks, sales.",
    ),
    ("SELECT pric FROM sales", "There is no column 'pric' of sales. Did you mean 'price'?"),
    (
        "SELECT c.price FROM sales s, clicks c WHERE s.user = c.user",
        "There is no column 'c.price' of c or s.",
    ),
    (
        "SELECT user FROM sales s JOIN clicks c ON s.id = c.user",
        "'user' is ambiguous; write s.user or c.user",
    ),
    ("SELECT * FROM sales; SELECT * FROM clicks", "One SELECT at a time"),
    ("SELECT 1", "reads no stream; name a source or a view"),
    ("SELECT id, count(*) FROM sales GROUP BY user", "'id' is neither in GROUP BY nor inside an aggregate"),
    (
        "SELECT sum(n) FROM (SELECT count(*) AS n FROM sales GROUP BY user)",
        "Give the inner GROUP BY a window",
    ),
    (
        "SELECT count(*) FROM sales GROUP BY window(ts)",
        "takes a time and a length, as in window(ts, '1 minute')",
    ),
    (
        "SELECT count(*) FROM sales GROUP BY window(ts, '1 month')",
        "'month' in '1 month' is not a unit of time",
    ),
    ("SELECT count(*) FROM sales GROUP BY window(id, '1 hour')", "make it a time with timestamp_seconds(id)"),
    ("SELECT count(*) FROM sales GROUP BY window(ts, '5 s', '9 s')", "is longer than the window"),
    ("SELECT count(*) FROM sales GROUP BY ROLLUP (user)", "write a query for each grouping"),
    ("SELECT * FROM sales, clicks", "pairs every row with every other row. Add an equality"),
    (
        "SELECT * FROM sales NATURAL JOIN clicks",
        "this kind of join is not supported; there are JOIN, LEFT JOIN",
    ),
    (
        "SELECT s.id FROM sales s FULL JOIN clicks c ON s.user = c.user AND s.price > length(c.page)",
        "'s.price > length(c.page)' is neither an equality nor a bound in time",
    ),
    (
        "SELECT s.id FROM sales s JOIN clicks c ON s.tags = c.ts",
        "so they are never equal; CAST one of them",
    ),
    (
        "SELECT count(*) FROM sales s JOIN clicks c ON s.user = c.user GROUP BY window(s.ts, '1 minute')",
        "over a join without a bound in time",
    ),
    ("SELECT avg(price) OVER (PARTITION BY user) FROM sales", "Add ORDER BY with the time column"),
    (
        "SELECT sum(price) OVER (ORDER BY ts ROWS BETWEEN 5 PRECEDING AND CURRENT ROW) FROM sales",
        "aggregate a sliding window: GROUP BY key, window(ts, '10 minutes', '1 minute')",
    ),
    (
        "SELECT lead(price) OVER (ORDER BY ts) FROM sales",
        "with OVER there are ROW_NUMBER(), LAG(x) and aggregates",
    ),
    (
        "SELECT id, row_number() OVER (PARTITION BY user ORDER BY price) AS r FROM sales",
        "a bound of it is known, as in WHERE r <= 10 around it",
    ),
    (
        "SELECT id FROM (SELECT id, row_number() OVER (ORDER BY price) AS r FROM sales) WHERE r = 3",
        "bound ROW_NUMBER() by a number of rows, as in r <= 10",
    ),
    ("SELECT user, count(*) FROM sales GROUP BY user ORDER BY 2 LIMIT 3", "change with every row"),
    ("SELECT id FROM sales WHERE user NOT IN (SELECT user FROM clicks)", "EXISTS (SELECT …) and NOT EXISTS"),
    (
        "SELECT id FROM sales WHERE price > (SELECT max(price) FROM sales)",
        "of queries in WHERE there are x IN",
    ),
    ("SELECT id FROM sales UNION ALL SELECT user, page FROM clicks", "1 columns (id) and 2 (user, page)"),
    (
        "SELECT tags FROM sales UNION ALL SELECT user FROM clicks",
        "'tags' is ARRAY<STRING>, but 'user' is BIGINT",
    ),
    ("SELECT id FROM sales INTERSECT SELECT user FROM clicks", "INTERSECT of two streams is not supported"),
    ("SELECT id, user AS id FROM sales", "'id' comes out twice"),
    ("SELECT t.* FROM sales s", "there is no table or struct 't' here, but tables s"),
    ("SELECT explode(price) FROM sales", "not a list or a map"),
    ("SELECT id FROM sales QUALIFY id > 1", "QUALIFY is not Spark's"),
    ("SELECT id FROM sales SORT BY id", "SORT BY has no meaning for a stream"),
    ("SELECT id FROM sales TABLESAMPLE (10 PERCENT)", "TABLESAMPLE is not supported"),
    ("WITH RECURSIVE r AS (SELECT id FROM sales) SELECT * FROM r", "a network of boxes has no loops"),
    ("SELECT window.length FROM (SELECT window FROM sales GROUP BY window(ts, '1 s'))", "has start and end"),
    ("SELECT madeup(id) FROM sales", "madeup"),
    ("", "A query is a text such as"),
]


@pytest.mark.parametrize(("query", "answer"), MISTAKES)
def test_a_query_that_cannot_be_is_refused_with_what_to_do(query: str, answer: str) -> None:
    with pytest.raises(hg.HeadgateError) as refused:
        application().sql(query)
    assert answer in str(refused.value)


def test_a_stream_without_end_is_not_sorted_and_its_outer_joins_need_a_bound() -> None:
    app = hg.App("endless")
    for name in ("a", "b"):
        app.source(name, hg.from_rate(10))
    with pytest.raises(hg.HeadgateError, match="source 'a' has no end at which it could be sorted"):
        app.sql("SELECT value FROM a ORDER BY value LIMIT 3")
    with pytest.raises(hg.HeadgateError, match="Bound the join in time"):
        app.sql("SELECT a.value FROM a LEFT JOIN b ON a.value = b.value")
    with pytest.raises(hg.HeadgateError, match=r"anti join of sources without an end\. Compute it"):
        app.sql("SELECT a.value FROM a LEFT JOIN b ON a.value = b.value AND a.value > b.value * 2")


FILE = """
-- Sources, views and queries of a shop.
CREATE SOURCE numbers WITH (from = 'rate', rows_per_second = 1000, limit = 3000, lateness = '1 second');
CREATE SOURCE items (id BIGINT, name STRING) WITH (path = 'items', format = 'json');
CREATE VIEW named AS
  SELECT n.value, i.name, n.timestamp AS ts FROM numbers n JOIN items i ON n.value % 3 = i.id;
CREATE QUERY counts WITH (to = 'counts', goal = '500 ms', class = 2, append = true) AS
  SELECT name, count(*) AS n FROM named WHERE name <> 'a;b' GROUP BY name;
"""


def test_a_file_of_sql_is_an_application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("items").mkdir()
    Path("items/a.json").write_text('{"id": 0, "name": "zero"}\n{"id": 1, "name": "a;b"}\n{"id": 2}\n')
    Path("shop.sql").write_text(FILE)
    app = load_app(Path("shop.sql"))
    assert app.name == "shop"
    (query,) = app.network.outputs
    assert query.qos == hg.QoS([(0, 1), (0.5, 1), (5, 0)])
    assert query.query_class == 2
    app.run("threads")
    with duckdb.connect() as database:
        rows = database.sql("SELECT name, max(n) FROM 'counts/*.parquet' GROUP BY name").fetchall()
    assert rows == [("zero", 1000)]


@pytest.mark.parametrize(
    ("statement", "answer"),
    [
        ("SELECT 1", "CREATE is expected, not 'SELECT'"),
        ("CREATE TABLE t (a INT)", "there are CREATE SOURCE, CREATE VIEW and CREATE QUERY"),
        ("CREATE SOURCE s WITH (from = 'file', path = 'x')", "Did you mean 'files'?"),
        ("CREATE SOURCE s WITH (from = 'rate', rate = 3)", "source 's': there is no option 'rate'"),
        ("CREATE SOURCE s WITH (from = 'rate')", "source 's': give rows_per_second in WITH (…)"),
        ("CREATE SOURCE s (a) WITH (path = 'x')", "a type for column 'a' is expected"),
        ("CREATE SOURCE s (a NUMBER) WITH (path = 'x')", "NUMBER"),
        ("CREATE QUERY q AS SELECT value FROM r", "WITH is expected, not 'AS'"),
        (
            "CREATE QUERY q WITH (goal = '1 s') AS SELECT value FROM r",
            "say where its results go with to = '…'",
        ),
        ("CREATE QUERY q WITH (to = 'x', gaol = '1 s') AS SELECT value FROM r", "there is no option 'gaol'"),
        ("CREATE QUERY q WITH (to = 'x', goal = 'soon') AS SELECT value FROM r", "'soon' is not a duration"),
        (
            "CREATE QUERY q WITH (to = out) AS SELECT value FROM r",
            "a text in quotes, a number, true or false",
        ),
        ("CREATE VIEW v AS SELECT vale FROM r", "Did you mean 'value'?"),
        (
            "CREATE VIEW v AS SELECT value FROM r; CREATE VIEW V AS SELECT value FROM r",
            "already a view called 'V'",
        ),
    ],
)
def test_a_mistake_in_a_file_of_sql_is_told_with_its_line(
    tmp_path: Path, statement: str, answer: str
) -> None:
    file = tmp_path / "bad.sql"
    file.write_text(f"CREATE SOURCE r WITH (from = 'rate', rows_per_second = 1);\n\n{statement};")
    with pytest.raises(hg.HeadgateError) as refused:
        load_app(file)
    assert f"{file}, line 3: " in str(refused.value)
    assert answer in str(refused.value)
