"""How Kafka's brokers are reached: the same settings in the words of both clients, librdkafka and Java's."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# What Kafka's client says of broken connections goes to who asks for it: errors reach us as errors.
silent_logger = logging.getLogger("opentab.runtime.kafka")
silent_logger.addHandler(logging.NullHandler())
silent_logger.propagate = False

URI = re.compile(r"kafka://(?P<brokers>[^/,\s]+:\d+(,[^/,\s]+:\d+)*)/(?P<topic>[A-Za-z0-9._-]{1,249})")
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = (*PASSWORD_MECHANISMS, "OAUTHBEARER", "GSSAPI")
# Tables of [kafka] that are passed on as they are: to both clients, to librdkafka, and to Spark's Kafka source.
TABLES = ("options", "client", "spark")


@dataclass(frozen=True)
class KafkaSettings:
    """The topic that is the log, and how its brokers are reached, by either of two clients."""

    brokers: str
    topic: str
    partitions: int
    replication: int
    protocol: str
    mechanism: str
    username: str
    password: str = field(repr=False)
    ca: str = field(repr=False)
    cert: str = field(repr=False)
    key: str = field(repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    client_more: Mapping[str, str] = field(default_factory=dict, repr=False)
    spark_more: Mapping[str, str] = field(default_factory=dict, repr=False)

    def client(self) -> dict[str, Any]:
        """What librdkafka is told."""
        options: dict[str, Any] = self._reaching()
        if "sasl.mechanism" in options and self.mechanism in PASSWORD_MECHANISMS:
            options |= {"sasl.username": self.username, "sasl.password": self.password}
        pems = {"ssl.ca.pem": self.ca, "ssl.certificate.pem": self.cert, "ssl.key.pem": self.key}
        options |= {name: pem for name, pem in pems.items() if pem}
        return options | dict(self.options) | dict(self.client_more)

    def spark(self) -> dict[str, str]:
        """What Spark's Kafka source is told. Certificates travel as text: executors have other disks."""
        options = self._reaching()
        if "sasl.mechanism" in options and self.mechanism in PASSWORD_MECHANISMS:
            module = "plain.PlainLoginModule" if self.mechanism == "PLAIN" else "scram.ScramLoginModule"
            login = f"username={_java_text(self.username)} password={_java_text(self.password)}"
            options["sasl.jaas.config"] = f"org.apache.kafka.common.security.{module} required {login};"
        if self.ca:
            options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": self.ca}
        if self.cert:
            options |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": self.cert}
            options["ssl.keystore.key"] = self.key
        options |= dict(self.options) | dict(self.spark_more)
        return {f"kafka.{name}": value for name, value in options.items()}

    def _reaching(self) -> dict[str, str]:
        """What both clients call the same."""
        options = {"bootstrap.servers": self.brokers, "security.protocol": self.protocol}
        return options | ({"sasl.mechanism": self.mechanism} if self.protocol.startswith("SASL") else {})


def _java_text(text: str) -> str:
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{quoted}"'
