"""TPCx-BB Q4: how many pages users visit, on average, who fill a cart and do not check out.

    WC → SL → PS → SL → SF        (ordered processing, table 1)

    SL  filter          clicks of a known user
    PS  window, agg     per user: pages, cart pages and order pages of a session (60 minutes without a click
                        end it)
    SL  filter          abandoned: a cart page, no order page
    SF  window, agg     per hour of the session's last click: the average, over all users

Answer: a row (window_start, window_end, sessions, average_pages) when the hour closes.  Clicks 60 minutes
apart or more belong to different sessions.  Hours are UTC.  Clicks may come up to a minute late.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import headgate as hg

QOS = hg.QoS([(0, 1), (0.5, 1), (5, 0)])


def q4(clicks: hg.Stream, web_page: pa.Table) -> hg.Stream:
    sessions = (
        clicks.filter("wcs_user_sk IS NOT NULL")
        .key_by("wcs_user_sk")
        .window(hg.session("60 minutes", on="wcs_ts", lateness="1 minute"))
        .agg(
            "count(*) AS pages",
            f"sum(CASE WHEN wcs_web_page_sk IN ({pages_of(web_page, 'cart')}) THEN 1 ELSE 0 END) AS carts",
            f"sum(CASE WHEN wcs_web_page_sk IN ({pages_of(web_page, 'order')}) THEN 1 ELSE 0 END) AS orders",
            "max(wcs_ts) AS ended",
        )
    )
    abandoned = sessions.filter("carts > 0 AND orders = 0")
    # Sessions leave by the time of their last click, so nothing is late for the hour's window.
    return abandoned.window(hg.tumbling("1 hour", on="ended")).agg(
        "count(*) AS sessions", "avg(pages) AS average_pages"
    )


def pages_of(web_page: pa.Table, wp_type: str) -> str:
    """The pages of a type, as SQL lists them."""
    keys = web_page.filter(pc.field("wp_type") == wp_type).column("wp_web_page_sk")
    return ", ".join(map(str, keys.to_pylist()))


def build(data: str = "data/tpcx-bb", sinks: Mapping[str, Any] | None = None) -> hg.App:
    app = hg.App("tpcx-bb q4")
    clicks = app.source("web_clickstreams", hg.from_files(f"{data}/web_clickstreams", format="parquet"))
    sink = sinks["q4"] if sinks else hg.to_console()
    q4(clicks, pq.read_table(f"{data}/web_page")).to("q4", sink, qos=QOS)
    return app
