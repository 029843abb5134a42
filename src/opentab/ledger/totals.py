"""Running totals, as people and programs ask for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal

from opentab.core.money import format_micros
from opentab.core.periods import Calendar, format_us
from opentab.core.records import BatchRecord
from opentab.ledger import balances
from opentab.ledger.billed_in import OWN_PERIOD, status_of
from opentab.ledger.engine import LocalEngine, connect
from opentab.ledger.journal import Journal
from opentab.ledger.usage import used


@dataclass(slots=True)
class Adjustment:
    """Usage of a final period that is billed in a later one."""

    period: str
    type: str
    amount_micros: int
    event_count: int

    def as_json(self) -> dict[str, object]:
        return {
            "period": self.period,
            "type": self.type,
            "amount": format_micros(self.amount_micros),
            "events": self.event_count,
        }


@dataclass(slots=True)
class Total:
    """What one customer owes for one period, as far as the journal knows."""

    period: str
    customer: str
    status: str
    types: dict[str, int] = field(default_factory=dict)  # micros of usage alone
    adjustments: list[Adjustment] = field(default_factory=list)
    event_count: int = 0
    last_us: int | None = None  # the latest event

    @property
    def amount_micros(self) -> int:
        used = sum(self.types.values())
        return used + sum(a.amount_micros for a in self.adjustments) if self.adjustments else used


@dataclass(frozen=True, slots=True)
class Place:
    """How far a reader has seen: a position and the watermark there."""

    position: int
    watermark: str | None  # as it is shown: written once, and not for each of many totals

    def as_json(self) -> dict[str, object]:
        return {"position": self.position, "watermark": self.watermark}


def place_of(journal: Journal | None) -> Place:
    """Where the journal stands."""
    return place_at(journal.last() if journal else None)


def place_at(record: BatchRecord | None) -> Place:
    """Where a journal stands whose last batch is this one."""
    return Place(record.batch, format_us(record.watermark_us)) if record else Place(0, None)


def customer_totals(
    journal: Journal | None,
    calendar: Calendar,
    *,
    period: str | None = None,
    customer: str | None = None,
) -> Iterator[Total]:
    """The totals by period and customer, in that order, of everyone who has any."""
    if journal is None or journal.position == 0:
        return
    last = journal.last()
    rows = _rows(journal, calendar, period, customer)
    total: Total | None = None
    for row_period, row_customer, own, type_, micros, events, last_us in rows:
        if total is None or (total.period, total.customer) != (row_period, row_customer):
            if total is not None:
                yield total
            total = Total(row_period, row_customer, status_of(row_period, last, calendar))
        if own == row_period:
            total.types[type_] = int(micros)
        else:
            total.adjustments.append(Adjustment(own, type_, int(micros), events))
        total.event_count += events
        total.last_us = last_us if total.last_us is None else max(last_us, total.last_us)
    if total is not None:
        yield total


def total_as_json(total: Total, place: Place) -> dict[str, object]:
    """The shape that `opentab totals --format json` prints."""
    return {
        "period": total.period,
        "customer": total.customer,
        "status": total.status,
        "total": format_micros(total.amount_micros),
        "types": {type_: format_micros(micros) for type_, micros in total.types.items()},
        "adjustments": [adjustment.as_json() for adjustment in total.adjustments],
        "events": total.event_count,
        "position": place.position,
        "watermark": place.watermark,
    }


def type_totals(
    journal: Journal | None, calendar: Calendar, *, period: str | None = None
) -> list[tuple[str, str, int, int]]:
    """(period, type, micros, events) by the events' own days, adjustments among them."""
    if journal is None or journal.position == 0:
        return []
    connection = connect()
    connection.register("entries", journal.entries())
    return [
        (own, type_, int(micros), events)
        for own, type_, micros, events in connection.execute(
            f"""
            select {OWN_PERIOD} as own, type, sum(amount_micros::decimal(38, 0)), sum(event_count)::bigint
            from entries where $period is null or own = $period group by own, type order by own, type
            """,
            {"period": period},
        ).fetchall()
    ]


@dataclass(slots=True)
class RangeTotal:
    """What was used in a range of days by one customer, or of one type."""

    key: str
    types: dict[str, int] = field(default_factory=dict)  # micros
    event_count: int = 0

    @property
    def amount_micros(self) -> int:
        return sum(self.types.values())


def range_totals(
    journal: Journal | None, first: date, last: date, *, by: str, customer: str | None = None
) -> list[RangeTotal]:
    """By customer or by type, in that order: what was used from one day to another, both included.

    It goes by the events' own days, wherever they were billed.
    """
    if journal is None or journal.position == 0:
        return []
    columns = ["customer", "type"] if by == "customer" else ["type"]
    rows = used(journal, upto=journal.position, first=first, last=last, by=columns, customer=customer)
    found: dict[str, RangeTotal] = {}
    for *key, type_, micros, events in rows:
        name = key[0] if key else type_
        total = found.setdefault(name, RangeTotal(name))
        total.types[type_] = int(micros)
        total.event_count += events
    return list(found.values())


def _rows(
    journal: Journal, calendar: Calendar, period: str | None, customer: str | None
) -> Iterator[tuple[str, str, str, str, Decimal, int, int]]:
    """(period, customer, own period, type, micros, events, latest event) from the snapshot and what came since.

    Periods that were final at the snapshot are not in it: they are added up from the whole journal.
    """
    snapshot = balances.latest(journal.root.parent)
    if not snapshot.belongs_to(journal):
        snapshot = balances.empty()
    engine = LocalEngine()
    balances.running(engine, journal, calendar, snapshot, upto=journal.position)
    connection = engine.connection
    final = balances.final_view(connection, journal, calendar, snapshot, period=period, customer=customer)
    result = connection.execute(
        f"""
        select period, customer, {OWN_PERIOD} as own, type, sum(sum_micros), sum(event_count)::bigint,
            epoch_us(max(last_at))
        from (
            select period, customer, day, type, sum_micros, event_count, last_at from running
            union all
            select period, customer, day, type, sum_micros, event_count, last_at from {final}
        )
        where ($period is null or period = $period) and ($customer is null or customer = $customer)
        group by period, customer, own, type
        order by period, customer, own = period desc, own, type
        """,
        {"period": period, "customer": customer},
    )
    while rows := result.fetchmany(10_000):
        yield from rows
