"""What the journal holds, declared once: Arrow schemas for rows, frozen records for facts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import pyarrow as pa

from opentab.core.events import Rules

SCHEMA_VERSION = 1
INSTANT = pa.timestamp("us", tz="UTC")
# 10,000 events of the largest amount would overflow 64 bits: sums over many rows are wider.
SUM = pa.decimal128(38, 0)

# Columns that are never empty say so, where there are many rows: their files are written and read a tenth quicker.

# What one batch adds to one (day, customer, type). Rows of a batch need not be unique: readers add.
ENTRY = pa.schema(
    [
        pa.field("batch", pa.int64(), nullable=False),
        pa.field("day", pa.date32(), nullable=False),
        pa.field("customer", pa.string(), nullable=False),
        pa.field("type", pa.string(), nullable=False),
        pa.field("amount_micros", pa.int64(), nullable=False),
        pa.field("event_count", pa.int64(), nullable=False),
        pa.field("first_at", INSTANT, nullable=False),
        pa.field("last_at", INSTANT, nullable=False),
    ]
)

# An input that cannot be billed, as it came.
REJECTION = pa.schema(
    [
        pa.field("batch", pa.int64(), nullable=False),
        pa.field("reason", pa.string()),
        pa.field("place", pa.string()),
        pa.field("raw", pa.binary()),
        pa.field("detail", pa.string()),
        pa.field("arrived_at", INSTANT),
    ]
)

# An event with an id: the key that tells it from others (128 bits in two words), and where it stands in the log. Files
# are sorted by the key. `payload` tells its values from others' (64 bits), or that it was rejected. (In ledgers of
# earlier versions also that another task of the same batch had the first of its repeats.)
DID_NOT_COUNT = 0
SEEN = pa.schema(
    [
        pa.field("batch", pa.int64(), nullable=False),
        pa.field("key_high", pa.int64(), nullable=False),
        pa.field("key_low", pa.int64(), nullable=False),
        pa.field("payload", pa.int64(), nullable=False),
        pa.field("arrived_us", pa.int64(), nullable=False),
        pa.field("partition", pa.string(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),
        pa.field("byte", pa.int64(), nullable=False),  # where its line begins in the segment; 0 in a Kafka topic
    ]
)

# One row a batch; `record` is the whole BatchRecord, the other columns repeat what SQL asks for.
BATCH = pa.schema(
    [
        pa.field("batch", pa.int64(), nullable=False),
        pa.field("watermark_at", INSTANT),
        pa.field("committed_at", INSTANT),
        pa.field("event_count", pa.int64()),
        pa.field("rejection_count", pa.int64()),
        pa.field("sum_micros", SUM),
        pa.field("record", pa.string()),
    ]
)

# The running total of a (day, customer, type) at a batch. `period` is the one it is billed in: where
# it is not the day's own, the row is an adjustment.
BALANCE = pa.schema(
    [
        pa.field("batch", pa.int64(), nullable=False),
        pa.field("period", pa.string()),
        pa.field("day", pa.date32()),
        pa.field("customer", pa.string()),
        pa.field("type", pa.string()),
        pa.field("sum_micros", SUM),
        pa.field("event_count", pa.int64()),
        pa.field("last_at", INSTANT),
    ]
)

# One line of one invoice; what belongs to the invoice as a whole stands on each of its lines.
INVOICE = pa.schema(
    [
        pa.field("customer", pa.string(), nullable=False),
        pa.field("revision", pa.int64(), nullable=False),
        pa.field("kind", pa.string()),  # usage or adjustment
        pa.field("line_period", pa.string()),  # the period of the events: an adjustment's is not the invoice's
        pa.field("type", pa.string()),
        pa.field("amount_micros", SUM),
        pa.field("event_count", pa.int64()),
        pa.field("total_minor", SUM),
        pa.field("previous_total_minor", SUM),  # null in revision 1
        pa.field("position", pa.int64(), nullable=False),
        pa.field("issued_at", INSTANT),
    ]
)

KINDS = {"entry": ENTRY, "rejection": REJECTION, "seen": SEEN, "batch": BATCH}


class Spot(NamedTuple):
    """Where an input stands in the log: a segment and the byte at which its line begins, or a message."""

    partition: str
    number: int  # of the segment; in a Kafka topic the offset
    byte: int  # 0 in a Kafka topic, and never in a segment, which begins with its header

    @property
    def place(self) -> str:
        """The same as a text, as rejections name it."""
        return f"{self.partition}/{self.number}" + (f"@{self.byte}" if self.byte else "")

    @property
    def position(self) -> int:
        """Where the journal stands in the partition once it holds this."""
        return self.number if self.byte else self.number + 1


# Where a ledger begins to read a log that it moves to: at its beginning, or where it was in the log before.
Start = Literal["beginning", "same_offsets"]


class PartitionState(msgspec.Struct, frozen=True):
    """What the journal knows of one partition of the log after a batch."""

    segment: int  # the last one read
    latest_us: int | None  # the latest event time that counted; None: no events yet
    arrived_us: int  # when the last segment arrived
    idle: bool  # silent for long and read to its end: it holds no other partition back


class ClockRestart(msgspec.Struct, frozen=True):
    """A moment from which arrival runs anew, because stamps in the log were wrong (ADR 20)."""

    batch: int  # the batch without events that records it
    at_us: int  # the moment; no earlier stamp counts as later than this
    upto: dict[str, int]  # by partition, the offset at which the log ended then
    forgotten_us: int | None  # what the batch before had forgotten
    remembers_from: int  # ids that counted in this batch or later are known even so


class TaskTimes(msgspec.Struct, frozen=True):
    """How long the Spark tasks of a batch took, and how many could run at a time."""

    cores: int
    count: int
    median_ms: float  # of two in the middle the smaller one
    max_ms: float
    steps_ms: dict[str, float]  # of all tasks together
    collecting_ms: float = 0.0  # of that, what Python's garbage collector took

    @property
    def sum_ms(self) -> float:
        return sum(self.steps_ms.values())


class BatchRecord(msgspec.Struct, frozen=True):
    """One batch: where it came from, what it added, and the watermark after it."""

    batch: int
    run: str  # the run of the pipeline that made it; names its files
    started_us: int
    committed_us: int
    partitions: dict[str, PartitionState]
    taken: dict[str, tuple[int, int]]  # partition: first and last segment of this batch
    watermark_us: int | None
    final_us: int | None  # every period that ends by then is final, for good
    newest_us: int | None  # the newest event time so far; its period is the current one
    event_count: int
    sum_micros: str  # a decimal integer: JSON readers may not hold more than 64 bits
    entry_rows: int
    rejections: dict[str, int]  # by reason
    input_bytes: int
    rules: Rules
    steps_ms: dict[str, float] = {}
    clock_us: int | None = None  # the time of day that moved the watermark of a silent log; else None
    file_count: int = 0  # that it added to the journal, besides its own record
    revise: bool = False  # the end of a `run --once`: what is late by now is revised here
    late_events: int = 0  # of months that the watermark before this batch had closed
    duplicates: int = 0  # repeats of events that had counted, with the same values: they did not count again
    forgotten_us: int | None = None  # ids of events that arrived before it are not known any more
    without_id: int = 0  # events that counted and cannot be told from their duplicates
    log_id: str | None = None  # the log that the ledger is billed from; None: written by an earlier version
    log_uri: str | None = None  # where that log was: log.uri of the home
    adopted: Start | None = None  # the ledger moved to this log with this batch, and reads it from there
    restarts: list[ClockRestart] = []  # all that there were so far, in order; this batch's own is the last
    tasks: dict[str, int] = {}  # how many of Spark's tasks billed it, by the host they ran on
    progress: dict[str, float] = {}  # what Spark's streaming query said of the batch before, in milliseconds and rows/s
    times: TaskTimes | None = None  # None: written by an earlier version, or a batch without events

    @property
    def amount_micros(self) -> int:
        return int(self.sum_micros)

    @property
    def took_ms(self) -> float:
        return (self.committed_us - self.started_us) / 1000

    @property
    def rejection_count(self) -> int:
        return sum(self.rejections.values())


def with_dictionaries(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """The same with some columns as numbers into a dictionary: for texts of which there are few."""
    for name in names:
        field = schema.field(name)
        schema = schema.set(schema.get_field_index(name), field.with_type(pa.dictionary(pa.int32(), field.type)))
    return schema
