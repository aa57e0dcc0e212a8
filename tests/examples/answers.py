"""The TPCx-BB streaming queries as batch SQL over the same files, by DuckDB, which shares no code with us.

Each answer is the list of rows, in order, that the query's example emits when it runs until drained with
no row late.  Sessions are found by gaps and islands.  Times are in microseconds since 1970.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

_TABLES = """
SET TimeZone = 'UTC';
CREATE VIEW clicks AS
    SELECT * EXCLUDE (filename, file_row_number), epoch_us(wcs_ts) AS us,
           row_number() OVER (ORDER BY filename, file_row_number) AS place
    FROM read_parquet('{data}/web_clickstreams/*.parquet', filename = true, file_row_number = true);
CREATE VIEW sales AS SELECT *, epoch_us(ss_ts) AS us FROM '{data}/store_sales/*.parquet';
CREATE VIEW item AS FROM '{data}/item/*.parquet';
CREATE VIEW web_page AS FROM '{data}/web_page/*.parquet';
"""

_SESSIONS = """
    gaps AS (
        SELECT *, us - lag(us) OVER (PARTITION BY wcs_user_sk ORDER BY us) AS gap FROM relevant),
    numbered AS (
        SELECT *, sum(CASE WHEN gap < 3600000000 THEN 0 ELSE 1 END)
            OVER (PARTITION BY wcs_user_sk ORDER BY us) AS session
        FROM gaps)
"""

_ANSWERS = {
    "q1": """
        WITH sold AS (
            SELECT DISTINCT ss_ticket_number AS ticket, ss_item_sk AS item, us // 3600000000 AS hour
            FROM sales WHERE ss_store_sk IS NOT NULL),
        counts AS (
            SELECT a.item AS item_a, b.item AS item_b, a.hour, count(*) AS sold
            FROM sold a JOIN sold b ON a.ticket = b.ticket AND a.item < b.item
            GROUP BY ALL)
        SELECT item_a, item_b, hour * 3600000000 AS window_start, (hour + 1) * 3600000000 AS window_end, sold
        FROM counts
        QUALIFY row_number() OVER (PARTITION BY hour ORDER BY sold DESC, item_a, item_b) <= 100
        ORDER BY hour, sold DESC, item_a, item_b
    """,
    "q2": f"""
        WITH relevant AS (SELECT * FROM clicks WHERE wcs_user_sk IS NOT NULL AND wcs_item_sk IS NOT NULL),
        {_SESSIONS},
        ended AS (
            SELECT wcs_user_sk, session, max(us) // 86400000000 AS day FROM numbered GROUP BY ALL),
        viewed AS (
            SELECT DISTINCT wcs_user_sk, session, wcs_item_sk AS item, day
            FROM numbered JOIN ended USING (wcs_user_sk, session)),
        counts AS (
            SELECT a.item AS item_a, b.item AS item_b, a.day, count(*) AS sessions
            FROM viewed a JOIN viewed b USING (wcs_user_sk, session)
            WHERE a.item < b.item GROUP BY ALL)
        SELECT item_a, item_b, day * 86400000000 AS window_start, (day + 1) * 86400000000 AS window_end,
               sessions
        FROM counts
        QUALIFY row_number() OVER (PARTITION BY day ORDER BY sessions DESC, item_a, item_b) <= 30
        ORDER BY day, sessions DESC, item_a, item_b
    """,
    "q3": """
        WITH numbered AS (
            SELECT wcs_user_sk AS shopper, wcs_item_sk AS item, wcs_sales_sk IS NOT NULL AS bought, us,
                   count(*) FILTER (wcs_sales_sk IS NULL)
                       OVER (PARTITION BY wcs_user_sk ORDER BY place) AS views
            FROM clicks WHERE wcs_user_sk IS NOT NULL AND wcs_item_sk IS NOT NULL),
        last_five AS (
            SELECT v.item, p.us // 86400000000 AS day
            FROM numbered p JOIN numbered v
              ON p.bought AND NOT v.bought AND v.shopper = p.shopper
             AND v.views BETWEEN p.views - 4 AND p.views AND v.us >= p.us - 10 * 86400000000::BIGINT)
        SELECT item, day * 86400000000 AS window_start, (day + 1) * 86400000000 AS window_end,
               count(*) AS views
        FROM last_five GROUP BY item, day ORDER BY day, item
    """,
    "q4": f"""
        WITH relevant AS (
            SELECT clicks.*, wp_type FROM clicks JOIN web_page ON wcs_web_page_sk = wp_web_page_sk
            WHERE wcs_user_sk IS NOT NULL),
        {_SESSIONS},
        sessions AS (
            SELECT wcs_user_sk, max(us) AS ended, count(*) AS pages FROM numbered
            GROUP BY wcs_user_sk, session
            HAVING bool_or(wp_type = 'cart') AND NOT bool_or(wp_type = 'order'))
        SELECT ended // 3600000000 * 3600000000 AS window_start,
               (ended // 3600000000 + 1) * 3600000000 AS window_end,
               count(*) AS sessions, avg(pages) AS average_pages
        FROM sessions GROUP BY ended // 3600000000 ORDER BY window_start
    """,
    "q15": """
        WITH days AS (
            SELECT i_category_id, i_category, us // 86400000000 AS day, sum(ss_net_paid) AS paid
            FROM sales JOIN item ON ss_item_sk = i_item_sk
            WHERE ss_store_sk IS NOT NULL GROUP BY ALL),
        -- A day on which a category sold nothing counts as 0 in the regression.
        calendar AS (
            SELECT i_category_id, i_category, week, week * 7 + d AS day
            FROM (SELECT DISTINCT i_category_id, i_category, day // 7 AS week FROM days), range(7) AS t(d))
        SELECT i_category_id, i_category, week * 604800000000 AS window_start,
               (week + 1) * 604800000000 AS window_end,
               regr_slope(coalesce(paid, 0), day) AS slope
        FROM calendar LEFT JOIN days USING (i_category_id, i_category, day)
        GROUP BY i_category_id, i_category, week HAVING slope <= 0 ORDER BY week, i_category_id
    """,
}
QUERIES = tuple(_ANSWERS)


def answer(query: str, data: str | Path) -> list[dict[str, Any]]:
    """What ``query`` (q1, q2, q3, q4 or q15) says about the files that ``tpcx_bb.generate`` wrote."""
    with duckdb.connect() as db:
        db.execute(_TABLES.format(data=data))
        result = db.execute(_ANSWERS[query])
        names = [column[0] for column in result.description]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]
