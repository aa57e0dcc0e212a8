"""One Spark session for the oracle tests of expressions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from headgate.engines.spark.session import open_session

settings.register_profile(
    "expressions", derandomize=True, deadline=None, print_blob=False, suppress_health_check=list(HealthCheck)
)


@pytest.fixture(autouse=True, scope="session")
def _deterministic() -> None:
    settings.load_profile("expressions")


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    """Spark as the oracle: ANSI mode, UTC, two threads."""
    from pyspark.sql import SparkSession

    found = SparkSession.getActiveSession()
    options = {"spark.ui.enabled": "false", "spark.log.level": "OFF"}
    session = open_session("local[2]", "headgate-expressions", options, list)
    own = session.newSession()
    own.conf.set("spark.sql.ansi.enabled", "true")
    own.conf.set("spark.sql.session.timeZone", "UTC")
    yield own
    if found is None:
        session.stop()
