"""A Kafka topic's messages, batch after batch: read by Spark's own source, or by the driver where they are few.

The journal knows the offsets; Spark is told where to begin and where to end, and keeps nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opentab.config import Home
from opentab.errors import LedgerBug, LogError
from opentab.log.topic import Topic, data_lost
from opentab.pipeline.chunk import MessageChunk
from opentab.pipeline.source import NOWHERE, Positions, replaced
from opentab.pipeline.task import REPORT_SCHEMA, Order, Report, bill_chunks, packed, unpacked
from opentab.texts import Texts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_SECONDS = 0.05  # how often the topic is asked for its ends, at most
LOSS_LOOK_SECONDS = 5.0
SPAN_GAP = 1_000  # messages that are read sooner than another place is looked for
# Small: about so many bytes an event, where only their number is known.
EVENT_BYTES_ABOUT = 128
# Large fetches and no waiting for more than there is; but not too many messages at a time: what lives long costs the
# collector.
READ_OPTIONS = {
    "kafka.isolation.level": "read_committed",
    "kafka.max.partition.fetch.bytes": "4194304",
    "kafka.fetch.max.bytes": "67108864",
    "kafka.max.poll.records": "20000",
    "kafka.fetch.max.wait.ms": "20",
    "failOnDataLoss": "true",
    # No group is ever joined: by this name a task finds the consumer that the last batch left, and what it read ahead.
    "kafka.group.id": "opentab",
}
# Spark can look at the size of what it sends to Python after every row, which costs a quarter of all that it does
# with small ones. So it need not look where as many rows as it sends at once are far from too many bytes.
BYTES_AT_ONCE = "spark.sql.execution.arrow.maxBytesPerBatch"
LIMITED, UNLIMITED = "64m", f"{2**31 - 1}b"
SMALL_BYTES = 2048


class TopicSource:
    """The log in a Kafka topic."""

    unit = "messages"
    tasks_take_tables = True

    def __init__(self, topic: Topic, home: Home, *, accept_loss: bool = False) -> None:
        self._topic = topic
        self._accept_loss = accept_loss
        self._events_max: int = home["pipeline.batch_events_max"]
        self._local_events_max: int = home["pipeline.local_bytes_max"] // EVENT_BYTES_ABOUT
        self._log_id: str | None = None  # known once it is open
        self._firsts: Mapping[int, int] = {}
        self._nexts: Mapping[int, int] = {}
        self._looked_at = self._loss_looked_at = float("-inf")
        self._sizes = Sizes()

    def open(self, positions: Positions) -> None:
        """See that there is the topic, and that it holds all that follows the journal."""
        self._log_id = self._topic.make_id()
        self._look(positions)

    def ends(self) -> dict[str, int]:
        return {str(number): offset for number, offset in self._topic.next_offsets().items()}

    def unread(self, positions: Positions) -> int:
        self._look(positions, seconds=0.5)
        return sum(
            max(0, end - max(positions.get(str(number), 0), self._firsts.get(number, 0)))
            for number, end in self._nexts.items()
        )

    def next(self, positions: Positions, upto: Positions = NOWHERE) -> MessagePortion | None:
        self._look(positions)
        ends = {number: min(end, upto.get(str(number), end)) for number, end in self._nexts.items()}
        waiting = {
            number: (self._start(number, positions), end)
            for number, end in ends.items()
            if end > self._start(number, positions)
        }
        if not waiting:
            return None
        ranges = fitting(waiting, self._events_max)
        count = sum(end - first for first, end in ranges.values())
        return MessagePortion(self._topic, ranges, self._sizes, is_small=count <= self._local_events_max)

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
            self._check_same()
            ends = self._topic.ends()
            self._firsts, self._nexts, self._loss_looked_at = ends.first, ends.next, now
        else:
            self._nexts = self._topic.next_offsets()
        self._looked_at = now
        self._check_loss(positions)

    def _check_same(self) -> None:
        """Raise if the topic was deleted and made again while we read it."""
        found = self._topic.find_id() if self._log_id is not None else None
        if found is not None and found != self._log_id:  # one that is not there is told of elsewhere
            raise replaced(self._topic)

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


class Sizes:
    """How large messages are, told by the last batch."""

    def __init__(self) -> None:
        self._mean_bytes = float("inf")

    @property
    def are_small(self) -> bool:
        return self._mean_bytes <= SMALL_BYTES

    def forget(self) -> None:
        """Take messages for large until a batch has been billed."""
        self._mean_bytes = float("inf")

    def learn(self, byte_count: int, message_count: int) -> None:
        if message_count:
            self._mean_bytes = byte_count / message_count


class MessagePortion:
    """Some messages of a topic, to be billed as one batch."""

    def __init__(self, topic: Topic, offsets: Mapping[int, tuple[int, int]], sizes: Sizes, *, is_small: bool) -> None:
        self._topic = topic
        self._sizes = sizes
        self._offsets = offsets  # by partition: from this one up to that one, that one excluded
        self._is_small = is_small

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        return {str(number): (first + 1, end) for number, (first, end) in sorted(self._offsets.items())}

    def bill(self, spark: SparkSession | None, order: Order) -> list[Report]:
        """What came of them, one report for each task."""
        if self._is_small or spark is None:
            return [bill_chunks(self._chunks(), order)]
        spark.conf.set(BYTES_AT_ONCE, UNLIMITED if self._sizes.are_small else LIMITED)
        self._sizes.forget()  # should the tasks fail of it, the next try looks
        reports = self._run_tasks(spark, order)
        byte_count = sum(taken.bytes for report in reports for taken in report.taken.values())
        self._sizes.learn(byte_count, sum(end - first for first, end in self._offsets.values()))
        return reports

    def _run_tasks(self, spark: SparkSession, order: Order) -> list[Report]:
        first, end = (
            json.dumps({self._topic.name: {str(number): pair[at] for number, pair in self._offsets.items()}})
            for at in (0, 1)
        )
        options = READ_OPTIONS | self._topic.settings.spark()
        options |= {"assign": json.dumps({self._topic.name: sorted(self._offsets)})}
        options |= {"startingOffsets": first, "endingOffsets": end}
        options["minPartitions"] = str(max(spark.sparkContext.defaultParallelism, len(self._offsets)))
        messages = spark.read.format("kafka").options(**options).load()
        rows = messages.select("partition", "offset", "timestamp", "value")
        return unpacked(rows.mapInArrow(partial(bill_messages, order=order), REPORT_SCHEMA).collect())

    def check(self, reports: Sequence[Report]) -> None:
        """Raise if a message was taken twice, or one that is not of the portion.

        Offsets may be missing: a transaction's marks are no messages. Lost ones fail Spark's task.
        """
        for name, (first, last) in self.ranges.items():
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

    def _chunks(self) -> Iterator[MessageChunk]:
        for number, messages in self._topic.read(self._offsets).items():
            if messages:
                yield MessageChunk(
                    str(number),
                    np.array([message.offset for message in messages], np.int64),
                    Texts.of([message.value for message in messages]),
                    np.array([message.arrived_us for message in messages], np.int64),
                )


def spans(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Few ranges that hold all of the offsets: what lies between neighbours is read, too, where it is little."""
    found: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if found and offset - found[-1][1] <= SPAN_GAP:
            found[-1] = (found[-1][0], offset)
        else:
            found.append((offset, offset))
    return found


def fitting(waiting: Mapping[int, tuple[int, int]], events_max: int) -> dict[int, tuple[int, int]]:
    """So many messages at most, of each partition its share of what waits, and at least one."""
    count = sum(end - first for first, end in waiting.values())
    if count <= events_max:
        return dict(waiting)
    return {
        number: (first, first + max(1, (end - first) * events_max // count)) for number, (first, end) in waiting.items()
    }


def bill_messages(rows: Iterable[pa.RecordBatch], order: Order) -> Iterator[pa.RecordBatch]:
    """The body of mapInArrow: the messages of a range of offsets come in, their report goes out."""
    yield packed(bill_chunks((chunk for batch in rows for chunk in chunks_of(batch)), order))


def chunks_of(batch: pa.RecordBatch) -> Iterator[MessageChunk]:
    """The messages of a batch of rows, partition by partition."""
    numbers = pc.unique(batch.column("partition")).to_pylist()
    for number in numbers:
        own = batch if len(numbers) == 1 else batch.filter(pc.equal(batch.column("partition"), number))
        arrived_us = own.column("timestamp").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        lines = Texts.of_array(own.column("value"))
        yield MessageChunk(str(number), own.column("offset").to_numpy(), lines, arrived_us.to_numpy())
