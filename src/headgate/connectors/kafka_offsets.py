"""What a Kafka topic holds now: its partitions and the offsets where they begin and end.

Asked with a client of our own, because starting a Spark job to learn that nothing has arrived is far too
dear.  The client takes the options that the user gives for Spark's connector (``kafka.…``), translated
where the two spell them differently.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headgate.errors import SourceError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_LOGGER = logging.getLogger("headgate.kafka")
QUIET: dict[str, Any] = {"logger": _LOGGER, "log.connection.close": False}
"""A broker that is away shows as an error of the call, not as lines on the screen."""
_PREFIX = "kafka."
_JAAS = re.compile(r'(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\'|([^\s;]+))')
_FILES = {
    "ssl.keystore.location": "ssl.keystore.location",
    "ssl.keystore.password": "ssl.keystore.password",
    "ssl.key.password": "ssl.key.password",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.cipher.suites": "ssl.cipher.suites",
}
_SAME = {
    "security.protocol",
    "client.id",
    "client.rack",
    "request.timeout.ms",
    "reconnect.backoff.ms",
    "reconnect.backoff.max.ms",
    "connections.max.idle.ms",
    "metadata.max.age.ms",
    "client.dns.lookup",
    "sasl.kerberos.service.name",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.scope",
}
_RENAMED = {"request.timeout.ms": "socket.timeout.ms", "sasl.mechanism": "sasl.mechanisms"}


class BrokerUnreachable(SourceError):
    """No broker answers; it may come back, so asking again later makes sense."""


class KafkaOffsets:
    """Offsets of one topic; one connection that lives until ``close`` and survives the broker's restarts."""

    def __init__(
        self, servers: str, topic: str, options: Mapping[str, str] | None = None, *, timeout: float = 10.0
    ) -> None:
        from confluent_kafka import IsolationLevel, KafkaException
        from confluent_kafka.admin import AdminClient

        self.servers = servers
        self.topic = topic
        self._timeout = timeout
        self._why = self._refused = ""
        given = dict(options or {})
        committed = given.get("kafka.isolation.level", "read_uncommitted") == "read_committed"
        self._isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        settings = {"bootstrap.servers": servers, **client_options(given), **QUIET, "error_cb": self._note}
        try:
            self._client: AdminClient | None = AdminClient(settings)
        except (KafkaException, ValueError, TypeError) as error:
            raise SourceError(
                f"from_kafka: the client for topic '{topic}' does not take its options: {_text(error)}"
            ) from error

    def partitions(self) -> list[int]:
        """The topic's partitions now, in order; never makes the topic."""
        from confluent_kafka import TopicCollection

        asked = self._open().describe_topics(TopicCollection([self.topic]), request_timeout=self._timeout)
        return sorted(partition.id for partition in self._answer(asked[self.topic]).partitions)

    def earliest(self) -> dict[int, int]:
        """The first offset that each partition still has."""
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(OffsetSpec.earliest())

    def latest(self) -> dict[int, int]:
        """The offset after the last record of each partition, as readers at this isolation level see it."""
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(OffsetSpec.latest())

    def close(self) -> None:
        """Give the connection back."""
        self._client = None

    def _offsets(self, where: Any) -> dict[int, int]:
        from confluent_kafka import TopicPartition

        asked = self._open().list_offsets(
            {TopicPartition(self.topic, partition): where for partition in self.partitions()},
            isolation_level=self._isolation,
            request_timeout=self._timeout,
        )
        return {place.partition: self._answer(future).offset for place, future in asked.items()}

    def _open(self) -> AdminClient:
        if self._client is None:
            raise SourceError(f"The offsets of topic '{self.topic}' were asked for after close().")
        return self._client

    def _answer(self, future: Any) -> Any:
        from confluent_kafka import KafkaError, KafkaException

        try:
            answer = future.result(self._timeout + 5)
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise SourceError(
                    f"Kafka at '{self.servers}' has no topic '{self.topic}'; check its name, or create it."
                ) from error
            if code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
                raise SourceError(
                    f"Kafka at '{self.servers}' does not let this user read topic '{self.topic}'; "
                    "the user needs the rights to describe and to read it."
                ) from error
            if error.args[0].retriable() or code in (
                KafkaError._TRANSPORT,
                KafkaError._TIMED_OUT,
                KafkaError._ALL_BROKERS_DOWN,
            ):
                raise self._unreachable(_text(error)) from error
            raise SourceError(
                f"Kafka at '{self.servers}' does not give the offsets of topic '{self.topic}': {_text(error)}"
            ) from error
        except TimeoutError as error:
            raise self._unreachable("no answer in time") from error
        self._why = self._refused = ""
        return answer

    def _unreachable(self, what: str) -> SourceError:
        self._open().poll(0)
        if self._refused:
            return SourceError(
                f"Kafka at '{self.servers}' refuses the login for topic '{self.topic}': {self._refused}. "
                "Check user and password in option 'kafka.sasl.jaas.config'."
            )
        return BrokerUnreachable(
            f"No Kafka broker answers at '{self.servers}' (topic '{self.topic}'): {self._why or what}. "
            "Check that the addresses are right, that the broker runs, and its security settings in options=."
        )

    def _note(self, error: Any) -> None:
        from confluent_kafka import KafkaError

        self._why = error.str()
        if error.code() == KafkaError._AUTHENTICATION:
            self._refused = self._why


def client_options(options: Mapping[str, str]) -> dict[str, str]:
    """The client's options for those of Spark's connector; what concerns only the connector is left out.

    Raises SourceError for a login or a key file that the client cannot use.
    """
    given = {key[len(_PREFIX) :]: str(value) for key, value in options.items() if key.startswith(_PREFIX)}
    found = {_RENAMED.get(key, key): value for key, value in given.items() if key in _SAME}
    mechanism = given.get("sasl.mechanism", "GSSAPI")
    if given.get("security.protocol", "").upper().startswith("SASL"):
        found["sasl.mechanisms"] = mechanism
    if "sasl.jaas.config" in given:
        found |= _login(given["sasl.jaas.config"], mechanism, given)
    found |= _keys(given)
    return found


def _login(jaas: str, mechanism: str, given: Mapping[str, str]) -> dict[str, str]:
    words = {name: _unquoted(*values) for name, *values in _JAAS.findall(jaas)}
    if mechanism == "PLAIN" or mechanism.startswith("SCRAM-"):
        if "username" not in words or "password" not in words:
            raise SourceError(
                "from_kafka: option 'kafka.sasl.jaas.config' names no username and password; "
                'write it as: …LoginModule required username="…" password="…";'
            )
        return {"sasl.username": words["username"], "sasl.password": words["password"]}
    if mechanism == "OAUTHBEARER":
        named = {"clientId": "sasl.oauthbearer.client.id", "clientSecret": "sasl.oauthbearer.client.secret"}
        named["scope"] = "sasl.oauthbearer.scope"
        found = {client: words[java] for java, client in named.items() if java in words}
        return {"sasl.oauthbearer.method": "oidc", **found}
    if mechanism == "GSSAPI":
        named = {"keyTab": "sasl.kerberos.keytab", "principal": "sasl.kerberos.principal"}
        return {client: words[java] for java, client in named.items() if java in words}
    raise SourceError(
        f"from_kafka: the login mechanism '{mechanism}' (option 'kafka.sasl.mechanism') is not supported; "
        "use PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI."
    )


def _keys(given: Mapping[str, str]) -> dict[str, str]:
    found = {client: given[java] for java, client in _FILES.items() if java in given}
    for store in ("keystore", "truststore"):
        location = given.get(f"ssl.{store}.location")
        kind = given.get(f"ssl.{store}.type", "JKS").upper()
        if location is None:
            continue
        if kind == "JKS":
            raise SourceError(
                f"from_kafka: '{location}' (option 'kafka.ssl.{store}.location') is a Java key store, which "
                "only Java reads; convert it (keytool -importkeystore -deststoretype PKCS12 for a key store, "
                f"keytool -exportcert -rfc for a trust store) and set 'kafka.ssl.{store}.type' to PKCS12 or "
                "PEM."
            )
        if store == "truststore":
            if kind != "PEM":
                raise SourceError(
                    f"from_kafka: the trust store '{location}' must be a PEM file; export it with "
                    "keytool -exportcert -rfc and set option 'kafka.ssl.truststore.type' to PEM."
                )
            found["ssl.ca.location"] = location
        elif kind == "PEM":
            del found["ssl.keystore.location"]
            found |= {"ssl.certificate.location": location, "ssl.key.location": location}
    if "ssl.endpoint.identification.algorithm" in given:
        # Java's empty string switches the check of the host's name off.
        found["ssl.endpoint.identification.algorithm"] = (
            given["ssl.endpoint.identification.algorithm"] or "none"
        )
    return found


def _unquoted(double: str, single: str, bare: str) -> str:
    return re.sub(r"\\(.)", r"\1", double or single) or bare


def _text(error: Exception) -> str:
    first = error.args[0] if error.args else error
    return str(first.str()) if hasattr(first, "str") else str(first)
