"""Batches as rows: the same values as Arrow's own, of the same types."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.graph.rows import to_rows

MOMENTS = st.one_of(st.datetimes(), st.sampled_from([datetime.min, datetime(1970, 1, 1), datetime.max]))


@given(times=st.lists(st.none() | MOMENTS, max_size=8), zone=st.sampled_from([None, "UTC", "Europe/Prague"]))
def test_moments_come_as_arrow_gives_them(times: list[datetime | None], zone: str | None) -> None:
    whole = pa.array(times, pa.timestamp("us")).cast(pa.timestamp("us", tz=zone))
    batch = pa.record_batch({"at": whole, "n": pa.array(range(len(times)))})
    try:
        expected = batch.to_pylist()
    except OverflowError:  # the first and last moments are not within the years of every zone
        return
    found = to_rows(batch)
    assert found == expected
    assert [row["at"] and row["at"].utcoffset() for row in found] == [
        row["at"] and row["at"].utcoffset() for row in expected
    ]


def test_moments_of_utc_have_pythons_own_zone() -> None:
    batch = pa.record_batch({"at": pa.array([0, 1], pa.timestamp("us", tz="UTC"))})
    assert [row["at"].tzinfo for row in to_rows(batch)] == [UTC, UTC]


@pytest.mark.parametrize("rows", [0, 3])
def test_without_columns_there_are_still_rows(rows: int) -> None:
    batch = pa.record_batch({"a": pa.array(range(rows), pa.int64())}).select([])
    assert to_rows(batch) == batch.to_pylist() == [{}] * rows
