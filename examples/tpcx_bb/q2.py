"""TPCx-BB Q2: the 30 pairs of products that are viewed together online most often, every day.

    WC → SL → PS → SL → PS → SF        (ordered processing, table 1)

    SL  filter          clicks of a known user on an item
    PS  window, agg     per user: the items of a session, which ends after 60 minutes without a click
    SL  map_packets     the pairs of different items of a session, a < b
    PS  window, agg     per pair and day of the session's last click: in how many sessions it was viewed
    SF  top             the day's first 30 by (sessions descending, a, b)

Answer: rows (item_a, item_b, window_start, window_end, sessions), in rank order, when the day closes.
Sessions are made of the clicks that the filter lets through; clicks 60 minutes apart or more belong to
different ones.  Days are UTC.  Clicks may come up to a minute late.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import headgate as hg
from headgate.demo.tpcx_bb.pairs import PAIRS, pairs

QOS = hg.QoS([(0, 1), (5, 1), (60, 0)])


def q2(clicks: hg.Stream) -> hg.Stream:
    sessions = (
        clicks.filter("wcs_user_sk IS NOT NULL AND wcs_item_sk IS NOT NULL")
        .key_by("wcs_user_sk")
        .window(hg.session("60 minutes", on="wcs_ts", lateness="1 minute"))
        .agg("collect_list(wcs_item_sk) AS items", "max(wcs_ts) AS at")
    )
    # Sessions leave by the time of their last click, so nothing is late for the day's windows.
    viewed = (
        sessions.map_packets(pairs, schema=PAIRS)
        .key_by("item_a", "item_b")
        .window(hg.tumbling("1 day", on="at"))
        .agg("count(*) AS sessions")
    )
    return viewed.top(30, by="sessions DESC, item_a, item_b", every="1 day", on="window_start")


def build(data: str = "data/tpcx-bb", sinks: Mapping[str, Any] | None = None) -> hg.App:
    app = hg.App("tpcx-bb q2")
    clicks = app.source("web_clickstreams", hg.from_files(f"{data}/web_clickstreams", format="parquet"))
    sink = sinks["q2"] if sinks else hg.to_console()
    q2(clicks).to("q2", sink, qos=QOS)
    return app
