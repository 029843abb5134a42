"""A Kafka topic as bytes, and nothing else. A message's number is its offset + 1."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cached_property
from time import monotonic
from typing import Any

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from opentab.audit.raw import RawLines
from opentab.errors import LogError
from opentab.kafka import KafkaSettings

PIECE_MESSAGES = 50_000
SECONDS_MAX = 30.0

_silent = logging.getLogger("opentab.audit.kafka")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


class RawTopic:
    """A topic, read by offset."""

    unit = "messages"
    begins_anywhere = True
    base = 1

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings

    def pieces(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Some ten thousand messages at a time."""
        return ((start, min(start + PIECE_MESSAGES - 1, last)) for start in range(first, last + 1, PIECE_MESSAGES))

    def read(self, partition: str, first: int, last: int) -> RawLines:
        """The messages from one number to another; numbers without a message are passed over."""
        offsets: list[int] = []
        values: list[bytes] = []
        arrived_us: list[int] = []
        for offset, value, timestamp_ms in self._messages(int(partition), first - 1, last):
            offsets.append(offset)
            values.append(value + b"\n")
            arrived_us.append(timestamp_ms * 1000)
        starts = np.cumsum([0, *map(len, values)], dtype=np.int64)
        return RawLines(
            partition,
            b"".join(values),
            starts,
            np.array(arrived_us, np.int64),
            np.array(offsets, np.int64),
            np.zeros(len(offsets), np.int64),
            lambda index: f"{partition}/{offsets[index]}",
        )

    def arrived_us(self, partition: str, number: int) -> int | None:
        """When the message of this number, or the next one there is, arrived; None if there is none."""
        _, end = self._ends(int(partition))
        for _, _, timestamp_ms in self._messages(int(partition), number - 1, end):
            return timestamp_ms * 1000
        return None

    def waiting(self, positions: dict[str, int]) -> int:
        """How many offsets lie behind `positions`."""
        count = 0
        for number in self._partitions():
            first, end = self._ends(number)
            count += max(0, end - max(first, positions.get(str(number), 0)))
        return count

    def _messages(self, partition: int, offset: int, end: int) -> Iterator[tuple[int, bytes, int]]:
        """Offset, value and time of the messages from an offset up to another, that one excluded."""
        if offset >= end:
            return
        first, _ = self._ends(partition)
        if first > offset:
            raise LogError(
                f"the messages {offset} to {min(first, end) - 1} of partition {partition} are gone from the topic",
                hint="the audit needs the whole topic: keep its messages for longer",
            )
        deadline = monotonic() + SECONDS_MAX
        self._consumer.assign([TopicPartition(self._settings.topic, partition, offset)])
        while monotonic() < deadline:
            for message in self._consumer.consume(10_000, timeout=0.2):
                error, at = message.error(), message.offset() or 0
                if error is None and at < end:
                    yield at, message.value() or b"", int(message.timestamp()[1])
                elif error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise LogError(f"the topic cannot be read: {error.str()}", retry_helps=True)
                if at >= end - (error is None):
                    return
                deadline = monotonic() + SECONDS_MAX
        raise LogError(f"partition {partition} of the topic does not answer", retry_helps=True)

    def _partitions(self) -> list[int]:
        topics = self._ask(lambda: self._consumer.list_topics(self._settings.topic, timeout=SECONDS_MAX)).topics
        return sorted(topics[self._settings.topic].partitions)

    def _ends(self, partition: int) -> tuple[int, int]:
        place = TopicPartition(self._settings.topic, partition)
        first, end = self._ask(lambda: self._consumer.get_watermark_offsets(place, timeout=SECONDS_MAX))
        return first, end

    def _ask(self, question: Any) -> Any:
        try:
            return question()
        except KafkaException as error:
            raise LogError(f"the topic cannot be read: {error.args[0].str()}", retry_helps=True) from error

    @cached_property
    def _consumer(self) -> Consumer:
        options: dict[str, Any] = {
            "group.id": "opentab-audit",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 20,
        }
        return Consumer(self._settings.client() | options, logger=_silent)
