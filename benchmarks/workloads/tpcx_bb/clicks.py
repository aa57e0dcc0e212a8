"""Web clickstreams: users come in sessions, look at related products, fill carts, and sometimes buy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.workloads.tpcx_bb.arrivals import (
    HOUR,
    MINUTE,
    Arrivals,
    Zipf,
    delays,
    grouped_cumsum,
    in_order_of_arrival,
    spread,
)
from headgate.demo.tpcx_bb.tables import (
    CART,
    CATEGORIES,
    GENERAL,
    ORDER,
    PRODUCT,
    REVIEW,
    SEARCH,
    SECOND,
    WELCOME,
    Columns,
    Ints,
    page,
    popularity,
)

_SESSIONS_PER_CHUNK = 16_384
_MEAN_CLICKS = 8.0
_MOST_CLICKS = 60
_MEAN_PAUSE = 75 * SECOND
_LONGEST_PAUSE = 40 * MINUTE
_BETWEEN_SESSIONS = HOUR + MINUTE
_ANONYMOUS = 0.04
_CART = 0.4
_BUYS = 0.4


def clicks(
    seed: int, start: int, rows_per_day: float, disorder: int, users: int, items: int
) -> Iterator[Columns]:
    """Clicks without end, in order of arrival, null as -1."""
    return in_order_of_arrival(_sessions(seed, start, rows_per_day, disorder, users, items))


def _sessions(
    seed: int, start: int, rows_per_day: float, disorder: int, users: int, items: int
) -> Iterator[tuple[Columns, Ints, int]]:
    random = np.random.default_rng([seed, 0])
    arrivals = Arrivals(random, start, rows_per_day / _MEAN_CLICKS)
    people = _People(random, users)
    item_zipf, popular = Zipf(items, 0.9), popularity(items, seed)
    session_number = 0
    while True:
        begins = arrivals.draw(_SESSIONS_PER_CHUNK)
        lengths = np.minimum(random.geometric(1 / _MEAN_CLICKS, _SESSIONS_PER_CHUNK), _MOST_CLICKS)
        session, place = spread(lengths)
        n = len(session)

        pauses = np.minimum(random.exponential(_MEAN_PAUSE, n), _LONGEST_PAUSE).astype(np.int64) + SECOND
        pauses[place == 0] = 0
        ts = begins[session] + grouped_cumsum(pauses, lengths)
        ends = ts[np.cumsum(lengths) - 1]
        user = people.at(begins, ends)

        page_type = _page_types(random, lengths, session, place)
        focus = popular[item_zipf.draw(random, _SESSIONS_PER_CHUNK)][session]
        item = _items(random, focus, popular[item_zipf.draw(random, n)], items)
        item[(page_type == WELCOME) | (page_type == SEARCH) | (page_type == GENERAL)] = -1
        number = session_number + 1 + session
        session_number += _SESSIONS_PER_CHUNK

        columns: Columns = {
            "wcs_sales_sk": np.where(page_type == ORDER, number, -1),
            "wcs_item_sk": item,
            "wcs_web_page_sk": page(page_type, random.integers(0, 4, n)),
            "wcs_user_sk": user[session],
            "wcs_ts": ts,
        }
        yield columns, ts + delays(random, n, disorder), int(begins[-1])


class _People:
    """Who comes: a few users often, nobody again before an hour has passed since the last click.

    A session for which no rested user is found belongs to an anonymous visitor (-1).
    """

    def __init__(self, random: np.random.Generator, users: int) -> None:
        self._random = random
        self._users = users
        self._zipf = Zipf(users, 0.8)
        self._names = random.permutation(users).astype(np.int64)
        self._rested = np.full(users, np.iinfo(np.int64).min)

    def at(self, begins: Ints, ends: Ints) -> Ints:
        user = self._names[self._zipf.draw(self._random, len(begins))]
        user[self._random.random(len(begins)) < _ANONYMOUS] = -1
        for _ in range(2):
            tired = self._tired(user, begins, ends)
            user[tired] = self._random.integers(0, self._users, len(tired))
        user[self._tired(user, begins, ends)] = -1
        known = user >= 0
        np.maximum.at(self._rested, user[known], ends[known] + _BETWEEN_SESSIONS)
        return np.where(known, user + 1, -1)

    def _tired(self, user: Ints, begins: Ints, ends: Ints) -> Ints:
        """Sessions that begin too early after their user's session before."""
        order = np.argsort(user, kind="stable")
        who, begin, rested = user[order], begins[order], ends[order] + _BETWEEN_SESSIONS
        same = np.zeros(len(who), dtype=bool)
        same[1:] = who[1:] == who[:-1]
        group = np.cumsum(~same)
        # Shifted apart by group, one running maximum serves all groups.
        base = int(begins[0])
        shift = group * (int(rested.max()) - base + 1)
        latest = np.maximum.accumulate(rested - base + shift) - shift + base
        before = np.empty_like(latest)
        before[1:] = latest[:-1]
        before[~same] = self._rested[who[~same]]
        tired: Ints = order[(who >= 0) & (begin < before)]
        return tired


def _page_types(random: np.random.Generator, lengths: Ints, session: Ints, place: Ints) -> Ints:
    n = len(session)
    mix = np.array([PRODUCT] * 13 + [REVIEW] * 2 + [SEARCH] * 3 + [GENERAL] * 2, dtype=np.int64)
    types = mix[random.integers(0, len(mix), n)]
    types[(place == 0) & (random.random(n) < 0.5)] = WELCOME

    has_cart = (lengths >= 3) & (random.random(len(lengths)) < _CART)
    buys = has_cart & (lengths >= 4) & (random.random(len(lengths)) < _BUYS)
    bought = np.where(buys, np.minimum(random.integers(1, 4, len(lengths)), lengths - 3), 0)
    cart_place = np.minimum(np.maximum(2, lengths * 3 // 4 - 1), lengths - 1 - bought)
    types[has_cart[session] & (place == cart_place[session])] = CART
    types[buys[session] & (place >= (lengths - bought)[session])] = ORDER
    return types


def _items(random: np.random.Generator, focus: Ints, anything: Ints, items: int) -> Ints:
    """A session's item, or one of its category near it, or anything."""
    chance = random.random(len(focus))
    near = (focus - 1 + len(CATEGORIES) * random.integers(1, 6, len(focus))) % items + 1
    return np.where(chance < 0.35, focus, np.where(chance < 0.8, near, anything))
