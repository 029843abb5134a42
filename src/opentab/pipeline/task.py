"""What one Spark task does with its share of a batch, in one pass: read, decode, tally, stage, report.

It runs in Spark's Python workers. What it writes counts only if the driver commits its report, so a
task that dies or runs twice leaves nothing behind that anyone would look at.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from opentab.events import Rules
from opentab.ledger.files import StagedFile, read_back, stage
from opentab.log.directory import NAME_PATTERN, SEGMENT_LINES_MAX, DirectoryLog
from opentab.log.segment import Segment
from opentab.periods import Calendar, Int64s
from opentab.pipeline.decode import Decoded, decode
from opentab.pipeline.tally import tally, total_micros
from opentab.place import Place
from opentab.records import REJECTION

REPORT_COLUMN = "report"
REPORT_SCHEMA = f"{REPORT_COLUMN} binary"
STEPS = ("reading", "decoding", "tallying", "staging")
REJECTION_BYTES_MAX = 32 * 1024 * 1024


class Order(msgspec.Struct, frozen=True):
    """What every task of a batch must know."""

    batch: int
    run: str
    log_path: str
    journal: Place
    positions: dict[str, int]  # the last segment in the journal, by partition
    rules: Rules
    late_before_day: int | None = None  # days of months that are closed already; None: no month is


class Taken(msgspec.Struct, frozen=True):
    """What a task took from one partition of the log."""

    segments: list[int]
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


def warm_up(numbers: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """Load and touch all that a batch needs, without a trace."""
    for _ in numbers:
        pass
    rules = Rules("EUR", "UTC", ("CALL",), 0, 0, 0, 0)
    lines = [b'{"id":"1","time":"2026-01-31T22:15:04.120Z","customer":"emma","type":"CALL","amount":"0.1250"}', b"{"]
    decoded = decode(lines, arrived_us=np.full(len(lines), 2**60), rules=rules, calendar=Calendar("UTC"))
    entries = tally([decoded], batch=1)
    pq.write_table(entries, pa.BufferOutputStream())
    yield from ()


def bill_names(names: list[str], order: Order) -> Report:
    """Bill some segments of the log, given by their file names."""
    work = _Work(order)
    log = DirectoryLog(Path(order.log_path))
    wanted = sorted((match["partition"], int(match["number"])) for match in map(_match, names))
    for partition, number in wanted:
        # Spark may name a segment again after a restart; the journal knows better.
        if number > order.positions.get(partition, 0):
            started = time.perf_counter()
            segment = log.read(partition, number)
            work.seconds["reading"] += time.perf_counter() - started
            work.take(segment)
    return work.finish()


def _match(name: str) -> re.Match[str]:
    match = NAME_PATTERN.fullmatch(name)
    if match is None:
        raise ValueError(f"{name} is not the name of a segment")
    return match


@dataclass
class _Lines:
    """Lines of one partition, waiting until there are enough to decode at once."""

    lines: list[bytes] = field(default_factory=list)
    arrived_us: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)  # segment, where its body starts


class _Work:
    def __init__(self, order: Order) -> None:
        self.order = order
        self.calendar = Calendar(order.rules.zone)
        self.journal = order.journal
        self.decoded: list[Decoded] = []
        self.taken: dict[str, Taken] = {}
        self.waiting: dict[str, _Lines] = {}
        self.rejections: Counter[str] = Counter()
        self.rejection_rows: list[tuple[str, str, bytes, str, int]] = []
        self.rejection_bytes = 0
        self.sum_micros = 0
        self.files: list[StagedFile] = []
        self.seconds: dict[str, float] = dict.fromkeys(STEPS, 0.0)

    def take(self, segment: Segment) -> None:
        header = segment.header
        before = self.taken.get(header.partition) or Taken([], None, 0, 0)
        self.taken[header.partition] = Taken(
            segments=[*before.segments, header.number],
            latest_us=before.latest_us,
            arrived_us=max(before.arrived_us, header.arrived_us),
            bytes=before.bytes + header.bytes,
            first_arrived_us=min(before.first_arrived_us or header.arrived_us, header.arrived_us),
        )
        waiting = self.waiting.setdefault(header.partition, _Lines())
        lines = bytes(segment.body).split(b"\n")
        lines.pop()  # the body ends in a newline
        waiting.lines += lines
        waiting.counts.append(len(lines))
        waiting.arrived_us.append(header.arrived_us)
        waiting.places.append((header.number, segment.body_at))
        if len(waiting.lines) >= SEGMENT_LINES_MAX:
            self._decode(header.partition)

    def _decode(self, partition: str) -> None:
        waiting = self.waiting.pop(partition)
        started = time.perf_counter()
        arrived_us = np.repeat(np.array(waiting.arrived_us, np.int64), waiting.counts)
        decoded = decode(waiting.lines, arrived_us=arrived_us, rules=self.order.rules, calendar=self.calendar)
        self.decoded.append(decoded)
        self.sum_micros += total_micros(decoded)
        before = self.taken[partition]
        latest = [us for us in (before.latest_us, _latest(decoded)) if us is not None]
        self.taken[partition] = msgspec.structs.replace(before, latest_us=max(latest, default=None))
        if decoded.refusals:
            self._reject(partition, waiting, decoded, arrived_us)
        self.seconds["decoding"] += time.perf_counter() - started

    def _reject(
        self,
        partition: str,
        waiting: _Lines,
        decoded: Decoded,
        arrived_us: Int64s,
    ) -> None:
        first_line = np.cumsum([0, *waiting.counts])
        # Where each line starts, counted over all waiting segments; each line has its newline.
        starts = np.cumsum([0, *(len(line) + 1 for line in waiting.lines)])
        for index, refusal in decoded.refusals:
            which = int(np.searchsorted(first_line, index, side="right")) - 1
            number, body_at = waiting.places[which]
            at = body_at + int(starts[index] - starts[first_line[which]])
            raw = waiting.lines[index]
            row = (
                refusal.reason.value,
                f"{partition}/{number}@{at}",
                raw,
                refusal.detail,
                int(arrived_us[index]),
            )
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
        entries = tally(self.decoded, batch=self.order.batch)
        self.seconds["tallying"] += time.perf_counter() - started
        started = time.perf_counter()
        read_count = read_sum = 0
        if entries.num_rows:
            file = self._stage("entry", entries)
            columns = read_back(self.journal, file, ["event_count", "amount_micros"])
            read_count = pc.sum(columns["event_count"]).as_py()
            read_sum = _exact_sum(columns["amount_micros"])
        if self.rejection_rows:
            self._stage_rejections()
        self.seconds["staging"] += time.perf_counter() - started
        return Report(
            files=self.files,
            taken=self.taken,
            event_count=sum(len(part.at_us) for part in self.decoded),
            sum_micros=str(self.sum_micros),
            entry_rows=entries.num_rows,
            entry_event_count=read_count,
            entry_sum_micros=str(read_sum),
            rejections=dict(self.rejections),
            seconds=self.seconds,
            late_events=self._late_events(),
        )

    def _late_events(self) -> int:
        first_day = self.order.late_before_day
        return 0 if first_day is None else sum(int((part.day < first_day).sum()) for part in self.decoded)


def _latest(decoded: Decoded) -> int | None:
    return int(decoded.at_us.max()) if len(decoded.at_us) else None


def _exact_sum(column: pa.ChunkedArray) -> int:
    """The sum of 64-bit amounts, however large."""
    total = pc.sum(column.cast(pa.decimal128(38, 0))).as_py()
    return int(total)
