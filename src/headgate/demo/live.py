"""A shop that is open now: the TPCx-BB streams, made of the numbers of a live counter.

Row i of ``hg.from_rate`` becomes a click or a sale that depends on i alone, so that the stream is the same on
every engine and whenever it is read again.  One row in five is sold in a store; the others are clicks of
sessions that take turns.  The shop's days are short: ``rows_per_day`` rows each, so that a demo sees weeks.

    numbers = app.source("numbers", hg.from_rate(5_000))
    clicks = numbers.map_packets(LiveClicks(15_000), schema=tables.WEB_CLICKSTREAMS)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.demo.tpcx_bb import tables
from headgate.demo.tpcx_bb.tables import (
    CART,
    CATEGORIES,
    DAY,
    GENERAL,
    ORDER,
    PRODUCT,
    REVIEW,
    SEARCH,
    SECOND,
    WELCOME,
    Floats,
    Ints,
)

ITEMS = 500
USERS = 4_000
_START = round(tables.START.timestamp()) * SECOND
_PLACES = 8
"""Clicks of the longest session."""
_PAUSE = 75 * SECOND
_DISORDER = 50 * SECOND
_ON_A_TICKET = 4
_PAGES = np.array([PRODUCT] * 13 + [REVIEW] * 2 + [SEARCH] * 3 + [GENERAL] * 2, dtype=np.int64)


@dataclass(frozen=True)
class LiveClicks:
    """For ``map_packets``: the clicks among rows of (value, timestamp), with the benchmark's columns."""

    rows_per_day: int

    def __call__(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Ints]:
        value = batch.column("value").to_numpy()
        causes: Ints = np.flatnonzero(value % 5 != 4)
        value = value[causes]
        number = value - value // 5
        # So many sessions at a time that a user's clicks are a natural pause apart.
        sessions = max(1, _PAUSE * self.rows_per_day * 4 // 5 // DAY)
        turn, slot = number // sessions, number % sessions
        session, place = turn // _PLACES * sessions + slot, turn % _PLACES
        length = 1 + _chosen(session, 1, _PLACES)
        known = (place < length) & (_chosen(session, 2, 25) > 0)

        page_type = _PAGES[_chosen(number, 3, len(_PAGES))]
        page_type[(place == 0) & (_chosen(session, 4, 2) == 0)] = WELCOME
        has_cart = (length >= 3) & (_chosen(session, 5, 5) < 2)
        buys = has_cart & (length >= 4) & (_chosen(session, 6, 5) < 2)
        page_type[has_cart & (place == length - 2)] = CART
        page_type[buys & (place == length - 1)] = ORDER

        focus = _skewed(session, 7)
        near = (focus - 1 + len(CATEGORIES) * (1 + _chosen(number, 8, 5))) % ITEMS + 1
        item = np.where(_chosen(number, 9, 5) < 3, focus, near)
        item[(page_type == WELCOME) | (page_type == SEARCH) | (page_type == GENERAL)] = -1
        ts = _time(value, self.rows_per_day)
        late = np.where(_chosen(number, 10, 5) == 0, _chosen(number, 11, _DISORDER), 0)
        columns = {
            "wcs_sales_sk": np.where(known & (page_type == ORDER), session, -1),
            "wcs_item_sk": item,
            "wcs_web_page_sk": tables.page(page_type, _chosen(number, 12, 4)),
            "wcs_user_sk": np.where(known, 1 + _chosen(session, 13, USERS), -1),
            "wcs_ts": ts - late,
        }
        return tables.clicks(columns), causes


@dataclass(frozen=True)
class LiveSales:
    """For ``map_packets``: the store sales among rows of (value, timestamp), with the benchmark's columns."""

    rows_per_day: int

    def __call__(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Ints]:
        value = batch.column("value").to_numpy()
        causes: Ints = np.flatnonzero(value % 5 == 4)
        number = value[causes] // 5
        ticket, place = number // _ON_A_TICKET, number % _ON_A_TICKET
        focus = _skewed(ticket, 21)
        # A step of its own per place, so that an item stands on a ticket once.
        step = place * (1 + _chosen(ticket, 22, 3))
        item = (focus - 1 + len(CATEGORIES) * step) % ITEMS + 1
        ts = _time(ticket * _ON_A_TICKET * 5 + 4, self.rows_per_day)
        # Sales of a category rise or decline through a season of four weeks.
        season = ts // DAY % 28 / 28 - 0.5
        trend = np.exp(np.asarray(tables.TRENDS)[tables.category_of(item) - 1] * 2 * season)
        quantity = 1 + (_chosen(number, 23, 600) / 100 * trend).astype(np.int64)
        price = _prices()[item - 1]
        paid: Floats = (price * (1 - 0.05 * _chosen(number, 24, 7))).round(2)
        columns = {
            "ss_item_sk": item,
            "ss_customer_sk": 1 + _chosen(ticket, 25, USERS),
            "ss_store_sk": np.where(_chosen(ticket, 26, 100) > 0, 1 + _chosen(ticket, 27, 12), -1),
            "ss_ticket_number": ticket + 1,
            "ss_quantity": quantity,
            "ss_list_price": price,
            "ss_sales_price": paid,
            "ss_net_paid": (paid * quantity).round(2),
            "ss_ts": ts,
        }
        return tables.sales(columns), causes


def item_table() -> pa.Table:
    """The items of the live shop."""
    return tables.item(ITEMS, 0)


def _time(value: Ints, rows_per_day: int) -> Ints:
    """The shop's time of a row, in microseconds; days first, so that nothing overflows."""
    days, rest = value // rows_per_day, value % rows_per_day
    return _START + days * DAY + rest * (DAY // rows_per_day)


def _chosen(number: Ints, question: int, choices: int) -> Ints:
    """For each number a choice of 0 … ``choices`` - 1, by a hash (SplitMix64) of number and question."""
    mixed = number.astype(np.uint64) * np.uint64(64) + np.uint64(question)
    mixed = mixed * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed = mixed ^ (mixed >> np.uint64(31))
    chosen: npt.NDArray[np.int64] = (mixed % np.uint64(choices)).astype(np.int64)
    return chosen


def _skewed(number: Ints, question: int) -> Ints:
    """An item for each number, low ones more often."""
    even = _chosen(number, question, 1_000_000) / 1e6
    return (even**2 * ITEMS).astype(np.int64) + 1


@cache
def _prices() -> Floats:
    return tables.prices(ITEMS, 0)
