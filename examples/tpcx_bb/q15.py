"""TPCx-BB Q15: item categories whose sales in the stores are flat or declining, every week.

    SS → SL → SL → PS        (ordered processing, table 1)

    SL  filter          sales of a known store
    SL  lookup          the item's category
    PS  window, agg     per category and week: the slope of the regression line through the daily sums
    SL  filter          slope <= 0

Answer: rows (i_category_id, i_category, window_start, window_end, slope), slope in money per day and day,
when the week closes, by category.  Weeks have seven days from Thursday 0:00 UTC, as 1970-01-01 was one; a
day without sales counts as 0.  Rows may come up to a minute late.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import headgate as hg

# With days d = 0 … 6 of a week and daily sums S(d), the least-squares slope is Σ (d - 3)·S(d) / 28, and that
# is a sum over single sales.  Date keys are Julian day numbers; 2440588 is 1970-01-01.
SLOPE = "sum(ss_net_paid * ((ss_sold_date_sk - 2440588) % 7 - 3) / 28) AS slope"

QOS = hg.QoS([(0, 1), (5, 1), (60, 0)])


def q15(sales: hg.Stream, item: pa.Table) -> hg.Stream:
    categories = item.select(["i_item_sk", "i_category_id", "i_category"])
    trends = (
        sales.filter("ss_store_sk IS NOT NULL")
        .lookup(categories.rename_columns(["ss_item_sk", "i_category_id", "i_category"]), on="ss_item_sk")
        .key_by("i_category_id", "i_category")
        .window(hg.tumbling("7 days", on="ss_ts", lateness="1 minute"))
        .agg(SLOPE)
    )
    return trends.filter("slope <= 0")


def build(data: str = "data/tpcx-bb", sinks: Mapping[str, Any] | None = None) -> hg.App:
    app = hg.App("tpcx-bb q15")
    sales = app.source("store_sales", hg.from_files(f"{data}/store_sales", format="parquet"))
    sink = sinks["q15"] if sinks else hg.to_console()
    q15(sales, pq.read_table(f"{data}/item")).to("q15", sink, qos=QOS)
    return app
