"""A Kafka topic as a source: read by Spark's own Kafka source, from the journal's offsets on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from opentab.billing.chunk import MessageChunk
from opentab.billing.source import Positions, Ranges, ReadRows, replaced
from opentab.billing.task import Report
from opentab.config import Home
from opentab.errors import LedgerBug, LogError, LogUnreachable
from opentab.log.topic import Topic, data_lost
from opentab.texts import Texts

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


class TopicSource:
    """The log in a Kafka topic."""

    unit = "messages"

    def __init__(self, topic: Topic, home: Home, *, accept_loss: bool = False) -> None:
        self._topic = topic
        self._accept_loss = accept_loss
        self._events_max: int = home["pipeline.batch_events_max"]
        self._firsts: Mapping[int, int] = {}
        self._nexts: Mapping[int, int] = {}
        self._looked_at = self._loss_looked_at = float("-inf")

    def open(self, positions: Positions) -> None:
        """See that there is the topic, and that it holds all that follows the journal."""
        self._looked_at = self._loss_looked_at = float("-inf")
        self._look(positions)

    def ends(self) -> dict[str, int]:
        return {str(number): offset for number, offset in self._topic.next_offsets().items()}

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

    def unread(self, positions: Positions) -> int:
        self._look(positions, seconds=0.5)
        return sum(
            max(0, end - max(positions.get(str(number), 0), self._firsts.get(number, 0)))
            for number, end in self._nexts.items()
        )

    def starts(self, positions: Positions) -> Positions:
        self._look(positions)
        return {str(number): self._start(number, positions) for number in self._nexts}

    def stream(self, spark: SparkSession, starts: Positions) -> DataFrame:
        options = READ_OPTIONS | self._topic.settings.spark()
        options |= {
            "subscribe": self._topic.name,
            "startingOffsets": json.dumps({self._topic.name: starts}),
            "maxOffsetsPerTrigger": str(self._events_max),
            "minPartitions": str(max(spark.sparkContext.defaultParallelism, len(starts))),
        }
        messages = spark.readStream.format("kafka").options(**options).load()
        return messages.select("partition", "offset", "timestamp", "value")

    def ends_of(self, offsets: str) -> Positions:
        ends: dict[str, int] = json.loads(offsets)[self._topic.name]
        return ends

    def reader(self) -> ReadRows:
        return read_messages

    def check(self, ranges: Ranges, reports: Sequence[Report]) -> None:
        """Raise if a message was taken twice, or one that is not of the ranges.

        Offsets may be missing: a transaction's marks are no messages. Lost ones fail Spark's task.
        """
        for name, (first, last) in ranges.items():
            taken = sorted(one for report in reports if name in report.taken for one in report.taken[name].ranges)
            follows = [first - 1, *(one[1] for one in taken)]
            if any(one[0] <= before for one, before in zip(taken, follows, strict=False)) or follows[-1] > last:
                raise LedgerBug(f"partition {name}: {taken} were taken instead of {first} to {last}")

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

    def stamp_after(self, partition: str, number: int) -> tuple[int, int] | None:
        message = self._topic.message_from(int(partition), number)
        return None if message is None else (message.offset + 1, message.arrived_us)

    def last_stamps(self) -> dict[str, tuple[int, int]]:
        return {str(number): (offset + 1, us) for number, (offset, us) in self._topic.newest_stamps().items()}

    def release(self, positions: Positions) -> None:
        """Kafka keeps what it has for as long as it is told to."""

    def close(self) -> None:
        self._topic.close()

    def _start(self, number: int, positions: Positions) -> int:
        known = positions.get(str(number), 0)
        return max(known, self._firsts.get(number, 0)) if not positions or self._accept_loss else known

    def _look(self, positions: Positions, seconds: float = LOOK_SECONDS) -> None:
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
        self._check_loss(positions)

    def _check_loss(self, positions: Positions) -> None:
        """Raise if what follows the journal is gone. A new home begins with what there is."""
        for name, position in positions.items():
            end = self._nexts.get(int(name))
            if end is None:
                raise data_lost(self._topic, f"partition {name} is gone")
            if end < position:
                raise data_lost(
                    self._topic,
                    f"partition {name} ends at offset {end}, the journal is at {position}; is it another topic?",
                )
        if not positions or self._accept_loss:
            return
        for number, first in self._firsts.items():
            position = positions.get(str(number), 0)
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


def read_messages(rows: Iterable[pa.RecordBatch]) -> Iterator[MessageChunk]:
    """The messages in rows, each batch of them partition by partition."""
    for batch in rows:
        numbers = pc.unique(batch.column("partition")).to_pylist()
        for number in numbers:
            own = batch if len(numbers) == 1 else batch.filter(pc.equal(batch.column("partition"), number))
            arrived_us = own.column("timestamp").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
            lines = Texts.of_array(own.column("value"))
            yield MessageChunk(str(number), own.column("offset").to_numpy(), lines, arrived_us.to_numpy())
