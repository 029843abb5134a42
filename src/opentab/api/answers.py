"""The answers of the API, as structs: their fields in the order in which JSON has them.

A server makes its answers of them, its OpenAPI document is made from them, and a client reads answers into them.
Amounts are texts, exact, and never floats; instants are RFC 3339 in UTC. What limits a value further than its type is
said in the document alone: a client reads what a later server says, too.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, field


def _text(pattern: str, example: str, description: str | None = None) -> Meta:
    return Meta(description=description, examples=[example], extra_json_schema={"pattern": pattern})


def _at_least(least: int, example: int | None = None, description: str | None = None) -> Meta:
    examples = None if example is None else [example]
    return Meta(description=description, examples=examples, extra_json_schema={"minimum": least})


def _one_of(*values: str, description: str | None = None) -> Meta:
    return Meta(description=description, extra_json_schema={"enum": list(values)})


def _says(description: str, example: Any = None) -> Meta:
    return Meta(description=description, examples=None if example is None else [example])


Amount = Annotated[str, _text(r"^-?\d+\.\d{6}$", "12.340000", "exact, six decimals")]
Invoiced = Annotated[str, _text(r"^-?\d+(\.\d+)?$", "12.34", "in the minor unit")]
Period = Annotated[str, _text(r"^\d{4}-\d{2}$", "2026-01")]
Day = Annotated[str, _text(r"^\d{4}-\d{2}-\d{2}$", "2026-01-31")]
Instant = Annotated[str, Meta(examples=["2026-01-31T22:15:04.120Z"])]
Count = Annotated[int, _at_least(0, 17)]
Number = Annotated[int, _at_least(1)]  # of a batch or a revision
Position = Annotated[int, _at_least(0, 42, "the last batch that the answer knows")]
AsOf = Annotated[Instant | None, _says("when that batch was committed")]
StalenessMs = Annotated[int | None, _says("since the answer was known to be caught up with the log", 310)]
AgeMs = Annotated[int, _at_least(0, description="since it said so")]
CustomerName = Annotated[str, Meta(examples=["emma"])]
TypeName = Annotated[str, Meta(examples=["CALL"])]
LogPlace = Annotated[str, _says("partition, segment and byte of the log", "default/1@539")]
Duplicates = Annotated[Count, _says("repeats of events that had counted; they did not count again")]
Status = Annotated[str, _one_of("open", "closed", "final")]
Source = Literal["replica", "ledger"]  # where an answer came from


class Shape(msgspec.Struct, frozen=True):
    """A JSON object with these fields and no others."""


class Fresh(Shape, frozen=True, kw_only=True):
    """How fresh an answer is. Its fields come after the answer's own."""

    position: Position
    invoices_position: Position
    watermark: Instant | None
    as_of: AsOf
    staleness_ms: StalenessMs


# Totals


class Adjustment(Shape, frozen=True):
    """Usage of a final period that is billed in a later one."""

    period: Period
    type: str
    amount: Amount
    events: Count


class _Total(Shape, frozen=True):
    period: Period
    customer: CustomerName
    status: Status
    total: Amount
    types: Annotated[dict[str, Amount], Meta(examples=[{"CALL": "12.340000"}])]
    adjustments: list[Adjustment]
    events: Count


class PeriodTotal(_Total, frozen=True):
    """What a customer owes for a period."""

    position: int
    watermark: Instant | None
    last_event: Instant | None


class OnePeriodTotal(PeriodTotal, frozen=True, kw_only=True):
    """The same as an answer of its own."""

    source: Source
    invoices_position: Position
    as_of: AsOf
    staleness_ms: StalenessMs


class Current(Fresh, frozen=True):
    """A customer at a glance."""

    customer: CustomerName
    current_period: Period | None
    current: PeriodTotal | None
    open: list[PeriodTotal]
    closed: list[PeriodTotal]
    source: Source


class CustomerTotal(Shape, frozen=True):
    """A customer in a list."""

    customer: CustomerName
    total: Amount
    events: Count
    last_event: Instant | None
    period: Annotated[Period | UnsetType, _says("the newest one of this customer, where all months were asked")] = UNSET


class Customers(Fresh, frozen=True):
    """A page of customers."""

    period: Period | None
    items: list[CustomerTotal]
    source: Source


class Used(Shape, frozen=True, kw_only=True, omit_defaults=True):
    """What was used, by day and type where asked."""

    day: Day | None = None
    type: str | None = None
    total: Amount
    events: Count


class Usage(Fresh, frozen=True):
    """What a customer used in a range of days."""

    customer: CustomerName
    from_: Day = field(name="from")
    to: Day
    items: list[Used]
    source: Source


class TypeTotal(Shape, frozen=True, kw_only=True, omit_defaults=True):
    """What was used of a type, in a period or in a range of days."""

    period: Period | None = None
    day: Day | None = None
    type: TypeName
    total: Amount
    events: Count


class Types(Shape, frozen=True, kw_only=True, omit_defaults=True):
    """Totals by type, and how fresh they are."""

    from_: Day | None = field(name="from", default=None)
    to: Day | None = None
    items: list[TypeTotal]
    source: Source
    position: Position
    invoices_position: Position
    watermark: Instant | None
    as_of: AsOf
    staleness_ms: StalenessMs


# Invoices


class InvoiceLine(Shape, frozen=True, kw_only=True, omit_defaults=True):
    """Usage, or an adjustment that names its period."""

    kind: Annotated[str, _one_of("usage", "adjustment")]
    period: Period | None = None
    type: str
    amount: Amount
    events: int


class Invoice(Shape, frozen=True):
    """One revision of an invoice."""

    period: Period
    customer: CustomerName
    revision: Number
    currency: Annotated[str, Meta(examples=["EUR"])]
    total: Invoiced
    previous_total: Invoiced | None
    delta: Invoiced
    lines: list[InvoiceLine]
    position: int
    issued_at: Instant


class OneInvoice(Invoice, frozen=True, kw_only=True):
    """The same as an answer of its own."""

    source: Source
    invoices_position: Position
    watermark: Instant | None
    as_of: AsOf
    staleness_ms: StalenessMs


class Invoices(Fresh, frozen=True):
    """Invoices with all revisions."""

    items: list[Invoice]
    source: Source


# Periods


class Held(Shape, frozen=True):
    """A partition that holds a period back."""

    partition: str
    latest: Instant
    needed: Instant


class Missing(Shape, frozen=True):
    """What a period waits for."""

    for_: Annotated[str, _one_of("close", "final")] = field(name="for")
    watermark: Instant
    partitions: list[Held]


class Partition(Shape, frozen=True):
    """How far one partition of the log is."""

    partition: str
    latest: Instant | None
    complete_upto: Instant | None
    complete: bool
    idle: bool
    arrived: Instant | None


class PeriodStatus(Shape, frozen=True):
    """Where a period stands."""

    period: Period
    status: Status
    start: Instant
    end: Instant
    total: Amount
    customers: Count
    events: Count
    last_event: Instant | None
    invoices: Count
    revisions: Count
    invoiced: Invoiced
    closed_at: Instant | None
    closed_position: int | None
    revised_at: Instant | None
    adjusted: Annotated[Amount, _says("of earlier periods, billed in this one")]
    adjusted_events: Count
    missing: Missing | None
    partitions: list[Partition]


class OnePeriod(PeriodStatus, frozen=True, kw_only=True):
    """The same as an answer of its own."""

    source: Source
    position: Position
    invoices_position: Position
    watermark: Instant | None
    as_of: AsOf
    staleness_ms: StalenessMs


class Periods(Fresh, frozen=True):
    """All periods."""

    items: list[PeriodStatus]
    source: Source


# Operating


class Batch(Shape, frozen=True):
    """What one batch took from the log, and how long it took for what."""

    batch: Number
    started_at: Instant
    committed_at: Instant
    events: Count
    late_events: Annotated[Count, _says("of months that were closed when they came")]
    duplicates: Duplicates
    rejections: Count
    input_bytes: Count
    files: Count
    steps_ms: Annotated[dict[str, float], Meta(examples=[{"waiting": 12.5, "tasks": 140.0, "committing": 21.0}])]
    watermark: Instant | None


class Batches(Fresh, frozen=True):
    """The last batches, in order."""

    items: list[Batch]
    source: Source


class Pipeline(Shape, frozen=True):
    """What the pipeline last said of itself."""

    age_ms: AgeMs
    streaming: bool
    position: int
    caught_up: bool
    unread_segments: Count
    invoices_position: int
    held_back: Annotated[Count, _says("partitions of the log whose next arrival is ahead of its clock")]
    trouble: Annotated[str | None, _says("what keeps the pipeline from going on, and what to do about it")]
    spark_ui: Annotated[str | None, _says("where Spark's own UI is, on the pipeline's machine")]


class Replica(Shape, frozen=True):
    """What a replica last said of itself."""

    name: Annotated[str, _says("its machine and its home")]
    position: Annotated[int, _at_least(0)]
    age_ms: AgeMs


class Sink(Shape, frozen=True):
    """What opentab deliver last said of itself."""

    age_ms: Annotated[int | None, _says("since it said so; null: it never ran")]
    position: Annotated[int, _at_least(0, description="all invoices up to this batch were taken up")]
    waiting: Annotated[Count, _says("invoices that the receiver does not have yet")]
    stuck: Annotated[Count, _says("of these: refused by the receiver")]
    delivered: Count
    oldest_ms: Annotated[int | None, _says("since the first of them waits")]
    delivered_ms: Annotated[int | None, _says("since one was last taken")]
    gone: Annotated[bool, _says("the receiver takes nothing")]
    error: Annotated[str | None, _says("the last one, while anything waits")]


class Cause(Shape, frozen=True):
    """Why batches are slow or late."""

    name: Annotated[str, Meta(examples=["waiting for the trigger"])]
    fact: Annotated[str, _says("with the figure that says so")]
    fix: str
    setting: Annotated[str | None, _says("that the fix names", "pipeline.batch_pause")]


class Diagnosis(Shape, frozen=True):
    """How quick the batches are, and what keeps them from being quicker, the worst first."""

    sentence: str
    is_late: Annotated[bool, _says("events are billed more than a second after they arrived")]
    causes: list[Cause]


class Overview(Fresh, frozen=True):
    """What managers and operators watch, at one position."""

    current_period: Period | None
    periods: list[PeriodStatus]
    types: list[TypeTotal]
    top: Annotated[list[CustomerTotal], _says("the largest totals of the current period")]
    batch: Annotated[Batch | None, _says("the last one")]
    events: Count
    late_events: Count
    duplicates: Duplicates
    without_id: Annotated[Count, _says("events that cannot be told from their repeats")]
    rejections: dict[str, Count]
    input_bytes: Count
    fold_ms: Annotated[float | None, _says("what the replica's last step took")]
    pipeline: Pipeline | None
    replicas: Annotated[list[Replica], _says("all that follow the ledger and spoke lately")]
    sink: Annotated[Sink | None, _says("null: invoices are not delivered over HTTP")]
    trouble: Annotated[str | None, _says("what keeps the replica from going on")]
    diagnosis: Annotated[Diagnosis | None, _says("why batches are slow or late; null: not known")]
    source: Source


class Rejection(Shape, frozen=True, kw_only=True, omit_defaults=True):
    """An input that could not be billed."""

    batch: int
    reason: str
    place: LogPlace
    raw: Annotated[str, _says("what came, cut to 2,000 bytes; what is no UTF-8 is escaped")]
    detail: str | None
    raw_base64: str | None = None
    bytes: Annotated[int, _at_least(0, description="its whole size")]


class Rejections(Fresh, frozen=True):
    """How many by reason, and the newest of them."""

    counts: dict[str, Count]
    items: list[Rejection]
    source: Source


class Session(Shape, frozen=True):
    """Who sits in front of the page."""

    tokens: Annotated[bool, _says("whether a token is needed here")]
    role: Annotated[str | None, _says("of the token that the browser keeps")]
    customer: str | None
    currency: str
    zone: str
    types: Annotated[list[str], _says("of events; empty where a token is needed and none was given")] = []


class Alive(Shape, frozen=True):
    """The server runs."""

    status: Literal["alive"]


class Ready(Fresh, frozen=True):
    """The replica can be read, goes on, and is fresh."""

    status: Literal["ready"]


# Live streams: the messages of the event `totals`


class LiveTotal(_Total, frozen=True):
    """What a customer owes for a period that is not final; the message as a whole says at which position."""

    last_event: Instant | None


class LiveTotals(Shape, frozen=True):
    """One customer of several."""

    customer: CustomerName
    totals: list[LiveTotal]


class LiveCustomer(Fresh, frozen=True):
    """One customer's totals."""

    customer: CustomerName
    totals: list[LiveTotal]
    current_period: Period | None


class LiveCustomers(Fresh, frozen=True):
    """The totals of several customers."""

    customers: list[LiveTotals]
    current_period: Period | None


class LiveTypes(Fresh, frozen=True):
    """Totals by type."""

    types: list[TypeTotal]


Live = LiveCustomer | LiveTypes  # what a client follows


# Events


class Result(Shape, frozen=True):
    """What became of one event."""

    accepted: Annotated[bool, _says("whether the log has it")]
    reason: Annotated[str | UnsetType, Meta(examples=["unknown_type"])] = UNSET
    detail: str | UnsetType | None = UNSET
    state: (
        Annotated[str, _one_of("counted", "duplicate", "rejected", description="once it is committed")] | UnsetType
    ) = UNSET
    batch: Annotated[int | UnsetType, _at_least(1, description="the one that it came in, once it is committed")] = UNSET


class Taken(Shape, frozen=True):
    """What became of the events, in the order in which they were sent."""

    accepted: Count
    results: list[Result]
    committed: Annotated[bool | UnsetType, _says("whether all that were accepted are in the journal")] = UNSET
    position: Annotated[int | UnsetType, _at_least(1, description="a min_position that shows them all")] = UNSET


class ReceiptRejection(Shape, frozen=True):
    """One time that an event was rejected."""

    batch: Number
    reason: Annotated[str, Meta(examples=["unknown_type"])]
    detail: str | None
    place: LogPlace


class ReceiptInvoice(Shape, frozen=True):
    """The first revision of an invoice that an event is in, and the latest there is."""

    period: Period
    revision: Number
    position: int
    latest_revision: Number


class Receipt(Fresh, frozen=True):
    """What became of an event. What the log no longer tells is null."""

    id: Annotated[str, Meta(examples=["01J9"])]
    source: Annotated[str | None, _says("of the CloudEvents envelope that it came in")]
    state: Annotated[str, _one_of("counted", "rejected")]
    batch: Number
    place: LogPlace
    day: Day | None
    customer: CustomerName | None
    type: TypeName | None
    amount: Amount | None
    period: Annotated[Period | None, _says("that it is billed in")]
    invoice: Annotated[ReceiptInvoice | None, _says("null: not issued yet")]
    reversed: bool
    rejections: Annotated[list[ReceiptRejection], _says("the newest first, up to 100")]
