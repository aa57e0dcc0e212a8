"""The five TPCx-BB streaming queries as one application over two shared sources.

Each source is read once; its tuples go to every query that begins there.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import headgate as hg

sys.path.insert(0, str(Path(__file__).parent))

import q1
import q2
import q3
import q4
import q15


def build(data: str = "data/tpcx-bb", sinks: Mapping[str, Any] | None = None) -> hg.App:
    app = hg.App("tpcx-bb")
    clicks = app.source("web_clickstreams", hg.from_files(f"{data}/web_clickstreams", format="parquet"))
    sales = app.source("store_sales", hg.from_files(f"{data}/store_sales", format="parquet"))
    results = {
        "q1": (q1.q1(sales), q1.QOS),
        "q2": (q2.q2(clicks), q2.QOS),
        "q3": (q3.q3(clicks), q3.QOS),
        "q4": (q4.q4(clicks, pq.read_table(f"{data}/web_page")), q4.QOS),
        "q15": (q15.q15(sales, pq.read_table(f"{data}/item")), q15.QOS),
    }
    for name, (stream, qos) in results.items():
        stream.to(name, sinks[name] if sinks else hg.to_console(), qos=qos)
    return app
