"""What a user looked at last before buying."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headgate.demo.tpcx_bb.tables import Ints
from headgate.graph.operators.process_packets import KeyArrays

LAST_VIEWS = pa.schema([pa.field("item", pa.int64()), pa.field("bought_at", pa.timestamp("us", tz="UTC"))])

_LAST = 5
_PAST = 10 * 86_400 * 1_000_000
_LONG_AGO = np.iinfo(np.int64).min // 2
STATE = {"item": np.zeros(_LAST, dtype=np.int64), "at": np.full(_LAST, _LONG_AGO)}
"""A user's last views, oldest first; those that never were are too long ago to count."""


def last_views(batch: pa.RecordBatch, state: KeyArrays) -> tuple[pa.RecordBatch, Ints]:
    """For ``keyed.process`` by user: a purchase gives the last five views of the ten days before it.

    Each user's remembered views and those of the packet stand one after the other; what a purchase sees is a
    window of five in that row.
    """
    item = batch.column("wcs_item_sk").to_numpy()
    at = batch.column("wcs_ts").cast(pa.int64()).to_numpy()
    viewed = batch.column("wcs_sales_sk").is_null().to_numpy(zero_copy_only=False)
    by_user = np.argsort(state.slots, kind="stable")
    slots, seen = state.slots[by_user], viewed[by_user]
    first = np.ones(len(slots), dtype=bool)
    first[1:] = slots[1:] != slots[:-1]
    users, user = slots[first], np.cumsum(first) - 1
    views = np.cumsum(seen)
    # Before a row of the n-th user are the remembered views of n + 1 users, and all earlier views.
    place = views + _LAST * user
    ends = np.flatnonzero(np.append(first[1:], True))
    base = np.append(0, views[ends][:-1]) + _LAST * np.arange(len(users))
    items, times = np.empty((2, len(users) * _LAST + int(views[-1])), dtype=np.int64)
    remembered = base[:, np.newaxis] + np.arange(_LAST)
    items[remembered], times[remembered] = state["item"][users], state["at"][users]
    own = by_user[seen]
    items[place[seen] + _LAST - 1], times[place[seen] + _LAST - 1] = item[own], at[own]
    kept = place[ends][:, np.newaxis] + np.arange(_LAST)
    state["item"][users], state["at"][users] = items[kept], times[kept]

    window = np.empty(len(item), dtype=np.int64)
    window[by_user] = place
    bought = np.flatnonzero(~viewed)
    last = window[bought][:, np.newaxis] + np.arange(_LAST)
    counts = times[last] >= (at[bought] - _PAST)[:, np.newaxis]
    causes: Ints = np.repeat(bought, counts.sum(axis=1))
    columns = [pa.array(items[last][counts]), batch.column("wcs_ts").take(pa.array(causes))]
    return pa.record_batch(columns, schema=LAST_VIEWS), causes
