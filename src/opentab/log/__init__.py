"""Where events arrive durably: numbered segments in a directory, or a Kafka topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from opentab.config import Home
from opentab.log.directory import PARTITION_DEFAULT, Clock, DirectoryLog, Producer, wall_clock
from opentab.log.segment import Segment, SegmentHeader, read_segment
from opentab.records import Spot

if TYPE_CHECKING:
    from opentab.log.topic import Topic

__all__ = [
    "Appends",
    "DirectoryLog",
    "Producer",
    "Segment",
    "SegmentHeader",
    "open_producer",
    "open_topic",
    "read_segment",
]


class Appends(Protocol):
    """What puts events into a log."""

    partition: str

    def append(self, body: bytes) -> int:
        """Write whole lines and return once they are durable."""
        ...

    def put(self, lines: Sequence[bytes]) -> list[Spot]:
        """Write lines and return where each stands, once they are durable. None of them is blank."""
        ...


def open_topic(home: Home) -> Topic | None:
    """The Kafka topic that is the home's log; None where the log is a directory."""
    settings = home.kafka
    if settings is None:
        return None
    from opentab.log.topic import Topic

    return Topic(settings)


def open_producer(home: Home, partition: str | None = None, *, clock: Clock = wall_clock) -> Appends:
    """What appends to a home's log, to one partition of it where one is named. The log is made if there is none."""
    settings = home.kafka
    if settings is None:
        return Producer(DirectoryLog(home.log_path), partition or PARTITION_DEFAULT, clock=clock)
    from opentab.log.topic_producer import TopicProducer

    return TopicProducer(settings, partition)
