"""The log in a directory as a source: Spark's rows name segments, and the tasks read them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from opentab.billing.chunk import SegmentChunk
from opentab.billing.source import Positions, Ranges, ReadRows, replaced
from opentab.billing.task import Report, joined
from opentab.config import Home
from opentab.errors import LedgerBug, LogError
from opentab.log.directory import DirectoryLog
from opentab.log.segment import parse_segment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class DirectorySource:
    """The log in a directory."""

    unit = "segments"

    def __init__(self, log: DirectoryLog, home: Home) -> None:
        self.log = log
        self._events_max: int = home["pipeline.batch_events_max"]
        self._shares_disk = home.tasks_are_here

    def open(self, positions: Positions) -> None:
        """Bring back what the journal has not, archive what it has, and tidy up."""
        self.log.create()
        self._check_loss(positions)
        self.log.restore(dict(positions))
        self.release(positions)
        self.log.sweep_aside()
        self.log.restamp()

    def _check_loss(self, positions: Positions) -> None:
        """Raise if a partition ends before the journal: its next segments would get numbers that were billed already.

        The newest segment of a partition is never archived, so the incoming ones tell where it ends.
        """
        ends = self.ends()
        for name, position in positions.items():
            if ends.get(name, 0) < position:
                raise LogError(
                    f"log partition {name!r} in {self.log.path} ends at segment {ends.get(name, 0)}, "
                    f"the journal is at {position}",
                    hint="restore the log directory from a newer backup",
                )

    def ends(self) -> dict[str, int]:
        return {name: numbers[-1] for name, numbers in self.log.pending().items()}

    def check_id(self, log_id: str | None) -> None:
        if log_id is not None and self.log.find_id() != log_id:
            raise replaced(self.log)

    def unread(self, positions: Positions) -> int:
        return sum(len(numbers) for numbers in self.log.unread(dict(positions)).values())

    def starts(self, positions: Positions) -> Positions:
        return positions

    def stream(self, spark: SparkSession, starts: Positions) -> DataFrame:
        from opentab.billing.segment_reader import NAME, Options, SegmentSource

        options = Options(
            path=self.log.path,
            starts=dict(starts),
            events_max=self._events_max,
            tasks=spark.sparkContext.defaultParallelism,
            with_bytes=not self._shares_disk,
        )
        spark.dataSource.register(SegmentSource)
        return spark.readStream.format(NAME).options(**options.texts()).load()

    def ends_of(self, offsets: str) -> Positions:
        ends: dict[str, int] = json.loads(offsets)
        return ends

    def reader(self) -> ReadRows:
        return partial(read_segments, log_path=self.log.path)

    def check(self, ranges: Ranges, reports: Sequence[Report]) -> None:
        for name, (first, last) in ranges.items():
            taken = joined(one for report in reports if name in report.taken for one in report.taken[name].ranges)
            if taken != [(first, last)]:
                raise LedgerBug(f"log partition {name!r}: {taken} were taken instead of {first} to {last}")

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

    def stamp_after(self, partition: str, number: int) -> tuple[int, int] | None:
        stamp_us = self.log.stamp_after(partition, number)
        return None if stamp_us is None else (number + 1, stamp_us)

    def last_stamps(self) -> dict[str, tuple[int, int]]:
        return self.log.last_stamps()

    def release(self, positions: Positions) -> None:
        self.log.archive_upto(dict(positions))

    def close(self) -> None:
        """Nothing is held open."""


def read_segments(rows: Iterable[pa.RecordBatch], log_path: Path) -> Iterator[SegmentChunk]:
    """The segments that rows name, one after the other: checked as they are read."""
    log = DirectoryLog(log_path)
    for batch in rows:
        for row in batch.to_pylist():
            partition, number = row["partition"], row["offset"] + 1
            if row["segment"] is None:
                yield SegmentChunk(log.read(partition, number))
            else:
                yield SegmentChunk(parse_segment(row["segment"], log.incoming_path(partition, number)))
