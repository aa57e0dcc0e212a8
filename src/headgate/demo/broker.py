"""A real Kafka broker on this machine, for the demo and the tests: one process, no ZooKeeper (KRaft)."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterable
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headgate.connectors.kafka_offsets import QUIET
from headgate.connectors.maven import jars, java
from headgate.demo.processes import Installation, Server, ServerError, free_ports

_START_SECONDS = 60
_CALL_SECONDS = 30
_JVM = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]


class Broker(Installation):
    """A broker on a free port, with its data in a temporary folder that goes with it.

    ``with Broker() as broker: ... broker.servers``.
    """

    def __init__(self) -> None:
        self.port, self._controller = free_ports(2)
        self.servers = f"localhost:{self.port}"
        self._classes = ":".join(jars("kafka-broker"))
        self._folder = Path(tempfile.mkdtemp(prefix="headgate-kafka-"))
        self._server: Server | None = None
        self._admin: AdminClient | None = None

    def start(self) -> None:
        """Start it and wait until it answers; after ``kill``: same port, same data."""
        settings = self._folder / "server.properties"
        if not settings.exists():
            escaped = {key: value.replace("\\", "\\\\") for key, value in self.properties().items()}
            settings.write_text("".join(f"{key}={value}\n" for key, value in escaped.items()), "utf-8")
            self._format(settings)
        command = self._java("kafka.Kafka", str(settings))
        self._server = Server("The Kafka broker", command, self._folder / "log")
        self._server.wait_for(lambda: self.admin.list_topics(timeout=1), _START_SECONDS)

    def kill(self) -> None:
        """End it at once, as a power cut would; its data stays."""
        if self._server is not None:
            self._server.kill()

    def close(self) -> None:
        """End it for good and remove its data."""
        self.kill()
        self._admin = None
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def admin(self) -> AdminClient:
        """A client that may do everything."""
        if self._admin is None:
            self._admin = AdminClient(self.client())
        return self._admin

    def create_topic(self, topic: str, partitions: int = 1, **config: str) -> None:
        """``config`` as the broker spells it, with _ for a dot: ``retention_ms="1000"``."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self.admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(
            _CALL_SECONDS
        )

    def produce(self, topic: str, values: Iterable[bytes | str | None], partition: int = 0) -> None:
        """Append ``values`` to one partition, in order; they are there when this returns."""
        producer = Producer({**self.client(), "acks": "all", "max.in.flight": 1})
        failed: list[object] = []
        for value in values:
            while True:
                try:
                    producer.produce(
                        topic,
                        value,
                        partition=partition,
                        on_delivery=lambda e, _: failed.append(e) if e else None,
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
        if producer.flush(_CALL_SECONDS) or failed:
            raise ServerError(f"The broker has not taken all records of topic '{topic}': {failed[:1]}")

    def client(self) -> dict[str, object]:
        """Options of a client."""
        return {"bootstrap.servers": self.servers, **QUIET}

    def _format(self, settings: Path) -> None:
        identity = uuid.uuid4().hex[:22]
        command = self._java("kafka.tools.StorageTool", "format", "-t", identity, "-c", str(settings))
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise ServerError(f"The Kafka broker's folder could not be prepared: {done.stdout}{done.stderr}")

    def _java(self, *arguments: str) -> list[str]:
        logging = self._folder / "log4j2.properties"
        logging.write_text(_LOGGING, encoding="utf-8")
        return [java(), *_JVM, f"-Dlog4j2.configurationFile={logging}", "-cp", self._classes, *arguments]

    def properties(self) -> dict[str, str]:
        """The broker's own settings."""
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@localhost:{self._controller}",
            "listeners": f"CLIENT://localhost:{self.port},CONTROLLER://localhost:{self._controller}",
            "advertised.listeners": f"CLIENT://localhost:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "CLIENT",
            "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self._folder / "data"),
            "auto.create.topics.enable": "false",
            # A broker that was killed may come back as soon as its predecessor counts as gone.
            "broker.session.timeout.ms": "2000",
            "broker.heartbeat.interval.ms": "500",
            "log.retention.check.interval.ms": "1000",
            **{f"{topic}.replication.factor": "1" for topic in ("offsets.topic", "transaction.state.log")},
            **{f"{topic}.num.partitions": "1" for topic in ("offsets.topic", "transaction.state.log")},
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
        }


_LOGGING = """rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %m (%c)%n
"""
