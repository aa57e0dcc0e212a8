"""Real servers for the tests: a Kafka broker, PostgreSQL, a Spark standalone cluster, a Spark Connect server.

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

from confluent_kafka import TopicPartition

from benchmarks.cluster import HOST, LOCAL, QUICK_JAVA, START_SECONDS, Cluster
from headgate.connectors.kafka_offsets import client_options
from headgate.connectors.maven import spark_home
from headgate.demo import broker as demo
from headgate.demo.processes import Installation, Server, free_ports
from headgate.engines.spark.class_archive import java_options

__all__ = ["HOST", "LOCAL", "Broker", "Cluster", "ConnectServer", "Postgres", "drive"]

DRIVE_SECONDS = 500


class Broker(demo.Broker):
    """The demo's broker; a test can also restart it, make it forget records, and make clients log in.

    ``users`` (name to password) asks clients to log in (SASL PLAIN); ``options`` then has what clients need
    for that, as Spark's connector takes it.
    """

    def __init__(self, users: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.options: dict[str, str] = {}
        self._users = dict(users or {})
        if self._users:
            name, password = next(iter(self._users.items()))
            login = f"{PLAIN} required username={_quoted(name)} password={_quoted(password)};"
            self.options = {
                "kafka.security.protocol": "SASL_PLAINTEXT",
                "kafka.sasl.mechanism": "PLAIN",
                "kafka.sasl.jaas.config": login,
            }

    def restart(self) -> None:
        """End it at once and start it again."""
        self.kill()
        self.start()

    def delete_before(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Forget the records before these offsets, as the broker does when they grow old."""
        places = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        for done in self.admin.delete_records(places).values():
            done.result(30)

    def client(self) -> dict[str, object]:
        return {**super().client(), **client_options(self.options)}

    def properties(self) -> dict[str, str]:
        settings = super().properties()
        if self._users:
            login = self.options["kafka.sasl.jaas.config"].removesuffix(";")
            users = " ".join(f"user_{name}={_quoted(password)}" for name, password in self._users.items())
            settings |= {
                "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN",
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                "listener.name.client.plain.sasl.jaas.config": f"{login} {users};",
            }
        return settings


PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


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
        env = {**LOCAL, "SPARK_HOME": str(home), "SPARK_SUBMIT_OPTS": QUICK_JAVA + java_options()}
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


class Postgres(Installation):
    """PostgreSQL on a free port; ``url`` reaches a database of its own.  It refuses to run as root."""

    def __init__(self) -> None:
        (port,) = free_ports(1)
        self.url = f"postgresql://tester@localhost:{port}/postgres"
        self._folder = Path(tempfile.mkdtemp(prefix="headgate-postgres-"))
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        programs = found[-1].parent if found else Path(shutil.which("initdb") or "initdb").parent
        as_user = []
        if os.getuid() == 0:
            shutil.chown(self._folder, "postgres", "postgres")
            as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        data = str(self._folder / "data")
        self._make = [*as_user, str(programs / "initdb"), "-D", data, "-A", "trust", "-U", "tester"]
        self._make += ["--no-sync", "--locale=C.UTF-8"]
        self._run = [*as_user, str(programs / "postgres"), "-D", data, "-p", str(port)]
        self._run += ["-k", str(self._folder), "-c", "listen_addresses=localhost", "-c", "fsync=off"]
        self._server: Server | None = None

    def start(self) -> None:
        from adbc_driver_postgresql import dbapi

        subprocess.run(self._make, check=True, capture_output=True, cwd="/")
        self._server = Server("PostgreSQL", self._run, self._folder / "log")
        self._server.wait_for(lambda: dbapi.connect(self.url).close(), START_SECONDS)

    def close(self) -> None:
        if self._server is not None:
            self._server.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


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
