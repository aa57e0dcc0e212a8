"""bytewax, as its users would write it: a chain of four steps, and Q4 of TPCx-BB."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc


def chain(data: pa.RecordBatch) -> float:
    """Seconds for filter, compute, filter, sum by key, on one worker."""
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.testing import TestingSink, TestingSource, run_main

    rows = list(zip(*(column.to_pylist() for column in data.columns), strict=True))
    out: list[Any] = []
    flow = Dataflow("overhead")
    stream = op.input("rows", flow, TestingSource(rows, batch_size=1000))
    stream = op.filter("cut", stream, lambda row: row[1] > 0.2)
    stream = op.map("compute", stream, lambda row: (str(row[0]), row[1] * row[2]))
    stream = op.filter("limit", stream, lambda pair: pair[1] < 0.5)
    sums = op.reduce_final("sum", stream, lambda a, b: a + b)
    op.output("out", sums, TestingSink(out))
    start = time.perf_counter()
    run_main(flow)
    return time.perf_counter() - start


# --- TPCx-BB Q4 -------------------------------------------------------------------------------------------


class Click(NamedTuple):
    """What Q4 needs of a click."""

    user: int | None
    at: datetime
    cart: bool
    order: bool


class Session(NamedTuple):
    """A user's session so far."""

    pages: int = 0
    cart: bool = False
    order: bool = False
    ended: datetime = datetime.min.replace(tzinfo=UTC)

    def click(self, click: Click) -> Session:
        return self.join(Session(1, click.cart, click.order, click.at))

    def join(self, other: Session) -> Session:
        return Session(
            self.pages + other.pages,
            self.cart or other.cart,
            self.order or other.order,
            max(self.ended, other.ended),
        )


def q4_rows(batches: Sequence[pa.RecordBatch], web_page: pa.Table) -> list[Click]:
    """Clicks as Python objects, with the kind of page looked up."""
    pages = {
        kind: set(web_page.filter(pc.field("wp_type") == kind).column("wp_web_page_sk").to_pylist())
        for kind in ("cart", "order")
    }
    table = pa.Table.from_batches(batches).select(["wcs_user_sk", "wcs_ts", "wcs_web_page_sk"])
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    # bytewax takes no other object for UTC than the standard library's.
    return [
        Click(user, at.replace(tzinfo=UTC), page in pages["cart"], page in pages["order"])
        for user, at, page in rows
    ]


def q4(clicks: list[Click]) -> tuple[float, dict[datetime, tuple[int, float]]]:
    """Seconds for Q4 on one worker, and its answers: abandoned sessions and their mean pages by hour."""
    import bytewax.operators as op
    import bytewax.operators.windowing as win
    from bytewax.dataflow import Dataflow
    from bytewax.testing import TestingSink, TestingSource, run_main

    start = datetime(2024, 1, 1, tzinfo=UTC)
    hour = timedelta(hours=1)
    out: list[Any] = []
    flow = Dataflow("q4")
    stream = op.input("clicks", flow, TestingSource(clicks, batch_size=1000))
    known = op.filter("known", stream, lambda click: click.user is not None)
    by_user = op.key_on("user", known, lambda click: str(click.user))
    sessions = win.fold_window(
        "sessions",
        by_user,
        win.EventClock(lambda click: click.at, wait_for_system_duration=timedelta(minutes=1)),
        win.SessionWindower(gap=hour - timedelta(microseconds=1)),
        Session,
        Session.click,
        Session.join,
    )
    over = op.map("session", sessions.down, lambda found: found[1][1])
    abandoned = op.filter("abandoned", over, lambda session: session.cart and not session.order)
    together = op.key_on("all", abandoned, lambda session: "all")
    # A session closes with its user's next click, which may be days later: until then no hour is whole.
    hours = win.fold_window(
        "hours",
        together,
        win.EventClock(lambda session: session.ended, wait_for_system_duration=timedelta(days=3650)),
        win.TumblingWindower(length=hour, align_to=start),
        lambda: (0, 0),
        lambda sums, session: (sums[0] + 1, sums[1] + session.pages),
        lambda one, other: (one[0] + other[0], one[1] + other[1]),
        ordered=False,
    )
    op.output("out", hours.down, TestingSink(out))
    begin = time.perf_counter()
    run_main(flow)
    seconds = time.perf_counter() - begin
    return seconds, {start + window * hour: (count, pages / count) for _, (window, (count, pages)) in out}
