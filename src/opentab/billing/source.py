"""A source makes a log a stream. Kafka and the embedded log are two; docs/sources.md shows how to write another.

Each row of the stream is one event: `partition` and `offset` say where it stands in the log, `arrived_at` when it
arrived, and `value` holds it as it came. Offsets count up within a partition. The journal keeps, for each partition,
the offset of the next row, and every query starts from there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opentab.core.errors import LogMismatch
from opentab.core.records import ClockRestart
from opentab.log import open_topic
from opentab.log.directory import DirectoryLog
from opentab.log.line_block import LineBlock, MessageLines
from opentab.runtime.config import Home
from opentab.wire.byte_columns import Texts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Offsets = Mapping[str, int]  # by partition, the offset of the next row
NOWHERE: Offsets = {}
Ranges = Mapping[str, tuple[int, int]]  # what a batch takes: by partition, from one offset up to another, excluded
ReadRows = Callable[[Iterable[pa.RecordBatch]], Iterator[LineBlock]]

COLUMNS = ("partition", "offset", "arrived_at", "value")


class Source(ABC):
    """A log that opentab bills from.

    A source of your own has `stream` and `ends`; all else has a default. It is pickled for Spark's tasks.
    """

    unit = "rows"  # what offsets count, in messages to people
    skips_offsets = False  # whether offsets may be missing without a loss, as a Kafka transaction's markers are

    # What a source of your own has

    @abstractmethod
    def stream(self, spark: SparkSession, offsets: Offsets) -> DataFrame:
        """The streaming DataFrame of the rows from these offsets on; rows before them are dropped.

        Partitions that are not named start at their beginning.
        """

    @abstractmethod
    def ends(self) -> Offsets:
        """For each partition, the offset that its next row will get."""

    # What it may have

    @property
    def uri(self) -> str:
        """Names the log, always the same way: the ledger remembers it, and is billed from no other log."""
        return type(self).__qualname__

    def unread(self, offsets: Offsets) -> int:
        """How many rows the log holds from these offsets on. Raises where they are lost."""
        return sum(max(0, end - offsets.get(name, 0)) for name, end in self.ends().items())

    def has_unread(self, partition: str, offset: int, upto_us: int, restarts: Sequence[ClockRestart]) -> bool:
        """Whether a partition goes on from this offset with what had arrived by a moment.

        As long as it does, the partition holds the watermark back. Without a better answer any row will do.
        """
        return self.ends().get(partition, 0) > offset

    def release(self, offsets: Offsets) -> None:
        """Told after each commit that the journal holds all rows before these offsets."""
        return

    def lines(self, places: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Some values, each by partition, offset and a 0; called in a Spark task.

        It settles ids that two tasks of a batch took. Without it, one task bills such a batch again.
        """
        raise NotImplementedError

    # What the logs of opentab itself need besides

    def open(self, offsets: Offsets) -> Offsets:
        """Make the log ready to be read. Returns where reading starts; raises where what follows is lost."""
        return offsets

    def find_id(self) -> str | None:
        """Which log this is; None where there is none."""
        return f"source:{self.uri}"

    def make_id(self) -> str:
        """The same; the log is made where there is none."""
        found = self.find_id()
        assert found is not None
        return found

    def check_id(self, log_id: str | None) -> None:
        """Raise if another log than the one of this id stands here by now: what was read may be of that one."""
        if log_id is not None and self.find_id() != log_id:
            raise replaced(self.uri)

    def ends_of(self, offsets: str) -> Offsets | None:
        """Where a batch ends, from its offsets as Spark writes them down; None: only its rows can tell."""
        return None

    def reader(self) -> ReadRows:
        """What turns the stream's rows into lines, in a task."""
        return partial(read_rows, skips_offsets=self.skips_offsets)

    def close(self) -> None:
        """Let go of it."""
        return


def replaced(log: object) -> LogMismatch:
    """What to say where another log stands in the place of the one that this pipeline began to read."""
    return LogMismatch(
        f"{log} is not the log any more that this pipeline began to read",
        hint="start again: opentab run says which log the ledger is billed from",
    )


def read_rows(rows: Iterable[pa.RecordBatch], *, skips_offsets: bool) -> Iterator[MessageLines]:
    """The lines in rows, each Arrow batch of them partition by partition, in the order of their offsets."""
    for batch in rows:
        names = pc.unique(batch.column("partition")).to_pylist()
        for name in names:
            own = batch if len(names) == 1 else batch.filter(pc.equal(batch.column("partition"), name))
            for part in [own] if skips_offsets else without_gaps(own):
                arrived_us = part.column("arrived_at").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
                lines = Texts.of_array(part.column("value").cast(pa.binary()))
                yield MessageLines(str(name), part.column("offset").to_numpy(), lines, arrived_us.to_numpy())


def without_gaps(rows: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Rows of one partition in the order of their offsets, cut where an offset is missing or comes twice."""
    offsets = rows.column("offset").to_numpy()
    if not (np.diff(offsets) > 0).all():
        order = np.argsort(offsets, kind="stable")
        rows, offsets = rows.take(pa.array(order)), offsets[order]
    cuts = [0, *(np.flatnonzero(np.diff(offsets) != 1) + 1).tolist(), len(offsets)]
    return [rows.slice(first, past - first) for first, past in pairwise(cuts) if past > first]


def open_source(home: Home, *, accept_loss: bool = False) -> Source:
    """The source that the home's settings name."""
    topic = open_topic(home)
    if topic is not None:
        from opentab.billing.kafka_source import TopicSource

        return TopicSource(topic, home, accept_loss=accept_loss)
    from opentab.billing.directory_source import DirectorySource

    return DirectorySource(DirectoryLog(home.log_path), home)
