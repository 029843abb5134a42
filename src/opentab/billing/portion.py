"""What one batch takes from the log: rows of the stream, and the ranges of the log that they stand for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from socket import gethostname
from typing import TYPE_CHECKING, Protocol

import msgspec
import pyarrow as pa

from opentab.billing.source import Positions, Ranges, ReadRows, Source
from opentab.billing.task import REPORT_COLUMN, REPORT_SCHEMA, Order, Report, bill_chunks, packed, unpacked
from opentab.errors import LedgerBug

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Portion(Protocol):
    """What one batch takes from the log, and whoever bills it."""

    @property
    def ranges(self) -> Ranges:
        """The first and the last number that it takes, by partition."""
        ...

    def bill(self, order: Order, *, in_one_task: bool = False) -> list[Report]:
        """What came of it, one report for each task."""
        ...

    def check(self, reports: Sequence[Report]) -> None:
        """Raise unless the reports together hold all of the portion, once."""
        ...

    def lines(self, places: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Some lines of it, each by its partition, number and byte."""
        ...


@dataclass(frozen=True)
class SparkPortion:
    """A batch of a streaming query, billed by Spark's tasks."""

    source: Source
    frame: DataFrame
    ranges: Ranges

    def bill(self, order: Order, *, in_one_task: bool = False) -> list[Report]:
        frame = self.frame.coalesce(1) if in_one_task else self.frame
        read_rows = self.source.reader()
        rows = frame.mapInArrow(partial(bill_rows, read_rows=read_rows, order=order), REPORT_SCHEMA)
        # Not collect(): it takes the end of a connection for the end of the rows, and so a part for the whole.
        return unpacked(rows.toArrow()[REPORT_COLUMN].to_pylist())

    def check(self, reports: Sequence[Report]) -> None:
        check_taken(self.ranges, reports)
        self.source.check(self.ranges, reports)

    def lines(self, places: Sequence[tuple[str, int, int]]) -> list[bytes]:
        return self.source.lines(places)


def bill_rows(rows: Iterable[pa.RecordBatch], read_rows: ReadRows, order: Order) -> Iterator[pa.RecordBatch]:
    """The body of mapInArrow: a task's share of the stream's rows comes in, its report goes out."""
    yield packed(msgspec.structs.replace(bill_chunks(read_rows(rows), order), host=gethostname()))


def check_taken(ranges: Ranges, reports: Iterable[Report]) -> None:
    """Raise if anything was taken of another partition than those that the batch takes from."""
    for report in reports:
        if not report.taken.keys() <= ranges.keys():
            raise LedgerBug(f"of {sorted(report.taken)} a task has taken, but the batch is of {sorted(ranges)}")


def ranges_between(starts: Positions, ends: Positions, upto: Positions) -> dict[str, tuple[int, int]]:
    """The ranges after the starts, up to the ends, of some partitions up to a number at most."""
    ranges = {}
    for name, end in sorted(ends.items()):
        first, last = starts.get(name, 0) + 1, min(end, upto.get(name, end))
        if first <= last:
            ranges[name] = (first, last)
    return ranges


def without_held(frame: DataFrame, upto: Mapping[str, int]) -> DataFrame:
    """The rows of a batch without those after some numbers of some partitions. An offset is a number less one."""
    for name, number in upto.items():
        is_held = (frame["partition"].cast("string") == name) & (frame["offset"] >= number)
        frame = frame.where(~is_held)
    return frame
