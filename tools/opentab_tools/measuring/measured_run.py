"""One `opentab run --once` as a user starts it, watched from outside: memory while it runs, times after.

Times come from the journal, which says when each batch was committed; nothing in the pipeline knows
that it is being measured.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from opentab.core.records import BatchRecord
from opentab.ledger.journal import Journal
from opentab.runtime import config
from opentab.runtime.config import Home
from opentab.simulator.command import started

SAMPLE_SECONDS = 0.25
FORK_SECONDS = 0.5  # a process that young may be a copy of its parent, about to become another program
# The first batch starts the Python workers, the second finds them cold.
WARM_UP_BATCHES = 2
DRIVER, JVM, WORKERS, TOTAL = "driver", "JVM", "workers", "total"
SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Committed:
    """What the journal says of one batch, as far as time goes."""

    batch: int
    at_us: int
    event_count: int


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """What one run took."""

    started_us: int
    batches: tuple[Committed, ...]
    memory_bytes_max: dict[str, int]  # by role; shared pages count once for every process
    load_before: float

    @property
    def event_count(self) -> int:
        return sum(batch.event_count for batch in self.batches)

    @property
    def first_commit_seconds(self) -> float:
        return (self.batches[0].at_us - self.started_us) / SECOND_US

    @property
    def events_per_second(self) -> float:
        """Of the whole run, from the start of the process to the last commit."""
        return self.event_count * SECOND_US / (self.batches[-1].at_us - self.started_us)

    @property
    def warm_events_per_second(self) -> float | None:
        """Of the batches behind the warm-up; None where there are none."""
        warm = self.batches[WARM_UP_BATCHES:]
        if not warm:
            return None
        began_us = self.batches[WARM_UP_BATCHES - 1].at_us
        return sum(batch.event_count for batch in warm) * SECOND_US / (warm[-1].at_us - began_us)


def committed(records: Sequence[BatchRecord]) -> tuple[Committed, ...]:
    return tuple(Committed(record.batch, record.committed_us, record.event_count) for record in records)


def link_log(source: Home, target: Home) -> None:
    """Give `target` the log of `source`: segments never change, so links will do, and the pipeline
    moves its own links only. They are read once, so that no run finds them on the disk and the next in memory."""
    incoming = target.log_path / "incoming"
    incoming.mkdir(parents=True)
    for segment in (source.log_path / "incoming").iterdir():
        os.link(segment, incoming / segment.name)
        segment.read_bytes()


def copy_home(source: Home, path: Path, *, dedupe: str) -> Home:
    """A new home at `path` over the log of `source`, with that window of dedupe."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    (path / config.FILE_NAME).write_text(f'[billing]\ndedupe_window = "{dedupe}"\n', encoding="utf-8")
    home = config.load(path)
    link_log(source, home)
    return home


def measure_home(home: Home) -> MeasuredRun:
    """Run a home once and say what it took."""
    load_before = os.getloadavg()[0]
    memory = MemoryPeaks()
    started_us = time.time_ns() // 1000
    with started(home, "run", "--once") as command:
        while command.runs:
            memory.sample(command.process.pid)
            time.sleep(SAMPLE_SECONDS)
        command.check(ended_well=True)
    journal = Journal.open(home.ledger, home.identity)
    records = journal.batches() if journal else []
    batches = committed([record for record in records if record.started_us >= started_us])
    return MeasuredRun(started_us, batches, memory.bytes_max, load_before)


@dataclass
class MemoryPeaks:
    """The most memory that each role of a tree of processes has held, and all at one moment."""

    bytes_max: dict[str, int] = field(default_factory=dict)

    def sample(self, pid: int) -> None:
        try:
            root = psutil.Process(pid)
            self.add(_resident(root, root.children(recursive=True)))
        except psutil.NoSuchProcess:
            pass  # it has just ended

    def add(self, held: Iterable[tuple[str, int]]) -> None:
        """Take up one moment: role and bytes of each process."""
        now: dict[str, int] = {}
        for role, size in held:
            for name in (role, TOTAL):
                now[name] = now.get(name, 0) + size
        for name, size in now.items():
            self.bytes_max[name] = max(size, self.bytes_max.get(name, 0))


def _resident(root: psutil.Process, children: list[psutil.Process]) -> list[tuple[str, int]]:
    held = [(DRIVER, root.memory_info().rss)]
    now = time.time()
    for child in children:
        try:
            if now - child.create_time() < FORK_SECONDS:
                continue
            # What is neither the driver nor Java was started by Java: Spark's Python workers.
            held.append((JVM if child.name() == "java" else WORKERS, child.memory_info().rss))
        except psutil.NoSuchProcess:
            continue
    return held
