"""A Spark standalone cluster on this machine: a master, and workers with one core each."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from headgate.connectors.maven import spark_home
from headgate.demo.processes import Installation, Server, ServerError, free_ports
from headgate.engines.spark.class_archive import java_options

HOST = "127.0.0.1"
START_SECONDS = 180
QUICK_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""For a Java that has little to do and is soon over: no time to optimise."""
LOCAL = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": HOST}
"""Drivers and workers use this Python, and no one resolves this machine's name."""


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
        # No job is submitted over REST.
        env["SPARK_DAEMON_JAVA_OPTS"] = QUICK_JAVA + java_options()
        env["SPARK_MASTER_OPTS"] = "-Dspark.master.rest.enabled=false"
        name = f"Spark's {role.split('.')[1].lower()}"
        return Server(name, command, self._folder / f"{role}-{len(self.servers)}.log", env)
