"""Kafka as the log: a topic, whose partitions are the log's, read by offset.

A position in a partition is the offset that is read next, so it counts from 0 like the positions in a directory: a
message's number is its offset + 1.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from opentab.core.errors import LogError, LogUnreachable
from opentab.runtime.kafka import KafkaSettings, silent_logger

TIMEOUT_SECONDS = 5.0
READ_SECONDS_MAX = 30.0
PARTITIONS_SECONDS = 2.0  # how soon a partition that was added is seen
CONSUME_MESSAGES = 10_000

NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # what brokers before 2.8 answer: 16 zero bytes in base64

EARLIEST = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]
NEWEST = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
LAST_OFFSETS = 16  # where the last message is looked for: a transaction's marks may follow it

Known = TypeVar("Known")


class Message(NamedTuple):
    """What one message holds: its place, when it arrived, and its bytes."""

    offset: int
    arrived_us: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Ends:
    """Where each partition begins and ends right now: its first offset that is kept, and its next offset."""

    first: Mapping[int, int]
    next: Mapping[int, int]


class Topic:
    """A topic that events arrive in: where its partitions end, and its messages by offset."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.settings = settings
        self.name = settings.topic
        self._partitions: list[int] = []
        self._partitions_at = float("-inf")

    def __reduce__(self) -> tuple[type[Topic], tuple[KafkaSettings]]:
        return Topic, (self.settings,)  # a Spark task makes connections of its own

    def __str__(self) -> str:
        return f"topic {self.name!r} at {self.settings.brokers}"

    def create(self) -> bool:
        """Make the topic if there is none; whether it was made.

        Messages get the time of their arrival, and all of them are kept: the audit reads them again.
        """
        if self._found():
            return False
        topic = NewTopic(
            self.name,
            num_partitions=self.settings.partitions,
            replication_factor=self.settings.replication or -1,
            config={"message.timestamp.type": "LogAppendTime", "retention.ms": "-1", "retention.bytes": "-1"},
        )
        made = self._admin.create_topics([topic], request_timeout=TIMEOUT_SECONDS)[self.name]
        self._ask(made.result)
        self._once_known(self._found)
        return True

    def find_id(self) -> str | None:
        """Which log this is: the ids of cluster and topic, so a topic that is deleted and made again is another one.

        Brokers that have no topic ids leave its name. None if there is no such topic.
        """
        described = self._admin.describe_topics(TopicCollection([self.name]), request_timeout=TIMEOUT_SECONDS)
        try:
            topic = described[self.name].result(TIMEOUT_SECONDS)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise self._trouble(error) from error
        except FutureTimeout as error:
            raise self._unreachable("no answer") from error
        cluster = self._ask(
            lambda: self._admin.describe_cluster(request_timeout=TIMEOUT_SECONDS).result(TIMEOUT_SECONDS)
        )
        # As Kafka's own tools write it, without a slash.
        topic_id = str(topic.topic_id).translate(str.maketrans("+/", "-_"))
        return f"kafka:{cluster.cluster_id}/{self.name if topic_id == NO_TOPIC_ID else topic_id}"

    def make_id(self) -> str:
        """The same; the topic is made if there is none."""
        self.create()
        return self._once_known(self.find_id)

    def check_exists(self) -> None:
        """Raise if there is no such topic."""
        if not self._found():
            raise LogError(
                f"Kafka at {self.settings.brokers} has no topic {self.name!r}",
                hint="opentab ingest makes it, or make it with your own tools",
            )

    def partitions(self) -> list[int]:
        """The numbers of the partitions there are; one that was added is seen within seconds."""
        if time.monotonic() - self._partitions_at > PARTITIONS_SECONDS:
            self.check_exists()
        return self._partitions

    def ends(self) -> Ends:
        """Where the partitions begin and end; what an open transaction has written is not there yet."""
        partitions = self.partitions()
        return Ends(self._offsets(partitions, EARLIEST), self._offsets(partitions, LATEST))

    def next_offsets(self) -> Mapping[int, int]:
        """The next offset of each partition."""
        return self._offsets(self.partitions(), LATEST)

    def read(
        self, ranges: Mapping[int, tuple[int, int]], *, seconds_max: float = READ_SECONDS_MAX
    ) -> dict[int, list[Message]]:
        """The messages of some partitions from an offset up to another, that one excluded.

        Offsets that hold no message, a transaction's marks for example, are passed over.
        """
        found: dict[int, list[Message]] = {number: [] for number in ranges}
        left = {number for number, (first, end) in ranges.items() if first < end}
        consumer = self._consumer
        try:
            consumer.assign([TopicPartition(self.name, number, ranges[number][0]) for number in left])
            deadline = time.monotonic() + seconds_max
            while left:
                for message in consumer.consume(CONSUME_MESSAGES, timeout=0.1):
                    error = message.error()
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    number, offset = message.partition() or 0, message.offset() or 0
                    end = ranges[number][1]
                    if error is None and offset < end:
                        found[number].append(Message(offset, message.timestamp()[1] * 1000, message.value() or b""))
                    if offset >= end - (error is None):
                        left.discard(number)
                if time.monotonic() > deadline:
                    raise self._unreachable(f"no answer for {seconds_max:.0f} s")
            consumer.unassign()
        except KafkaException as error:
            raise self._trouble(error) from error
        return found

    def line(self, partition: int, offset: int, *, seconds_max: float = READ_SECONDS_MAX) -> bytes:
        """The message at an offset."""
        found = self.read({partition: (offset, offset + 1)}, seconds_max=seconds_max)[partition]
        if not found:
            raise LogError(f"message {offset} of partition {partition} is gone from {self}")
        return found[0].value

    def message_from(self, partition: int, offset: int) -> Message | None:
        """The message at an offset, or the next one there is; None if there is none yet."""
        end = self.next_offsets().get(partition, 0)
        while offset < end:
            messages = self.read({partition: (offset, min(offset + 1, end))})[partition]
            if messages:
                return messages[0]
            offset += 1
        return None

    def last_stamps(self) -> dict[str, tuple[int, int]]:
        """The number and the arrival of the message with the newest stamp, by partition, where there is one."""
        return {str(number): (offset + 1, us) for number, (offset, us) in self.newest_stamps().items()}

    def newest_stamps(self) -> dict[int, tuple[int, int]]:
        """The offset and the arrival of the message with the newest stamp, by partition, where there is one."""
        answers = self._listed(self.partitions(), NEWEST)
        return {number: (one.offset, one.timestamp * 1000) for number, one in answers.items() if one.offset >= 0}

    def last_stamp(self, partition: int) -> int | None:
        """The arrival of the last message; None if it cannot be told."""
        ends = self.ends()
        end = ends.next[partition]
        messages = self.read({partition: (max(ends.first[partition], end - LAST_OFFSETS), end)})[partition]
        return messages[-1].arrived_us if messages else None

    def close(self) -> None:
        """Let go of the connections."""
        if "_consumer" in self.__dict__:
            self._consumer.close()

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient(self.settings.client(), logger=silent_logger)

    @cached_property
    def _consumer(self) -> Consumer:
        options = {
            # No group is ever joined and no offset stored: the journal is what knows the positions.
            "group.id": "opentab",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 20,
        }
        return Consumer(self.settings.client() | options, logger=silent_logger)

    def _found(self) -> bool:
        """Whether the topic is there; remembers its partitions."""
        metadata = self._ask(lambda: self._admin.list_topics(self.name, timeout=TIMEOUT_SECONDS))
        topic = metadata.topics.get(self.name)
        if topic is None or (topic.error is not None and topic.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART):
            return False
        if topic.error is not None:
            raise self._unreachable(topic.error.str())
        self._partitions = sorted(topic.partitions)
        self._partitions_at = time.monotonic()
        return bool(self._partitions)

    def _once_known(self, look: Callable[[], Known | None]) -> Known:
        """What `look` finds. A broker learns of a new topic a moment after it was created."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            if found := look():
                return found
            time.sleep(0.05)
        raise self._unreachable("the topic was created and no broker knows it")

    def _offsets(self, partitions: list[int], spec: OffsetSpec) -> dict[int, int]:
        found: dict[int, int] = {}
        for number, answer in self._listed(partitions, spec).items():
            if answer.offset < 0:  # while a broker comes back, the client may have no answer and not call it an error
                raise self._unreachable(f"partition {number} has no leader yet")
            found[number] = answer.offset
        return found

    def _listed(self, partitions: list[int], spec: OffsetSpec) -> dict[int, Any]:
        asked = {TopicPartition(self.name, number): spec for number in partitions}
        futures = self._ask(
            lambda: self._admin.list_offsets(
                asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=TIMEOUT_SECONDS
            )
        )
        return {
            partition.partition: self._ask(partial(future.result, TIMEOUT_SECONDS))
            for partition, future in futures.items()
        }

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except KafkaException as error:
            raise self._trouble(error) from error
        except FutureTimeout as error:
            raise self._unreachable("no answer") from error

    def _trouble(self, error: KafkaException) -> LogError:
        reason = error.args[0]
        if reason.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
            return data_lost(self, "an offset that the journal goes on from is not in the topic")
        return self._unreachable(reason.str())

    def _unreachable(self, reason: str) -> LogUnreachable:
        return LogUnreachable(
            f"Kafka does not answer for {self}: {reason}",
            hint="nothing is lost: it goes on when the brokers are back",
            retry_helps=True,
        )


def data_lost(topic: Topic, fact: str) -> LogError:
    """What to say where the topic does not hold what the journal goes on from."""
    return LogError(
        f"{topic} has lost events: {fact}",
        hint="restore them, or go on without them: opentab run --accept-loss (opentab verify will name the gap)",
    )
