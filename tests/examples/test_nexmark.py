"""NEXMark's queries give the answers of DuckDB, which sees the whole tables at once, on every engine."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import headgate as hg
from benchmarks.workloads import nexmark

EXAMPLES = Path(__file__).parents[2] / "examples" / "nexmark"
Rows = list[dict[str, Any]]
Tables = dict[str, pa.Table]


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("nexmark_app", EXAMPLES / "app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


APP = example()
TIME = "dateTime"
DAY = "strftime(dateTime, '%Y-%m-%d')"
RANKS = {"1": "price < 10000", "2": "price BETWEEN 10000 AND 999999", "3": "price >= 1000000"}
COUNTS = ", ".join(
    f"sum(CASE WHEN {condition} THEN 1 ELSE 0 END)::BIGINT AS {prefix}_bids, "
    f"count(DISTINCT CASE WHEN {condition} THEN bidder END) AS {prefix}_bidders, "
    f"count(DISTINCT CASE WHEN {condition} THEN auction END) AS {prefix}_auctions"
    for prefix, condition in {"total": "true", **{f"rank{n}": c for n, c in RANKS.items()}}.items()
)
HOPS = """
    SELECT auction, s, count(*) AS num
    FROM bid, generate_series(0, 4) AS g(k), (SELECT 1),
      LATERAL (SELECT time_bucket(INTERVAL '2 seconds', dateTime) - to_seconds(2 * k) AS s)
    GROUP BY auction, s"""
BUCKET = "time_bucket(INTERVAL '10 seconds', dateTime)"
PAIRS = "auction A JOIN bid B ON A.id = B.auction AND B.dateTime >= A.dateTime AND B.dateTime <= A.expires"
ORACLE = {
    "q0": "SELECT auction, bidder, price, dateTime, extra FROM bid",
    "q1": "SELECT auction, bidder, (price * 908)::DECIMAL(38, 3) / 1000 AS price, dateTime, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """SELECT name, city, state, A.id FROM person P, auction A
        WHERE P.id = seller AND category = 10 AND state IN ('OR', 'ID', 'CA')""",
    "q4": f"""SELECT category, avg(final) AS average FROM (
        SELECT max(B.price) AS final, category FROM {PAIRS} GROUP BY A.id, category) GROUP BY category""",
    "q5": f"""SELECT auction, num FROM ({HOPS}) QUALIFY num = max(num) OVER (PARTITION BY s)""",
    # A bid at the very end of a window is also in the next one, as the query's BETWEEN has it.
    "q7": f"""SELECT auction, B.price, bidder, B.dateTime, extra FROM bid B, (
        SELECT max(price) AS price, {BUCKET} AS s FROM bid GROUP BY s) M
        WHERE B.price = M.price AND B.dateTime BETWEEN s AND s + INTERVAL '10 seconds'""",
    "q8": f"""SELECT DISTINCT P.id, name, {BUCKET.replace("dateTime", "P.dateTime")} AS starttime
        FROM person P, auction A WHERE P.id = seller
        AND {BUCKET.replace("dateTime", "P.dateTime")} = {BUCKET.replace("dateTime", "A.dateTime")}""",
    "q9": f"""SELECT A.*, B.auction, B.bidder, B.price, B.dateTime AS bid_dateTime, B.extra AS bid_extra
        FROM {PAIRS} QUALIFY row_number() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.dateTime) = 1""",
    "q10": f"""SELECT auction, bidder, price, dateTime, extra, {DAY} AS day,
        strftime(dateTime, '%H:%M') AS minute FROM bid""",
    "q11": """SELECT bidder, count(*) AS bid_count, min(dateTime) AS starttime,
          max(dateTime) + INTERVAL '10 seconds' AS endtime
        FROM (SELECT *, sum(fresh) OVER (PARTITION BY bidder ORDER BY dateTime) AS number FROM (
          SELECT *, (dateTime - lag(dateTime) OVER (PARTITION BY bidder ORDER BY dateTime)
            < INTERVAL '10 seconds') IS NOT TRUE AS again, again::INT AS fresh FROM bid))
        GROUP BY bidder, number""",
    "q13": "SELECT auction, bidder, price, dateTime, value FROM bid, side_input WHERE auction % 100 = key",
    "q14": """SELECT auction, bidder, (price * 908)::DECIMAL(38, 3) / 1000 AS price, CASE
          WHEN hour(dateTime) BETWEEN 8 AND 18 THEN 'dayTime'
          WHEN hour(dateTime) BETWEEN 7 AND 19 THEN 'otherTime' ELSE 'nightTime' END AS bidTimeType,
          dateTime, extra, len(list_filter(string_split(extra, ''), lambda c: c = 'c')) AS c_counts
        FROM bid WHERE price * 908 > 1000000000 AND price * 908 < 50000000000""",
    "q15": f"SELECT {DAY} AS day, {COUNTS} FROM bid GROUP BY 1",
    "q16": f"""SELECT channel, {DAY} AS day, strftime(max(dateTime), '%H:%M') AS minute, {COUNTS}
        FROM bid GROUP BY 1, 2""",
    "q17": f"""SELECT auction, {DAY} AS day, count(*) AS total_bids,
        {", ".join(f"count(CASE WHEN {c} THEN 1 END) AS rank{n}_bids" for n, c in RANKS.items())},
        min(price) AS min_price, max(price) AS max_price, avg(price) AS avg_price,
        sum(price)::BIGINT AS sum_price FROM bid GROUP BY 1, 2""",
    "q18": """SELECT * FROM bid
        QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC) = 1""",
    "q19": "SELECT * FROM bid QUALIFY row_number() OVER (PARTITION BY auction ORDER BY price DESC) <= 10",
    "q20": """SELECT auction, bidder, price, channel, url, B.dateTime AS bid_dateTime, B.extra AS bid_extra,
        itemName, description, initialBid, reserve, A.dateTime AS auction_dateTime, expires, seller, category,
        A.extra AS auction_extra FROM bid B JOIN auction A ON A.id = auction WHERE category = 10""",
    "q21": """SELECT auction, bidder, price, channel, coalesce(
          map {'apple': '0', 'google': '1', 'facebook': '2', 'baidu': '3'}[lower(channel)],
          split_part(url, 'channel_id=', 2)) AS channel_id FROM bid""",
    "q22": """SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1,
        split_part(url, '/', 5) AS dir2, split_part(url, '/', 6) AS dir3 FROM bid""",
}


def last(*keys: str) -> Callable[[Rows], Rows]:
    """The last row of every key: what a query says that gives each group's new values."""
    return lambda rows: list({tuple(row[key] for key in keys): row for row in rows}.values())


def best_ten(rows: Rows) -> Rows:
    """Of the bids that were among the ten highest when they came, those that still are in the end."""
    by_auction: dict[int, Rows] = {}
    for row in rows:
        by_auction.setdefault(row["auction"], []).append({k: v for k, v in row.items() if k != "rank_number"})
    return [row for own in by_auction.values() for row in sorted(own, key=lambda row: -row["price"])[:10]]


FINAL: dict[str, Callable[[Rows], Rows]] = {
    "q4": last("category"),
    "q9": last("id"),
    "q15": last("day"),
    "q16": last("channel", "day"),
    "q17": last("auction", "day"),
    "q18": last("bidder", "auction"),
    "q19": best_ten,
}
ENGINES: dict[str, Callable[[], hg.Engine]] = {
    "threads": lambda: hg.Threads(workers=2, packet_rows=200),
    "simulated": lambda: hg.Simulated(workers=3, packet_rows=70, call_overhead=0.001),
    "spark": lambda: hg.Spark(workers=2),
}
SAID = [query for query in APP.QUERIES if query not in APP.REFUSED]


@pytest.fixture(scope="module")
def tables() -> Tables:
    return nexmark.tables(3000, rate=50)


@pytest.fixture(scope="module")
def answers(tables: Tables) -> dict[str, Rows]:
    """DuckDB's."""
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        for name, table in tables.items():
            database.register(name, table)
        return {query: database.sql(sql).to_arrow_table().to_pylist() for query, sql in ORACLE.items()}


def all_queries(tables: Tables) -> tuple[hg.App, dict[str, Rows]]:
    app = hg.App("nexmark")
    found: dict[str, Rows] = {query: [] for query in SAID}
    for name, table in tables.items():
        app.source(name, hg.from_batches(table.to_batches(max_chunksize=100)))
    for query in SAID:
        app.sql(APP.text(query)).to(query, hg.to_list(found[query]))
    return app, found


def comparable(rows: Rows) -> list[str]:
    """Rows in one order; numbers of other types and scales that are equal look the same."""

    def shown(value: Any) -> str:
        return (
            f"{float(value):.9g}"
            if isinstance(value, (int, float)) or hasattr(value, "scaleb")
            else str(value)
        )

    return sorted(str({key: shown(row[key]) for key in sorted(row)}) for row in rows)


@pytest.mark.parametrize("engine", ENGINES)
def test_all_queries_at_once_give_the_answers_of_the_oracle(
    engine: str, tables: Tables, answers: dict[str, Rows], ends: Callable[[Callable[[], Any]], Any]
) -> None:
    app, found = all_queries(tables)
    ends(lambda: app.run(ENGINES[engine]()))
    for query in SAID:
        rows = FINAL.get(query, list)(found[query])
        assert rows, query
        assert comparable(rows) == comparable(answers[query]), query


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("q6", "change with every row"),
        ("q12", "results must not depend on when they are computed"),
    ],
)
def test_queries_that_cannot_be_said_are_refused_with_the_reason(
    tables: Tables, query: str, reason: str
) -> None:
    app = all_queries(tables)[0]
    assert query in APP.REFUSED
    with pytest.raises(hg.HeadgateError, match=reason):
        app.sql(APP.text(query))


def test_the_application_runs_over_generated_files(
    headgate: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Wrote 500 events" in headgate("generate", "nexmark", tmp_path, "--events", 500)
    monkeypatch.setenv("NEXMARK_DATA", str(tmp_path))
    monkeypatch.setenv("NEXMARK_OUT", str(tmp_path / "out"))
    report = APP.build().run("threads")
    assert sorted(report.queries) == sorted(SAID)
    assert report.queries["q0"].tuples_out == 460


def test_the_same_seed_gives_the_same_events() -> None:
    one, two, other = (nexmark.tables(500, seed=seed) for seed in (3, 3, 4))
    assert all(one[name].equals(two[name]) for name in one)
    assert not one["bid"].equals(other["bid"])
    assert [one[name].num_rows for name in nexmark.TABLES] == [10, 30, 460]
