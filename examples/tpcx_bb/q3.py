"""TPCx-BB Q3: the items that are viewed most often among the last 5 views before a purchase online.

    WC → SL → PS → PS        (ordered processing, table 1)

    SL  filter          clicks of a known user on an item
    PS  process         per user: remembers the last five views; a purchase emits those of the past 10 days
    PS  window, agg     per viewed item and day of the purchase: how often

Answer: rows (item, window_start, window_end, views) when the day closes, by item; the list of 30 is
``ORDER BY views DESC, item LIMIT 30`` of a day's rows (table 1 has no operator behind the counts).  A
click with a sale is a purchase, any other is a view; "before" and "last" go by the order of the stream, and
several views of one item count.  Days are UTC.  Clicks may come up to a minute late.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import headgate as hg
from headgate.demo.tpcx_bb.views import LAST_VIEWS, STATE, last_views

QOS = hg.QoS([(0, 1), (5, 1), (60, 0)])


def q3(clicks: hg.Stream) -> hg.Stream:
    # A user who was away for more than the ten days has nothing left that counts; the day more is for rows
    # that come out of order.
    viewed = (
        clicks.filter("wcs_user_sk IS NOT NULL AND wcs_item_sk IS NOT NULL")
        .key_by("wcs_user_sk")
        .process(last_views, schema=LAST_VIEWS, state=STATE, packets=True, expire="11 days", on="wcs_ts")
    )
    return (
        viewed.key_by("item")
        .window(hg.tumbling("1 day", on="bought_at", lateness="1 minute"))
        .agg("count(*) AS views")
    )


def build(data: str = "data/tpcx-bb", sinks: Mapping[str, Any] | None = None) -> hg.App:
    app = hg.App("tpcx-bb q3")
    clicks = app.source("web_clickstreams", hg.from_files(f"{data}/web_clickstreams", format="parquet"))
    sink = sinks["q3"] if sinks else hg.to_console()
    q3(clicks).to("q3", sink, qos=QOS)
    return app
