"""Four questions to the clicks of ``clicks_files``, each of three columns of the seven.

``filter`` keeps a fifth of the rows; ``tumbling`` sums by user and minute; ``session`` counts visits that end
after two minutes without a click; ``running`` gives every row the user's sum so far.

``digest`` tells whether two systems gave the same answers: a checksum over all rows, whatever their order.
Prices have two decimals, so sums are compared in cents, which rounding of floats does not change.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

import headgate as hg

QUERIES = ("filter", "tumbling", "session", "running")
WHERE = "price > 60 AND user_id IS NOT NULL"
MINUTE = "1 minute"
GAP = "2 minutes"
LATENESS = "2 seconds"
"""The clicks' disorder: no row is late."""
OPEN_SECONDS = 10
"""Windows that end so close to the newest click may be open still where a stream never ends."""

_HASHED = {
    "filter": "user_id, item_id, CAST(round(gross * 1000) AS BIGINT)",
    "tumbling": "user_id, epoch_us(window_start), CAST(n AS BIGINT), CAST(round(s * 100) AS BIGINT)",
    "session": "user_id, epoch_us(window_start), epoch_us(window_end), CAST(n AS BIGINT), "
    "CAST(round(s * 100) AS BIGINT)",
    "running": "user_id, epoch_us(ts), CAST(round(price * 100) AS BIGINT), CAST(round(s * 100) AS BIGINT)",
}


def app(query: str, clicks: str | Path, answers: str | Path) -> hg.App:
    """The question as an application that reads these files and writes its answers as Parquet."""
    made = hg.App(f"clicks-{query}")
    rows = made.source("clicks", hg.from_files(str(clicks), format="parquet"))
    by_user = rows.key_by("user_id")
    aggregates = ("count(*) AS n", "sum(price) AS s")
    if query == "filter":
        found = rows.filter(WHERE).select("user_id", "item_id", "price * 1.2D AS gross")
    elif query == "tumbling":
        found = by_user.window(hg.tumbling(MINUTE, on="ts", lateness=LATENESS)).agg(*aggregates)
    elif query == "session":
        found = by_user.window(hg.session(GAP, on="ts", lateness=LATENESS)).agg(*aggregates)
    else:
        found = rows.select("user_id", "ts", "price").key_by("user_id").running("sum(price) AS s")
    found.to(query, hg.to_parquet(str(answers)))
    return made


def newest(clicks: str | Path) -> int:
    """Microseconds from 1970 of the newest click."""
    return max(
        int(pq.read_table(path, columns=["ts"]).column("ts").cast("int64").to_numpy().max())
        for path in Path(clicks).glob("*.parquet")
    )


def digest(query: str, answers: str | Path, newest: int, *, common: bool) -> tuple[int, str]:
    """How many rows were answered, and their checksum.

    ``common``: only what Structured Streaming can be asked for as well.  These are windows that had closed
    before the last click, and of running sums the last one of each user.
    """
    import duckdb

    rows = f"read_parquet('{answers}/**/*.parquet')"
    hashed = _HASHED[query]
    if common and query in ("tumbling", "session"):
        rows = f"(SELECT * FROM {rows} WHERE epoch_us(window_end) < {newest - OPEN_SECONDS * 1_000_000})"
    elif common and query == "running":
        # Prices are positive: the last sum is the largest.
        rows = f"(SELECT user_id, max(s) AS s FROM {rows} GROUP BY user_id)"
        hashed = "user_id, CAST(round(s * 100) AS BIGINT)"
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'; SET threads = 2")
        ((count, checksum),) = database.sql(f"SELECT count(*), sum(hash({hashed})) FROM {rows}").fetchall()
    return int(count), str(checksum)
