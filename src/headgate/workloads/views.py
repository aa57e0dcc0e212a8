"""What a user looked at last before buying."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa

LAST_VIEWS = pa.schema([pa.field("item", pa.int64()), pa.field("bought_at", pa.timestamp("us", tz="UTC"))])

_LAST = 5
_PAST = timedelta(days=10)


def last_views(row: dict[str, Any], state: list[Any]) -> Iterator[dict[str, Any]]:
    """For ``keyed.process`` by user: a purchase yields the last five views of the ten days before it.

    The state is the user's last views, oldest first.
    """
    at = row["wcs_ts"]
    if row["wcs_sales_sk"] is None:
        state.append((row["wcs_item_sk"], at))
        del state[:-_LAST]
        return
    for item, viewed_at in state:
        if viewed_at >= at - _PAST:
            yield {"item": item, "bought_at": at}
