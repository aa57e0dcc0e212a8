"""Real servers for the tests: a Kafka broker, a Spark standalone cluster, a Spark Connect server.

Each is a context manager, is ready when it is entered (it was asked), and takes its whole process group with
it when it is left.  ``drive`` runs a driver in a Python of its own, as a process can have one Spark only.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path

from benchmarks.cluster import HOST, LOCAL, START_SECONDS, Cluster
from headgate.connectors.maven import spark_home
from headgate.demo.broker import Broker
from headgate.demo.processes import Installation, Server, free_ports

__all__ = ["HOST", "LOCAL", "Broker", "Cluster", "ConnectServer", "drive"]

DRIVE_SECONDS = 240


class ConnectServer(Installation):
    """A Spark Connect server in local mode; ``url`` is what ``SparkSession.builder.remote`` takes."""

    def __init__(self, conf: Mapping[str, str] | None = None, *, master: str = "local[2]") -> None:
        (self.port,) = free_ports(1)
        self.url = f"sc://localhost:{self.port}"
        self._master = master
        self._folder = Path(tempfile.mkdtemp(prefix="headgate-connect-"))
        self._conf = {
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.connect.grpc.binding.address": "localhost",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(self._folder / "warehouse"),
            "spark.driver.memory": "768m",
            **(conf or {}),
        }
        self._server: Server | None = None

    def start(self) -> None:
        home = spark_home()
        command = [str(home / "bin" / "spark-submit"), "--master", self._master]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        for key, value in self._conf.items():
            command += ["--conf", f"{key}={value}"]
        env = {**LOCAL, "SPARK_HOME": str(home)}
        self._server = Server("The Spark Connect server", command, self._folder / "log", env)
        self._server.wait_for(self._listens, START_SECONDS)
        self._server.wait_for(self._answers, START_SECONDS)

    def close(self) -> None:
        if self._server is not None:
            self._server.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _listens(self) -> None:
        socket.create_connection(("localhost", self.port), timeout=1).close()

    def _answers(self) -> None:
        from pyspark.sql.connect.client import SparkConnectClient

        client = SparkConnectClient(self.url)
        try:
            assert client._analyze(method="spark_version").spark_version
        finally:
            client.close()


def drive(code: str, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    """What a driver program prints; its errors fail the test.

    A SparkSession that it makes talks to servers on this machine only.
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        timeout=DRIVE_SECONDS,
        env={**os.environ, **LOCAL, **(env or {})},
    )
    assert done.returncode == 0, done.stdout + done.stderr[-8000:]
    return done.stdout
