"""What one Spark task does with its share of a batch, in one pass: read, decode, tally, stage, result.

It runs in Spark's Python workers. What it writes counts only if the driver commits its result, so a
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
from opentab.dedupe.deduplicate import deduplicate
from opentab.dedupe.index import DedupeIndex
from opentab.dedupe.sorted_runs import Run, stage_run
from opentab.log.line_block import LineBlock
from opentab.runtime.memory import CollectorClock, keep_modules
from opentab.runtime.storage import Place
from opentab.tables.files import StagedFile, read_table, stage
from opentab.wire.byte_columns import Texts
from opentab.wire.decode import Decoded, decode
from opentab.wire.reference import Refusal
from opentab.wire.template import BLOCK_LINES

RESULT_COLUMN = "result"
RESULT_SCHEMA = f"{RESULT_COLUMN} binary"
STEPS = ("reading", "decoding", "deduping", "tallying", "staging")
REJECTION_BYTES_MAX = 32 * 1024 * 1024
DECODE_LINES = BLOCK_LINES  # lines of one partition that are waited for before they are decoded


class TaskSpec(msgspec.Struct, frozen=True):
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


class LogRange(msgspec.Struct, frozen=True):
    """What a task took from one partition of the log."""

    ranges: list[tuple[int, int]]  # of offsets, each from its begin up to its end, excluded
    latest_us: int | None
    arrived_us: int
    bytes: int
    first_arrived_us: int | None = None


class TaskResult(msgspec.Struct, frozen=True):
    """What a task staged, and what it counted before it tallied."""

    files: list[StagedFile]
    taken: dict[str, LogRange]
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
    ahead: dict[str, tuple[int, int]] = {}  # by partition, offset and stamp of the first that is stamped too late
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


def bill_lines(blocks: Iterable[LineBlock], spec: TaskSpec) -> TaskResult:
    """Bill some lines of the log; where some are stamped too late, only say which."""
    work = _Work(spec)
    started, collected = time.perf_counter(), _COLLECTOR.seconds
    for block in blocks:
        work.seconds["reading"] += time.perf_counter() - started
        work.take(block.trusting(spec.restarts) if spec.restarts else block)
        started = time.perf_counter()
    work.seconds["reading"] += time.perf_counter() - started
    result = work.nothing() if work.ahead else work.finish()
    return msgspec.structs.replace(result, collecting=_COLLECTOR.seconds - collected)


def packed(result: msgspec.Struct | None) -> pa.RecordBatch:
    """A result as the one row that a task returns."""
    return pa.record_batch({RESULT_COLUMN: pa.array([msgspec.json.encode(result)], pa.binary())})


def unpacked(rows: Iterable[bytes]) -> list[TaskResult]:
    """The results in the rows that the tasks returned."""
    return [msgspec.json.decode(row, type=TaskResult) for row in rows]


class _Work:
    def __init__(self, spec: TaskSpec) -> None:
        self.spec = spec
        self.calendar = Calendar(spec.rules.zone)
        self.journal = spec.journal
        self.decoded: list[tuple[Decoded, list[LineBlock]]] = []
        self.duplicates = self.without_id = 0
        self.refused_reversals: list[tuple[int, int]] = []
        self.taken: dict[str, LogRange] = {}
        self.ahead: dict[str, tuple[int, int]] = {}
        self.waiting: dict[str, list[LineBlock]] = {}
        self.rejections: Counter[str] = Counter()
        self.rejection_rows: list[tuple[str, str, bytes, str, int]] = []
        self.rejection_bytes = 0
        self.files: list[StagedFile] = []
        self.staging: Future[StagedFile | None] | None = None
        self.seconds: dict[str, float] = dict.fromkeys(STEPS, 0.0)

    def take(self, block: LineBlock) -> None:
        if not len(block.lines):
            return
        before = self.taken.get(block.partition) or LogRange([], None, 0, 0)
        first_us, last_us = int(block.arrived_us.min()), int(block.arrived_us.max())
        if last_us > self.spec.arrived_us_max:
            at = int(np.flatnonzero(block.arrived_us > self.spec.arrived_us_max)[0])
            found = (block.offset(at), int(block.arrived_us[at]))
            self.ahead[block.partition] = min(found, self.ahead.get(block.partition, found))
        if self.ahead:
            return  # none of it will be committed
        self.taken[block.partition] = LogRange(
            ranges=joined([*before.ranges, (block.begin, block.end)]),
            latest_us=before.latest_us,
            arrived_us=max(before.arrived_us, last_us),
            bytes=before.bytes + block.bytes,
            first_arrived_us=min(before.first_arrived_us or first_us, first_us),
        )
        waiting = self.waiting.setdefault(block.partition, [])
        waiting.append(block)
        if sum(len(one.lines) for one in waiting) >= DECODE_LINES:
            self._decode(block.partition)

    def _decode(self, partition: str) -> None:
        blocks = self.waiting.pop(partition)
        started = time.perf_counter()
        arrived_us = np.concatenate([block.arrived_us for block in blocks])
        lines = Texts.joined([block.lines for block in blocks])
        decoded = decode(lines, arrived_us=arrived_us, rules=self.spec.rules, calendar=self.calendar)
        self.decoded.append((decoded, blocks))
        self._reject(blocks, decoded.refusals)
        self.seconds["decoding"] += time.perf_counter() - started

    def _reject(self, blocks: list[LineBlock], refusals: Iterable[tuple[int, Refusal]]) -> None:
        first_line = np.cumsum([0, *(len(block.lines) for block in blocks)])
        for index, refusal in refusals:
            which = int(np.searchsorted(first_line, index, side="right")) - 1
            block, at = blocks[which], index - int(first_line[which])
            raw = block.lines[at]
            row = (refusal.reason.value, block.place(at), raw, refusal.detail, int(block.arrived_us[at]))
            self.rejection_rows.append(row)
            self.rejection_bytes += len(raw)
            self.rejections[refusal.reason.value] += 1
        if self.rejection_bytes > REJECTION_BYTES_MAX:
            self._stage_rejections()

    def _stage_rejections(self) -> None:
        batch = [self.spec.batch] * len(self.rejection_rows)
        columns = [batch, *map(list, zip(*self.rejection_rows, strict=True))]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, REJECTION, strict=True)]
        self._stage("rejection", pa.table(arrays, schema=REJECTION))
        self.rejection_rows, self.rejection_bytes = [], 0

    def _stage(self, kind: str, table: pa.Table) -> StagedFile:
        batches = (self.spec.batch, self.spec.batch)
        file = stage(self.journal, kind, table, run=self.spec.run, batches=batches)
        self.files.append(file)
        return file

    def finish(self) -> TaskResult:
        for partition in list(self.waiting):
            self._decode(partition)
        started = time.perf_counter()
        counted = self._deduplicate() if self.spec.rules.dedupe_us else [decoded for decoded, _ in self.decoded]
        self.seconds["deduping"] += time.perf_counter() - started
        if not self.spec.rules.dedupe_us:
            for decoded, blocks in self.decoded:
                self._reaches(blocks[0].partition, decoded.at_us)
        started = time.perf_counter()
        entries = tally(counted, batch=self.spec.batch)
        self.seconds["tallying"] += time.perf_counter() - started
        started = time.perf_counter()
        read_count = read_sum = 0
        if entries.num_rows:
            file = self._stage("entry", entries)
            place = self.journal / file.path
            columns = read_table(place, ENTRY, file.rows, ["event_count", "amount_micros"], use_threads=False)
            read_count = pc.sum(columns["event_count"]).as_py()
            read_sum = sum(exact_sum(block.to_numpy()) for block in columns["amount_micros"].chunks)
        if self.rejection_rows:
            self._stage_rejections()
        run = self.staging.result() if self.staging is not None else None
        self.files += [run] if run is not None else []
        self.seconds["staging"] += time.perf_counter() - started
        return TaskResult(
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

    def nothing(self) -> TaskResult:
        """The result of a share that cannot be billed as it is."""
        return TaskResult([], {}, 0, "0", 0, 0, "0", {}, self.seconds, ahead=self.ahead)

    def _deduplicate(self) -> list[Decoded]:
        """The events that count. Repeats are counted as such, conflicts rejected, and what was seen is staged."""
        spec = self.spec
        found, rows = deduplicate(
            self.decoded, index_of(spec.journal).load(spec.runs), batch=spec.batch, window_us=spec.rules.dedupe_us,
            forgotten_us=spec.forgotten_us, restarts=spec.restarts,
        )  # fmt: skip
        self.staging = _BESIDE.submit(self._stage_run, rows)  # while the entries are made
        for one in found:
            self._reject(one.blocks, one.refusals)
            self._reaches(one.blocks[0].partition, one.accepted_at_us)
            self.duplicates += one.duplicates
            self.without_id += one.without_id
            self.refused_reversals += one.refused_reversals
        return [one.counted for one in found]

    def _stage_run(self, seen: pa.Table) -> StagedFile | None:
        batches = (self.spec.batch, self.spec.batch)
        run = stage_run(self.journal, iter([seen]), run=self.spec.run, batches=batches)
        if run is not None:
            # Nobody waits for it: the batch after this one looks for what is not there and makes it then.
            _BESIDE.submit(index_of(self.journal).keep, run, seen)
        return run

    def _reaches(self, partition: str, at_us: Int64s) -> None:
        """Let a partition's events count for its watermark."""
        if len(at_us):
            before = self.taken[partition]
            latest_us = max(int(at_us.max()), before.latest_us if before.latest_us is not None else INSTANT_MIN_US)
            self.taken[partition] = msgspec.structs.replace(before, latest_us=latest_us)

    def _late_events(self, counted: list[Decoded]) -> int:
        first_day = self.spec.late_before_day
        return 0 if first_day is None else sum(int((part.day < first_day).sum()) for part in counted)


_COLLECTOR = CollectorClock()
_INDEXES: dict[str, DedupeIndex] = {}
_BESIDE = ThreadPoolExecutor(1)  # one for the life of the process: its memory is used again


def index_of(root: Place) -> DedupeIndex:
    """The runs of a journal, kept from batch to batch."""
    return _INDEXES.setdefault(root.uri, DedupeIndex(root))


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges in order; those that follow each other are one."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if found and found[-1][1] == begin:
            found[-1] = (found[-1][0], end)
        else:
            found.append((begin, end))
    return found
