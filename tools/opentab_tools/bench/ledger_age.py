"""Does a batch cost more on an old ledger? Ledgers of several ages, made by commits alone, measured turn by turn.

Then each bills one batch in turn, as the pipeline does it, so that whatever else the machine does meets all of them.
Batches are as small as can be: what is left is what a batch costs by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from opentab.billing.bill import Job
from opentab.billing.directory_reader import SCHEMA
from opentab.billing.directory_source import DirectorySource
from opentab.billing.log_batch import SparkBatch
from opentab.billing.upkeep import keep_up
from opentab.closing.closer import Closer
from opentab.core.periods import to_us
from opentab.core.records import ENTRY, BatchRecord, PartitionState
from opentab.ledger.journal import Journal
from opentab.log.directory import DirectoryLog, Producer
from opentab.runtime import config
from opentab.tables.files import new_run, stage
from opentab.tables.table import CHECKPOINT_COMMITS

UPKEEP_BATCHES = 16  # upkeep looks at the files so often; when it then works is its own decision
# A commit gets slower from one checkpoint to the next, twofold and more: only whole rounds compare.
WINDOW_COMMITS = 2 * CHECKPOINT_COMMITS
MICROS = 1_000_000
MEASURED_PARTITION = "measured"
EVENT = b'{"time":"%s","customer":"emma","type":"CALL","amount":"1.00"}\n'


@dataclass(frozen=True, slots=True)
class Age:
    """What a ledger of a certain number of batches costs."""

    batches: int
    batch_ms: tuple[float, ...]
    commit_ms: tuple[float, ...]  # of that
    open_ms: tuple[float, ...]  # what a reader pays that begins anew
    live_files_max: int  # over the window: compaction lets it rise and fall
    log_files_max: int


class SyntheticLedger:
    """A ledger that grows by commits of one entry each, with the pipeline's own upkeep."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.home = config.load(path)
        self.run = new_run()
        self._closer = Closer(self.home, run=self.run)
        self.journal = Journal.create(self.home.ledger, self.home.identity)
        self._log = DirectoryLog(self.home.log_path)
        self._producer = Producer(self._log, MEASURED_PARTITION)
        self._source = DirectorySource(self._log, self.home)

    @cached_property
    def _job(self) -> Job:
        return Job(self.home, self.journal, self._source, run=self.run)

    def bill(self, spark: SparkSession) -> float:
        """Bill one event as a batch of the stream does; the milliseconds of the batch, from its rows to its commit."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        number = self._producer.append(EVENT % at.encode())
        frame = spark.createDataFrame([(MEASURED_PARTITION, number - 1, None)], SCHEMA)
        batch = SparkBatch(self._source, frame, {MEASURED_PARTITION: (number - 1, number)}, self._job.offsets)
        began = time.perf_counter()
        record = self._job.bill(batch)
        assert record is not None
        took_ms = (time.perf_counter() - began) * 1000
        self._keep_up(record.batch)
        return took_ms

    def commit(self) -> None:
        """Commit the next batch, one that nobody has billed."""
        batch = self.journal.position + 1
        now_us = to_us(datetime.now(UTC))
        file = stage(self.journal.root, "entry", _entry(batch, now_us), run=self.run, batches=(batch, batch))
        record = BatchRecord(
            batch=batch,
            run=self.run,
            started_us=now_us,
            committed_us=now_us,
            partitions={"default": PartitionState(batch, now_us, now_us, idle=False)},
            taken={"default": (batch, batch)},
            watermark_us=now_us - self.home.rules.out_of_orderness_us,
            final_us=now_us - self.home.rules.out_of_orderness_us - self.home.rules.allowed_lateness_us,
            newest_us=now_us,
            event_count=1,
            sum_micros=str(MICROS),
            entry_rows=1,
            rejections={},
            input_bytes=100,
            rules=self.home.rules,
        )
        self.journal.commit(record, [file])
        self._keep_up(batch)

    def grow(self, batches: int, say: Callable[[str], None]) -> None:
        """Commit until there are so many batches."""
        while self.journal.position < batches:
            self.commit()
            if self.journal.position % 1000 == 0:
                say(f"ledger of {self.journal.position:,} batches")

    def open_ms(self) -> float:
        began = time.perf_counter()
        self._opened()
        return (time.perf_counter() - began) * 1000

    def live_files(self) -> int:
        self.journal.refresh()
        return self.journal.live_files()

    def log_files(self) -> int:
        return sum(1 for _ in (self.journal.root.path / "_delta_log").iterdir())

    def commits_ms(self, count: int) -> list[float]:
        """The milliseconds of so many commits up to the last but one: each batch names that of the one before."""
        records = self.journal.batches(after=self.journal.position - count)
        return [record.steps_ms["committing"] for record in records]

    def _keep_up(self, batch: int) -> None:
        """What runs beside the stream now and then."""
        if batch % UPKEEP_BATCHES == 0:
            keep_up(self._opened(), self.home, self._closer, run=self.run)

    def _opened(self) -> Journal:
        journal = Journal.open(self.home.ledger, self.home.identity)
        assert journal is not None
        return journal


def measure_ages(spark: SparkSession, work_dir: Path, ages: Sequence[int], *, say: Callable[[str], None]) -> list[Age]:
    """What ledgers of so many batches each cost over one window of batches, taken in turn."""
    ledgers = [SyntheticLedger(work_dir / f"of-{batches}") for batches in ages]
    for ledger, batches in zip(ledgers, ages, strict=True):
        ledger.grow(batches, say)
        # All begin the window alike, with nothing left to merge.
        ledger.journal.compact(run=ledger.run, files_max=2)
        ledger.bill(spark)  # the first one that is measured tells of its commit
    batch_ms: list[list[float]] = [[] for _ in ages]
    open_ms: list[list[float]] = [[] for _ in ages]
    live_files, log_files = [0] * len(ages), [0] * len(ages)
    for turn in range(WINDOW_COMMITS):
        for which in range(len(ages))[:: 1 if turn % 2 else -1]:
            ledger = ledgers[which]
            batch_ms[which].append(ledger.bill(spark))
            if turn % UPKEEP_BATCHES == 0:
                open_ms[which].append(ledger.open_ms())
            live_files[which] = max(live_files[which], ledger.live_files())
            log_files[which] = max(log_files[which], ledger.log_files())
    return [
        Age(batches, tuple(batch_ms[i]), tuple(ledger.commits_ms(WINDOW_COMMITS)), tuple(open_ms[i]), live, files)
        for i, (batches, ledger, live, files) in enumerate(zip(ages, ledgers, live_files, log_files, strict=True))
    ]


def _entry(batch: int, at_us: int) -> pa.Table:
    values = [
        batch,
        datetime.fromtimestamp(at_us / MICROS, UTC).date(),
        "emma",
        "CALL",
        MICROS,
        1,
        at_us,
        at_us,
    ]
    columns = [pa.array([value], field.type) for value, field in zip(values, ENTRY, strict=True)]
    return pa.table(columns, schema=ENTRY)
