"""A live shop: the five TPCx-BB queries and forty small ones over one generated stream.

One counter is the only source.  Expressions make clicks of its numbers for the forty small queries, in the
time of the clock on the wall; a function on packets makes the benchmark's clicks and sales of the same ones
for the five, in the shop's own time, whose days last some seconds.  All of them share the scan, and each has
a QoS graph, tight or loose.

    headgate run examples/shop/app.py --until 30
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import headgate as hg
from headgate.demo import live, small_queries
from headgate.demo.tpcx_bb import tables

sys.path.insert(0, str(Path(__file__).parents[1] / "tpcx_bb"))

import q1
import q2
import q3
import q4
import q15


def build(
    rate: float = 5_000,
    seconds_per_day: float = 3.0,
    sink: Callable[[str], Any] | None = None,
    source: Any = None,
) -> hg.App:
    """``rate`` rows a second; ``sink(query)`` gives each query's sink, the console by default.

    ``source`` may bring the same rows from elsewhere, such as a Kafka topic.
    """
    app = hg.App("shop")
    rows = hg.from_rate(rate, burst=max(1, round(rate / 20)), start_time=datetime.now(UTC))
    numbers = app.source("numbers", source or rows)
    sink = sink or (lambda query: hg.to_console())
    for name, (stream, qos) in five(numbers, round(rate * seconds_per_day)).items():
        stream.to(name, sink(name), qos=qos)
    # Tight and loose questions each have a beginning of their own, so that tight ones can be ahead.
    clicks = {tight: small_queries.clicks(numbers) for tight in (True, False)}
    for question in small_queries.QUESTIONS:
        answers = small_queries.ask(question, clicks[question.tight])
        answers.to(question.name, sink(question.name), qos=question.qos)
    app.view("clicks", clicks[True])  # for queries in SQL: headgate add "SELECT … FROM clicks" --name mine
    return app


def five(numbers: hg.Stream, rows_per_day: int) -> dict[str, tuple[hg.Stream, hg.QoS]]:
    """The TPCx-BB queries over the shop's clicks and sales."""
    clicks = numbers.map_packets(
        live.LiveClicks(rows_per_day), schema=tables.WEB_CLICKSTREAMS, name="shop-clicks"
    )
    sales = numbers.map_packets(live.LiveSales(rows_per_day), schema=tables.STORE_SALES, name="shop-sales")
    return {
        "q1": (q1.q1(sales), q1.QOS),
        "q2": (q2.q2(clicks), q2.QOS),
        "q3": (q3.q3(clicks), q3.QOS),
        "q4": (q4.q4(clicks, tables.web_page()), q4.QOS),
        "q15": (q15.q15(sales, live.item_table()), q15.QOS),
    }
