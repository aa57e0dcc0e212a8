"""The questions of ``click_queries`` asked of DuckDB as a batch, answers written as Parquet."""

from __future__ import annotations

import time
from pathlib import Path

import duckdb

from benchmarks.workloads.click_queries import GAP, WHERE

_FRESH = (
    f"CASE WHEN ts - lag(ts) OVER by_user < INTERVAL '{GAP}' THEN 0 ELSE 1 END AS fresh "
    "FROM clicks WINDOW by_user AS (PARTITION BY user_id ORDER BY ts)"
)
SQL = {
    "filter": f"SELECT user_id, item_id, price * 1.2 AS gross FROM clicks WHERE {WHERE}",
    "tumbling": "SELECT user_id, time_bucket(INTERVAL '1 minute', ts) AS window_start, "
    "window_start + INTERVAL '1 minute' AS window_end, count(*) AS n, sum(price) AS s "
    "FROM clicks GROUP BY ALL",
    "session": f"SELECT user_id, min(ts) AS window_start, max(ts) + INTERVAL '{GAP}' AS window_end, "
    "count(*) AS n, sum(price) AS s FROM (SELECT user_id, ts, price, sum(fresh) OVER "
    "(PARTITION BY user_id ORDER BY ts ROWS UNBOUNDED PRECEDING) AS number FROM "
    f"(SELECT user_id, ts, price, {_FRESH})) GROUP BY user_id, number",
    "running": "SELECT user_id, ts, price, sum(price) OVER "
    "(PARTITION BY user_id ORDER BY click_id ROWS UNBOUNDED PRECEDING) AS s FROM clicks",
}


def ask(query: str, clicks: str | Path, answers: str | Path, threads: int = 2) -> float:
    """Answer a question; seconds, without opening the database."""
    with duckdb.connect() as database:
        database.execute(f"SET TimeZone = 'UTC'; SET threads = {threads}")
        database.execute(f"CREATE VIEW clicks AS SELECT * FROM read_parquet('{clicks}/*.parquet')")
        Path(answers).mkdir(parents=True)
        begin = time.perf_counter()
        database.execute(f"COPY ({SQL[query]}) TO '{answers}/part.parquet' (FORMAT parquet)")
        return time.perf_counter() - begin
