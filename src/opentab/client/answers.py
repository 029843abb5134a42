"""What a server answers, typed. Amounts are texts: exact, and never floats."""

from __future__ import annotations

import msgspec


class Fresh(msgspec.Struct, frozen=True, kw_only=True):
    """How fresh an answer is."""

    position: int = 0
    invoices_position: int = 0
    watermark: str | None = None
    as_of: str | None = None
    staleness_ms: int | None = None


class Adjustment(msgspec.Struct, frozen=True):
    """Usage of a final period that is billed in a later one."""

    period: str
    type: str
    amount: str
    events: int


class PeriodTotal(Fresh, frozen=True, kw_only=True):
    """What a customer owes for a period."""

    period: str
    customer: str
    status: str
    total: str
    types: dict[str, str]
    adjustments: list[Adjustment]
    events: int
    last_event: str | None = None


class Current(Fresh, frozen=True, kw_only=True):
    """A customer at a glance."""

    customer: str
    current: PeriodTotal | None
    open: list[PeriodTotal]
    closed: list[PeriodTotal]


class InvoiceLine(msgspec.Struct, frozen=True):
    """One line: usage, or an adjustment that names its period."""

    kind: str
    type: str
    amount: str
    events: int
    period: str | None = None


class Invoice(msgspec.Struct, frozen=True):
    """One revision of an invoice."""

    period: str
    customer: str
    revision: int
    currency: str
    total: str
    previous_total: str | None
    delta: str
    lines: list[InvoiceLine]
    position: int
    issued_at: str


class Invoices(Fresh, frozen=True, kw_only=True):
    items: list[Invoice]


class Live(Fresh, frozen=True, kw_only=True):
    """One message of a live stream."""

    customer: str | None = None
    totals: list[PeriodTotal] = []
    types: list[dict[str, object]] = []


class Result(msgspec.Struct, frozen=True):
    accepted: bool
    reason: str | None = None
    detail: str | None = None
    state: str | None = None
    batch: int | None = None


class Taken(msgspec.Struct, frozen=True):
    accepted: int
    results: list[Result]
    committed: bool | None = None
    position: int | None = None


class Refused(msgspec.Struct, frozen=True):
    """An event that does not count, by its place in what was sent."""

    index: int
    reason: str
    detail: str | None


class Ingested(msgspec.Struct, frozen=True):
    """What became of the events that were sent."""

    accepted: int
    refused: list[Refused]  # not taken into the log
    committed: bool | None = None  # whether all that were accepted are in the journal; None: nobody waited for it
    position: int | None = None  # once they are: a min_position that shows them
    duplicates: list[int] = []  # events that had counted before, by their places
    rejected: list[Refused] = []  # taken into the log, and not billed


class ReceiptInvoice(msgspec.Struct, frozen=True):
    """The first revision of an invoice that an event is in, and the latest there is."""

    period: str
    revision: int
    position: int
    latest_revision: int


class ReceiptRejection(msgspec.Struct, frozen=True):
    """One time that an event was rejected."""

    batch: int
    reason: str
    detail: str | None
    place: str


class Receipt(Fresh, frozen=True, kw_only=True):
    """What became of an event. What the log no longer tells is None."""

    id: str
    source: str | None
    state: str  # counted or rejected
    batch: int
    place: str
    day: str | None
    customer: str | None
    type: str | None
    amount: str | None
    period: str | None
    invoice: ReceiptInvoice | None
    reversed: bool
    rejections: list[ReceiptRejection]
