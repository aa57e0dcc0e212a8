"""The ruler of the Spark benchmarks: what a result's latency is, and how queries weigh."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa

from benchmarks.experiments.spark.latencies import Recorder, percentiles


def micros(*seconds: float) -> pa.Array:
    return pa.array([round(each * 1e6) for each in seconds]).cast(pa.timestamp("us", tz="UTC"))


def test_a_windows_result_is_caused_by_the_first_arrival_after_its_end() -> None:
    """Arrivals come every second at .25: the window that ends at 10 closes with the one at 10.25."""
    recorder = Recorder(["q"], period=1.0)
    recorder("q", pa.record_batch({"ts": micros(8.25, 9.25), "window_end": micros(10, 10)}))
    recorder("q", pa.record_batch({"ts": micros(10.25)}))
    first, second, third = recorder.between(-math.inf, math.inf)["q"]
    assert first == second
    # Two calls, microseconds to milliseconds apart, of results that the same arrival caused.
    assert 0 <= third - first < 1.0


def test_each_query_weighs_the_same() -> None:
    values = [np.full(1_000, 1.0), np.array([5.0]), np.array([7.0])]
    weights = [np.full(len(each), 1 / len(each)) for each in values]
    assert percentiles(values, weights, (30, 50, 99)) == [1.0, 5.0, 7.0]
