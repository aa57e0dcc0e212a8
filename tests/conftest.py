"""What every test shares: reproducible properties, and the ways of running that behavioural tests go through."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings

import headgate as hg

settings.register_profile(
    "headgate", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("headgate")

ENGINES: dict[str, Callable[[], hg.Engine]] = {
    "threads-1": lambda: hg.Threads(workers=1),
    "threads-2": lambda: hg.Threads(workers=2),
    "threads-4-small-packets": lambda: hg.Threads(workers=4, packet_rows=3),
    "simulated-1": lambda: hg.Simulated(workers=1),
    "simulated-3-small-packets": lambda: hg.Simulated(workers=3, packet_rows=2, call_overhead=0.001),
}
"""A way of running is one line here; every behavioural test then runs on it."""


@pytest.fixture(params=list(ENGINES))
def engine(request: pytest.FixtureRequest) -> hg.Engine:
    """Each way of running in turn.  What a test says of one engine it says of all."""
    return ENGINES[request.param]()
