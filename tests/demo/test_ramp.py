"""The demo's rush: rows arrive at the rate of their time, and as many are due as have arrived."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np

from headgate.demo.ramp import Ramp


def test_as_many_rows_are_due_as_have_arrived() -> None:
    ramp = Ramp([(0.0, 10.0), (2.0, 100.0), (3.0, 10.0)], 5, datetime.fromtimestamp(0, UTC))
    arrivals = ramp.arrivals(0, 1_000)
    assert (np.diff(arrivals) >= 0).all()
    assert arrivals[[0, 20, 120, 130]].tolist() == [0.0, 2.0, 3.0, 4.0]
    for now in np.linspace(0.0, 9.0, 500):
        assert ramp.due(now) == np.searchsorted(arrivals, now, side="right")
    assert [ramp.arrival(row) for row in (0, 7, 25)] == arrivals[[0, 7, 25]].tolist()
