"""Where events arrive durably: numbered segments in a directory, or a Kafka topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from opentab.core.records import Spot
from opentab.log.clock import read_restart, restart_place
from opentab.log.directory import PARTITION_DEFAULT, Clock, DirectoryLog, Producer, wall_clock
from opentab.log.segment import Segment, SegmentHeader, read_segment
from opentab.runtime.config import Home

if TYPE_CHECKING:
    from opentab.log.topic import Topic

__all__ = [
    "Appends",
    "DirectoryLog",
    "Producer",
    "Segment",
    "SegmentHeader",
    "open_log",
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


def open_log(home: Home) -> DirectoryLog | Topic:
    """The home's log. Both kinds know which log they are: `find_id` and `make_id`."""
    return open_topic(home) or DirectoryLog(home.log_path)


def open_producer(home: Home, partition: str | None = None, *, clock: Clock = wall_clock) -> Appends:
    """What appends to a home's log, to one partition of it where one is named. The log is made if there is none."""
    settings = home.kafka
    if settings is None:
        log = DirectoryLog(home.log_path)
        return Producer(log, partition or PARTITION_DEFAULT, clock=clock, silence_max=home["log.silence_max"])
    from opentab.log.topic_producer import TopicProducer

    # The brokers stamp what arrives, so it is this machine's own clock that they are held against.
    return TopicProducer(
        settings, partition, silence_max=home["log.silence_max"], restart=lambda: read_restart(restart_place(home))
    )
