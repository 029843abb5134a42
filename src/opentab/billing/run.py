"""The pipeline's life: lock, Spark, one streaming query after the other, the heartbeat, and a clean end."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from statistics import median_low
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError, Py4JJavaError

from opentab import __version__
from opentab.billing.batch_log import BatchLog
from opentab.billing.bill import Job
from opentab.billing.delivery import Delivery, deliver, publish_rejections
from opentab.billing.garbage import GarbageWatch, executors_url
from opentab.billing.log_check import join_log
from opentab.billing.pipeline_lock import Claim, HomeLock
from opentab.billing.session import cancel_jobs, open_session, warm_workers
from opentab.billing.source import NOWHERE, Offsets, Source, open_source
from opentab.billing.stream import Stream
from opentab.billing.upkeep import Upkeep, keep_up
from opentab.billing.watchdog import Watchdog
from opentab.closing.closer import Closer
from opentab.closing.closing import Issued
from opentab.closing.spark_engine import SparkEngine
from opentab.core.errors import DiskFull, Fenced, LogError, LogUnreachable, OpentabError, TasksFailed, means_disk_full
from opentab.core.periods import to_us
from opentab.core.records import BatchRecord
from opentab.ledger.diagnosis import LATE_MS
from opentab.ledger.journal import Journal, fenced
from opentab.ledger.repair import recover
from opentab.log.directory import Clock, wall_clock
from opentab.runtime.config import Home
from opentab.runtime.heartbeat import Heartbeat, Work, write_heartbeat
from opentab.runtime.logs import TroubleLog, fields
from opentab.runtime.spark_inside import is_stopped
from opentab.sinks.rejections import dead_letters
from opentab.tables.files import new_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEARTBEAT_SECONDS = 1.0
WAIT_SECONDS = 0.25  # a batch wakes us up
LOOK_SECONDS = 1.0
RETRY_SECONDS = 1.0
LATE_SECONDS = 60.0  # how long a late batch is a reason to look for its cause
TASKS_SECONDS_MAX = 300.0  # how long a batch is tried again whose tasks fail
ONCE_SECONDS_MAX = 60.0  # how long `--once` waits for brokers that do not answer
BATCH_TIMES = 101  # whose median is told
STOP_SECONDS_MAX = 30.0  # how long a batch or a closing that is under way may go on when the pipeline is to stop

logger = logging.getLogger("opentab.billing")


@dataclass(frozen=True, slots=True)
class Progress:
    """What a watcher of the pipeline is told."""

    record: BatchRecord | None
    batches: int  # committed by this run
    events: int
    rejections: int
    unread: int
    unit: str  # of what is unread: segments or messages
    seconds: float  # the last batch took
    invoices: int  # issued by this run, revisions among them
    trouble: OpentabError | None  # why the log is not read on, or invoices cannot be issued or delivered right now


class Pipeline:
    """Runs a home's stream until it is told to stop, or, once, until the log is read."""

    def __init__(
        self, home: Home, *, once: bool = False, take_over: bool = False, accept_loss: bool = False,
        watch: Callable[[Progress], None] = lambda progress: None, spark: SparkSession | None = None,
        source: Source | None = None,
        say: Callable[[str], None] = lambda sentence: None, clock: Clock = wall_clock,
    ) -> None:  # fmt: skip
        self.home = home
        self.once = once
        self.take_over = take_over
        self.accept_loss = accept_loss  # go on without what a Kafka topic has lost
        self.watch = watch
        self.say = say  # told once what an operator should know
        self._spark = spark  # one that belongs to the caller
        self._own_source = source  # instead of the log that the settings name
        self._own_spark: SparkSession | None = None
        self._spark_ui: str | None = None
        self._clock = clock
        self.run_id = new_run()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._batches = self._events = self._rejections = 0
        self._batch_times: deque[float] = deque(maxlen=BATCH_TIMES)  # in seconds, the last one at the end
        self._query: Stream | None = None
        self._late_at = float("-inf")  # when a batch was last late
        self._caught_up_us: int | None = None
        self._streaming = False
        self._source: Source | None = None
        self._source_trouble: OpentabError | None = None
        self._unread = 0
        self._queries = 0
        self._quiet_since = time.monotonic()
        self._trouble_since = time.monotonic()
        self._watchdog = Watchdog(home)
        self._stop_asked = False
        self._invoices = 0
        self._upkeep: Upkeep | None = None
        self._garbage: GarbageWatch | None = None
        self._delivery: Delivery | None = None
        self._batch_log = BatchLog()
        self._trouble_log = TroubleLog(logger)

    def stop(self) -> None:
        """Ask the pipeline to end after the batch that is under way."""
        self._stop_asked = True
        self._stop.set()

    def run(self) -> Progress:
        """Run to the end. What was committed stays, however this ends."""
        try:
            progress = self._run()
        except BaseException as error:
            self._log_end(logging.ERROR, str(error) or type(error).__name__)
            raise
        self._log_end(logging.INFO, "told to stop" if self._stop_asked else "all of the log is billed")
        return progress

    def _run(self) -> Progress:
        lock = HomeLock(self.home.path, take_over=self.take_over)
        try:
            source = self._own_source or open_source(self.home, accept_loss=self.accept_loss)
            for sentence in recover(self.home.ledger):
                self.say(sentence)
                logger.warning("ledger repaired", extra=fields(reason=sentence))
            # Before the claim: a pipeline with another log must not stop the one that works on the ledger.
            journal, log_id = self._join_log(source)
            self._claim = Claim(self.home.ledger, self.run_id)
            self._job = Job(
                self.home, journal, source, run=self.run_id, log_id=log_id, clock=self._clock,
                is_ours=self._claim.is_ours, ends_once=self._ends_once,
                committed=self._batch_log.committed,
            )  # fmt: skip
            self._log_start()
            self._closer = Closer(
                self.home, run=self.run_id, is_ours=self._claim.is_ours, tell=self._tell, open_engine=self._open_engine
            )
            self._open(source)
            if self.once and self._reached_goal():
                self._finish()
            else:
                self._run_spark(lock)
            if self._own_spark is not None:
                with suppress(Py4JError, ConnectionError):  # all is committed: a Java that dies now takes nothing along
                    self._own_spark.stop()
            held_back = self._job.trouble()
            if self.once and held_back is not None and not self._stop_asked:
                raise held_back
            return self._progress()
        except OSError as error:
            if means_disk_full(error):
                raise DiskFull(str(self.home.path)) from error
            raise
        finally:
            lock.release()
            if self._source is not None:
                self._source.close()

    def _log_start(self) -> None:
        job = self._job
        told = fields(
            version=__version__, run=self.run_id, position=job.position, log=job.source.uri, log_id=job.log_id,
            ledger=self.home.ledger.uri, once=self.once, take_over=self.take_over,
        )  # fmt: skip
        logger.info("pipeline starts", extra=told)

    def _log_end(self, level: int, reason: str) -> None:
        self._batch_log.tell()
        told = fields(
            run=self.run_id, reason=reason, batches=self._batches, events=self._events, rejections=self._rejections,
            invoices=self._invoices,
        )  # fmt: skip
        logger.log(level, "pipeline stops", extra=told)

    def _session(self) -> SparkSession:
        """Spark, started where it is needed first."""
        if self._spark is None:
            self._spark = self._own_spark = open_session(self.home)
        if self._spark_ui is None and (url := self._spark.sparkContext.uiWebUrl):
            self._spark_ui = url
            self.say(f"Spark's UI: {url}")
        return self._spark

    def _open_engine(self, what: str, rows: int) -> SparkEngine:
        return SparkEngine(self._session(), what, rows, tag=self.run_id)

    def _cancel_closings(self) -> None:
        """The next run begins them anew: nothing of them counts before it is committed."""
        cancel_jobs(self._session(), self.run_id)

    def _join_log(self, source: Source) -> tuple[Journal, str]:
        """The journal and the id of its log. A log that does not answer yet is waited for, as in `_open`."""
        deadline = time.monotonic() + ONCE_SECONDS_MAX
        while True:
            try:
                return join_log(self.home, source)
            except LogUnreachable as error:
                if self._gives_up(deadline):
                    raise
                self._trouble_log.see("log", error)
                self.watch(Progress(None, 0, 0, 0, 0, source.unit, 0.0, 0, trouble=error))
                self._stop.wait(RETRY_SECONDS)

    def _open(self, source: Source) -> None:
        """Make the log ready; one that does not answer yet is waited for, also for `--once`, but then not for ever."""
        self._source = source
        deadline = time.monotonic() + ONCE_SECONDS_MAX
        while True:
            try:
                starts = source.open(self._job.offsets)
                # A partition may end where it begins, all of it deleted by the topic's retention.
                self._goal = {name: end for name, end in source.ends().items() if end > starts.get(name, 0)}
                return
            except LogUnreachable as error:
                self._waits_for(error, deadline)

    def _waits_for(self, error: OpentabError, deadline: float) -> None:
        """Wait for who does not answer, and tell; raise if that has taken too long."""
        if self._gives_up(deadline):
            raise error
        self._source_trouble = error
        self._log_troubles()
        self.watch(self._progress())
        self._stop.wait(RETRY_SECONDS)

    def _gives_up(self, deadline: float) -> bool:
        return self._stop_asked or (self.once and time.monotonic() > deadline)

    def _run_spark(self, lock: HomeLock) -> None:
        self._upkeep = upkeep = Upkeep(
            self.home, self._closer, run=self.run_id, is_behind=lambda: self._unread > 0, rehearses=not self.once
        )
        self._delivery = delivery = Delivery(self.home)
        heart = threading.Thread(target=self._beat, args=(lock,), name="heartbeat", daemon=True)
        self._write_heartbeat()
        heart.start()
        spark: SparkSession | None = None
        try:
            spark = self._session()
            warming = threading.Thread(target=warm_workers, args=(spark, self.run_id), name="warm-up", daemon=True)
            warming.start()
            self._watch_garbage(spark)
            upkeep.start()
            delivery.start()
            self._stream(spark)
            if self._error is not None:
                raise self._error
            if self.once and not self._stop_asked:
                upkeep.stop()
                delivery.stop()
                self._finish()
            warming.join()
        except (Py4JError, ConnectionError) as error:
            if isinstance(error, Py4JJavaError) and spark is not None and not is_stopped(spark):
                raise  # Java itself lives, and says what is wrong
            raise spark_died(self.home) from error
        finally:
            self._stop.set()
            heart.join()
            # A thread that is still inside a library when Python ends would bring the process down.
            if self._garbage is not None:
                self._garbage.stop()
            upkeep.stop(STOP_SECONDS_MAX, give_up=self._cancel_closings)
            delivery.stop()
            self._streaming = False
            if self._claim.is_ours():
                self._write_heartbeat()

    def _watch_garbage(self, spark: SparkSession) -> None:
        """Look after Java's garbage collection, where Spark's UI is there to tell."""
        if self._spark_ui is not None:
            url = executors_url(self._spark_ui, spark.sparkContext.applicationId)
            self._garbage = GarbageWatch(url, is_wanted=self._is_late)
            self._garbage.start()

    def _is_late(self) -> bool:
        return time.monotonic() - self._late_at < LATE_SECONDS

    def _finish(self) -> None:
        """Let nothing that is due be left when `--once` returns: revisions, closings, invoice files.

        The last batch of the stream asks for the revisions itself. Where that batch was another run's, and
        late events wait, a batch of its own does.
        """
        self._job.reload()
        journal = self._job.journal
        self._closer.close_due(journal)
        if self._closer.anything_late(journal):
            self._job.round_off(to_us(self._clock()))
        keep_up(journal, self.home, self._closer, run=self.run_id)
        deliver(self.home)
        publish_rejections(self.home, dead_letters(self.home))

    def _stream(self, spark: SparkSession) -> None:
        """Query after query. Whatever ends one, the next reads on after the journal: it is the only memory."""
        self._streaming = True
        if not self.take_over:  # else the one that we take over from may still need its own
            shutil.rmtree(self.home.checkpoint_path, ignore_errors=True)
        self._trouble_since = time.monotonic()
        while not self._finished():
            self._watchdog.rest()
            try:
                self._run_query(self._next_query(spark))
            except LogUnreachable as error:
                self._waits_for(error, self._trouble_since + ONCE_SECONDS_MAX)
            except TasksFailed as error:
                self._try_again(error)
            except Fenced:
                if not self._claim.is_ours():
                    raise
                # The one that we took over from committed once more before it noticed: read on after that.
                self._job.reload()

    def _run_query(self, stream: Stream) -> None:
        """Follow a query, and stop it before anything else is done: it bills by what the job knows."""
        patience_seconds = 0.0  # what goes wrong ends the batch, too
        self._query = stream
        try:
            stream.start()
            logger.info("query starts", extra=fields(query=self._queries, position=self._job.position))
            self._follow(stream)
            patience_seconds = STOP_SECONDS_MAX
        except (LogUnreachable, TasksFailed, Fenced) as error:
            told = fields(query=self._queries, batch=self._job.position + 1, reason=str(error))
            logger.warning("query failed", extra=told)
            raise
        finally:
            stream.stop(patience_seconds)

    def _try_again(self, error: TasksFailed) -> None:
        """Wait before the next try, if there is to be one. Where the log has lost something, that failed the tasks."""
        try:
            self._job.source.open(self._job.offsets)
        except LogUnreachable as unreachable:
            self._waits_for(unreachable, self._trouble_since + ONCE_SECONDS_MAX)
            return
        seconds_max = TASKS_SECONDS_MAX + self._watchdog.timeout_seconds
        if self.once or time.monotonic() > self._trouble_since + seconds_max:
            raise error
        self._waits_for(error, self._trouble_since)

    def _next_query(self, spark: SparkSession) -> Stream:
        self._queries += 1
        pause = self.home["pipeline.batch_pause"]
        return Stream(
            spark, self._job, self.home.checkpoint_path / f"{self.run_id}-{self._queries}",
            pause=timedelta() if self.once else pause, pause_min=self.home["pipeline.batch_pause_min"],
            billed=self._billed,
        )  # fmt: skip

    def _follow(self, stream: Stream) -> None:
        """Watch a query until it has to end; raises what ended it."""
        looked = time.monotonic()
        while not self._finished():
            stream.wait(WAIT_SECONDS)
            stream.check()
            self._raise_bug()
            if time.monotonic() - looked < LOOK_SECONDS:
                continue
            looked = time.monotonic()
            if self._lets_go(stream):
                return
            if self._look_at_log():
                self._check_stall(stream)
                if self._watchdog.trouble is not None:
                    self.watch(self._progress())
            self._tick_if_silent(stream)
        stream.leave()

    def _lets_go(self, stream: Stream) -> bool:
        """Whether another query must go on: for what was held back, or for more cores. This one bills no more then."""
        if not (self._job.held or stream.has_more_cores) or not stream.lock.acquire(blocking=False):
            return False
        try:
            if stream.has_more_cores or self._job.let_go():
                stream.leave()
                return True
            return False
        finally:
            stream.lock.release()

    def _look_at_log(self) -> bool:
        """Look what the query has not billed yet; where the log does not answer, tell."""
        try:
            self._job.source.check_id(self._job.log_id)
            self._unread = self._job.source.unread(self._job.offsets)
        except LogUnreachable as error:
            if self._gives_up(self._trouble_since + ONCE_SECONDS_MAX):
                raise
            self._source_trouble = error
            self._watchdog.rest()  # the query can do nothing
            self.watch(self._progress())
            return False
        if isinstance(self._source_trouble, LogUnreachable):
            self._source_trouble = None
        return True

    def _check_stall(self, stream: Stream) -> None:
        """Raise if the query does nothing although it could."""
        is_billing = stream.billing_seconds is not None
        if is_billing or (self._unread and not self._job.held):
            unread = f"{self._unread:,} {self._job.source.unit}"
            self._watchdog.look(stream, self._job.position + 1, unread)
            return
        self._watchdog.rest()
        if self._unread == 0:
            self._trouble_since = time.monotonic()

    def _wake_upkeep(self) -> None:
        if self._upkeep is not None:
            self._upkeep.batch_committed()

    def _raise_bug(self) -> None:
        """Stop if something behind the stream broke that no second try can mend."""
        for part in (self._upkeep, self._delivery):
            if part is not None and part.bug is not None:
                raise part.bug

    def _tick_if_silent(self, stream: Stream) -> None:
        """Let the clock move the watermark, if the home wants that and nothing came for long enough."""
        silence = self.home["pipeline.silent_clock"]
        if self.once or silence is None or time.monotonic() - self._quiet_since < silence.total_seconds():
            return
        if not stream.lock.acquire(blocking=False):
            return  # a batch is under way, so the log is not silent
        try:
            record = self._job.tick(to_us(self._clock()))
        finally:
            stream.lock.release()
        self._quiet_since = time.monotonic()
        if record is not None:
            self._batches += 1
            self._wake_upkeep()
            self.watch(self._progress())

    def _billed(self, record: BatchRecord, seconds: float) -> None:
        """Called after each commit."""
        self._source_trouble = None
        self._quiet_since = self._trouble_since = time.monotonic()
        self._watchdog.rest()
        self._batch_times.append(seconds)
        if record.steps_ms.get("waiting", 0.0) + seconds * 1000 > LATE_MS:
            self._late_at = time.monotonic()
        self._batches += 1
        self._events += record.event_count
        self._rejections += record.rejection_count
        if record.rejections and self._delivery is not None:
            self._delivery.wake()
        self._wake_upkeep()
        self.watch(self._progress())

    def _finished(self) -> bool:
        return self._stop.is_set() or (self.once and self._reaches_goal(self._job.offsets, upto=self._job.upto))

    def _ends_once(self, offsets: dict[str, int]) -> bool:
        """Whether a batch that leads to these offsets is the last one of `--once`."""
        return self.once and self._reaches_goal(offsets)

    def _reached_goal(self) -> bool:
        return self._reaches_goal(self._job.offsets)

    def _reaches_goal(self, offsets: Offsets, *, upto: Offsets = NOWHERE) -> bool:
        """Whether all that was in the log when we started is billed, but for what is held back."""
        return all(offsets.get(name, 0) >= min(end, upto.get(name, end)) for name, end in self._goal.items())

    def _progress(self) -> Progress:
        self._count_unread()
        return Progress(
            record=self._job.last,
            batches=self._batches,
            events=self._events,
            rejections=self._rejections,
            unread=self._unread,
            unit=self._job.source.unit,
            seconds=self._batch_times[-1] if self._batch_times else 0.0,
            invoices=self._invoices,
            trouble=self._trouble(),
        )

    def _trouble(self) -> OpentabError | None:
        held_back = self._job.trouble()
        of_stream = self._source_trouble or held_back or self._watchdog.trouble
        if of_stream is not None:
            return of_stream
        behind = [part for part in (self._upkeep, self._delivery) if part is not None]
        return next((part.trouble for part in behind if part.trouble is not None), None)

    def _log_troubles(self) -> None:
        error = self._source_trouble
        self._trouble_log.see("log", error if isinstance(error, LogUnreachable) else None)
        self._trouble_log.see("clock", self._job.trouble())
        failure = None if isinstance(error, LogUnreachable) else error
        self._trouble_log.see("query", failure or self._watchdog.trouble)
        self._trouble_log.see("upkeep", self._upkeep and self._upkeep.trouble)
        self._trouble_log.see("delivery", self._delivery and self._delivery.trouble)

    def _tell(self, issued: Issued) -> None:
        self._invoices += issued.invoice_count
        if self._delivery is not None:
            self._delivery.wake()
        self.watch(self._progress())

    def _count_unread(self) -> bool:
        """Look how far the log is ahead; False where it does not say."""
        try:
            self._unread = self._job.source.unread(self._job.offsets)
        except LogError:
            return False  # the batches say so
        return True

    def _beat(self, lock: HomeLock) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            self._check_alone()
            with suppress(OSError):
                lock.take_if_free()
            self._write_heartbeat()
            self._batch_log.tell_due()
            self._log_troubles()

    def _write_heartbeat(self) -> None:
        try:
            now_us = to_us(self._clock())
            caught_up = self._count_unread() and self._unread == 0
            if caught_up:
                self._caught_up_us = now_us
            trouble = self._trouble()
            heartbeat = Heartbeat(
                at_us=now_us,
                run=self.run_id,
                pid=os.getpid(),
                streaming=self._streaming,
                position=self._job.last.batch if self._job.last else 0,
                caught_up=caught_up,
                caught_up_us=self._caught_up_us,
                unread_segments=self._unread,
                unread_unit=self._job.source.unit,
                invoices_position=self._closer.position,
                held_back=len(self._job.held),
                trouble=None if trouble is None else str(trouble),
                spark_ui=self._spark_ui,
                work=self._work(),
                billing_ms=None if (seconds := self._billing_seconds()) is None else seconds * 1000,
                median_ms=median_low(self._batch_times) * 1000 if self._batch_times else 0.0,
            )
            write_heartbeat(self.home.ledger, heartbeat)
        except OSError:
            pass  # a full disk stops the stream with a message of its own

    def _billing_seconds(self) -> float | None:
        return self._query.billing_seconds if self._query is not None else None

    def _work(self) -> Work:
        """How it works, for those who ask why batches are slow."""
        milliseconds = timedelta(milliseconds=1)
        return Work(
            master=(self._spark and self._spark.sparkContext.master) or self.home.spark["spark.master"],
            pause_ms=0.0 if self.once else self.home["pipeline.batch_pause"] / milliseconds,
            pause_min_ms=self.home["pipeline.batch_pause_min"] / milliseconds,
            compact_files=self.home["pipeline.compact_files"],
            small_files=self._upkeep.small_files if self._upkeep else None,
            collecting=self._garbage.worst if self._garbage else None,
        )

    def _check_alone(self) -> None:
        """Stop if another pipeline has claimed the home."""
        if not self._claim.is_ours():
            self._error = fenced(self._job.last.batch if self._job.last else 0)
            self._stop.set()


def spark_died(home: Home) -> OpentabError:
    """What to say when Spark's Java process is gone."""
    return OpentabError(
        "Spark's Java process died", hint=f"start again; {home.logs_path} may say why", retry_helps=True
    )
