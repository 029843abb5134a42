"""One batch, from its segments to its commit. This file holds the order of the steps."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import TypeVar

import msgspec
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, PythonException

from opentab.billing.cross_task import Repeats, shared_across
from opentab.billing.log_batch import LogBatch
from opentab.billing.source import Ranges, Source
from opentab.billing.task import TaskResult, TaskSpec
from opentab.billing.watermark import final_after, forgotten_after, newest_after, partitions_after, watermark_after
from opentab.core.errors import (
    ClockMismatch,
    DiskFull,
    LedgerBug,
    LogMismatch,
    OpentabError,
    TasksFailed,
    means_disk_full,
)
from opentab.core.periods import first_day, format_us, to_us
from opentab.core.records import BatchRecord, ClockRestart, PartitionState, Start, TaskTimes
from opentab.ledger.journal import Journal, fenced
from opentab.log.directory import Clock, wall_clock
from opentab.runtime import crash
from opentab.runtime.config import Home
from opentab.runtime.spark_inside import PYTHON_ERROR, reason_of, told_by_task
from opentab.tables.error_text import unwritable

T = TypeVar("T")

RUNS_SECONDS = 60.0  # a snapshot of the journal names runs that are still there for an hour
AHEAD_MAX_US = 3_600_000_000  # what is stamped further ahead of our clock is held back
HELD_US = 10_000_000  # for so long at least: to find the next one that is ahead takes a try at a batch


@dataclass(frozen=True, slots=True)
class Held:
    """The first row of a partition that is stamped too far ahead of our clock."""

    offset: int
    stamp_us: int
    found_us: int


class HeldBack(Exception):
    """A batch holds what is stamped too far ahead of our clock: take less."""


class Job:
    """Bills one batch after the other; what it knows, the journal told it."""

    def __init__(
        self,
        home: Home,
        journal: Journal,
        source: Source,
        *,
        run: str,
        log_id: str | None = None,
        is_ours: Callable[[], bool] = lambda: True,
        ends_once: Callable[[dict[str, int]], bool] = lambda offsets: False,
        committed: Callable[[BatchRecord], None] = lambda record: None,
        clock: Clock = wall_clock,
    ) -> None:
        self.home = home
        self.journal = journal
        self.source = source
        self.run = run
        self.log_id = log_id  # of the source; every batch records it
        self.is_ours = is_ours  # asked before each commit: has another pipeline claimed the home?
        self.ends_once = ends_once  # asked of each batch: is it the last one of a `run --once`?
        self._committed = committed  # told of each batch, also of those without events
        self.rules = home.rules
        self.held: dict[str, Held] = {}  # by partition
        self._clock = clock
        self.last: BatchRecord | None = journal.last()
        self._commit_seconds = 0.0  # of the last batch
        self._runs_seen = float("-inf")

    @property
    def offsets(self) -> dict[str, int]:
        """By partition, the offset at which the journal goes on."""
        return offsets_of(self.last)

    @property
    def position(self) -> int:
        """The last batch in the journal."""
        return self.last.batch if self.last else 0

    def reload(self) -> None:
        """See what another pipeline has committed. Where that is a move to another log, our offsets are void: stop."""
        self.journal.refresh()
        self.last = self.journal.last()
        if self.last is not None and self.last.log_id not in (None, self.log_id):
            raise LogMismatch(
                f"the ledger was moved to log {self.last.log_id} while this pipeline started",
                hint=f"set uri = {self.last.log_uri!r} under [log] and start again",
            )

    @property
    def upto(self) -> dict[str, int]:
        """The offset up to which may be billed now, of partitions of which something is held back."""
        return {name: held.offset for name, held in self.held.items()}

    def let_go(self) -> bool:
        """Hold back no longer what the clock has come up to; whether there was any."""
        now_us, before = self._now_us(), self.held
        self.held = {
            name: held
            for name, held in before.items()
            if held.stamp_us > now_us + AHEAD_MAX_US or abs(now_us - held.found_us) < HELD_US
        }
        return len(self.held) < len(before)

    def trouble(self) -> ClockMismatch | None:
        """Why some of the log is held back; None if nothing is."""
        name, held = max(self.held.items(), key=lambda item: item[1].stamp_us, default=(None, None))
        if held is None:
            return None
        return ClockMismatch(
            f"log partition {name!r} is held back: it goes on with an arrival of {format_us(held.stamp_us)}, and this "
            f"machine's clock says {format_us(self._now_us())}",
            hint="if this clock is wrong, set it right; if the arrival is, stop the pipeline and run: "
            "opentab log clock --restart",
            retry_helps=True,
        )

    def bill(
        self, batch: LogBatch, *, progress: Mapping[str, float] | None = None, cores: int = 1
    ) -> BatchRecord | None:
        """Bill one batch; None if there was nothing in it. Running the same batch again changes nothing.

        Raises HeldBack where the batch is too large.

        1. the tasks decode, tally and stage, in one pass over the batch
        2. their results are put together and checked
        3. one commit makes all of it visible
        4. the batch makes room in the log
        """
        started_us = self._now_us()
        clock = time.perf_counter()
        crash.moment("taken")
        spec = self._task_spec()
        results, repeats = self._count_once(batch, spec)
        ranges = batch.taken(results)
        if not ranges:
            return None
        staged = time.perf_counter()
        crash.moment("staged")
        record = self._record(ranges, results, repeats, started_us)
        files = [file for result in results for file in result.files if file.path not in repeats.dropped]
        files += repeats.files
        said = dict(progress or {})
        steps_ms = _steps_ms(results, started_us, staged - clock, self._commit_seconds) | _planning(said)
        record = msgspec.structs.replace(
            record, steps_ms=steps_ms, file_count=len(files), progress=said, times=_times(results, cores)
        )
        if not self.is_ours():
            raise fenced(record.batch)
        self.source.check_id(self.log_id)  # after the tasks: what they read is of the ledger's own log
        committing = time.perf_counter()
        self.journal.commit(record, files)
        self._commit_seconds = time.perf_counter() - committing
        self.last = record
        self._committed(record)
        crash.moment("committed")
        self.source.release(self.offsets)
        crash.moment("archived")
        return record

    def tick(self, now_us: int) -> BatchRecord | None:
        """Let the time of day move the watermark of a silent log: a batch of its own, without events."""
        if self.last is None or self.last.watermark_us is None or self.source.unread(self.offsets):
            return None
        if now_us < max((state.arrived_us for state in self.last.partitions.values()), default=now_us):
            return None  # our clock is behind that of a producer: it tells nothing yet
        return self._commit_empty(self.last, now_us, clock_us=now_us)

    def round_off(self, now_us: int) -> BatchRecord | None:
        """Let what is late be revised now: a batch of its own, without events."""
        if self.last is None:
            return None
        return self._commit_empty(self.last, now_us, revise=True)

    def adopt(self, now_us: int, start: Start) -> BatchRecord:
        """Move the ledger to this job's log: a batch of its own, without events."""
        return self._commit_empty(self.last, now_us, adopted=start)

    def restart_clock(self) -> ClockRestart:
        """Let arrival and the dedupe window run anew from now: a batch of its own, without events (ADR 20)."""
        now_us = self._now_us()
        restart = ClockRestart(
            batch=self._next_batch,
            at_us=now_us,
            upto=dict(self.source.ends()),
            forgotten_us=self.last.forgotten_us if self.last else None,
            remembers_from=self.journal.remembers_from(),
        )
        self._commit_empty(self.last, now_us, restart=restart)
        return restart

    def _commit_empty(
        self, last: BatchRecord | None, now_us: int, *, clock_us: int | None = None, revise: bool = False,
        adopted: Start | None = None, restart: ClockRestart | None = None,
    ) -> BatchRecord:  # fmt: skip
        before, restarts = (last.partitions, last.restarts) if last else ({}, [])
        if adopted == "beginning":
            # The offsets of another log mean nothing in this one. The watermark stays: it never falls.
            before, restarts = {}, [msgspec.structs.replace(one, upto={}) for one in restarts]
        if restart is not None:
            restarts = [*restarts, restart]
            before = {name: arrived_by(state, restart.at_us) for name, state in before.items()}
        partitions = partitions_after(before, {}, rules=self.rules, has_unread=self._has_unread(restarts))
        watermark_us = watermark_after(last, partitions, self.rules, clock_us=clock_us)
        record = BatchRecord(
            batch=self._next_batch,
            run=self.run,
            started_us=now_us,
            committed_us=now_us,
            partitions=partitions,
            taken={},
            watermark_us=watermark_us,
            final_us=final_after(last, watermark_us, self.rules),
            newest_us=newest_after(last, partitions),
            event_count=0,
            sum_micros="0",
            entry_rows=0,
            rejections={},
            input_bytes=0,
            rules=self.rules,
            clock_us=clock_us,
            revise=revise,
            forgotten_us=forgotten_after(last if restart is None else None, partitions, self.rules),
            log_id=self.log_id,
            log_uri=self.source.uri,
            adopted=adopted,
            restarts=restarts,
        )
        if not self.is_ours():
            raise fenced(record.batch)
        self.journal.commit(record, [])
        self.last = record
        self._committed(record)
        return record

    def _count_once(self, batch: LogBatch, spec: TaskSpec) -> tuple[list[TaskResult], Repeats]:
        """Let the tasks bill the batch, and see to what two of them took of the same ids."""
        results = self._run_tasks(lambda: batch.bill(spec))
        self._hold_back(results)
        shared = shared_across(results, spec)
        if shared is None:
            return results, Repeats()
        batch.taken(results)  # raises where a task took what another one did: those are no repeats
        repeats = self._run_tasks(lambda: batch.settle(shared, spec))
        if repeats is None:
            # Rare, and mostly where ids conflict: one task sees all of it.
            results = self._run_tasks(lambda: batch.bill(spec, in_one_task=True))
            self._hold_back(results)
        return results, repeats or Repeats()

    def _task_spec(self) -> TaskSpec:
        if self.rules.dedupe_us and time.monotonic() - self._runs_seen > RUNS_SECONDS:
            self.journal.refresh()  # runs that were merged long ago are gone
        self._runs_seen = time.monotonic()
        return TaskSpec(
            batch=self._next_batch,
            run=self.run,
            journal=self.journal.root,
            rules=self.rules,
            late_before_day=self._late_before_day(),
            runs=self.journal.runs() if self.rules.dedupe_us else [],
            forgotten_us=self.last.forgotten_us if self.last else None,
            restarts=self._restarts,
            arrived_us_max=self._now_us() + AHEAD_MAX_US,
        )

    def _run_tasks(self, run: Callable[[], T]) -> T:
        try:
            return run()
        except OpentabError:
            raise
        except Exception as error:
            trouble = self.task_trouble(error)
            if trouble is error:
                raise
            raise trouble from error

    def _hold_back(self, results: Sequence[TaskResult]) -> None:
        """Raise if something is stamped too far ahead of our clock, and let the next batch end before it."""
        ahead: dict[str, tuple[int, int]] = {}
        for result in results:
            for name, first in result.ahead.items():
                ahead[name] = min(first, ahead.get(name, first))
        if ahead:
            now_us = self._now_us()
            found = {name: Held(offset, stamp_us, now_us) for name, (offset, stamp_us) in ahead.items()}
            self.held = {**self.held, **found}  # the heartbeat's thread may be looking at the old one
            raise HeldBack(", ".join(ahead))

    def _has_unread(self, restarts: Sequence[ClockRestart]) -> Callable[[str, int, int], bool]:
        """Whether a partition goes on after a number with what had arrived at a moment, as restarts let it count."""

        def has_unread(partition: str, offset: int, upto_us: int) -> bool:
            return self.source.has_unread(partition, offset, upto_us, restarts)

        return has_unread

    @property
    def _next_batch(self) -> int:
        return self.position + 1

    @property
    def _restarts(self) -> list[ClockRestart]:
        return self.last.restarts if self.last else []

    def _now_us(self) -> int:
        return to_us(self._clock())

    def _late_before_day(self) -> int | None:
        """The first day of the oldest month that is still open: what is of an earlier day comes late."""
        if self.last is None or self.last.watermark_us is None:
            return None
        return first_day(self.home.calendar.period_of(self.last.watermark_us))

    def task_trouble(self, error: Exception) -> Exception:
        """What a task or a query of Spark's that failed means for a user, where we know."""
        if means_disk_full(error):
            return DiskFull(str(self.journal.root))
        told = told_by_task(error)
        if told is not None:
            return told
        if isinstance(error, OSError) and error.filename is None and not self.journal.root.is_local:
            return unwritable(self.journal.root, error)
        if not isinstance(error, PySparkException | Py4JJavaError):  # the second: pyspark has no class for it
            return error
        ours = isinstance(error, PythonException) or PYTHON_ERROR in str(error)
        return (OpentabError if ours else TasksFailed)(
            f"a Spark task failed: {self.journal.root.without_secrets(reason_of(error))}",
            hint=f"see {self.home.logs_path / 'spark.log'}",
            retry_helps=not ours,
        )

    def _record(self, ranges: Ranges, results: Sequence[TaskResult], repeats: Repeats, started_us: int) -> BatchRecord:
        check_sums(results)
        before = self.last.partitions if self.last else {}
        taken = states_of(ranges, results, before)
        has_unread = self._has_unread(self._restarts)
        partitions = partitions_after(before, taken, rules=self.rules, has_unread=has_unread)
        watermark_us = watermark_after(self.last, partitions, self.rules)
        rejections: Counter[str] = Counter()
        for result in results:
            rejections.update(result.rejections)
        return BatchRecord(
            batch=self._next_batch,
            run=self.run,
            started_us=started_us,
            committed_us=self._now_us(),
            partitions=partitions,
            taken={name: (begin + 1, end) for name, (begin, end) in ranges.items()},  # on disk: the first and the last
            watermark_us=watermark_us,
            final_us=final_after(self.last, watermark_us, self.rules),
            newest_us=newest_after(self.last, partitions),
            event_count=sum(result.event_count for result in results) - repeats.count,
            sum_micros=str(sum(int(result.sum_micros) for result in results) - int(repeats.sum_micros)),
            entry_rows=sum(result.entry_rows for result in results) + repeats.entry_rows,
            rejections=dict(sorted(rejections.items())),
            input_bytes=sum(t.bytes for result in results for t in result.taken.values()),
            rules=self.rules,
            late_events=sum(result.late_events for result in results) - repeats.late_events,
            duplicates=sum(result.duplicates for result in results) + repeats.count,
            without_id=sum(result.without_id for result in results),
            forgotten_us=forgotten_after(self.last, partitions, self.rules),
            revise=self.ends_once({name: state.segment for name, state in partitions.items()}),
            log_id=self.log_id,
            log_uri=self.source.uri,
            restarts=self._restarts,
            tasks=dict(sorted(Counter(result.host for result in results if result.host).items())),
        )


def states_of(
    ranges: Ranges, results: Sequence[TaskResult], before: Mapping[str, PartitionState]
) -> dict[str, PartitionState]:
    """The state of each partition that a batch was taken from. Where it held no message, the last arrival stays."""
    states = {}
    for name, (_, end) in ranges.items():
        taken = [result.taken[name] for result in results if name in result.taken]
        arrived_us = max((one.arrived_us for one in taken), default=before[name].arrived_us if name in before else 0)
        latest_us = max((one.latest_us for one in taken if one.latest_us is not None), default=None)
        states[name] = PartitionState(end, latest_us, arrived_us, idle=False)
    return states


def arrived_by(state: PartitionState, at_us: int) -> PartitionState:
    """A partition whose last arrival was at a moment at the latest."""
    return msgspec.structs.replace(state, arrived_us=min(state.arrived_us, at_us))


def offsets_of(record: BatchRecord | None) -> dict[str, int]:
    """By partition, the offset at which the journal goes on after a batch."""
    return {name: state.segment for name, state in record.partitions.items()} if record else {}


def check_sums(results: Sequence[TaskResult]) -> None:
    """Stop if the entries on the disk are not the events that were decoded."""
    for result in results:
        if result.event_count != result.entry_event_count:
            raise LedgerBug(f"{result.event_count} events became {result.entry_event_count} in the entries")
        if result.sum_micros != result.entry_sum_micros:
            raise LedgerBug(f"{result.sum_micros} micros became {result.entry_sum_micros} in the entries")
        if len({file.path for file in result.files}) != len(result.files):
            raise LedgerBug("a file was staged twice")


def _steps_ms(
    results: Sequence[TaskResult], started_us: int, tasks_seconds: float, commit_seconds: float
) -> dict[str, float]:
    """Milliseconds by step.

    How long the oldest segment waited, the tasks' wall time and what the busiest task spent on what, and the
    commit of the batch before: a batch cannot know how long its own will take.
    """
    busiest = max((result.seconds for result in results), key=lambda seconds: sum(seconds.values()), default={})
    arrived_us = [t.first_arrived_us for result in results for t in result.taken.values() if t.first_arrived_us]
    waited = max(0.0, (started_us - min(arrived_us, default=started_us)) / 1e6)
    steps = {"waiting": waited, "tasks": tasks_seconds, **busiest, "committing": commit_seconds}
    return {name: round(seconds * 1000, 1) for name, seconds in steps.items()}


def _times(results: Sequence[TaskResult], cores: int) -> TaskTimes:
    each_ms = [round(sum(result.seconds.values()) * 1000, 1) for result in results]
    steps: Counter[str] = Counter()
    for result in results:
        steps.update(result.seconds)
    return TaskTimes(
        cores=cores,
        count=len(each_ms),
        median_ms=median_low(each_ms),
        max_ms=max(each_ms),
        steps_ms={name: round(seconds * 1000, 1) for name, seconds in steps.items()},
        collecting_ms=round(sum(result.collecting for result in results) * 1000, 1),
    )


def _planning(progress: Mapping[str, float]) -> dict[str, float]:
    """What the streaming query took for the batch before, besides the batch itself: offsets, plan, its own files."""
    if not {"triggerExecution_ms", "addBatch_ms"} <= progress.keys():
        return {}
    return {"planning": round(progress["triggerExecution_ms"] - progress["addBatch_ms"], 1)}
