"""A directory's segments, batch after batch: billed by Spark's tasks, or by the driver itself where they are few.

A job of Spark's costs some hundredths of a second, however small; a few thousand events take one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from heapq import merge
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from opentab.config import Home
from opentab.errors import LogError
from opentab.log.directory import NAME_PATTERN, DirectoryLog, Waiting
from opentab.log.segment import parse_segment
from opentab.pipeline.chunk import Chunk, SegmentChunk
from opentab.pipeline.source import EVENT_BYTES_MIN, NOWHERE, OutOfTurn, Positions, replaced
from opentab.pipeline.task import Order, Report, bill_chunks, joined, row_of, unpacked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DirectorySource:
    """The log in a directory."""

    unit = "segments"
    tasks_take_tables = False

    def __init__(self, log: DirectoryLog, home: Home) -> None:
        self.log = log
        self._batch_events_max: int = home["pipeline.batch_events_max"]
        self._local_bytes_max: int = home["pipeline.local_bytes_max"]
        self._shares_disk = home.tasks_are_here
        self._log_id: str | None = None  # known once it is open

    def open(self, positions: Positions) -> None:
        """Bring back what the journal has not, archive what it has, and tidy up."""
        self._log_id = self.log.make_id()
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

    def unread(self, positions: Positions) -> int:
        return sum(len(numbers) for numbers in self.log.unread(dict(positions)).values())

    def next(self, positions: Positions, upto: Positions = NOWHERE) -> SegmentPortion | None:
        segments = next_segments(self.log, positions, upto, batch_events_max=self._batch_events_max)
        if not segments:
            return None
        if self._log_id is not None and self.log.find_id() != self._log_id:
            raise replaced(self.log)
        is_small = sum(segment.size for segment in segments) <= self._local_bytes_max
        return SegmentPortion(self.log, segments, positions, is_small=is_small, shares_disk=self._shares_disk)

    def stamp_after(self, partition: str, number: int) -> tuple[int, int] | None:
        stamp_us = self.log.stamp_after(partition, number)
        return None if stamp_us is None else (number + 1, stamp_us)

    def last_stamps(self) -> dict[str, tuple[int, int]]:
        return self.log.last_stamps()

    def release(self, positions: Positions) -> None:
        self.log.archive_upto(dict(positions))

    def close(self) -> None:
        """Nothing is held open."""


class SegmentPortion:
    """Some segments, to be billed as one batch."""

    def __init__(
        self, log: DirectoryLog, segments: Sequence[Waiting], positions: Positions, *,
        is_small: bool = True, shares_disk: bool = True,
    ) -> None:  # fmt: skip
        self._log = log
        self._segments = segments
        self._positions = positions
        self._is_small = is_small
        self._shares_disk = shares_disk

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        numbers: dict[str, list[int]] = {}
        for segment in self._segments:
            numbers.setdefault(place_of(segment.name)[0], []).append(segment.number)
        return {name: (self._positions.get(name, 0) + 1, max(found)) for name, found in sorted(numbers.items())}

    def bill(self, spark: SparkSession | None, order: Order) -> list[Report]:
        """What came of them, one report for each share."""
        if self._is_small or spark is None:
            return [bill_names(self._log.path, [segment.name for segment in self._segments], order)]
        shares = shared_out(self._segments, spark.sparkContext.defaultParallelism)
        # An RDD, not a table: there is nothing to plan, and its job takes half the time.
        if self._shares_disk:
            rows = spark.sparkContext.parallelize(shares, len(shares))
            return unpacked(rows.map(partial(bill_share, log_path=self._log.path, order=order)).collect())
        datas = spark.sparkContext.parallelize([self._datas(share) for share in shares], len(shares))
        return unpacked(datas.map(partial(bill_datas, order=order)).collect())

    def check(self, reports: Sequence[Report]) -> None:
        """Raise unless the reports hold the segments that follow the journal's, each once and without a gap."""
        for name, (first, last) in self.ranges.items():
            ranges = joined(one for report in reports if name in report.taken for one in report.taken[name].ranges)
            if ranges != [(first, last)]:
                for number in range(first, last):
                    self._log.path_of(name, number)  # says so if one of them is gone
                raise OutOfTurn(f"{name}: {ranges} do not follow {first - 1}")

    def lines(self, places: Sequence[tuple[str, int, int]]) -> list[bytes]:
        wanted: dict[tuple[str, int], list[int]] = {}
        for partition, number, byte in sorted(set(places)):
            wanted.setdefault((partition, number), []).append(byte)
        found = {
            (*segment, byte): line
            for segment, bytes_at in wanted.items()
            for byte, line in zip(bytes_at, self._log.lines(*segment, bytes_at), strict=True)
        }
        return [found[place] for place in places]

    def _datas(self, names: Iterable[str]) -> list[tuple[str, bytes]]:
        """The segments themselves, by name: where executors have other disks, they are sent."""
        return [(name, self._log.path_of(*place_of(name)).read_bytes()) for name in names]


def next_segments(
    log: DirectoryLog, positions: Positions, upto: Positions = NOWHERE, *, batch_events_max: int
) -> list[Waiting]:
    """The oldest segments that the journal has not, of all partitions, and at least one if there is any.

    They are bounded in bytes: no event that can be billed is shorter than EVENT_BYTES_MIN.
    """
    waiting = [
        [segment for segment in segments if segment.number <= upto.get(partition, segment.number)]
        for partition, segments in log.waiting(dict(positions)).items()
    ]
    now_ns = time.time_ns()  # a stamp from the future, which a restart made good, waits no longer than what is new
    segments = list(merge(*waiting, key=lambda segment: min(segment.arrived_ns, now_ns)))
    bytes_max = batch_events_max * EVENT_BYTES_MIN
    sizes = accumulate(segment.size for segment in segments)
    fitting = sum(1 for size in sizes if size <= bytes_max)
    return segments[: max(1, fitting)]


def shared_out(segments: Sequence[Waiting], tasks: int) -> list[list[str]]:
    """Names of segments for so many tasks at most, about as many bytes for each.

    Neighbours stay together: an event that is repeated is mostly repeated soon, and one task sees both.
    """
    shares: list[list[str]] = [[] for _ in range(tasks)]
    size = max(1, sum(segment.size for segment in segments))
    ends = accumulate(segment.size for segment in segments)
    for segment, end in zip(segments, ends, strict=True):
        middle = end - segment.size / 2
        shares[min(int(middle * tasks / size), tasks - 1)].append(segment.name)
    return [names for names in shares if names]


def place_of(name: str) -> tuple[str, int]:
    """The partition and the number of a segment, by the name of its file."""
    match = NAME_PATTERN.fullmatch(name)
    if match is None:
        raise ValueError(f"{name} is not the name of a segment")
    return match["partition"], int(match["number"])


def bill_names(log_path: Path, names: Iterable[str], order: Order) -> Report:
    """Bill some segments of a directory, given by their file names."""
    log = DirectoryLog(log_path)
    return bill_chunks((SegmentChunk(log.read(*place)) for place in sorted(map(place_of, names))), order)


def bill_share(names: Iterable[str], log_path: Path, order: Order) -> tuple[bytes]:
    """The same for a task of Spark's: names come in as a row of an RDD, a report goes out as one."""
    return row_of(bill_names(log_path, names, order))


def bill_datas(datas: Iterable[tuple[str, bytes]], order: Order) -> tuple[bytes]:
    """The same for segments that come as they are, each with its name."""
    chunks: list[Chunk] = [SegmentChunk(parse_segment(data, Path(name))) for name, data in datas]
    chunks.sort(key=lambda chunk: (chunk.partition, chunk.first))
    return row_of(bill_chunks(chunks, order))
