"""The streaming query: Spark reads the log batch after batch, and each batch becomes one commit of the journal.

    frame = source.stream(spark, starts)                   Kafka, or the embedded log as a Python data source
    frame.writeStream.foreachBatch(bill).start()           bill: mapInArrow in the tasks, then the commit

The journal knows the offsets, so it is the only truth. Every query starts from them, with a checkpoint of its own that
is thrown away. Whatever ends a query, the next one reads on after the last commit.
"""

from __future__ import annotations

import math
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from opentab.billing.bill import HeldBack, Job
from opentab.billing.log_batch import SparkBatch, ranges_between, without_billed, without_held
from opentab.billing.session import cancel_jobs
from opentab.billing.source import NOWHERE, Offsets, Ranges
from opentab.core.errors import TasksFailed
from opentab.core.records import BatchRecord
from opentab.runtime.spark_inside import batch_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FINISH_SECONDS_MAX = 2.0
CANCEL_SECONDS = 1.0
MORE_CORES = 1.5  # times as many as a query was planned for: the next one is planned for all of them


class Stream:
    """One streaming query, from the journal's offsets until it is stopped or something ends it."""

    def __init__(
        self, spark: SparkSession, job: Job, checkpoint: Path, *,
        pause: timedelta, pause_min: timedelta, billed: Callable[[BatchRecord, float], None],
    ) -> None:  # fmt: skip
        self._spark = spark
        self._job = job
        self._checkpoint = checkpoint
        self._pause = pause  # between the starts of two batches
        self._pause_min = pause_min  # after a commit
        self._billed = billed  # told of each batch; it may ask the stream to end
        self._starts: Offsets = {}
        self._reached: Offsets = {}  # where the query's next batch begins
        self._billed_from: set[str] = set()  # partitions
        self._last: int | None = None  # the last of Spark's batches that was billed
        self._query: StreamingQuery | None = None
        self._leaving = threading.Event()
        self._changed = threading.Event()
        # Held while a batch is billed: nobody else may touch the job then.
        self.lock = threading.Lock()
        self._began: float | None = None  # the batch that is under way
        self._cores = 0
        self.error: BaseException | None = None  # what ended a batch; Spark itself passes on nothing but its text

    def start(self) -> None:
        """Start the query. Raises what is wrong with the log."""
        source = self._job.source
        self._cores = self._spark.sparkContext.defaultParallelism
        self._starts = self._reached = source.open(self._job.offsets)
        try:
            frame = source.stream(self._spark, self._starts)
            self._query = (
                frame.writeStream.queryName(f"opentab-{self._checkpoint.name}")
                # Hadoop's paths are not encoded as those of URIs are.
                .option("checkpointLocation", f"file:{self._checkpoint}")
                .trigger(processingTime=f"{self._pause // timedelta(milliseconds=1)} milliseconds")
                .foreachBatch(self._bill)
                .start()
            )
        except (PySparkException, Py4JJavaError) as error:
            raise self._job.task_trouble(error) from error

    def wait(self, seconds: float) -> None:
        """Wait for a batch, or for so long."""
        self._changed.wait(seconds)
        self._changed.clear()

    def check(self) -> None:
        """Raise what ended the query, if anything did."""
        assert self._query is not None
        if self.error is not None:
            raise self.error
        if self._query.isActive or self._leaving.is_set():
            return
        if self.error is not None:  # it came in between
            raise self.error
        failure = self._query.exception()
        if failure is None:
            raise TasksFailed("Spark's streaming query ended by itself", retry_helps=True)
        trouble = self._job.task_trouble(failure)
        raise trouble from failure

    @property
    def billing_seconds(self) -> float | None:
        """How long the batch that is under way has taken so far; None: there is none."""
        began = self._began
        return None if began is None else time.monotonic() - began

    @property
    def has_more_cores(self) -> bool:
        """Whether Spark has many more cores by now than the query was planned for: executors come one by one."""
        try:
            return self._spark.sparkContext.defaultParallelism >= self._cores * MORE_CORES
        except (Py4JError, ConnectionError):
            return False  # Java is gone, and whatever asks it next says so

    def leave(self) -> None:
        """Bill no further batch; to be called while one is billed."""
        self._leaving.set()
        self._changed.set()

    def stop(self, patience_seconds: float) -> None:
        """End after the batch that is under way, or without it where it takes longer than so."""
        self._leaving.set()
        wait = patience_seconds
        while not self.lock.acquire(timeout=wait):
            cancel_jobs(self._spark, self._job.run)  # all of them: another one that hangs may keep ours waiting
            wait = CANCEL_SECONDS
        # Given back before Spark is asked: it waits for a batch, and the batch would wait for the lock.
        self.lock.release()
        self._let_spark_finish()
        if self._query is not None:
            with suppress(Exception):  # of a Spark that is gone, or that hangs: whatever ended the batches says so
                self._query.stop()
        shutil.rmtree(self._checkpoint, ignore_errors=True)

    def _let_spark_finish(self) -> None:
        """Let Spark note down the progress of the last batch, which it does after we have billed it."""
        deadline = time.monotonic() + FINISH_SECONDS_MAX
        with suppress(Exception):  # nothing depends on it
            while self._query is not None and self._query.isActive and time.monotonic() < deadline:
                progress = self._query.lastProgress
                if self._last is None or (progress is not None and progress["batchId"] >= self._last):
                    return
                time.sleep(0.01)

    def _bill(self, frame: DataFrame, number: int) -> None:
        """Called by Spark with each of its batches; the journal counts its own."""
        with self.lock:
            if self._leaving.is_set():
                return
            self._began = time.monotonic()
            try:
                self._bill_batch(frame, number)
                self._last = number
            except BaseException as error:
                self.error = error
                raise
            finally:
                self._began = None
                self._changed.set()
        if self._pause_min:
            self._leaving.wait(self._pause_min.total_seconds())

    def _bill_batch(self, frame: DataFrame, number: int) -> None:
        """Bill a batch of the query's, but for what is held back or billed already."""
        job = self._job
        ends = job.source.ends_of(self._offsets(number))
        begins, self._reached = self._reached, {**self._reached, **(ends or NOWHERE)}
        while True:
            upto = job.upto
            ranges = None if ends is None else ranges_between(begins, ends, upto)
            if ranges is None:
                frame = without_billed(frame, job.offsets)
            elif not ranges:
                return
            else:
                self._check_follows(begins, ranges)
            self._spark.sparkContext.addJobTag(job.run)
            self._spark.sparkContext.setJobDescription(f"batch {job.position + 1}")
            cores = self._spark.sparkContext.defaultParallelism
            began = time.perf_counter()
            try:
                batch = SparkBatch(job.source, without_held(frame, upto), ranges, job.offsets)
                record = job.bill(batch, progress=self._progress(), cores=cores)
            except HeldBack:
                continue
            if record is not None:
                self._billed(record, time.perf_counter() - began)
            return

    def _check_follows(self, begins: Offsets, ranges: Ranges) -> None:
        """Raise unless the rows of the batch begin where the journal ends.

        They do not where the query has passed something over that is not held back any more, or where another pipeline
        has billed some of it. The next query begins at the journal's offsets.
        """
        for name in ranges:
            position, begin = self._job.offsets.get(name, 0), begins.get(name, 0)
            is_loss = position < begin == self._starts.get(name, 0) and name not in self._billed_from
            if position != begin and not is_loss:
                raise TasksFailed(
                    f"the query goes on from {begin} in log partition {name!r}, the journal from {position}",
                    retry_helps=True,
                )
        self._billed_from |= ranges.keys()

    def _progress(self) -> dict[str, float]:
        """What Spark says of the batch before: of this one it will know only after its commit."""
        found: dict[str, float] = {}
        with suppress(Exception):  # no bill depends on it
            progress = self._query.lastProgress if self._query is not None else None
            if progress is not None:
                found = {f"{name}_ms": float(value) for name, value in progress["durationMs"].items()}
                rates = {"input_rows_per_second": "inputRowsPerSecond", "rows_per_second": "processedRowsPerSecond"}
                known = {name: progress[key] for name, key in rates.items() if progress[key] is not None}
                found |= {name: round(rate, 1) for name, rate in known.items() if math.isfinite(rate)}
        return found

    def _offsets(self, number: int) -> str:
        """The offsets up to which a batch reaches, as Spark wrote them down."""
        try:
            return batch_end(self._checkpoint, number)
        except OSError as error:
            raise TasksFailed(f"the checkpoint {self._checkpoint} was removed", retry_helps=True) from error
