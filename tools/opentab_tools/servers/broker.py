"""A real Kafka: broker and controller in one process, on loopback, with its data below one directory."""

from __future__ import annotations

import base64
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from opentab.core.errors import MachineError
from opentab.runtime.kafka import silent_logger
from opentab_tools.servers.daemon import Daemon
from opentab_tools.servers.free_port import free_port
from opentab_tools.servers.jars import java_program, kafka_jars

START_SECONDS_MAX = 90
ANSWER_SECONDS = 2.0
READ_BYTES = 16 << 20

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
listeners=CLIENT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=CLIENT://127.0.0.1:{port}
inter.broker.listener.name=CLIENT
listener.security.protocol.map=CLIENT:{protocol},CONTROLLER:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
# A broker that was killed may come back as soon as it can.
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
# Tests of retention need not wait for minutes.
log.retention.check.interval.ms=1000
log.segment.delete.delay.ms=1000
log.initial.task.delay.ms=500
"""
SECURE_PROPERTIES = """\
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.client.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
username="{username}" password="{password}" user_{username}="{password}";
listener.name.client.ssl.keystore.type=PEM
listener.name.client.ssl.keystore.location={key_path}
listener.name.client.ssl.truststore.type=PEM
listener.name.client.ssl.truststore.location={ca_path}
"""


@dataclass(frozen=True, slots=True)
class Security:
    """What a SASL/PLAIN listener over TLS needs."""

    key_path: Path  # PEM: the private key (PKCS 8), then the certificates; for 127.0.0.1
    ca_path: Path  # PEM: who signed them
    username: str
    password: str


class Broker:
    """A broker on a port of loopback that stays the same for as long as this object lives."""

    def __init__(self, directory: Path, *, security: Security | None = None) -> None:
        self.port = free_port()
        self._directory = directory.absolute()
        self._security = security
        self._properties_path = self._directory / "server.properties"
        self._data_path = self._directory / "data"
        self._controller_port = free_port()
        self._jars = kafka_jars()
        self._daemon = Daemon("broker", self._java("kafka.Kafka", str(self._properties_path)), self._directory)

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def runs(self) -> bool:
        return self._daemon.runs

    @property
    def log_path(self) -> Path:
        return self._daemon.log_path

    @property
    def client_options(self) -> dict[str, Any]:
        """What a librdkafka client needs to reach it."""
        options = {"bootstrap.servers": self.address}
        if self._security is not None:
            options |= {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.username": self._security.username,
                "sasl.password": self._security.password,
                "ssl.ca.location": str(self._security.ca_path),
            }
        return options

    def start(self) -> None:
        """Start it, with the data of the last time; returns when it answers."""
        self._write_properties()
        if not (self._data_path / "meta.properties").exists():
            self._format()
        self._daemon.start()
        self._daemon.wait_until(self._answers, seconds_max=START_SECONDS_MAX)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self._daemon.kill()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Let it answer nobody for a while, and close no connection."""
        self._daemon.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._daemon.signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it in an orderly way."""
        self._daemon.stop()

    def create_topic(self, name: str, *, partitions: int, **settings: str) -> None:
        """Make a topic; settings as Kafka names them, with underscores for dots."""
        config = {key.replace("_", "."): value for key, value in settings.items()}
        admin = self._admin()
        made = admin.create_topics([NewTopic(name, partitions, 1, config=config)])
        made[name].result(timeout=START_SECONDS_MAX)

    def message_count(self, topic: str) -> int | None:
        """How many messages were ever written to a topic; None while it does not say."""
        client = Consumer(self.client_options | {"group.id": "opentab-tools"}, logger=silent_logger)
        try:
            found = client.list_topics(topic, timeout=ANSWER_SECONDS).topics[topic].partitions
            ends = [client.get_watermark_offsets(TopicPartition(topic, number), ANSWER_SECONDS) for number in found]
        except KafkaException:
            return None
        finally:
            client.close()
        return sum(end[1] for end in ends if end)

    def read_files(self, topic: str) -> None:
        """Read a topic's files once, so that they are in memory."""
        for path in self._data_path.glob(f"{topic}-*/*.log"):
            with path.open("rb") as file:
                while file.read(READ_BYTES):
                    pass

    def _write_properties(self) -> None:
        security = self._security
        text = PROPERTIES.format(
            port=self.port,
            controller_port=self._controller_port,
            protocol="SASL_SSL" if security else "PLAINTEXT",
            data=self._data_path,
        )
        if security is not None:
            text += SECURE_PROPERTIES.format(
                username=security.username,
                password=security.password,
                key_path=security.key_path,
                ca_path=security.ca_path,
            )
        self._directory.mkdir(parents=True, exist_ok=True)
        self._properties_path.write_text(text, encoding="utf-8")

    def _format(self) -> None:
        # One that began with a hyphen would be taken for an option.
        cluster = base64.urlsafe_b64encode(b"opentab" + secrets.token_bytes(9)).decode().rstrip("=")
        words = ["format", "--cluster-id", cluster, "--config", str(self._properties_path)]
        tool = Daemon("format", self._java("kafka.tools.StorageTool", *words), self._directory)
        tool.start()
        if code := tool.wait():
            raise MachineError(
                f"Kafka's storage could not be formatted (exit code {code})", hint=f"see {tool.log_path}"
            )

    def _java(self, program: str, *words: str) -> list[str]:
        options = ["-Xmx512m", "-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        options += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true"]
        return [java_program(), *options, "-cp", f"{self._jars}/*", program, *words]

    def _answers(self) -> bool:
        try:
            return bool(self._admin().list_topics(timeout=ANSWER_SECONDS).brokers)
        except KafkaException:
            return False

    def _admin(self) -> AdminClient:
        # Refused connections are what we are here for; librdkafka would print each of them.
        return AdminClient(self.client_options, logger=silent_logger)
