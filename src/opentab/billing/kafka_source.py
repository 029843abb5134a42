"""A Kafka topic as a source: read by Spark's own Kafka source, from the journal's offsets on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from opentab.billing.source import Offsets, Source, replaced
from opentab.core.errors import LogError, LogUnreachable
from opentab.core.records import ClockRestart
from opentab.log.arrivals import trusted_us
from opentab.log.topic import Topic, data_lost
from opentab.runtime.config import Home

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOOK_SECONDS = 0.05  # how often the topic is asked for its ends, at most
LOSS_LOOK_SECONDS = 5.0
SPAN_GAP = 1_000  # messages that are read sooner than another place is looked for
# Large fetches and no waiting for more than there is; but not too many messages at a time: what lives long costs the
# collector.
READ_OPTIONS = {
    "kafka.isolation.level": "read_committed",
    "kafka.max.partition.fetch.bytes": "4194304",
    "kafka.fetch.max.bytes": "67108864",
    "kafka.max.poll.records": "20000",
    "kafka.fetch.max.wait.ms": "20",
    "failOnDataLoss": "true",
}


class TopicSource(Source):
    """The log in a Kafka topic."""

    unit = "messages"
    skips_offsets = True

    def __init__(self, topic: Topic, home: Home, *, accept_loss: bool = False) -> None:
        self._topic = topic
        self._accept_loss = accept_loss
        self._uri: str = home["log.uri"]
        self._events_max: int = home["pipeline.batch_events_max"]
        self._firsts: Mapping[int, int] = {}
        self._nexts: Mapping[int, int] = {}
        self._looked_at = self._loss_looked_at = float("-inf")

    @property
    def uri(self) -> str:
        return self._uri

    def open(self, offsets: Offsets) -> Offsets:
        """See that there is the topic, and that it holds all that follows the journal."""
        self._looked_at = self._loss_looked_at = float("-inf")
        self._look(offsets)
        return {str(number): self._start(number, offsets) for number in self._nexts}

    def ends(self) -> Offsets:
        return {str(number): offset for number, offset in self._topic.next_offsets().items()}

    def find_id(self) -> str | None:
        return self._topic.find_id()

    def make_id(self) -> str:
        return self._topic.make_id()

    def check_id(self, log_id: str | None) -> None:
        """Raise if the topic was deleted and made again: ids of topics are never given out twice."""
        found = self._topic.find_id() if log_id is not None else None
        if log_id is not None and found is None:
            raise LogUnreachable(
                f"Kafka does not know {self._topic} right now",
                hint="nothing is lost: it goes on when the topic is back",
                retry_helps=True,
            )
        if found != log_id:
            raise replaced(self._topic)

    def unread(self, offsets: Offsets) -> int:
        self._look(offsets, seconds=0.5)
        return sum(
            max(0, end - max(offsets.get(str(number), 0), self._firsts.get(number, 0)))
            for number, end in self._nexts.items()
        )

    def stream(self, spark: SparkSession, offsets: Offsets) -> DataFrame:
        options = READ_OPTIONS | self._topic.settings.spark()
        options |= {
            "subscribe": self._topic.name,
            "startingOffsets": json.dumps({self._topic.name: offsets}),
            "maxOffsetsPerTrigger": str(self._events_max),
            "minPartitions": str(max(spark.sparkContext.defaultParallelism, len(offsets))),
        }
        messages = spark.readStream.format("kafka").options(**options).load()
        return messages.selectExpr("partition", "offset", "timestamp as arrived_at", "value")

    def ends_of(self, offsets: str) -> Offsets:
        ends: dict[str, int] = json.loads(offsets)[self._topic.name]
        return ends

    def lines(self, places: Sequence[tuple[str, int, int]]) -> list[bytes]:
        found: dict[tuple[str, int], bytes] = {}
        for partition in {place[0] for place in places}:
            for first, last in spans(offset for name, offset, _ in places if name == partition):
                messages = self._topic.read({int(partition): (first, last + 1)})[int(partition)]
                found |= {(partition, message.offset): message.value for message in messages}
        for partition, offset, _ in places:
            if (partition, offset) not in found:
                raise LogError(f"message {offset} of partition {partition} is gone from {self._topic}")
        return [found[partition, offset] for partition, offset, _ in places]

    def has_unread(self, partition: str, offset: int, upto_us: int, restarts: Sequence[ClockRestart]) -> bool:
        message = self._topic.message_from(int(partition), offset)
        if message is None:
            return False
        return trusted_us(message.arrived_us, restarts, partition, message.offset) <= upto_us

    def close(self) -> None:
        self._topic.close()

    def _start(self, number: int, offsets: Offsets) -> int:
        known = offsets.get(str(number), 0)
        return max(known, self._firsts.get(number, 0)) if not offsets or self._accept_loss else known

    def _look(self, offsets: Offsets, seconds: float = LOOK_SECONDS) -> None:
        """See where the partitions end, and now and then whether they still begin where we go on."""
        now = time.monotonic()
        if now - self._looked_at < seconds:
            return
        if now - self._loss_looked_at > LOSS_LOOK_SECONDS:
            ends = self._topic.ends()
            self._firsts, self._nexts, self._loss_looked_at = ends.first, ends.next, now
        else:
            self._nexts = self._topic.next_offsets()
        self._looked_at = now
        self._check_loss(offsets)

    def _check_loss(self, offsets: Offsets) -> None:
        """Raise if what follows the journal is gone. A new home begins with what there is."""
        for name, position in offsets.items():
            end = self._nexts.get(int(name))
            if end is None:
                raise data_lost(self._topic, f"partition {name} is gone")
            if end < position:
                raise data_lost(
                    self._topic,
                    f"partition {name} ends at offset {end}, the journal is at {position}; is it another topic?",
                )
        if not offsets or self._accept_loss:
            return
        for number, first in self._firsts.items():
            position = offsets.get(str(number), 0)
            if first > position:
                fact = f"partition {number} begins at offset {first}, the journal goes on from {position}"
                raise data_lost(self._topic, fact)


def spans(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Few ranges that hold all of the offsets: what lies between neighbours is read, too, where it is little."""
    found: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if found and offset - found[-1][1] <= SPAN_GAP:
            found[-1] = (found[-1][0], offset)
        else:
            found.append((offset, offset))
    return found
