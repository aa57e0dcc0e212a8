"""TPCx-BB Q1: the 100 pairs of items that are sold together most often in the stores, every hour.

    SS → SL → PS → PS → SF        (ordered processing, table 1)

    SL  filter          sales of a known store
    PS  window, agg     per ticket: its items, once it is a minute old
    SL  map_packets     the pairs of different items of a ticket, a < b
    PS  window, agg     per pair and hour of sale: on how many tickets it stands
    SF  top             the hour's first 100 by (tickets descending, a, b)

The paper makes the pairs inside its first partitioned operator; here a stateless box does, on whole packets.
Answer: rows (item_a, item_b, window_start, window_end, sold), in rank order, when the hour closes.  All
rows of a ticket carry the time of sale; hours are UTC.  Rows may come up to a minute late.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import headgate as hg
from headgate.demo.tpcx_bb.pairs import PAIRS, pairs

QOS = hg.QoS([(0, 1), (1, 1), (10, 0)])


def q1(sales: hg.Stream) -> hg.Stream:
    tickets = (
        sales.filter("ss_store_sk IS NOT NULL")
        .key_by("ss_ticket_number")
        .window(hg.session("1 minute", on="ss_ts", lateness="1 minute"))
        .agg("collect_list(ss_item_sk) AS items", "max(ss_ts) AS at")
    )
    sold = (
        tickets.map_packets(pairs, schema=PAIRS)
        .key_by("item_a", "item_b")
        .window(hg.tumbling("1 hour", on="at"))
        .agg("count(*) AS sold")
    )
    return sold.top(100, by="sold DESC, item_a, item_b", every="1 hour", on="window_start")


def build(data: str = "data/tpcx-bb", sinks: Mapping[str, Any] | None = None) -> hg.App:
    app = hg.App("tpcx-bb q1")
    sales = app.source("store_sales", hg.from_files(f"{data}/store_sales", format="parquet"))
    sink = sinks["q1"] if sinks else hg.to_console()
    q1(sales).to("q1", sink, qos=QOS)
    return app
