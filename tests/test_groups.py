"""Tests of one group run in one process: one Spark session, one broker and one cluster serve them all."""

from __future__ import annotations

import pytest

import headgate as hg


@pytest.mark.xdist_group("spark")
def test_a_mark_sends_a_test_to_its_group(request: pytest.FixtureRequest) -> None:
    """pytest-xdist knows a group by what it adds to the test's name; a release of pytest once undid that."""
    if request.config.getoption("loadgroup", False):
        assert request.node.nodeid.endswith("@spark")


def test_an_engine_that_is_spark_sends_a_test_to_its_group(
    engine: hg.Engine, request: pytest.FixtureRequest
) -> None:
    if request.config.getoption("loadgroup", False):
        assert request.node.nodeid.endswith("@spark") == (engine.name == "spark")
