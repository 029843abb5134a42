"""Real logs and real Delta tables, billed in this process and without Spark."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from opentab import config
from opentab.config import Home
from opentab.log import DirectoryLog, Producer
from opentab.log.directory import Clock, Waiting, wall_clock
from opentab.pipeline.closer import Closer
from opentab.pipeline.job import HeldBack, Job
from opentab.pipeline.log_check import join_log
from opentab.pipeline.segments import DirectorySource, SegmentPortion, bill_names, place_of
from opentab.pipeline.source import open_source
from opentab.pipeline.task import Order, Report
from opentab.records import BatchRecord

SETTINGS = '[billing]\nout_of_orderness = "1d"\nallowed_lateness = "2d"\n'


class SegmentFrame(SegmentPortion):
    """Stands in for Spark: the same task function on the same names, in this process."""

    def __init__(self, job: Job, names: list[str], tasks: int) -> None:
        log = log_of(job)
        super().__init__(log, [Waiting(place_of(name)[1], name, 0, 0) for name in names], job.positions)
        self.path = log.path
        self.shares = [names[i::tasks] for i in range(tasks)]
        self.billed = 0

    def bill(self, spark: object, order: Order) -> list[Report]:
        self.billed += 1
        if self.billed > 1:  # the tasks' ids conflict: one of them sees everything
            self.shares = [[name for share in self.shares for name in share]]
        return [bill_names(self.path, share, order) for share in self.shares if share]


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
    job.source.open(job.positions)
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
    job.ends_once = lambda positions: revise
    unread = log_of(job).unread(job.positions)
    record = job.bill(SegmentFrame(job, names_of(log_of(job), unread, 1_000), 1))
    assert record is not None
    if close:
        Closer(home, run="run").close_due(job.journal)
    return record


def bill_waiting(home: Home) -> None:
    """Bill what lies in the log, batch after batch."""
    job = open_job(home, "run")
    while unread := log_of(job).unread(job.positions):
        job.bill(SegmentFrame(job, names_of(log_of(job), unread, 1_000), 1))


def bill_ready(job: Job) -> None:
    """Bill all that may be billed now, as the pipeline's loop does."""
    while portion := job.next():
        with suppress(HeldBack):
            job.bill(portion)
