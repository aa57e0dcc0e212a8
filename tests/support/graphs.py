"""A pipeline with a graph of every kind, for tests of what holds on all of them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import numpy as np

import headgate as hg
from headgate import testing

Rows = list[dict[str, Any]]
START = datetime(2024, 1, 1)


def events(count: int, seed: int) -> Rows:
    draw = np.random.default_rng(seed)
    return [
        {"k": int(draw.integers(0, 4)), "a": int(draw.integers(0, 100)), "ts": START + timedelta(seconds=i)}
        for i in range(count)
    ]


def graphs(rows: int) -> tuple[hg.App, dict[str, Rows]]:
    """A chain with state, a diamond, a shared box with three queries of two classes, and a join."""
    app, found = hg.App("graphs"), {}

    def leave(stream: Any, name: str, query_class: int = 0) -> None:
        found[name] = []
        stream.to(name, hg.to_list(found[name]), query_class=query_class)

    one = app.source("one", testing.from_rows(events(rows, 1)))
    other = app.source("other", testing.from_rows(events(rows // 2, 2)))
    counted = one.filter("a < 80", name="keep").key_by("k").running("count(*) AS n", name="count")
    leave(counted.universal(cost=1e-5, selectivity=0.7, name="half"), "chain", 1)
    left = one.universal(cost=2e-5, selectivity=1.5, name="more")
    right = one.with_columns("a + 1000 AS a", name="apart").filter("k > 0", name="some")
    leave(left.union(right).universal(cost=1e-5, name="meet"), "diamond")
    shared = other.universal(cost=1e-5, name="shared")
    for number in range(3):
        leave(shared.filter(f"k = {number}", name=f"only-{number}"), f"k{number}", number % 2)
    pairs = one.key_by("k").join(other.key_by("k"), within="5 seconds", on="ts", name="join")
    leave(pairs.select("k", "a", "a_right", name="sides"), "pairs")
    windows = other.window(hg.tumbling("20 seconds", on="ts")).agg("count(*) AS n", name="windows")
    leave(windows, "windows")
    return app, found
