"""Settings of a session that is made here, and versions of what it is made with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import headgate as hg
from headgate.connectors import maven as packages
from headgate.connectors.kafka import KafkaSource
from headgate.engines.spark.session import JAVA_OPTIONS, defaults
from headgate.errors import RunError
from servers import LOCAL


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2]", "local[4,2]"])
def test_a_local_driver_runs_java_for_few_cores(master: str) -> None:
    assert "-XX:+UseSerialGC" in defaults(master, {})[JAVA_OPTIONS]


@pytest.mark.parametrize(
    "master", ["spark://host:7077", "yarn", "k8s://https://host", "local-cluster[2,1,512]"]
)
def test_the_driver_of_a_cluster_keeps_javas_own_choice(master: str) -> None:
    assert JAVA_OPTIONS not in defaults(master, {})
    assert defaults(master, {})["spark.scheduler.mode"] == "FAIR"


def test_what_spark_submit_was_told_goes_first() -> None:
    assert "spark.sql.shuffle.partitions" not in defaults("local[*]", {"spark.sql.shuffle.partitions": "7"})


def fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, there: set[str]) -> list[packages.Choice]:
    """What is asked of a repository that has these packages only."""
    asked: list[packages.Choice] = []

    def fetch(choice: packages.Choice) -> str | None:
        asked.append(choice)
        if not there.issuperset(choice.packages):
            return "not there"
        (packages.cache() / choice.folder).mkdir(parents=True)
        return None

    monkeypatch.setenv("HEADGATE_CACHE", str(tmp_path))
    monkeypatch.setattr(packages, "_fetch", fetch)
    return asked


def test_the_connector_for_kafka_has_the_version_of_spark_or_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = fetched(monkeypatch, tmp_path, set())
    monkeypatch.delenv(packages.FALLBACK, raising=False)
    with pytest.raises(packages.PackageError, match=r"name another version of it in HEADGATE_KAFKA_FALLBACK"):
        packages.jars("spark-kafka")
    assert [choice.packages[0].split(":")[-1] for choice in asked] == [packages.spark_version()]
    assert all(not choice.instead for choice in asked)


def test_another_version_of_the_connector_is_used_if_the_user_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    older = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
    asked = fetched(monkeypatch, tmp_path, {older})
    monkeypatch.setenv(packages.FALLBACK, "4.2.0")
    with pytest.warns(UserWarning, match=r"4\.2\.0 is used instead"):
        packages.jars("spark-kafka")
    assert asked[-1].packages == (older,)
    assert not asked[-1].instead
    monkeypatch.setenv(packages.FALLBACK, "4.2.0,4.0.0")
    with pytest.warns(UserWarning, match=r"token-provider-kafka-0-10_2\.13:4\.0\.0 is used instead"):
        packages.jars("spark-kafka")


class FiveRecords:
    """What a broker would say of a topic."""

    def partitions(self) -> list[int]:
        return [0]

    def earliest(self) -> dict[int, int]:
        return {0: 0}

    def latest(self) -> dict[int, int]:
        return {0: 5}

    def close(self) -> None:
        pass


@pytest.mark.xdist_group("spark")
def test_a_session_without_the_connector_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Spark that tests share has none; one that is not there yet would get one."""
    plain = hg.App("plain")
    plain.source("in", hg.from_rate(10, limit=1)).to("rows", hg.to_list([]))
    plain.run(hg.Spark(workers=1))
    monkeypatch.setattr(KafkaSource, "offsets", lambda self: FiveRecords())
    app = hg.App("kafka")
    app.source("in", hg.from_kafka("localhost:1", "orders")).to("rows", hg.to_list([]))
    with pytest.raises(RunError, match="Source 'in': the Spark session has no connector for Kafka"):
        app.run(hg.Spark(workers=1))
    app = hg.App("kafka")
    rate = app.source("in", hg.from_rate(10, limit=1))
    rate.to("rows", hg.to_kafka("localhost:1", "orders", exactly_once=False))
    with pytest.raises(RunError, match="Query 'rows': the Spark session has no connector for Kafka"):
        app.run(hg.Spark(workers=1))


QUIET = """
import sys
import headgate as hg

app = hg.App("quiet")
rows = app.source("rows", hg.from_rate(2000, limit=2000))
seldom = app.source("seldom", hg.from_rate(0.0001))
rows.union(seldom).filter("value >= 0").to("rows", hg.to_list([]))
report = app.run(hg.Spark(master="local[2]", options={"spark.ui.enabled": "false"}), until=90)
print(report.queries["rows"].tuples_out)
"""


@pytest.mark.faults
def test_a_quiet_stream_leaves_no_tracebacks_in_the_log(tmp_path: Path) -> None:
    """Spark ends Python workers that have had nothing to do for a minute, and each complained of that."""
    said = subprocess.run(
        [sys.executable, "-c", QUIET],
        cwd=tmp_path,
        env={**os.environ, **LOCAL},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert int(said.stdout) >= 2000
    assert "Traceback" not in said.stderr
