"""Real logs and real Delta tables, billed in this process and without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from opentab.billing.bill import HeldBack, Job
from opentab.billing.cross_task import Repeats, Shared, settle
from opentab.billing.directory_reader import ROWS, next_segments
from opentab.billing.directory_source import DirectorySource
from opentab.billing.log_batch import check_taken, ranges_between
from opentab.billing.log_check import join_log
from opentab.billing.source import Ranges, Source, open_source
from opentab.billing.task import TaskResult, TaskSpec, bill_lines
from opentab.closing.closer import Closer
from opentab.core.records import BatchRecord
from opentab.log import DirectoryLog, Producer, open_topic
from opentab.log.directory import NAME_PATTERN, Clock, wall_clock
from opentab.runtime import config
from opentab.runtime.config import Home

SETTINGS = '[billing]\nout_of_orderness = "1d"\nallowed_lateness = "2d"\n'


@dataclass
class LocalBatch:
    """Stands in for Spark: the same rows through the same task function, in this process."""

    source: Source
    ranges: dict[str, tuple[int, int]]
    shares: list[list[pa.RecordBatch]]  # the rows of each task

    def bill(self, spec: TaskSpec, *, in_one_task: bool = False) -> list[TaskResult]:
        shares = [[rows for share in self.shares for rows in share]] if in_one_task else self.shares
        read_rows = self.source.reader()
        return [bill_lines(read_rows(share), spec) for share in shares]

    def settle(self, shared: Shared, spec: TaskSpec) -> Repeats | None:
        return settle(shared, spec, self.source.lines)

    def taken(self, results: Sequence[TaskResult]) -> Ranges:
        check_taken(self.ranges, results, skips_offsets=self.source.skips_offsets)
        return self.ranges


def batch_of_segments(job: Job, names: list[str], tasks: int = 1) -> LocalBatch:
    """Some segments, by the names of their files, for so many tasks."""
    places = [place_of(name) for name in names]
    rows = [
        pa.record_batch([[partition], [number - 1], pa.array([None], pa.binary())], schema=ROWS)
        for partition, number in places
    ]
    ends: dict[str, int] = {}
    for partition, number in places:
        ends[partition] = max(number, ends.get(partition, 0))
    ranges = ranges_between(job.offsets, ends, {})
    return LocalBatch(job.source, ranges, [share for i in range(tasks) if (share := rows[i::tasks])])


def waiting_batch(job: Job) -> LocalBatch | None:
    """What a streaming query would take next: all that waits and may be billed, up to the size of a batch."""
    job.let_go()
    source = job.source
    source.unread(job.offsets)
    if isinstance(source, DirectorySource):
        segments = next_segments(source.log.waiting(job.offsets), events_max=job.home["pipeline.batch_events_max"])
        names = [waiting.name for (name, number), waiting in segments if number <= job.upto.get(name, number)]
        return batch_of_segments(job, names) if names else None
    topic = open_topic(job.home)
    assert topic is not None
    ranges = ranges_between(source.open(job.offsets), source.ends(), job.upto)
    if not ranges:
        return None
    found = topic.read({int(name): between for name, between in ranges.items()})
    topic.close()
    rows = [
        pa.record_batch(
            [
                pa.array([number] * len(messages), pa.int32()),
                pa.array([message.offset for message in messages], pa.int64()),
                pa.array([message.arrived_us for message in messages], pa.timestamp("us", tz="UTC")),
                pa.array([message.value for message in messages], pa.binary()),
            ],
            names=["partition", "offset", "arrived_at", "value"],
        )
        for number, messages in found.items()
        if messages
    ]
    return LocalBatch(source, ranges, [rows])


def place_of(name: str) -> tuple[str, int]:
    """The partition and the number of a segment, by the name of its file."""
    match = NAME_PATTERN.fullmatch(name)
    assert match is not None, name
    return match["partition"], int(match["number"])


def log_of(job: Job) -> DirectoryLog:
    assert isinstance(job.source, DirectorySource)
    return job.source.log


def new_home(path: Path, settings: str = SETTINGS) -> Home:
    path.mkdir()
    (path / "opentab.toml").write_text(settings)
    return config.load(path)


def open_job(home: Home, run: str, *, clock: Clock = wall_clock) -> Job:
    """What a start of the pipeline does before the stream."""
    journal, log_id = join_log(home)
    job = Job(home, journal, open_source(home), run=run, log_id=log_id, clock=clock)
    job.source.open(job.offsets)
    return job


def names_of(log: DirectoryLog, unread: dict[str, list[int]], count: int) -> list[str]:
    """The oldest segments first, as the stream gives them."""
    waiting = [(log.header(p, n).arrived_us, p, n) for p, numbers in unread.items() for n in numbers]
    return [log.incoming_path(p, n).name for _, p, n in sorted(waiting)[:count]]


def bill(home: Home, *lines: str, revise: bool = False, partition: str = "default", close: bool = True) -> BatchRecord:
    """Bill these lines as one batch, and issue what is due then."""
    body = "".join(f"{line}\n" for line in lines).encode()
    Producer(DirectoryLog(home.log_path), partition).append(body)
    job = open_job(home, "run")
    job.ends_once = lambda offsets: revise
    unread = log_of(job).unread(job.offsets)
    record = job.bill(batch_of_segments(job, names_of(log_of(job), unread, 1_000), 1))
    assert record is not None
    if close:
        Closer(home, run="run").close_due(job.journal)
    return record


def bill_waiting(home: Home) -> None:
    """Bill what lies in the log, batch after batch."""
    job = open_job(home, "run")
    while unread := log_of(job).unread(job.offsets):
        job.bill(batch_of_segments(job, names_of(log_of(job), unread, 1_000), 1))


def bill_ready(job: Job) -> None:
    """Bill all that may be billed now, as the pipeline's loop does."""
    while batch := waiting_batch(job):
        with suppress(HeldBack):
            job.bill(batch)
