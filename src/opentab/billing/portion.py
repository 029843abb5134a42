"""What one batch takes from the log: rows of the stream, and the Spark jobs that bill them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from socket import gethostname
from typing import TYPE_CHECKING, Protocol

import msgspec
import pyarrow as pa

from opentab.billing.cross_task import Repeats, Shared, settle
from opentab.billing.source import Offsets, Ranges, ReadRows, Source
from opentab.billing.task import REPORT_COLUMN, REPORT_SCHEMA, Order, Report, bill_chunks, joined, packed, unpacked
from opentab.core.errors import LedgerBug, TasksFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Portion(Protocol):
    """What one batch takes from the log, and whoever bills it."""

    def bill(self, order: Order, *, in_one_task: bool = False) -> list[Report]:
        """What came of it, one report for each task."""
        ...

    def settle(self, shared: Shared, order: Order) -> Repeats | None:
        """What sets right that several tasks took the same ids; None where one task must bill all of it."""
        ...

    def taken(self, reports: Sequence[Report]) -> Ranges:
        """The first and the last number that it takes, by partition. Raises unless the reports hold them all, once."""
        ...


@dataclass(frozen=True)
class SparkPortion:
    """A batch of a streaming query, billed by Spark's tasks."""

    source: Source
    frame: DataFrame
    ranges: Ranges | None  # None: the rows themselves must tell, and go on where the journal ends
    offsets: Offsets  # the journal's

    def bill(self, order: Order, *, in_one_task: bool = False) -> list[Report]:
        frame = self.frame.coalesce(1) if in_one_task else self.frame
        rows = frame.mapInArrow(partial(bill_rows, read_rows=self.source.reader(), order=order), REPORT_SCHEMA)
        return unpacked(_answers(rows))

    def settle(self, shared: Shared, order: Order) -> Repeats | None:
        one_row = self.frame.sparkSession.range(0, 1, 1, 1)
        rows = one_row.mapInArrow(partial(settle_rows, shared=shared, order=order, source=self.source), REPORT_SCHEMA)
        (answer,) = _answers(rows)
        return msgspec.json.decode(answer, type=Repeats | None)

    def taken(self, reports: Sequence[Report]) -> Ranges:
        if self.ranges is None:
            return ranges_of_rows(reports, self.offsets, skips_offsets=self.source.skips_offsets)
        check_taken(self.ranges, reports, skips_offsets=self.source.skips_offsets)
        return self.ranges


def bill_rows(rows: Iterable[pa.RecordBatch], read_rows: ReadRows, order: Order) -> Iterator[pa.RecordBatch]:
    """The body of mapInArrow: a task's share of the stream's rows comes in, its report goes out."""
    yield packed(msgspec.structs.replace(bill_chunks(read_rows(rows), order), host=gethostname()))


def settle_rows(
    rows: Iterable[pa.RecordBatch], shared: Shared, order: Order, source: Source
) -> Iterator[pa.RecordBatch]:
    """The body of mapInArrow: one row comes in so that there is a task, what sets the batch right goes out."""
    for _ in rows:
        pass
    try:
        yield packed(settle(shared, order, source.lines))
    finally:
        source.close()


def _answers(rows: DataFrame) -> list[bytes]:
    # Not collect(): it takes the end of a connection for the end of the rows, and so a part for the whole.
    answers: list[bytes] = rows.toArrow()[REPORT_COLUMN].to_pylist()
    return answers


def check_taken(ranges: Ranges, reports: Sequence[Report], *, skips_offsets: bool = False) -> None:
    """Raise unless the reports together hold all of these ranges, once, and nothing else."""
    for report in reports:
        if not report.taken.keys() <= ranges.keys():
            raise LedgerBug(f"of {sorted(report.taken)} a task has taken, but the batch is of {sorted(ranges)}")
    for name, (first, last) in ranges.items():
        taken = _taken_of(name, reports)
        if not _is_whole(taken, first, last, skips_offsets=skips_offsets):
            raise LedgerBug(f"log partition {name!r}: {taken} were taken instead of {first} to {last}")


def ranges_of_rows(reports: Sequence[Report], offsets: Offsets, *, skips_offsets: bool = False) -> Ranges:
    """The ranges that the tasks' own rows make. Raises unless each goes on where the journal ends."""
    ranges = {}
    for name in sorted({name for report in reports for name in report.taken}):
        taken, next_offset = _taken_of(name, reports), offsets.get(name, 0)
        first, last = next_offset + 1, taken[-1][1]
        if not _is_whole(taken, first, last, skips_offsets=skips_offsets):
            found = ", ".join(f"{first - 1} to {last - 1}" for first, last in joined(taken))
            raise TasksFailed(
                f"log partition {name!r} must go on with offset {next_offset}, each offset once and none left out; "
                f"a batch of the source has {found}",
                retry_helps=True,
            )
        ranges[name] = (first, last)
    return ranges


def _taken_of(name: str, reports: Sequence[Report]) -> list[tuple[int, int]]:
    return sorted(one for report in reports if name in report.taken for one in report.taken[name].ranges)


def _is_whole(taken: Sequence[tuple[int, int]], first: int, last: int, *, skips_offsets: bool) -> bool:
    """Whether sorted ranges are one range, each number once; offsets may be missing where the source says so."""
    follows = [first - 1, *(end for _, end in taken)]
    if skips_offsets:
        return follows[-1] <= last and all(one[0] > end for one, end in zip(taken, follows, strict=False))
    return follows[-1] == last and all(one[0] == end + 1 for one, end in zip(taken, follows, strict=False))


def ranges_between(starts: Offsets, ends: Offsets, upto: Offsets) -> dict[str, tuple[int, int]]:
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


def without_billed(frame: DataFrame, offsets: Offsets) -> DataFrame:
    """The rows of a batch without those that the journal holds."""
    for name, offset in offsets.items():
        frame = frame.where(~((frame["partition"].cast("string") == name) & (frame["offset"] < offset)))
    return frame
