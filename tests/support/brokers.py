"""What tests do with a real broker: certificates for it, messages in and out."""

from __future__ import annotations

from pathlib import Path

import trustme
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from opentab_tools.servers.broker import Broker, Security

READ_SECONDS_MAX = 60


def secure(path: Path) -> Security:
    """Keys of a SASL/PLAIN listener over TLS, in files of a directory."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    key = load_pem_private_key(certificate.private_key_pem.bytes(), password=None)
    key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())  # Kafka reads no other form
    key_path, ca_path = path / "broker.pem", path / "ca.pem"
    key_path.write_bytes(key_pem + b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    authority.cert_pem.write_to_path(ca_path)
    return Security(key_path=key_path, ca_path=ca_path, username="opentab", password="correct horse")


def write(broker: Broker, topic: str, values: list[bytes]) -> None:
    """Returns when all of them are acknowledged."""
    producer = Producer(broker.client_options | {"enable.idempotence": True, "message.timeout.ms": 20_000})
    failed: list[KafkaException] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(READ_SECONDS_MAX) == 0
    if failed:
        raise KafkaException(failed[0])


def read(broker: Broker, topic: str, *, partitions: int, count: int) -> list[bytes]:
    consumer = Consumer(broker.client_options | {"group.id": "test", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    messages = consumer.consume(count, timeout=READ_SECONDS_MAX)
    consumer.close()
    return [message.value() for message in messages]
