"""The row function of Q3: what a user looked at last before buying."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from headgate.demo.tpcx_bb.views import last_views

START = datetime(2024, 1, 1, tzinfo=UTC)


def test_last_five_views_of_the_past_ten_days() -> None:
    state: list[Any] = []

    def click(day: float, item: int, sale: int | None = None) -> list[int]:
        row = {"wcs_ts": START + timedelta(days=day), "wcs_item_sk": item, "wcs_sales_sk": sale}
        return [result["item"] for result in last_views(row, state) or ()]

    assert click(0, 99, sale=1) == []
    for item in (1, 2, 3, 4, 5, 6, 6):
        assert click(item, item) == []
    assert click(6.5, 6, sale=2) == [3, 4, 5, 6, 6]
    assert click(14, 7, sale=3) == [4, 5, 6, 6]
    assert click(15, 8) == []
    assert click(30, 8, sale=4) == []
