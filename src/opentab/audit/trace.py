"""`opentab trace`: the batches and the places in the log that one customer's cents came from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import duckdb
import pyarrow.dataset as ds

from opentab.audit.days import month_of_day, month_of_period, period_of_month
from opentab.audit.invoices import Invoices
from opentab.audit.lateness import Mark, billed_month
from opentab.audit.raw import RawLines, RawLog, open_raw
from opentab.audit.recompute import days_in
from opentab.audit.rounding import half_even, minor_micros
from opentab.audit.verify import Journal
from opentab.audit.wire import Counted, decide
from opentab.config import Home
from opentab.errors import InputError
from opentab.records import BatchRecord


@dataclass(frozen=True, slots=True)
class TracedLine:
    """What one batch added, by type and by the period the events belong to."""

    batch: int
    type: str
    own_period: str
    adjustment: bool  # billed in another period than its own
    amount_micros: int
    event_count: int
    first_us: int
    last_us: int


@dataclass(frozen=True, slots=True)
class TracedEvent:
    """One raw event and where it stands in the log."""

    batch: int
    place: str
    at_us: int
    type: str
    own_period: str
    adjustment: bool
    amount_micros: int
    raw: bytes


@dataclass(frozen=True, slots=True)
class TracedInvoice:
    """One revision of a customer's invoice, as it was issued."""

    revision: int
    position: int
    total_minor: int
    issued_us: int


@dataclass(frozen=True, slots=True)
class Trace:
    """One customer's bill of one period, by batch; `events` leads on to the raw log."""

    period: str
    customer: str
    lines: list[TracedLine]
    _log: RawLog
    _batches: list[BatchRecord]
    _billed: dict[tuple[int, int], bool]  # (batch, own month): the month is billed here, as an adjustment?

    @property
    def amount_micros(self) -> int:
        return sum(line.amount_micros for line in self.lines)

    @property
    def event_count(self) -> int:
        return sum(line.event_count for line in self.lines)

    def total_minor(self, currency: str) -> int:
        """The amount as an invoice rounds it."""
        return half_even(self.amount_micros, minor_micros(currency))

    def events(self) -> Iterator[TracedEvent]:
        """The raw events in the order of the log, a piece of it in memory at a time."""
        for record in self._batches:
            for partition, (first, last) in sorted(record.taken.items()):
                for piece in self._log.pieces(first, last):
                    yield from self._events_in(self._log.read(partition, *piece), record)

    def _events_in(self, raw: RawLines, record: BatchRecord) -> Iterator[TracedEvent]:
        needle = self.customer.encode()
        # A customer's name stands in the line as it is, or some of it is escaped.
        if needle not in raw.body and b"\\" not in raw.body:
            return
        days = days_in(record.rules.zone)
        for index in range(raw.arrived_us.size):
            line = raw.line(index)
            if needle not in line and b"\\" not in line:
                continue
            event = decide(line, arrived_us=int(raw.arrived_us[index]), rules=record.rules, days=days)
            if not isinstance(event, Counted) or event.customer != self.customer:
                continue
            month = month_of_day(event.day)
            adjustment = self._billed.get((record.batch, month))
            if adjustment is not None:
                yield TracedEvent(
                    batch=record.batch,
                    place=raw.place(index),
                    at_us=event.at_us,
                    type=event.type,
                    own_period=period_of_month(month),
                    adjustment=adjustment,
                    amount_micros=event.amount_micros,
                    raw=line,
                )


def trace(home: Home, journal: Journal, period: str, customer: str, *, upto: int | None = None) -> Trace:
    """Where a customer's total of a period came from: the journal's lines, and the raw events behind them.

    With `upto` only the batches that an invoice of that position was made from.
    """
    records = {record.batch: record for record in journal.batches() if upto is None or record.batch <= upto}
    wanted = month_of_period(period)
    lines: list[TracedLine] = []
    billed: dict[tuple[int, int], bool] = {}
    for batch, own_month, type_, amount, count, first_us, last_us in _entries(journal, customer):
        if upto is not None and batch > upto:
            continue
        record = records[batch]
        before = records.get(batch - 1)
        month = billed_month(
            own_month,
            before=Mark(before.watermark_us, before.final_us) if before else Mark(),
            days=days_in(record.rules.zone),
        )
        if month != wanted:
            continue
        billed[batch, own_month] = adjustment = month != own_month
        own_period = period_of_month(own_month)
        lines.append(TracedLine(batch, type_, own_period, adjustment, int(amount), int(count), first_us, last_us))
    concerned = [records[batch] for batch in sorted({batch for batch, _ in billed})]
    return Trace(period, customer, lines, open_raw(home), concerned, billed)


def invoice_of(invoices: Invoices, period: str, customer: str, revision: int) -> TracedInvoice:
    """One revision of a customer's invoice of a period; raises InputError where there is none."""
    mine = (ds.field("period") == period) & (ds.field("customer") == customer)
    columns = ["revision", "position", "total_minor", "issued_at"]
    with duckdb.connect(":memory:") as con:
        con.register("mine", invoices.rows().scanner(columns=columns, filter=mine).to_table())
        found = con.execute(
            "SELECT revision, any_value(position), any_value(total_minor), any_value(epoch_us(issued_at))"
            " FROM mine GROUP BY revision ORDER BY revision"
        ).fetchall()
    for number, position, total_minor, issued_us in found:
        if number == revision:
            return TracedInvoice(number, position, int(total_minor), issued_us)
    there = ", ".join(str(number) for number, *_ in found)
    raise InputError(
        f"there is no revision {revision} of the invoice of {period} for {customer!r}",
        hint=f"there are: {there}" if there else "none has been issued yet; leave out --revision",
    )


def _entries(journal: Journal, customer: str) -> list[tuple[int, int, str, int, int, int, int]]:
    mine = journal.entries().scanner(filter=ds.field("customer") == customer).to_table()
    with duckdb.connect(":memory:") as con:
        con.register("mine", mine)
        return con.execute(
            "SELECT batch, year(day) * 12 + month(day) - 1 AS own_month, type, sum(amount_micros),"
            " sum(event_count), min(epoch_us(first_at)), max(epoch_us(last_at))"
            " FROM mine GROUP BY batch, own_month, type ORDER BY batch, own_month, type"
        ).fetchall()
