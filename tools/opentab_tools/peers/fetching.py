"""How contenders fetch from Kafka: what was found to be fastest for us is given to the others, too."""

from __future__ import annotations

from opentab.billing.kafka_source import READ_OPTIONS

NAMES = ("max.partition.fetch.bytes", "fetch.max.bytes", "max.poll.records", "fetch.max.wait.ms")
FETCHING = {name: READ_OPTIONS[f"kafka.{name}"] for name in NAMES}  # by the names of Kafka's own client
