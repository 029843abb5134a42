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
from opentab.billing.task import (
    RESULT_COLUMN,
    RESULT_SCHEMA,
    TaskResult,
    TaskSpec,
    bill_lines,
    joined,
    packed,
    unpacked,
)
from opentab.core.errors import LedgerBug, TasksFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class LogBatch(Protocol):
    """What one batch takes from the log, and whoever bills it."""

    def bill(self, spec: TaskSpec, *, in_one_task: bool = False) -> list[TaskResult]:
        """What came of it, one result for each task."""
        ...

    def settle(self, shared: Shared, spec: TaskSpec) -> Repeats | None:
        """What sets right that several tasks took the same ids; None where one task must bill all of it."""
        ...

    def taken(self, results: Sequence[TaskResult]) -> Ranges:
        """The offsets that it takes, by partition. Raises unless the results hold them all, once."""
        ...


@dataclass(frozen=True)
class SparkBatch:
    """A batch of a streaming query, billed by Spark's tasks."""

    source: Source
    frame: DataFrame
    ranges: Ranges | None  # None: the rows themselves must tell, and go on where the journal ends
    offsets: Offsets  # the journal's

    def bill(self, spec: TaskSpec, *, in_one_task: bool = False) -> list[TaskResult]:
        frame = self.frame.coalesce(1) if in_one_task else self.frame
        rows = frame.mapInArrow(partial(bill_rows, read_rows=self.source.reader(), spec=spec), RESULT_SCHEMA)
        return unpacked(_answers(rows))

    def settle(self, shared: Shared, spec: TaskSpec) -> Repeats | None:
        one_row = self.frame.sparkSession.range(0, 1, 1, 1)
        rows = one_row.mapInArrow(partial(settle_rows, shared=shared, spec=spec, source=self.source), RESULT_SCHEMA)
        (answer,) = _answers(rows)
        return msgspec.json.decode(answer, type=Repeats | None)

    def taken(self, results: Sequence[TaskResult]) -> Ranges:
        if self.ranges is None:
            return ranges_of_rows(results, self.offsets, skips_offsets=self.source.skips_offsets)
        check_taken(self.ranges, results, skips_offsets=self.source.skips_offsets)
        return self.ranges


def bill_rows(rows: Iterable[pa.RecordBatch], read_rows: ReadRows, spec: TaskSpec) -> Iterator[pa.RecordBatch]:
    """The body of mapInArrow: a task's share of the stream's rows comes in, its result goes out."""
    yield packed(msgspec.structs.replace(bill_lines(read_rows(rows), spec), host=gethostname()))


def settle_rows(
    rows: Iterable[pa.RecordBatch], shared: Shared, spec: TaskSpec, source: Source
) -> Iterator[pa.RecordBatch]:
    """The body of mapInArrow: one row comes in so that there is a task, what sets the batch right goes out."""
    for _ in rows:
        pass
    try:
        yield packed(settle(shared, spec, source.lines))
    finally:
        source.close()


def _answers(rows: DataFrame) -> list[bytes]:
    # Not collect(): it takes the end of a connection for the end of the rows, and so a part for the whole.
    answers: list[bytes] = rows.toArrow()[RESULT_COLUMN].to_pylist()
    return answers


def check_taken(ranges: Ranges, results: Sequence[TaskResult], *, skips_offsets: bool = False) -> None:
    """Raise unless the results together hold all of these ranges, once, and nothing else."""
    for result in results:
        if not result.taken.keys() <= ranges.keys():
            raise LedgerBug(f"of {sorted(result.taken)} a task has taken, but the batch is of {sorted(ranges)}")
    for name, (begin, end) in ranges.items():
        taken = _taken_of(name, results)
        if not _is_whole(taken, begin, end, skips_offsets=skips_offsets):
            raise LedgerBug(f"log partition {name!r}: offsets {taken} were taken instead of {begin} up to {end}")


def ranges_of_rows(results: Sequence[TaskResult], offsets: Offsets, *, skips_offsets: bool = False) -> Ranges:
    """The ranges that the tasks' own rows make. Raises unless each goes on where the journal ends."""
    ranges = {}
    for name in sorted({name for result in results for name in result.taken}):
        taken, begin = _taken_of(name, results), offsets.get(name, 0)
        end = taken[-1][1]
        if not _is_whole(taken, begin, end, skips_offsets=skips_offsets):
            found = ", ".join(f"{first} to {past - 1}" for first, past in joined(taken))
            raise TasksFailed(
                f"log partition {name!r} must go on with offset {begin}, each offset once and none left out; "
                f"a batch of the source has {found}",
                retry_helps=True,
            )
        ranges[name] = (begin, end)
    return ranges


def _taken_of(name: str, results: Sequence[TaskResult]) -> list[tuple[int, int]]:
    return sorted(one for result in results if name in result.taken for one in result.taken[name].ranges)


def _is_whole(taken: Sequence[tuple[int, int]], begin: int, end: int, *, skips_offsets: bool) -> bool:
    """Whether sorted ranges are one range, each offset once; some may be missing where the source says so."""
    ends = [begin, *(past for _, past in taken)]
    if skips_offsets:
        return ends[-1] <= end and all(first >= past for (first, _), past in zip(taken, ends, strict=False))
    return ends[-1] == end and all(first == past for (first, _), past in zip(taken, ends, strict=False))


def ranges_between(starts: Offsets, ends: Offsets, upto: Offsets) -> dict[str, tuple[int, int]]:
    """The ranges from the starts up to the ends, of some partitions up to another offset at most."""
    ranges = {}
    for name, end in sorted(ends.items()):
        begin, past = starts.get(name, 0), min(end, upto.get(name, end))
        if begin < past:
            ranges[name] = (begin, past)
    return ranges


def without_held(frame: DataFrame, upto: Mapping[str, int]) -> DataFrame:
    """The rows of a batch without those of some partitions that come at an offset or after it."""
    for name, offset in upto.items():
        is_held = (frame["partition"].cast("string") == name) & (frame["offset"] >= offset)
        frame = frame.where(~is_held)
    return frame


def without_billed(frame: DataFrame, offsets: Offsets) -> DataFrame:
    """The rows of a batch without those that the journal holds."""
    for name, offset in offsets.items():
        frame = frame.where(~((frame["partition"].cast("string") == name) & (frame["offset"] < offset)))
    return frame
