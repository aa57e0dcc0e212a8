"""The shop's fixed tables: items in ten categories, and the pages of its web site."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headgate.demo.tpcx_bb.arrivals import Floats, Ints

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
