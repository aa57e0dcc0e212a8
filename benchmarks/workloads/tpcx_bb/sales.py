"""Store sales: tickets of a few related items, in categories whose sales rise, stand still or decline."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from benchmarks.workloads.tpcx_bb.arrivals import Arrivals, Zipf, delays, in_order_of_arrival, spread
from headgate.demo.tpcx_bb.tables import (
    CATEGORIES,
    DAY,
    TRENDS,
    Columns,
    Floats,
    Ints,
    category_of,
    popularity,
    prices,
)

_SEASON_DAYS = 56
_TICKETS_PER_CHUNK = 32_768
_MEAN_ITEMS = 4.0
_MOST_ITEMS = 8
_STORES = 12


def sales(
    seed: int, start: int, rows_per_day: float, disorder: int, users: int, items: int
) -> Iterator[Columns]:
    """Sold items without end, in order of arrival, null as -1."""
    return in_order_of_arrival(_tickets(seed, start, rows_per_day, disorder, users, items))


def _tickets(
    seed: int, start: int, rows_per_day: float, disorder: int, users: int, items: int
) -> Iterator[tuple[Columns, Ints, int]]:
    random = np.random.default_rng([seed, 1])
    arrivals = Arrivals(random, start, rows_per_day / _MEAN_ITEMS)
    item_zipf, popular, price_of = Zipf(items, 0.9), popularity(items, seed), prices(items, seed)
    customer_zipf = Zipf(users, 0.6)
    customers = random.permutation(users).astype(np.int64) + 1
    ticket_number = 0
    while True:
        size = _TICKETS_PER_CHUNK
        sold = arrivals.draw(size)
        customer = customers[customer_zipf.draw(random, size)]
        customer[random.random(size) < 0.03] = -1
        store = random.integers(1, _STORES + 1, size)
        store[random.random(size) < 0.01] = -1

        ticket, place = spread(np.minimum(random.geometric(1 / _MEAN_ITEMS, size), _MOST_ITEMS))
        focus = popular[item_zipf.draw(random, size)][ticket]
        item = _items(random, focus, place, popular[item_zipf.draw(random, len(ticket))], items)
        once = _first_of_each(ticket, item)
        ticket, item = ticket[once], item[once]
        n = len(ticket)

        ts = sold[ticket]
        factor = _trend(category_of(item), ts)
        quantity = 1 + (random.random(n) * 6 * factor).astype(np.int64)
        list_price = price_of[item - 1]
        price: Floats = (list_price * (1 - 0.05 * random.integers(0, 7, n))).round(2)
        paid: Floats = (price * quantity).round(2)
        columns: Columns = {
            "ss_item_sk": item,
            "ss_customer_sk": customer[ticket],
            "ss_store_sk": store[ticket],
            "ss_ticket_number": ticket_number + 1 + ticket,
            "ss_quantity": quantity,
            "ss_list_price": list_price,
            "ss_sales_price": price,
            "ss_net_paid": paid,
            "ss_ts": ts,
        }
        ticket_number += size
        yield columns, ts + delays(random, n, disorder), int(sold[-1])


def _items(random: np.random.Generator, focus: Ints, place: Ints, anything: Ints, items: int) -> Ints:
    """What goes with the ticket's first item: mostly items of its category near it, else anything."""
    near = (focus - 1 + len(CATEGORIES) * random.integers(1, 8, len(focus))) % items + 1
    chosen = np.where(random.random(len(focus)) < 0.7, near, anything)
    return np.where(place == 0, focus, chosen)


def _first_of_each(ticket: Ints, item: Ints) -> npt.NDArray[np.bool_]:
    """An item stands on a ticket once: (item, ticket) is the table's key."""
    order = np.lexsort((item, ticket))
    t, i = ticket[order], item[order]
    keep = np.ones(len(order), dtype=bool)
    keep[order[1:]] = (t[1:] != t[:-1]) | (i[1:] != i[:-1])
    return keep


def _trend(category: Ints, ts: Ints) -> Floats:
    """How a category sells at a time, 1 in the middle of a season; the next season starts over."""
    into_season = (ts // DAY) % _SEASON_DAYS / _SEASON_DAYS - 0.5
    return np.exp(np.asarray(TRENDS)[category - 1] * 2 * into_season)
