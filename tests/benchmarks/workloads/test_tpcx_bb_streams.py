"""The TPCx-BB generator: the same seed gives the same bytes, and the data has what the queries look for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from benchmarks.workloads.tpcx_bb import arrivals, streams
from headgate.errors import HeadgateError

ROWS = 100_000
MINUTE = 60_000_000


def table(name: str, rows: int = ROWS, **options: object) -> pa.Table:
    return pa.Table.from_batches(
        streams.stream(rows, table=name, rows_per_day=5_000, **options), streams.SCHEMAS[name]
    )


@pytest.fixture(scope="module")
def clicks() -> pa.Table:
    return table("web_clickstreams")


@pytest.fixture(scope="module")
def sales() -> pa.Table:
    return table("store_sales")


def times(stream: pa.Table) -> np.ndarray:
    return stream.column(stream.schema.names[-1]).cast(pa.int64()).to_numpy()


def sql(query: str, **tables: pa.Table) -> list[tuple[object, ...]]:
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        for name, rows in tables.items():
            db.register(name, rows)
        return db.execute(query).fetchall()


@pytest.mark.parametrize("name", streams.STREAMS)
def test_seed_decides_every_row(name: str) -> None:
    assert table(name, 30_000, seed=3).equals(table(name, 30_000, seed=3))
    assert not table(name, 30_000, seed=3).equals(table(name, 30_000, seed=4))


@pytest.mark.parametrize("name", streams.STREAMS)
def test_rows_depend_neither_on_what_follows_nor_on_the_cut(name: str) -> None:
    few = table(name, 1_000, batch_rows=77)
    assert few.equals(table(name, 200_000, batch_rows=9_999).slice(0, 1_000).combine_chunks())


@pytest.mark.parametrize("name", streams.STREAMS)
def test_batches_have_the_size_asked_for(name: str) -> None:
    sizes = [b.num_rows for b in streams.stream(250_001, batch_rows=100_000, table=name)]
    assert sizes == [100_000, 100_000, 50_001]
    assert list(streams.stream(0, table=name)) == []


@pytest.mark.parametrize("name", streams.STREAMS)
@pytest.mark.parametrize("disorder", [0.0, 7.5, 60.0])
def test_order_of_event_time_up_to_the_disorder(name: str, disorder: float) -> None:
    at = times(table(name, disorder=disorder))
    behind = np.maximum.accumulate(at) - at
    assert behind.max() <= 0 if disorder == 0 else 0.9 * disorder * 1e6 < behind.max() < disorder * 1e6


@pytest.mark.parametrize("name", streams.STREAMS)
def test_rows_per_day_sets_the_span(name: str) -> None:
    at = times(table(name))
    assert at.min() >= streams.START.timestamp() * 1e6
    assert (at.max() - at.min()) / 86.4e9 == pytest.approx(ROWS / 5_000, rel=0.3)


def test_date_and_time_keys_agree_with_the_timestamp(clicks: pa.Table, sales: pa.Table) -> None:
    for rows, prefix, stamp in ((clicks, "wcs_click", "wcs_ts"), (sales, "ss_sold", "ss_ts")):
        wrong = sql(
            f"""SELECT count(*) FROM rows WHERE {prefix}_date_sk <> CAST(julian({stamp}::DATE) AS BIGINT)
                OR {prefix}_time_sk <> date_diff('second', {stamp}::DATE::TIMESTAMP, {stamp}::TIMESTAMP)""",
            rows=rows,
        )
        assert wrong == [(0,)]


def test_users_and_items_are_skewed(clicks: pa.Table, sales: pa.Table) -> None:
    for rows, column in ((clicks, "wcs_user_sk"), (clicks, "wcs_item_sk"), (sales, "ss_item_sk")):
        counts = np.sort(
            [n for (n,) in sql(f"SELECT count(*) FROM t WHERE {column} NOTNULL GROUP BY {column}", t=rows)]
        )
        top = counts[-len(counts) // 100 :].sum() / counts.sum()
        assert top > 0.05, column


def test_sessions_are_bursts_with_rest_between_them(clicks: pa.Table) -> None:
    gaps = np.array(
        sql(
            """SELECT us - lag(us) OVER (PARTITION BY u ORDER BY us) AS gap
               FROM (SELECT wcs_user_sk AS u, epoch_us(wcs_ts) AS us FROM clicks WHERE u NOTNULL)
               QUALIFY gap NOTNULL""",
            clicks=clicks,
        )
    )
    within, between = gaps[gaps < 60 * MINUTE], gaps[gaps >= 60 * MINUTE]
    assert within.max() <= 41 * MINUTE
    assert between.min() > 60 * MINUTE
    assert len(within) > 5 * len(between) > 1_000


def test_some_sessions_abandon_carts_some_buy_and_some_users_are_unknown(clicks: pa.Table) -> None:
    [(anonymous, bought_outside_order_pages, no_item_bought)] = sql(
        """SELECT avg((wcs_user_sk IS NULL)::INT),
                  count(*) FILTER ((wcs_sales_sk NOTNULL) <> (wp_type = 'order')),
                  count(*) FILTER (wcs_sales_sk NOTNULL AND wcs_item_sk IS NULL)
           FROM clicks JOIN pages ON wcs_web_page_sk = wp_web_page_sk""",
        clicks=clicks,
        pages=streams.dimension("web_page"),
    )
    assert 0.02 < anonymous < 0.1
    assert (bought_outside_order_pages, no_item_bought) == (0, 0)
    outcomes = dict(
        sql(
            """WITH clicks AS (
                   SELECT *, epoch_us(wcs_ts) - lag(epoch_us(wcs_ts))
                       OVER (PARTITION BY wcs_user_sk ORDER BY wcs_ts) AS gap
                   FROM c JOIN pages ON wcs_web_page_sk = wp_web_page_sk WHERE wcs_user_sk NOTNULL),
               numbered AS (
                   SELECT *, sum((gap IS NULL OR gap >= 3_600_000_000)::INT)
                       OVER (PARTITION BY wcs_user_sk ORDER BY wcs_ts) AS session FROM clicks),
               sessions AS (
                   SELECT bool_or(wp_type = 'cart') AS cart, bool_or(wp_type = 'order') AS ordered
                   FROM numbered GROUP BY wcs_user_sk, session)
               SELECT CASE WHEN ordered THEN 'bought' WHEN cart THEN 'abandoned' ELSE 'looked' END, count(*)
               FROM sessions GROUP BY 1""",
            c=clicks,
            pages=streams.dimension("web_page"),
        )
    )
    total = sum(outcomes.values())
    assert 0.05 < outcomes["bought"] / total < 0.3
    assert 0.1 < outcomes["abandoned"] / total < 0.4


def test_tickets_hold_one_to_eight_different_items(sales: pa.Table) -> None:
    [(smallest, largest, mean, repeated, times_per_ticket)] = sql(
        """SELECT min(n), max(n), avg(n), max(n - kinds), max(moments) FROM (
               SELECT count(*) AS n, count(DISTINCT ss_item_sk) AS kinds, count(DISTINCT ss_ts) AS moments
               FROM sales GROUP BY ss_ticket_number)""",
        sales=sales,
    )
    assert (smallest, largest, repeated, times_per_ticket) == (1, 8, 0, 1)
    assert 2.5 < mean < 4.5


def test_ten_categories_some_of_which_decline(sales: pa.Table) -> None:
    slopes = dict(
        sql(
            """SELECT i_category_id, regr_slope(paid, day) FROM (
                   SELECT i_category_id, ss_sold_date_sk AS day, sum(ss_net_paid) AS paid
                   FROM sales JOIN items ON ss_item_sk = i_item_sk GROUP BY ALL) GROUP BY 1""",
            sales=sales,
            items=streams.dimension("item"),
        )
    )
    assert sorted(slopes) == list(range(1, 11))
    for category in (2, 8):
        assert slopes[category] < 0
    for category in (1, 7):
        assert slopes[category] > 0


def test_sold_items_are_in_the_dimension_at_their_list_price(sales: pa.Table) -> None:
    assert sql(
        """SELECT count(*) FROM sales ANTI JOIN items
           ON ss_item_sk = i_item_sk AND ss_list_price = i_current_price""",
        sales=sales,
        items=streams.dimension("item"),
    ) == [(0,)]


def test_only_rows_whose_place_is_open_are_held() -> None:
    """The generator's memory: a chunk plus what later chunks can still precede."""

    def chunks() -> Iterator[tuple[arrivals.Columns, arrivals.Ints, int]]:
        for begin in itertools.count(0, 100):
            at = np.arange(begin, begin + 130)
            yield {"at": at}, at, begin + 100
            made.append(len(at))

    made: list[int] = []
    taken = 0
    for part in itertools.islice(arrivals.in_order_of_arrival(chunks()), 50):
        taken += len(part["at"])
        assert sum(made) - taken <= 30
    assert taken > 5_000


def test_a_stream_is_made_as_it_is_read() -> None:
    endless = streams.stream(10**12, batch_rows=1_000)
    assert next(endless).num_rows == 1_000


def test_mistakes_are_named() -> None:
    with pytest.raises(HeadgateError, match="Did you mean 'store_sales'"):
        streams.stream(1, table="store_sale")
    with pytest.raises(HeadgateError, match="must be positive"):
        streams.stream(1, rows_per_day=0)
    with pytest.raises(HeadgateError, match="no dimension 'page'"):
        streams.dimension("page")
