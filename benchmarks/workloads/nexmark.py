"""NEXMark's persons, auctions and bids, as Apache Beam's generator describes them, made column by column.

Of fifty events one is a person, three are auctions and the others bids.  Sellers, bidders and auctions are
hot with the ratios of Beam's default configuration.  Event n happens n / rate seconds after the start.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

TABLES = ("person", "auction", "bid")
SIDE_KEYS = 100
"""Rows of q13's side input."""
_START = 1_436_918_400_000_000
"""Beam's base time, 15 July 2015, in microseconds."""
_FIRST, _FIRST_CATEGORY, _CATEGORIES = 1000, 10, 5
_HOT = 100
"""One id of so many is hot."""
_HOT_AUCTIONS, _HOT_SELLERS, _HOT_BIDDERS = 2, 4, 4
"""All but one of so many choices are hot."""
_IN_FLIGHT, _ACTIVE, _LEAD = 100, 1000, 10
_FIRST_NAMES = [
    *("Peter", "Paul", "Luke", "John", "Saul", "Vicky"),
    *("Kate", "Julie", "Sarah", "Deiter", "Walter"),
]
_LAST_NAMES = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
_CITIES = [
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland"),
    *("Bend", "Redmond", "Seattle", "Kent", "Cheyenne"),
]
_STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
_CHANNELS = ["Google", "Facebook", "Baidu", "Apple"]
_TIME = pa.timestamp("us", tz="UTC")
_POOL = 1000
Ints = npt.NDArray[np.int64]


def tables(events: int, seed: int = 0, rate: float = 10_000) -> dict[str, pa.Table]:
    """All three tables, and q13's ``side_input``, of so many events."""
    random = np.random.default_rng(seed)
    numbers = np.arange(events, dtype=np.int64)
    times = _START + (numbers * (1_000_000 / rate)).astype(np.int64)
    kind = numbers % 50
    persons, auctions, bids = (
        np.flatnonzero(mask) for mask in (kind == 0, (kind > 0) & (kind < 4), kind > 3)
    )
    side = np.arange(SIDE_KEYS, dtype=np.int64)
    return {
        "person": _persons(random, persons, times),
        "auction": _auctions(random, auctions, times, rate),
        "bid": _bids(random, bids, times),
        "side_input": pa.table({"key": side, "value": pa.array([f"side {key}" for key in side])}),
    }


def generate(directory: Path, events: int, seed: int = 0, rate: float = 10_000) -> None:
    """Write each table as Parquet into a folder of its name."""
    for name, table in tables(events, seed, rate).items():
        folder = directory / name
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / "part-0.parquet")


def _last_person(events: Ints) -> Ints:
    """The newest person at an event, counted from 0."""
    return events // 50


def _last_auction(events: Ints) -> Ints:
    """The newest auction at an event, counted from 0; the first event has none yet."""
    return np.maximum(events // 50 * 3 + np.minimum(events % 50, 3) - 1, 0)


def _choice(random: np.random.Generator, newest: Ints, active: int, hot_ratio: int) -> Ints:
    """Ids up to the newest and a little beyond: mostly the hot one, or one of those that are active."""
    known = np.minimum(newest + 1, active)
    cold = newest - known + 1 + (random.random(len(newest)) * (known + _LEAD)).astype(np.int64)
    hot = newest // _HOT * _HOT
    return np.where(random.integers(0, hot_ratio, len(newest)) > 0, hot, cold) + _FIRST


def _person(random: np.random.Generator, events: Ints) -> Ints:
    return _choice(random, _last_person(events), _ACTIVE, _HOT_SELLERS)


def _prices(random: np.random.Generator, count: int) -> Ints:
    return np.rint(10 ** (random.random(count) * 6) * 100).astype(np.int64)


def _persons(random: np.random.Generator, events: Ints, times: Ints) -> pa.Table:
    count = len(events)
    first, last = (random.integers(0, len(pool), count) for pool in (_FIRST_NAMES, _LAST_NAMES))
    names = pa.array([f"{a} {b}" for a in _FIRST_NAMES for b in _LAST_NAMES])
    return pa.table(
        {
            "id": _last_person(events) + _FIRST,
            "name": names.take(pa.array(first * len(_LAST_NAMES) + last)),
            "emailAddress": _words(random, count, lambda r: f"{_letters(r, 7)}@{_letters(r, 5)}.com"),
            "creditCard": _words(
                random, count, lambda r: " ".join(f"{r.integers(10_000):04}" for _ in "1234")
            ),
            "city": pa.array(_CITIES).take(pa.array(random.integers(0, len(_CITIES), count))),
            "state": pa.array(_STATES).take(pa.array(random.integers(0, len(_STATES), count))),
            "dateTime": pa.array(times[events], _TIME),
            "extra": _words(random, count, lambda r: _letters(r, 20)),
        }
    )


def _auctions(random: np.random.Generator, events: Ints, times: Ints, rate: float) -> pa.Table:
    count = len(events)
    opening = _prices(random, count)
    # So long that about so many auctions are open at a time.
    horizon = int(_IN_FLIGHT * 50 / 3 / rate * 1_000_000)
    length = 1 + (random.random(count) * max(2 * horizon, 1)).astype(np.int64)
    return pa.table(
        {
            "id": _last_auction(events) + _FIRST,
            "itemName": _words(random, count, lambda r: _letters(r, 20)),
            "description": _words(random, count, lambda r: _letters(r, 60)),
            "initialBid": opening,
            "reserve": opening + _prices(random, count),
            "dateTime": pa.array(times[events], _TIME),
            "expires": pa.array(times[events] + length, _TIME),
            "seller": _person(random, events),
            "category": _FIRST_CATEGORY + random.integers(0, _CATEGORIES, count),
            "extra": _words(random, count, lambda r: _letters(r, 40)),
        }
    )


def _bids(random: np.random.Generator, events: Ints, times: Ints) -> pa.Table:
    count = len(events)
    cold = [f"channel-{number}" for number in range(_POOL)]
    names = pa.array([*_CHANNELS, *cold])
    path = ["/".join(_letters(random, 3) for _ in range(3)) for _ in names]
    urls = pa.array(
        [
            f"https://www.nexmark.com/{p}/item.htm?query=1" + (f"&channel_id={number}" if number > 3 else "")
            for number, p in enumerate(path)
        ]
    )
    hot = random.integers(0, 2, count) > 0
    channel = np.where(hot, random.integers(0, 4, count), 4 + random.integers(0, len(cold), count))
    return pa.table(
        {
            "auction": _choice(random, _last_auction(events), _IN_FLIGHT, _HOT_AUCTIONS),
            "bidder": _choice(random, _last_person(events), _ACTIVE, _HOT_BIDDERS),
            "price": _prices(random, count),
            "channel": names.take(pa.array(channel)),
            "url": urls.take(pa.array(channel)),
            "dateTime": pa.array(times[events], _TIME),
            "extra": _words(random, count, lambda r: _letters(r, 30)),
        }
    )


def _letters(random: np.random.Generator, length: int) -> str:
    return "".join(map(chr, random.integers(97, 123, length)))


def _words(random: np.random.Generator, count: int, make: Callable[[Any], str]) -> pa.Array:
    """Random texts, drawn from a pool of them."""
    pool = pa.array([make(random) for _ in range(min(count, _POOL))] or [""])
    return pool.take(pa.array(random.integers(0, len(pool), count)))
