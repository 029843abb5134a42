"""A Kafka topic as bytes, and nothing else. A message's number is its offset + 1."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import cached_property
from time import monotonic
from typing import Any

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from opentab.audit.raw import RawLines
from opentab.core.errors import LogError
from opentab.runtime.kafka import KafkaSettings, silent_logger

PIECE_MESSAGES = 50_000
CONSUME_MESSAGES = 1_000
SECONDS_MAX = 30.0


class RawTopic:
    """A topic, read by offset."""

    unit = "messages"
    begins_anywhere = True
    base = 1

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._readers: dict[int, _Reader] = {}

    def id(self) -> str | None:
        """The ids of the cluster and of the topic."""
        topic = self._settings.topic
        admin = AdminClient(self._settings.client(), logger=silent_logger)
        try:
            described = admin.describe_topics(TopicCollection([topic]), request_timeout=SECONDS_MAX)[topic].result()
            cluster = admin.describe_cluster(request_timeout=SECONDS_MAX).result().cluster_id
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise LogError(f"the topic cannot be read: {error.args[0].str()}", retry_helps=True) from error
        topic_id = described.topic_id
        if not topic_id.get_most_significant_bits() and not topic_id.get_least_significant_bits():
            return f"kafka:{cluster}/{topic}"  # its brokers know no topic ids
        return f"kafka:{cluster}/{str(topic_id).replace('+', '-').replace('/', '_')}"

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

    def stamp_from(self, partition: str, number: int) -> tuple[int, int] | None:
        """Number and timestamp of the message of this number, or of the next one there is; None if there is none."""
        _, end = self._ends(int(partition))
        reader = _Reader(self._connect(), self._settings.topic, int(partition))
        found = ((offset + 1, timestamp_ms * 1000) for offset, _, timestamp_ms in reader.messages(number - 1, end))
        return next(found, None)

    def waiting(self, positions: dict[str, int]) -> int:
        """How many offsets lie behind `positions`."""
        count = 0
        for number in self._partitions():
            first, end = self._ends(number)
            count += max(0, end - max(first, positions.get(str(number), 0)))
        return count

    def _messages(self, partition: int, offset: int, end: int) -> Iterator[tuple[int, bytes, int]]:
        """Offset, value and time of the messages from an offset up to another, that one excluded."""
        if partition not in self._readers:
            self._readers[partition] = _Reader(self._connect(), self._settings.topic, partition)
        return self._readers[partition].messages(offset, end)

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
        return self._connect()

    def _connect(self) -> Consumer:
        options: dict[str, Any] = {
            "group.id": "opentab-audit",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 20,
            "queued.max.messages.kbytes": 16_384,
            "fetch.queue.backoff.ms": 1,  # or it stops for a second whenever so much is queued: two thirds of the time
        }
        return Consumer(self._settings.client() | options, logger=silent_logger)


class _Reader:
    """One partition, read on where it was left: batches follow each other in it."""

    def __init__(self, consumer: Consumer, topic: str, partition: int) -> None:
        self._consumer = consumer
        self._place = (topic, partition)
        self._next: int | None = None  # the offset that is read next
        self._ready: deque[tuple[int, bytes, int]] = deque()
        self._end = 0  # the partition has no message before this offset that is not ready

    def messages(self, offset: int, end: int) -> Iterator[tuple[int, bytes, int]]:
        if offset >= end:
            return
        if offset != self._next:
            self._consumer.assign([TopicPartition(*self._place, offset)])
            self._ready.clear()
            self._end = offset
        self._next = end
        while True:
            while self._ready and self._ready[0][0] < end:
                yield self._ready.popleft()
            if self._ready or self._end >= end:
                return
            self._fetch(offset)

    def _fetch(self, offset: int) -> None:
        deadline = monotonic() + SECONDS_MAX
        while monotonic() < deadline:
            found = self._consumer.consume(CONSUME_MESSAGES, timeout=0.05)
            for message in found:
                error, at = message.error(), message.offset() or 0
                if error is None:
                    self._ready.append((at, message.value() or b"", int(message.timestamp()[1])))
                    self._end = at + 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._end = at
                else:
                    self._next = None
                    raise self._gone(offset, error)
            if found:
                return
        self._next = None
        raise LogError(f"partition {self._place[1]} of the topic does not answer", retry_helps=True)

    def _gone(self, offset: int, error: KafkaError) -> LogError:
        if error.code() != KafkaError._AUTO_OFFSET_RESET:
            return LogError(f"the topic cannot be read: {error.str()}", retry_helps=True)
        return LogError(
            f"the messages from {offset} on of partition {self._place[1]} are gone from the topic",
            hint="the audit needs the whole topic: keep its messages for longer",
        )
