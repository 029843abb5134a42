"""A source makes a log a stream: it says where the log ends, and reads it on from the journal's offsets.

Its rows are lines, or references to segments that the tasks resolve. In each row `partition` names the partition of the
log and `offset` the place in it; a batch takes all offsets of a partition from one up to another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from opentab.billing.chunk import Chunk
from opentab.billing.task import Report
from opentab.config import Home
from opentab.errors import LogMismatch
from opentab.log import open_topic
from opentab.log.directory import DirectoryLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Positions = Mapping[str, int]  # the number of the last segment or message in the journal, by partition
NOWHERE: Positions = {}
Ranges = Mapping[str, tuple[int, int]]  # the first and the last number that a batch takes, by partition
ReadRows = Callable[[Iterable[pa.RecordBatch]], Iterator[Chunk]]


def replaced(log: object) -> LogMismatch:
    """What to say where another log stands in the place of the one that this pipeline began to read."""
    return LogMismatch(
        f"{log} is not the log any more that this pipeline began to read",
        hint="start again: opentab run says which log the ledger is billed from",
    )


class Source(Protocol):
    """A log, read on from the journal's positions."""

    unit: str  # what the numbers count: segments or messages

    def open(self, positions: Positions) -> None:
        """Make it ready to be read after these positions; raises where it has lost what follows them."""
        ...

    def ends(self) -> dict[str, int]:
        """The number of the last one there is, by partition."""
        ...

    def check_id(self, log_id: str | None) -> None:
        """Raise if another log than the one of this id stands here by now: what was read may be of that one."""
        ...

    def unread(self, positions: Positions) -> int:
        """How many lie after these positions; raises where that cannot be told, or where they are lost."""
        ...

    def starts(self, positions: Positions) -> Positions:
        """Where a query begins that reads on from these positions: later than they are where loss is accepted."""
        ...

    def stream(self, spark: SparkSession, starts: Positions) -> DataFrame:
        """The streaming DataFrame of all that follows."""
        ...

    def ends_of(self, offsets: str) -> Positions:
        """The numbers up to which a batch of that stream reaches, from its offsets as Spark writes them down."""
        ...

    def reader(self) -> ReadRows:
        """What turns rows of that stream into lines, in a task."""
        ...

    def check(self, ranges: Ranges, reports: Sequence[Report]) -> None:
        """Raise unless the reports together hold all of these ranges, once."""
        ...

    def lines(self, places: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Some lines, each by its partition, number and byte."""
        ...

    def stamp_after(self, partition: str, number: int) -> tuple[int, int] | None:
        """The number and the arrival stamp of the next one after `number`; None if there is none yet."""
        ...

    def last_stamps(self) -> dict[str, tuple[int, int]]:
        """The number and the arrival stamp of the one that was stamped latest, by partition."""
        ...

    def release(self, positions: Positions) -> None:
        """Say that the journal holds all up to these positions."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


def open_source(home: Home, *, accept_loss: bool = False) -> Source:
    """The source that the home's settings name."""
    topic = open_topic(home)
    if topic is not None:
        from opentab.billing.messages import TopicSource

        return TopicSource(topic, home, accept_loss=accept_loss)
    from opentab.billing.segments import DirectorySource

    return DirectorySource(DirectoryLog(home.log_path), home)
