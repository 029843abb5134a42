"""What one Spark task does with its share of a batch, in one pass: read, decode, tally, stage, report.

It runs in Spark's Python workers. What it writes counts only if the driver commits its report, so a
task that dies or runs twice leaves nothing behind that anyone would look at.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from opentab.billing.tally import exact_sum, tally
from opentab.core.events import Rules
from opentab.core.periods import INSTANT_MIN_US, Calendar, Int64s
from opentab.core.records import ENTRY, REJECTION, ClockRestart
from opentab.dedupe.columns import Asked, asking_of, seen_run, verdicts_of
from opentab.dedupe.index import Runs
from opentab.dedupe.rule import settle
from opentab.dedupe.sorted_runs import Run, stage_run
from opentab.log.line_block import Chunk
from opentab.runtime.memory import CollectorClock, keep_modules
from opentab.runtime.storage import Place
from opentab.tables.files import StagedFile, read_table, stage
from opentab.wire.byte_columns import Texts
from opentab.wire.decode import Decoded, decode
from opentab.wire.reference import Refusal
from opentab.wire.template import BLOCK_LINES

REPORT_COLUMN = "report"
REPORT_SCHEMA = f"{REPORT_COLUMN} binary"
STEPS = ("reading", "decoding", "deduping", "tallying", "staging")
REJECTION_BYTES_MAX = 32 * 1024 * 1024
DECODE_LINES = BLOCK_LINES  # lines of one partition that are waited for before they are decoded


class Order(msgspec.Struct, frozen=True):
    """What every task of a batch must know."""

    batch: int
    run: str
    journal: Place
    rules: Rules
    late_before_day: int | None = None  # days of months that are closed already; None: no month is
    runs: list[Run] = []  # what was seen before
    forgotten_us: int | None = None
    restarts: list[ClockRestart] = []  # of the arrival clock
    arrived_us_max: int = 2**63 - 1  # what is stamped later is not billed yet


class Taken(msgspec.Struct, frozen=True):
    """What a task took from one partition of the log."""

    ranges: list[tuple[int, int]]  # the numbers of segments or messages, each from the first to the last
    latest_us: int | None
    arrived_us: int
    bytes: int
    first_arrived_us: int | None = None


class Report(msgspec.Struct, frozen=True):
    """What a task staged, and what it counted before it tallied."""

    files: list[StagedFile]
    taken: dict[str, Taken]
    event_count: int
    sum_micros: str
    entry_rows: int
    entry_event_count: int  # read back from the files
    entry_sum_micros: str
    rejections: dict[str, int]
    seconds: dict[str, float]
    late_events: int = 0
    duplicates: int = 0
    without_id: int = 0
    refused_reversals: list[tuple[int, int]] = []  # the keys of their own
    ahead: dict[str, tuple[int, int]] = {}  # by partition, number and stamp of the first that is stamped too late
    host: str = ""  # where Spark ran the task
    collecting: float = 0.0  # seconds of Python's garbage collector


def warm_up(numbers: Iterable[object]) -> Iterable[pa.RecordBatch]:
    """Load and touch all that a batch needs, without a trace."""
    for _ in numbers:
        pass
    rules = Rules("EUR", "UTC", ("CALL",), 0, 0, 0, 0)
    lines = [b'{"id":"1","time":"2026-01-31T22:15:04.120Z","customer":"emma","type":"CALL","amount":"0.1250"}', b"{"]
    decoded = decode(Texts.of(lines), arrived_us=np.full(len(lines), 2**60), rules=rules, calendar=Calendar("UTC"))
    entries = tally([decoded], batch=1)
    pq.write_table(entries, pa.BufferOutputStream())
    keep_modules()  # after each task Spark lets the garbage collector look at all of them
    yield from ()


def bill_chunks(chunks: Iterable[Chunk], order: Order) -> Report:
    """Bill some lines of the log; where some are stamped too late, only say which."""
    work = _Work(order)
    started, collected = time.perf_counter(), _COLLECTOR.seconds
    for chunk in chunks:
        work.seconds["reading"] += time.perf_counter() - started
        work.take(chunk.trusting(order.restarts) if order.restarts else chunk)
        started = time.perf_counter()
    work.seconds["reading"] += time.perf_counter() - started
    report = work.nothing() if work.ahead else work.finish()
    return msgspec.structs.replace(report, collecting=_COLLECTOR.seconds - collected)


def packed(report: msgspec.Struct | None) -> pa.RecordBatch:
    """A report as the one row that a task returns."""
    return pa.record_batch({REPORT_COLUMN: pa.array([msgspec.json.encode(report)], pa.binary())})


def unpacked(rows: Iterable[bytes]) -> list[Report]:
    """The reports in the rows that the tasks returned."""
    return [msgspec.json.decode(row, type=Report) for row in rows]


class _Work:
    def __init__(self, order: Order) -> None:
        self.order = order
        self.calendar = Calendar(order.rules.zone)
        self.journal = order.journal
        self.decoded: list[tuple[Decoded, list[Chunk]]] = []
        self.duplicates = self.without_id = 0
        self.refused_reversals: list[tuple[int, int]] = []
        self.taken: dict[str, Taken] = {}
        self.ahead: dict[str, tuple[int, int]] = {}
        self.waiting: dict[str, list[Chunk]] = {}
        self.rejections: Counter[str] = Counter()
        self.rejection_rows: list[tuple[str, str, bytes, str, int]] = []
        self.rejection_bytes = 0
        self.files: list[StagedFile] = []
        self.staging: Future[StagedFile | None] | None = None
        self.seconds: dict[str, float] = dict.fromkeys(STEPS, 0.0)

    def take(self, chunk: Chunk) -> None:
        if not len(chunk.lines):
            return
        before = self.taken.get(chunk.partition) or Taken([], None, 0, 0)
        first_us, last_us = int(chunk.arrived_us.min()), int(chunk.arrived_us.max())
        if last_us > self.order.arrived_us_max:
            at = int(np.flatnonzero(chunk.arrived_us > self.order.arrived_us_max)[0])
            found = (chunk.position(at), int(chunk.arrived_us[at]))
            self.ahead[chunk.partition] = min(found, self.ahead.get(chunk.partition, found))
        if self.ahead:
            return  # none of it will be committed
        self.taken[chunk.partition] = Taken(
            ranges=joined([*before.ranges, (chunk.first, chunk.last)]),
            latest_us=before.latest_us,
            arrived_us=max(before.arrived_us, last_us),
            bytes=before.bytes + chunk.bytes,
            first_arrived_us=min(before.first_arrived_us or first_us, first_us),
        )
        waiting = self.waiting.setdefault(chunk.partition, [])
        waiting.append(chunk)
        if sum(len(one.lines) for one in waiting) >= DECODE_LINES:
            self._decode(chunk.partition)

    def _decode(self, partition: str) -> None:
        chunks = self.waiting.pop(partition)
        started = time.perf_counter()
        arrived_us = np.concatenate([chunk.arrived_us for chunk in chunks])
        lines = Texts.joined([chunk.lines for chunk in chunks])
        decoded = decode(lines, arrived_us=arrived_us, rules=self.order.rules, calendar=self.calendar)
        self.decoded.append((decoded, chunks))
        self._reject(chunks, decoded.refusals)
        self.seconds["decoding"] += time.perf_counter() - started

    def _reject(self, chunks: list[Chunk], refusals: Iterable[tuple[int, Refusal]]) -> None:
        first_line = np.cumsum([0, *(len(chunk.lines) for chunk in chunks)])
        for index, refusal in refusals:
            which = int(np.searchsorted(first_line, index, side="right")) - 1
            chunk, at = chunks[which], index - int(first_line[which])
            raw = chunk.lines[at]
            row = (refusal.reason.value, chunk.place(at), raw, refusal.detail, int(chunk.arrived_us[at]))
            self.rejection_rows.append(row)
            self.rejection_bytes += len(raw)
            self.rejections[refusal.reason.value] += 1
        if self.rejection_bytes > REJECTION_BYTES_MAX:
            self._stage_rejections()

    def _stage_rejections(self) -> None:
        batch = [self.order.batch] * len(self.rejection_rows)
        columns = [batch, *map(list, zip(*self.rejection_rows, strict=True))]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, REJECTION, strict=True)]
        self._stage("rejection", pa.table(arrays, schema=REJECTION))
        self.rejection_rows, self.rejection_bytes = [], 0

    def _stage(self, kind: str, table: pa.Table) -> StagedFile:
        batches = (self.order.batch, self.order.batch)
        file = stage(self.journal, kind, table, run=self.order.run, batches=batches)
        self.files.append(file)
        return file

    def finish(self) -> Report:
        for partition in list(self.waiting):
            self._decode(partition)
        started = time.perf_counter()
        counted = self._count_once() if self.order.rules.dedupe_us else [decoded for decoded, _ in self.decoded]
        self.seconds["deduping"] += time.perf_counter() - started
        if not self.order.rules.dedupe_us:
            for decoded, chunks in self.decoded:
                self._reaches(chunks[0].partition, decoded.at_us)
        started = time.perf_counter()
        entries = tally(counted, batch=self.order.batch)
        self.seconds["tallying"] += time.perf_counter() - started
        started = time.perf_counter()
        read_count = read_sum = 0
        if entries.num_rows:
            file = self._stage("entry", entries)
            place = self.journal / file.path
            columns = read_table(place, ENTRY, file.rows, ["event_count", "amount_micros"], use_threads=False)
            read_count = pc.sum(columns["event_count"]).as_py()
            read_sum = sum(exact_sum(chunk.to_numpy()) for chunk in columns["amount_micros"].chunks)
        if self.rejection_rows:
            self._stage_rejections()
        run = self.staging.result() if self.staging is not None else None
        self.files += [run] if run is not None else []
        self.seconds["staging"] += time.perf_counter() - started
        return Report(
            files=self.files,
            taken=self.taken,
            event_count=sum(len(part.at_us) for part in counted),
            sum_micros=str(sum(exact_sum(part.amount_micros) for part in counted)),
            entry_rows=entries.num_rows,
            entry_event_count=read_count,
            entry_sum_micros=str(read_sum),
            rejections=dict(self.rejections),
            seconds=self.seconds,
            late_events=self._late_events(counted),
            duplicates=self.duplicates,
            without_id=self.without_id,
            refused_reversals=self.refused_reversals,
        )

    def nothing(self) -> Report:
        """The report of a share that cannot be billed as it is."""
        return Report([], {}, 0, "0", 0, 0, "0", {}, self.seconds, ahead=self.ahead)

    def _count_once(self) -> list[Decoded]:
        """The events that count. Repeats are counted as such, conflicts rejected, and what was seen is staged."""
        asked = [Asked(decoded, chunks) for decoded, chunks in self.decoded]
        known = runs_of(self.order.journal).load(self.order.runs)
        asking = asking_of(asked)
        settled = settle(
            asking,
            known,
            batch=self.order.batch,
            window_us=self.order.rules.dedupe_us,
            forgotten_us=self.order.forgotten_us,
            restarts=self.order.restarts,
        )
        verdicts = verdicts_of(asked, settled)
        counted = []
        for one, mine in zip(asked, verdicts, strict=True):
            self._reject(one.chunks, mine.refusals)
            self._reaches(one.chunks[0].partition, one.decoded.at_us[~mine.refused])
            self.duplicates += mine.duplicates
            self.without_id += int((mine.counts & ~one.identity.has_key).sum())
            self.refused_reversals += one.refused_reversals(mine)
            counted.append(one.decoded.keep(mine.counts))
        seen = seen_run(asked, asking, settled, verdicts, batch=self.order.batch)
        self.staging = _BESIDE.submit(self._stage_run, seen)  # meanwhile the entries are made
        return counted

    def _stage_run(self, seen: pa.Table) -> StagedFile | None:
        batches = (self.order.batch, self.order.batch)
        run = stage_run(self.journal, iter([seen]), run=self.order.run, batches=batches)
        if run is not None:
            # Nobody waits for it: the batch after this one looks for what is not there and makes it then.
            _BESIDE.submit(runs_of(self.journal).keep, run, seen)
        return run

    def _reaches(self, partition: str, at_us: Int64s) -> None:
        """Let a partition's events count for its watermark."""
        if len(at_us):
            before = self.taken[partition]
            latest_us = max(int(at_us.max()), before.latest_us if before.latest_us is not None else INSTANT_MIN_US)
            self.taken[partition] = msgspec.structs.replace(before, latest_us=latest_us)

    def _late_events(self, counted: list[Decoded]) -> int:
        first_day = self.order.late_before_day
        return 0 if first_day is None else sum(int((part.day < first_day).sum()) for part in counted)


_COLLECTOR = CollectorClock()
_RUNS: dict[str, Runs] = {}
_BESIDE = ThreadPoolExecutor(1)  # one for the life of the process: its memory is used again


def runs_of(root: Place) -> Runs:
    """The runs of a journal, kept from batch to batch."""
    return _RUNS.setdefault(root.uri, Runs(root))


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges in order; those that follow each other are one."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and found[-1][1] == first - 1:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found
