"""The log in a directory as a source: Spark's rows name segments, and the tasks read them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from opentab.billing.source import Offsets, ReadRows, Source
from opentab.core.errors import LogError
from opentab.core.records import ClockRestart
from opentab.log.arrivals import trusted_us
from opentab.log.directory import DirectoryLog
from opentab.log.line_block import SegmentLines
from opentab.log.segment import parse_segment
from opentab.runtime.config import Home

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# Where segments travel with their tasks. Spark sends 128 MiB with a task at most, and so many events are 96 MB.
SENT_EVENTS_MAX = 2_000_000


class DirectorySource(Source):
    """The log in a directory."""

    unit = "segments"

    def __init__(self, log: DirectoryLog, home: Home) -> None:
        self.log = log
        self._events_max: int = home["pipeline.batch_events_max"]
        self._shares_disk = home.tasks_are_here
        self._uri: str = home["log.uri"]

    @property
    def uri(self) -> str:
        return self._uri

    def open(self, offsets: Offsets) -> Offsets:
        """Bring back what the journal has not, archive what it has, and tidy up."""
        self.log.create()
        self._check_loss(offsets)
        self.log.restore(dict(offsets))
        self.release(offsets)
        self.log.sweep_aside()
        self.log.restamp()
        return offsets

    def _check_loss(self, offsets: Offsets) -> None:
        """Raise if a partition ends before the journal: its next segments would get numbers that were billed already.

        The newest segment of a partition is never archived, so the incoming ones tell where it ends.
        """
        ends = self.ends()
        for name, offset in offsets.items():
            if ends.get(name, 0) < offset:
                raise LogError(
                    f"log partition {name!r} in {self.log.path} ends at segment {ends.get(name, 0)}, "
                    f"the journal is at {offset}",
                    hint="restore the log directory from a newer backup",
                )

    def ends(self) -> Offsets:
        return {name: numbers[-1] for name, numbers in self.log.pending().items()}

    def find_id(self) -> str | None:
        return self.log.find_id()

    def make_id(self) -> str:
        return self.log.make_id()

    def unread(self, offsets: Offsets) -> int:
        return sum(len(numbers) for numbers in self.log.unread(dict(offsets)).values())

    def stream(self, spark: SparkSession, offsets: Offsets) -> DataFrame:
        from opentab.billing.directory_reader import NAME, Options, SegmentSource

        options = Options(
            path=self.log.path,
            starts=dict(offsets),
            events_max=self._events_max if self._shares_disk else min(self._events_max, SENT_EVENTS_MAX),
            tasks=spark.sparkContext.defaultParallelism,
            with_bytes=not self._shares_disk,
        )
        spark.dataSource.register(SegmentSource)
        return spark.readStream.format(NAME).options(**options.texts()).load()

    def ends_of(self, offsets: str) -> Offsets:
        ends: dict[str, int] = json.loads(offsets)
        return ends

    def reader(self) -> ReadRows:
        return partial(read_segments, log_path=self.log.path)

    def lines(self, places: Sequence[tuple[str, int, int]]) -> list[bytes]:
        wanted: dict[tuple[str, int], list[int]] = {}
        for partition, number, byte in sorted(set(places)):
            wanted.setdefault((partition, number), []).append(byte)
        found = {
            (*segment, byte): line
            for segment, bytes_at in wanted.items()
            for byte, line in zip(bytes_at, self.log.lines(*segment, bytes_at), strict=True)
        }
        return [found[place] for place in places]

    def has_unread(self, partition: str, offset: int, upto_us: int, restarts: Sequence[ClockRestart]) -> bool:
        stamp_us = self.log.stamp_after(partition, offset)
        return stamp_us is not None and trusted_us(stamp_us, restarts, partition, offset) <= upto_us

    def release(self, offsets: Offsets) -> None:
        self.log.archive_upto(dict(offsets))


def read_segments(rows: Iterable[pa.RecordBatch], log_path: Path) -> Iterator[SegmentLines]:
    """The segments that rows name, one after the other: checked as they are read."""
    log = DirectoryLog(log_path)
    for batch in rows:
        for row in batch.to_pylist():
            partition, number = row["partition"], row["offset"] + 1
            if row["segment"] is None:
                yield SegmentLines(log.read(partition, number))
            else:
                yield SegmentLines(parse_segment(row["segment"], log.incoming_path(partition, number)))
