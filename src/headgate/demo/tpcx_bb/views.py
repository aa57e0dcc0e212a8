"""What a user looked at last before buying."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa

LAST_VIEWS = pa.schema([pa.field("item", pa.int64()), pa.field("bought_at", pa.timestamp("us", tz="UTC"))])

_LAST = 5
_PAST = timedelta(days=10)


def last_views(row: dict[str, Any], state: list[Any]) -> list[dict[str, Any]] | None:
    """For ``keyed.process`` by user: a purchase gives the last five views of the ten days before it.

    The state is the user's last views, oldest first.
    """
    at = row["wcs_ts"]
    if row["wcs_sales_sk"] is None:
        state.append((row["wcs_item_sk"], at))
        del state[:-_LAST]
        return None
    return [{"item": item, "bought_at": at} for item, viewed_at in state if viewed_at >= at - _PAST]
