"""The packet function of Q3: what a user looked at last before buying."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headgate.demo.tpcx_bb.views import LAST_VIEWS, STATE, last_views
from headgate.graph.operators.process_packets import KeyArrays

DAY = 86_400 * 1_000_000
CLICKS = pa.schema(
    [
        ("wcs_ts", pa.timestamp("us", tz="UTC")),
        ("wcs_item_sk", pa.int64()),
        ("wcs_sales_sk", pa.int64()),
    ]
)
Click = tuple[int, int, int | None]
"""User, item and sale."""


def one_by_one(clicks: list[Click], times: list[int]) -> list[tuple[int, int]]:
    """The results as (place of the purchase, item)."""
    views: dict[int, list[tuple[int, int]]] = {}
    found = []
    for place, ((user, item, sale), at) in enumerate(zip(clicks, times, strict=True)):
        if sale is None:
            views.setdefault(user, []).append((item, at))
        else:
            last = views.get(user, [])[-5:]
            found += [(place, viewed) for viewed, viewed_at in last if viewed_at >= at - 10 * DAY]
    return found


@given(
    clicks=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 9), st.sampled_from([None, None, 7])), max_size=60
    ),
    days=st.lists(st.integers(0, 4), min_size=60, max_size=60),
    cuts=st.sets(st.integers(0, 60)),
)
def test_last_five_views_of_the_past_ten_days_however_the_clicks_are_cut(
    clicks: list[Click], days: list[int], cuts: set[int]
) -> None:
    times = (np.cumsum(days)[: len(clicks)] * DAY).tolist()
    users = np.array([user for user, _, _ in clicks], dtype=np.int64)
    arrays = {name: np.repeat(first[np.newaxis], 4, axis=0) for name, first in STATE.items()}
    found = []
    bounds = sorted({0, len(clicks), *(cut for cut in cuts if cut < len(clicks))})
    for low, high in itertools.pairwise(bounds):
        columns = [times[low:high], [c[1] for c in clicks[low:high]], [c[2] for c in clicks[low:high]]]
        batch = pa.record_batch(
            [pa.array(column, field.type) for column, field in zip(columns, CLICKS, strict=True)],
            schema=CLICKS,
        )
        results, causes = last_views(batch, KeyArrays(arrays, users[low:high]))
        assert results.schema == LAST_VIEWS
        assert results.column("bought_at").equals(batch.column("wcs_ts").take(pa.array(causes)))
        found += [(low + int(c), i) for c, i in zip(causes, results.column("item").to_pylist(), strict=True)]
    assert found == one_by_one(clicks, times)
