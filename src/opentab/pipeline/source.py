"""The log as the pipeline reads it: what there is behind the journal's positions, a portion for each batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from opentab.config import Home
from opentab.errors import LogMismatch
from opentab.log import open_topic
from opentab.log.directory import DirectoryLog
from opentab.pipeline.task import Order, Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Positions = Mapping[str, int]  # the number of the last segment or message in the journal, by partition
NOWHERE: Positions = {}
EVENT_BYTES_MIN = 48  # {"time":1,"customer":"a","type":"A","amount":1} and its newline


def replaced(log: object) -> LogMismatch:
    """What to say where another log stands in the place of the one that this pipeline began to read."""
    return LogMismatch(
        f"{log} is not the log any more that this pipeline began to read",
        hint="start again: opentab run says which log the ledger is billed from",
    )


class OutOfTurn(Exception):
    """A segment came before the one in front of it: look again."""


class Portion(Protocol):
    """What one batch takes from the log, and whoever bills it."""

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """The first and the last number that it takes, by partition."""
        ...

    def bill(self, spark: SparkSession | None, order: Order) -> list[Report]:
        """What came of it, one report for each share."""
        ...

    def check(self, reports: Sequence[Report]) -> None:
        """Raise unless the reports together hold all of the portion, once."""
        ...

    def lines(self, places: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Some lines of it, each by its partition, number and byte."""
        ...


class Source(Protocol):
    """A log, read on from the journal's positions."""

    unit: str  # what the numbers count: segments or messages
    tasks_take_tables: bool  # and not rows of an RDD: for each kind Spark has workers of its own

    def open(self, positions: Positions) -> None:
        """Make it ready to be read behind these positions; raises where it has lost what follows them."""
        ...

    def ends(self) -> dict[str, int]:
        """The number of the last one there is, by partition."""
        ...

    def unread(self, positions: Positions) -> int:
        """How many lie behind these positions; raises where that cannot be told."""
        ...

    def next(self, positions: Positions, upto: Positions = NOWHERE) -> Portion | None:
        """What the next batch takes, of some partitions up to a number at most; None if there is nothing."""
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
        from opentab.pipeline.messages import TopicSource

        return TopicSource(topic, home, accept_loss=accept_loss)
    from opentab.pipeline.segments import DirectorySource

    return DirectorySource(DirectoryLog(home.log_path), home)
