"""What a batch takes from the log, and who bills it: Spark's tasks, or the driver itself where it is little.

A job of Spark's costs a tenth of a second and more, however small; a few thousand events take a hundredth.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from heapq import merge
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from opentab.log.directory import DirectoryLog, Waiting
from opentab.pipeline.task import REPORT_COLUMN, REPORT_SCHEMA, Order, Report, bill_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENT_BYTES_MIN = 48  # {"time":1,"customer":"a","type":"A","amount":1} and its newline


def next_segments(log: DirectoryLog, positions: dict[str, int], *, batch_events_max: int) -> list[Waiting]:
    """The oldest segments that the journal has not, of all partitions, and at least one if there is any.

    They are bounded in bytes: no event that can be billed is shorter than EVENT_BYTES_MIN.
    """
    waiting = merge(*log.waiting(positions).values(), key=lambda segment: segment.arrived_ns)
    segments = list(waiting)
    bytes_max = batch_events_max * EVENT_BYTES_MIN
    sizes = accumulate(segment.size for segment in segments)
    fitting = sum(1 for size in sizes if size <= bytes_max)
    return segments[: max(1, fitting)]


class Segments:
    """Some segments of the log, to be billed as one batch."""

    def __init__(self, spark: SparkSession, segments: Sequence[Waiting], *, local_bytes_max: int) -> None:
        self._spark = spark
        self._segments = segments
        self._is_small = sum(segment.size for segment in segments) <= local_bytes_max

    def bill(self, order: Order) -> list[Report]:
        """What came of them, one report for each share."""
        if self._is_small:
            return [bill_names([segment.name for segment in self._segments], order)]
        shares = shared_out(self._segments, self._spark.sparkContext.defaultParallelism)
        numbers = self._spark.range(0, len(shares), 1, len(shares))
        rows = numbers.mapInArrow(partial(bill_shares, shares=shares, order=order), REPORT_SCHEMA).collect()
        return [msgspec.json.decode(bytes(row[0]), type=Report) for row in rows]


def shared_out(segments: Iterable[Waiting], tasks: int) -> list[list[str]]:
    """Names of segments for so many tasks at most, about as many bytes for each."""
    shares: list[tuple[int, list[str]]] = [(0, []) for _ in range(tasks)]
    for segment in sorted(segments, key=lambda segment: -segment.size):
        least = min(range(tasks), key=lambda at: shares[at][0])
        size, names = shares[least]
        shares[least] = (size + segment.size, [*names, segment.name])
    return [names for _, names in shares if names]


def bill_shares(
    numbers: Iterator[pa.RecordBatch],
    shares: Sequence[list[str]],
    order: Order,
) -> Iterator[pa.RecordBatch]:
    """The body of mapInArrow: the number of a share comes in, its report goes out."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            report = bill_names(shares[number], order)
            yield pa.record_batch({REPORT_COLUMN: pa.array([msgspec.json.encode(report)], pa.binary())})
