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


class Taken(msgspec.Struct, frozen=True):
    accepted: int
    results: list[Result]


class Refused(msgspec.Struct, frozen=True):
    """An event that was not taken, by its place in what was sent."""

    index: int
    reason: str
    detail: str | None


class Ingested(msgspec.Struct, frozen=True):
    """What became of the events that were sent."""

    accepted: int
    refused: list[Refused]
