"""The shop's tables: TPCx-BB's clicks and sales, items in ten categories, and the pages of its web site.

The streams have the benchmark's columns, plus ``wcs_ts`` and ``ss_ts``: the event time as a timestamp.
"""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Columns = dict[str, Ints | Floats]

SECOND = 1_000_000
DAY = 86_400 * SECOND
START = datetime(2024, 1, 4, tzinfo=UTC)
"""A Thursday, so that weeks from here are weeks from 1970-01-01, as windows are."""
_JULIAN_DAY_OF_1970 = 2_440_588
"""The benchmark's date keys are Julian day numbers."""

CATEGORIES = (
    "Books",
    "Children",
    "Electronics",
    "Home",
    "Jewelry",
    "Men",
    "Music",
    "Shoes",
    "Sports",
    "Women",
)
PAGE_TYPES = ("welcome", "search", "product", "review", "cart", "order", "general")
WELCOME, SEARCH, PRODUCT, REVIEW, CART, ORDER, GENERAL = range(len(PAGE_TYPES))
PAGES_PER_TYPE = 4

TRENDS = (0.9, -0.9, 0.0, 0.5, -0.5, 0.0, 1.2, -1.2, 0.3, -0.3)
"""How strongly each category's sales change over a season: above 0 they rise, below 0 they decline."""

WEB_CLICKSTREAMS = pa.schema(
    [
        pa.field("wcs_click_date_sk", pa.int64()),
        pa.field("wcs_click_time_sk", pa.int64()),
        pa.field("wcs_sales_sk", pa.int64()),
        pa.field("wcs_item_sk", pa.int64()),
        pa.field("wcs_web_page_sk", pa.int64()),
        pa.field("wcs_user_sk", pa.int64()),
        pa.field("wcs_ts", pa.timestamp("us", tz="UTC")),
    ]
)

STORE_SALES = pa.schema(
    [
        pa.field("ss_sold_date_sk", pa.int64()),
        pa.field("ss_sold_time_sk", pa.int64()),
        pa.field("ss_item_sk", pa.int64()),
        pa.field("ss_customer_sk", pa.int64()),
        pa.field("ss_store_sk", pa.int64()),
        pa.field("ss_ticket_number", pa.int64()),
        pa.field("ss_quantity", pa.int32()),
        pa.field("ss_list_price", pa.float64()),
        pa.field("ss_sales_price", pa.float64()),
        pa.field("ss_net_paid", pa.float64()),
        pa.field("ss_ts", pa.timestamp("us", tz="UTC")),
    ]
)

ITEM = pa.schema(
    [
        pa.field("i_item_sk", pa.int64(), nullable=False),
        pa.field("i_category_id", pa.int64(), nullable=False),
        pa.field("i_category", pa.string(), nullable=False),
        pa.field("i_current_price", pa.float64(), nullable=False),
    ]
)
WEB_PAGE = pa.schema(
    [
        pa.field("wp_web_page_sk", pa.int64(), nullable=False),
        pa.field("wp_type", pa.string(), nullable=False),
    ]
)


def clicks(columns: Columns) -> pa.RecordBatch:
    """Generated columns as rows of ``web_clickstreams``; -1 is null in a key that may be unknown."""
    return _batch(columns, WEB_CLICKSTREAMS, "wcs_click", {"wcs_sales_sk", "wcs_item_sk", "wcs_user_sk"})


def sales(columns: Columns) -> pa.RecordBatch:
    """Generated columns as rows of ``store_sales``; -1 is null in a key that may be unknown."""
    return _batch(columns, STORE_SALES, "ss_sold", {"ss_customer_sk", "ss_store_sk"})


def _batch(columns: Columns, schema: pa.Schema, event: str, nullable: set[str]) -> pa.RecordBatch:
    time = columns[schema.names[-1]]
    days = time // DAY
    date, second = days + _JULIAN_DAY_OF_1970, (time - days * DAY) // SECOND
    values = {**columns, f"{event}_date_sk": date, f"{event}_time_sk": second}
    arrays = [
        pa.array(values[f.name], type=f.type, mask=values[f.name] < 0 if f.name in nullable else None)
        for f in schema
    ]
    return pa.record_batch(arrays, schema=schema)


def category_of(item_sk: Ints) -> Ints:
    """Category id, 1 to 10: neighbours at a distance of ten share it."""
    return (item_sk - 1) % len(CATEGORIES) + 1


def prices(items: int, seed: int) -> Floats:
    """Current price of items 1 … ``items``."""
    random = np.random.default_rng([seed, 2])
    price: Floats = np.clip(random.lognormal(3.0, 0.8, items), 1.0, 500.0).round(2)
    return price


def popularity(items: int, seed: int) -> Ints:
    """Item at each rank of popularity: which items are popular has nothing to do with their number."""
    return np.random.default_rng([seed, 3]).permutation(items).astype(np.int64) + 1


def item(items: int, seed: int) -> pa.Table:
    """The item dimension."""
    sk = np.arange(1, items + 1, dtype=np.int64)
    category = category_of(sk)
    names = pa.array(CATEGORIES).take(pa.array(category - 1))
    return pa.table([sk, category, names, prices(items, seed)], schema=ITEM)


def page(page_type: Ints, which: Ints) -> Ints:
    """Key of one of the pages of a type; ``which`` is any number."""
    return page_type * PAGES_PER_TYPE + which % PAGES_PER_TYPE + 1


def web_page() -> pa.Table:
    """The web page dimension."""
    sk = np.arange(1, len(PAGE_TYPES) * PAGES_PER_TYPE + 1, dtype=np.int64)
    return pa.table([sk, pa.array(PAGE_TYPES).take(pa.array((sk - 1) // PAGES_PER_TYPE))], schema=WEB_PAGE)
