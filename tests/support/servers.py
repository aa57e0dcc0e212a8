"""Real servers for the tests: a Kafka broker, a Spark standalone cluster, a Spark Connect server.

Each is a context manager, is ready when it is entered (it was asked), and takes its whole process group with
it when it is left.  ``drive`` runs a driver in a Python of its own, as a process can have one Spark only.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headgate.connectors.maven import spark_home
from headgate.demo.broker import Broker
from headgate.demo.processes import Installation, Server, ServerError, free_ports

__all__ = ["Broker", "Cluster", "ConnectServer", "drive"]

HOST = "127.0.0.1"
START_SECONDS = 180
DRIVE_SECONDS = 240
LOCAL = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": HOST}
"""Drivers and workers use this Python, and nobody asks for this machine's name."""


class Cluster(Installation):
    """A standalone cluster: a master, and workers with one core each, all processes of their own."""

    def __init__(self, workers: int = 2, *, worker_memory: str = "768m") -> None:
        self.port, self._page = free_ports(2)
        self.master = f"spark://{HOST}:{self.port}"
        self.servers: list[Server] = []
        """The workers, in the order in which they were started; a killed one keeps its place."""
        self._count = workers
        self._memory = worker_memory
        self._folder = Path(tempfile.mkdtemp(prefix="headgate-cluster-"))
        self._master: Server | None = None

    def start(self) -> None:
        page = ["--webui-port", str(self._page)]
        self._master = self._start("master.Master", "--host", HOST, "--port", str(self.port), *page)
        self._master.wait_for(self.state, START_SECONDS)
        for _ in range(self._count):
            self.start_worker()
        self.wait_for_workers(self._count)

    def start_worker(self) -> Server:
        """One more worker; ``wait_for_workers`` tells when the master knows it."""
        own = ["--cores", "1", "--memory", self._memory, "--host", HOST, "--webui-port", "0"]
        place = ["--work-dir", str(self._folder / f"work-{len(self.servers)}")]
        self.servers.append(self._start("worker.Worker", *own, *place, self.master))
        return self.servers[-1]

    def kill_worker(self, index: int) -> None:
        """End a worker and its executors at once, as a power cut would."""
        self.servers[index].kill()

    def alive(self) -> list[str]:
        """The workers that the master counts on."""
        return [worker["id"] for worker in self.state()["workers"] if worker["state"] == "ALIVE"]

    def wait_for_workers(self, count: int) -> None:
        """Return when the master counts on so many workers, no more and no fewer."""

        def counted() -> None:
            alive = self.alive()
            if len(alive) != count:
                raise ServerError(f"the master counts {len(alive)} workers, not {count}")

        assert self._master is not None
        self._master.wait_for(counted, START_SECONDS)

    def state(self) -> dict[str, Any]:
        """What the master says of itself."""
        with urllib.request.urlopen(f"http://{HOST}:{self._page}/json/", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def close(self) -> None:
        for server in [*self.servers, *([self._master] if self._master else [])]:
            server.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, role: str, *arguments: str) -> Server:
        home = spark_home()
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}", *arguments]
        env = {**LOCAL, "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m"}
        # Little to do and soon over: no time to optimise.  Nobody submits over REST.
        env["SPARK_DAEMON_JAVA_OPTS"] = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        env["SPARK_MASTER_OPTS"] = "-Dspark.master.rest.enabled=false"
        name = f"Spark's {role.split('.')[1].lower()}"
        return Server(name, command, self._folder / f"{role}-{len(self.servers)}.log", env)


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
