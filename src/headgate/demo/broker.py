"""A real Kafka broker on this machine, for tests and the demo: one process, no ZooKeeper (KRaft)."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headgate.connectors.kafka_offsets import QUIET, client_options
from headgate.connectors.maven import jars, java
from headgate.demo.processes import Installation, Server, ServerError, free_ports

_START_SECONDS = 60
_CALL_SECONDS = 30
_JVM = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]


class Broker(Installation):
    """A broker on a free port, with its data in a temporary folder that goes with it.

    ``with Broker() as broker: ... broker.servers``.  ``users`` (name to password) asks clients to log in
    (SASL PLAIN); ``options`` then has what clients need for that, as Spark's connector takes it.
    """

    def __init__(self, users: Mapping[str, str] | None = None) -> None:
        self.port, self._controller = free_ports(2)
        self.servers = f"localhost:{self.port}"
        self.options: dict[str, str] = {}
        self._users = dict(users or {})
        if self._users:
            name, password = next(iter(self._users.items()))
            self.options = {
                "kafka.security.protocol": "SASL_PLAINTEXT",
                "kafka.sasl.mechanism": "PLAIN",
                "kafka.sasl.jaas.config": (
                    f"{_PLAIN} required username={_quoted(name)} password={_quoted(password)};"
                ),
            }
        self._classes = ":".join(jars("kafka-broker"))
        self._folder = Path(tempfile.mkdtemp(prefix="headgate-kafka-"))
        self._settings = self._folder / "server.properties"
        self._settings.write_text(self._properties(), encoding="utf-8")
        self._server: Server | None = None
        self._admin: AdminClient | None = None

    def start(self) -> None:
        """Start it and wait until it answers; after ``stop`` or ``kill``: same port, same data."""
        if not (self._folder / "data").exists():
            self._format()
        command = self._java("kafka.Kafka", str(self._settings))
        self._server = Server("The Kafka broker", command, self._folder / "log")
        self._server.wait_for(lambda: self.admin.list_topics(timeout=1), _START_SECONDS)

    def stop(self) -> None:
        """Shut it down in good order; its data stays."""
        if self._server is not None:
            self._server.stop()

    def kill(self) -> None:
        """End it at once, as a power cut would; its data stays."""
        if self._server is not None:
            self._server.kill()

    def restart(self) -> None:
        """Stop it and start it again."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End it for good and remove its data."""
        self.kill()
        self._admin = None
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def admin(self) -> AdminClient:
        """A client that may do everything."""
        if self._admin is None:
            self._admin = AdminClient(self._client())
        return self._admin

    def create_topic(self, topic: str, partitions: int = 1, **config: str) -> None:
        """``config`` as the broker spells it, with _ for a dot: ``retention_ms="1000"``."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self.admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(
            _CALL_SECONDS
        )

    def delete_before(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Forget the records before these offsets, as the broker does when they grow old."""
        places = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        for done in self.admin.delete_records(places).values():
            done.result(_CALL_SECONDS)

    def produce(self, topic: str, values: Iterable[bytes | str | None], partition: int = 0) -> None:
        """Append ``values`` to one partition, in order; they are there when this returns."""
        producer = Producer({**self._client(), "acks": "all", "max.in.flight": 1})
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

    def _client(self) -> dict[str, object]:
        return {"bootstrap.servers": self.servers, **client_options(self.options), **QUIET}

    def _format(self) -> None:
        identity = uuid.uuid4().hex[:22]
        command = self._java("kafka.tools.StorageTool", "format", "-t", identity, "-c", str(self._settings))
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise ServerError(f"The Kafka broker's folder could not be prepared: {done.stdout}{done.stderr}")

    def _java(self, *arguments: str) -> list[str]:
        logging = self._folder / "log4j2.properties"
        logging.write_text(_LOGGING, encoding="utf-8")
        return [java(), *_JVM, f"-Dlog4j2.configurationFile={logging}", "-cp", self._classes, *arguments]

    def _properties(self) -> str:
        protocol = "SASL_PLAINTEXT" if self._users else "PLAINTEXT"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@localhost:{self._controller}",
            "listeners": f"CLIENT://localhost:{self.port},CONTROLLER://localhost:{self._controller}",
            "advertised.listeners": f"CLIENT://localhost:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "CLIENT",
            "listener.security.protocol.map": f"CLIENT:{protocol},CONTROLLER:PLAINTEXT",
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
        if self._users:
            login = self.options["kafka.sasl.jaas.config"].removesuffix(";")
            users = " ".join(f"user_{name}={_quoted(password)}" for name, password in self._users.items())
            settings |= {
                "sasl.enabled.mechanisms": "PLAIN",
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                "listener.name.client.plain.sasl.jaas.config": f"{login} {users};",
            }
        escaped = {key: value.replace("\\", "\\\\") for key, value in settings.items()}
        return "".join(f"{key}={value}\n" for key, value in escaped.items())


_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_LOGGING = """rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %m (%c)%n
"""


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
