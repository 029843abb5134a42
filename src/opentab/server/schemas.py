"""What answers look like, for the OpenAPI document. Answers are checked against it by the tests, not as they are sent.

Amounts are texts, exact, and never floats; instants are RFC 3339 in UTC.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Amount = Annotated[str, Field(pattern=r"^-?\d+\.\d{6}$", examples=["12.340000"], description="exact, six decimals")]
Invoiced = Annotated[str, Field(pattern=r"^-?\d+(\.\d+)?$", examples=["12.34"], description="in the minor unit")]
Period = Annotated[str, Field(pattern=r"^\d{4}-\d{2}$", examples=["2026-01"])]
Day = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$", examples=["2026-01-31"])]
Instant = Annotated[str, Field(examples=["2026-01-31T22:15:04.120Z"])]
Count = Annotated[int, Field(ge=0, examples=[17])]
Status = Literal["open", "closed", "final"]


class Shape(BaseModel):
    """A JSON object with these fields and no others."""

    model_config = ConfigDict(extra="forbid")


class Fresh(Shape):
    """What every answer carries."""

    position: Annotated[int, Field(ge=0, examples=[42], description="the last batch that the answer knows")]
    invoices_position: Annotated[int, Field(ge=0, examples=[42])]
    watermark: Instant | None
    as_of: Annotated[Instant | None, Field(description="when that batch was committed")]
    staleness_ms: Annotated[
        int | None, Field(examples=[310], description="since the answer was known to be caught up with the log")
    ]


class Answer(Fresh):
    """An answer, and where it came from."""

    source: Literal["replica", "ledger"]


class Adjustment(Shape):
    """Usage of a final period that is billed in a later one."""

    period: Period
    type: str
    amount: Amount
    events: Count


class TotalFields(Shape):
    """What a customer owes for a period."""

    period: Period
    customer: Annotated[str, Field(examples=["emma"])]
    status: Status
    total: Amount
    types: Annotated[dict[str, Amount], Field(examples=[{"CALL": "12.340000"}])]
    adjustments: list[Adjustment]
    events: Count
    position: int
    watermark: Instant | None
    last_event: Instant | None


class Total(TotalFields, Answer):
    """The same as an answer of its own."""


class Customer(Answer):
    """A customer at a glance."""

    customer: str
    current_period: Period | None
    current: TotalFields | None
    open: list[TotalFields]
    closed: list[TotalFields]


class CustomerTotal(Shape):
    """A customer in a list."""

    customer: str
    total: Amount
    events: Count
    last_event: Instant | None


class Customers(Answer):
    """A page of customers."""

    period: Period | None
    items: list[CustomerTotal]


class Used(Shape):
    """What was used, by day and type where asked."""

    day: Day | None = None
    type: str | None = None
    total: Amount
    events: Count


class Usage(Answer):
    """What a customer used in a range of days."""

    customer: str
    from_: Annotated[Day, Field(alias="from")]
    to: Day
    items: list[Used]


class TypeTotal(Shape):
    """What was used of a type, in a period or in a range of days."""

    period: Period | None = None
    day: Day | None = None
    type: str
    total: Amount
    events: Count


class Types(Answer):
    """Totals by type."""

    from_: Annotated[Day | None, Field(alias="from")] = None
    to: Day | None = None
    items: list[TypeTotal]


class InvoiceLine(Shape):
    """Usage, or an adjustment that names its period."""

    kind: Literal["usage", "adjustment"]
    period: Period | None = None
    type: str
    amount: Amount
    events: int


class InvoiceFields(Shape):
    """One revision of an invoice."""

    period: Period
    customer: str
    revision: Annotated[int, Field(ge=1)]
    currency: Annotated[str, Field(examples=["EUR"])]
    total: Invoiced
    previous_total: Invoiced | None
    delta: Invoiced
    lines: list[InvoiceLine]
    position: int
    issued_at: Instant


class Invoice(InvoiceFields, Answer):
    """The same as an answer of its own."""


class Invoices(Answer):
    """Invoices with all revisions."""

    items: list[InvoiceFields]


class Held(Shape):
    """A partition that holds a period back."""

    partition: str
    latest: Instant
    needed: Instant


class Missing(Shape):
    """What a period waits for."""

    for_: Annotated[Literal["close", "final"], Field(alias="for")]
    watermark: Instant
    partitions: list[Held]


class Partition(Shape):
    """How far one partition of the log is."""

    partition: str
    latest: Instant | None
    complete_upto: Instant | None
    complete: bool
    idle: bool
    arrived: Instant | None


class PeriodFields(Shape):
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
    adjusted: Annotated[Amount, Field(description="of earlier periods, billed in this one")]
    adjusted_events: Count
    missing: Missing | None
    partitions: list[Partition]


class OnePeriod(PeriodFields, Answer):
    """The same as an answer of its own."""


class Periods(Answer):
    """All periods."""

    items: list[PeriodFields]


class Batch(Shape):
    """What one batch took from the log, and how long it took for what."""

    batch: Annotated[int, Field(ge=1)]
    started_at: Instant
    committed_at: Instant
    events: Count
    late_events: Annotated[Count, Field(description="of months that were closed when they came")]
    duplicates: Annotated[Count, Field(description="repeats of events that had counted; they did not count again")]
    rejections: Count
    input_bytes: Count
    files: Count
    steps_ms: Annotated[dict[str, float], Field(examples=[{"waiting": 12.5, "tasks": 140.0, "committing": 21.0}])]
    watermark: Instant | None


class Batches(Answer):
    """The last batches, in order."""

    items: list[Batch]


class Pipeline(Shape):
    """What the pipeline last said of itself."""

    age_ms: Annotated[int, Field(ge=0, description="since it said so")]
    streaming: bool
    position: int
    caught_up: bool
    unread_segments: Count
    invoices_position: int
    held_back: Annotated[Count, Field(description="partitions of the log whose next arrival is ahead of its clock")]
    trouble: Annotated[str | None, Field(description="what keeps the pipeline from going on, and what to do about it")]
    spark_ui: Annotated[str | None, Field(description="where Spark's own UI is, on the pipeline's machine")]


class Replica(Shape):
    """What a replica last said of itself."""

    name: Annotated[str, Field(description="its machine and its home")]
    position: Annotated[int, Field(ge=0)]
    age_ms: Annotated[int, Field(ge=0, description="since it said so")]


class Sink(Shape):
    """What opentab deliver last said of itself."""

    age_ms: Annotated[int | None, Field(description="since it said so; null: it never ran")]
    position: Annotated[int, Field(ge=0, description="all invoices up to this batch were taken up")]
    waiting: Annotated[Count, Field(description="invoices that the receiver does not have yet")]
    stuck: Annotated[Count, Field(description="of these: refused by the receiver")]
    delivered: Count
    oldest_ms: Annotated[int | None, Field(description="since the first of them waits")]
    delivered_ms: Annotated[int | None, Field(description="since one was last taken")]
    gone: Annotated[bool, Field(description="the receiver takes nothing")]
    error: Annotated[str | None, Field(description="the last one, while anything waits")]


class Cause(Shape):
    """Why batches are slow or late."""

    name: Annotated[str, Field(examples=["waiting for the trigger"])]
    fact: Annotated[str, Field(description="with the figure that says so")]
    fix: str
    setting: Annotated[str | None, Field(examples=["pipeline.batch_pause"], description="that the fix names")]


class Diagnosis(Shape):
    """How quick the batches are, and what keeps them from being quicker, the worst first."""

    sentence: str
    is_late: Annotated[bool, Field(description="events are billed more than a second after they arrived")]
    causes: list[Cause]


class Overview(Answer):
    """What managers and operators watch, at one position."""

    current_period: Period | None
    periods: list[PeriodFields]
    types: list[TypeTotal]
    top: Annotated[list[CustomerTotal], Field(description="the largest totals of the current period")]
    batch: Annotated[Batch | None, Field(description="the last one")]
    events: Count
    late_events: Count
    duplicates: Annotated[Count, Field(description="repeats of events that had counted; they did not count again")]
    without_id: Annotated[Count, Field(description="events that cannot be told from their repeats")]
    rejections: dict[str, Count]
    input_bytes: Count
    fold_ms: Annotated[float | None, Field(description="what the replica's last step took")]
    pipeline: Pipeline | None
    replicas: Annotated[list[Replica], Field(description="all that follow the ledger and spoke lately")]
    sink: Annotated[Sink | None, Field(description="null: invoices are not delivered over HTTP")]
    trouble: Annotated[str | None, Field(description="what keeps the replica from going on")]
    diagnosis: Annotated[Diagnosis | None, Field(description="why batches are slow or late; null: not known")]


class Rejection(Shape):
    """An input that could not be billed."""

    batch: int
    reason: str
    place: Annotated[str, Field(examples=["default/1@539"], description="partition, segment and byte of the log")]
    raw: Annotated[str, Field(description="what came, cut to 2,000 bytes; what is no UTF-8 is escaped")]
    raw_base64: str | None = None
    detail: str | None
    bytes: Annotated[int, Field(ge=0, description="its whole size")]


class Rejections(Answer):
    """How many by reason, and the newest of them."""

    counts: dict[str, Count]
    items: list[Rejection]


class Session(Shape):
    """Who sits in front of the page."""

    tokens: Annotated[bool, Field(description="whether a token is needed here")]
    role: Annotated[str | None, Field(description="of the token that the browser keeps")]
    customer: str | None
    currency: str
    zone: str


class Alive(Shape):
    status: Literal["alive"]


class Ready(Fresh):
    status: Literal["ready"]


class Result(Shape):
    """What became of one event."""

    accepted: Annotated[bool, Field(description="whether the log has it")]
    reason: Annotated[str | None, Field(examples=["unknown_type"])] = None
    detail: str | None = None
    state: Annotated[Literal["counted", "duplicate", "rejected"] | None, Field(description="once it is committed")] = (
        None
    )
    batch: Annotated[int | None, Field(ge=1, description="the one that it came in, once it is committed")] = None


class Taken(Shape):
    """What became of the events, in the order in which they were sent."""

    accepted: Count
    results: list[Result]
    committed: Annotated[bool | None, Field(description="whether all that were accepted are in the journal")] = None
    position: Annotated[int | None, Field(ge=1, description="a min_position that shows them all")] = None


class ReceiptRejection(Shape):
    """One time that an event was rejected."""

    batch: Annotated[int, Field(ge=1)]
    reason: Annotated[str, Field(examples=["unknown_type"])]
    detail: str | None
    place: Annotated[str, Field(examples=["default/1@539"])]


class ReceiptInvoice(Shape):
    """The first revision of an invoice that an event is in."""

    period: Period
    revision: Annotated[int, Field(ge=1)]
    position: int
    latest_revision: Annotated[int, Field(ge=1)]


class Receipt(Fresh):
    """What became of an event. What the log no longer tells is null."""

    id: Annotated[str, Field(examples=["01J9"])]
    source: Annotated[str | None, Field(description="of the CloudEvents envelope that it came in")]
    state: Literal["counted", "rejected"]
    batch: Annotated[int, Field(ge=1, examples=[42])]
    place: Annotated[str, Field(examples=["default/1@539"], description="partition, segment and byte of the log")]
    day: Day | None
    customer: Annotated[str | None, Field(examples=["emma"])]
    type: Annotated[str | None, Field(examples=["CALL"])]
    amount: Amount | None
    period: Annotated[Period | None, Field(description="that it is billed in")]
    invoice: Annotated[ReceiptInvoice | None, Field(description="null: not issued yet")]
    reversed: bool
    rejections: Annotated[list[ReceiptRejection], Field(description="the newest first, up to 100")]


class ProblemShape(BaseModel):
    """The one shape of all errors (RFC 9457); some say more."""

    model_config = ConfigDict(title="Problem", extra="allow")

    type: str
    title: Annotated[str, Field(examples=["Not Found"])]
    status: Annotated[int, Field(examples=[404])]
    detail: Annotated[str, Field(examples=["nothing was billed there"])]


def _problems(**reasons: str) -> dict[int | str, dict[str, Any]]:
    schema = {"$ref": "#/components/schemas/ProblemShape"}
    return {
        int(status.removeprefix("_")): {
            "description": reason,
            "content": {"application/problem+json": {"schema": schema}},
            "model": ProblemShape,
        }
        for status, reason in reasons.items()
    }


PROBLEM_503 = _problems(_503="not ready, and why")
ANSWER_PROBLEMS: dict[int | str, dict[str, Any]] = {
    304: {"description": "you have this answer already"},
    **_problems(
        _401="a token is needed",
        _403="this token may not",
        _404="nothing was billed there",
        _422="a parameter is wrong",
        _429="too many of your questions wait for the ledger",
        _503="the replica is being made, too many questions wait for the ledger, or the answer is older than asked for",
    ),
}
RECEIPT_PROBLEMS = {**ANSWER_PROBLEMS, **_problems(_404="no event with this id is known")}
INVOICE_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {
            "text/csv": {"schema": {"type": "string"}},
            "text/html": {"schema": {"type": "string"}},
        }
    },
    **ANSWER_PROBLEMS,
    **_problems(_406="there is no such form of an invoice"),
}
STREAM_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "server-sent events", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
    **_problems(
        _401="a token is needed", _403="this token may not", _422="a parameter is wrong", _429="too many streams",
        _503="the replica is being made",
    ),
}  # fmt: skip
SESSION_PROBLEMS = _problems(
    _400="the body is not JSON", _401="the token is no good", _404="no token is needed", _413="too large a body",
    _415="not JSON", _503="not ready, and why",
)  # fmt: skip
SESSION_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"type": "object", "required": ["token"], "properties": {"token": {"type": "string"}}}
            }
        },
    }
}
EVENT_PROBLEMS = _problems(
    _400="the body is not JSON",
    _401="a token is needed",
    _403="this token may not",
    _408="the body came too slowly",
    _413="too many events, or too large a body",
    _415="not one of the media types",
    _422="none of the events can be taken",
    _429="the pipeline is too far behind, or your requests are too large together: later",
    _503="the log cannot take more: later",
)
