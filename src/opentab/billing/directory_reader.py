"""The embedded log as a data source of Spark's, `opentab-log`.

Its rows are references: a row names a segment, and the task that gets the row reads and checks the segment. Only where
executors have other disks than the driver, rows carry the segments' bytes.

Offsets are the number of the last segment by partition. Every Spark asks a reader where the log ends; ours answers with
a bounded end, counted from the one that it named last. From 4.2 on, Spark can also say where a batch begins and how
much it may take. It asks a reader without these arguments as before, so there is one way for all versions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import accumulate
from pathlib import Path
from time import time_ns

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from opentab.log.directory import DirectoryLog, Waiting

NAME = "opentab-log"
SCHEMA = "partition string, offset bigint, segment binary"
ROWS = pa.schema([("partition", pa.string()), ("offset", pa.int64()), ("segment", pa.binary())])
EVENT_BYTES_MIN = 48  # {"time":1,"customer":"a","type":"A","amount":1} and its newline

Segments = list[tuple[str, int]]  # partition and number


@dataclass(frozen=True)
class Options:
    """What the reader must know; data sources take texts."""

    path: Path
    starts: dict[str, int]
    events_max: int
    tasks: int
    with_bytes: bool

    def texts(self) -> dict[str, str]:
        return {
            "path": str(self.path),
            "starts": json.dumps(self.starts),
            "events_max": str(self.events_max),
            "tasks": str(self.tasks),
            "with_bytes": json.dumps(self.with_bytes),
        }

    @classmethod
    def of(cls, texts: dict[str, str]) -> Options:
        return cls(
            path=Path(texts["path"]),
            starts=json.loads(texts["starts"]),
            events_max=int(texts["events_max"]),
            tasks=int(texts["tasks"]),
            with_bytes=json.loads(texts["with_bytes"]),
        )


class SegmentSource(DataSource):
    """Registered with a session: `spark.dataSource.register(SegmentSource)`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> SegmentStreamReader:  # noqa: N802
        return SegmentStreamReader(Options.of(dict(self.options)))


class SegmentShare(InputPartition):
    """The segments of one task."""

    def __init__(self, segments: Segments, datas: list[bytes] | None) -> None:
        self.segments = segments
        self.datas = datas


class SegmentStreamReader(DataSourceStreamReader):
    """Plans batches in a process on the driver, for as long as its query lives."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._log = DirectoryLog(options.path)
        self._end = options.starts
        self._sizes: dict[tuple[str, int], int] = {}

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return self._options.starts

    def latestOffset(self) -> dict[str, int]:  # noqa: N802
        segments = next_segments(self._log.waiting(self._end), events_max=self._options.events_max)
        self._sizes = {segment: waiting.size for segment, waiting in segments}
        end = dict(self._end)
        for (partition, number), _ in segments:
            end[partition] = max(number, end.get(partition, 0))
        self._end = end
        return end

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[SegmentShare]:
        """Whole ranges are planned, whatever a look at the directory showed: a segment that is gone is an error."""
        segments = [
            (partition, number)
            for partition, last in end.items()
            for number in range(start.get(partition, 0) + 1, last + 1)
        ]
        shares = shared_out(segments, [self._sizes.get(segment, 0) for segment in segments], self._options.tasks)
        return [SegmentShare(share, self._datas(share) if self._options.with_bytes else None) for share in shares]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SegmentShare)
        names, numbers = zip(*partition.segments, strict=True)
        offsets = [number - 1 for number in numbers]
        if partition.datas is None:
            nothing = [None] * len(names)
            yield pa.record_batch([list(names), offsets, pa.array(nothing, pa.binary())], schema=ROWS)
            return
        for name, offset, data in zip(names, offsets, partition.datas, strict=True):
            yield pa.record_batch([[name], [offset], pa.array([data], pa.binary())], schema=ROWS)

    def _datas(self, segments: Segments) -> list[bytes]:
        return [self._log.bytes_of(partition, number) for partition, number in segments]


def next_segments(waiting: dict[str, list[Waiting]], *, events_max: int) -> list[tuple[tuple[str, int], Waiting]]:
    """The oldest segments of all partitions, and at least one if there is any.

    They are bounded in bytes: no event that can be billed is shorter than EVENT_BYTES_MIN.
    """
    now_ns = time_ns()  # a stamp from the future, which a restart made good, waits no longer than what is new
    named = [[((partition, one.number), one) for one in segments] for partition, segments in waiting.items()]
    found = list(merge(*named, key=lambda segment: min(segment[1].arrived_ns, now_ns)))
    sizes = accumulate(segment.size for _, segment in found)
    fitting = sum(1 for size in sizes if size <= events_max * EVENT_BYTES_MIN)
    return found[: max(1, fitting)]


def shared_out(segments: Segments, sizes: Sequence[int], tasks: int) -> list[Segments]:
    """Segments for so many tasks at most, about as many bytes for each.

    Neighbours stay together: an event that is repeated is mostly repeated soon, and one task sees both.
    """
    shares: list[Segments] = [[] for _ in range(tasks)]
    whole = max(1, sum(sizes))
    for segment, size, end in zip(segments, sizes, accumulate(sizes), strict=True):
        middle = end - size / 2
        shares[min(int(middle * tasks / whole), tasks - 1)].append(segment)
    return [share for share in shares if share]
