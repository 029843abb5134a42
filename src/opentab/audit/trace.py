"""`opentab trace`: the batches and the places in the log that one customer's cents came from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

import duckdb
import pyarrow.dataset as ds

from opentab.audit.clock import Lapse, lines_arrived
from opentab.audit.days import month_of_day, month_of_period, period_of_month
from opentab.audit.invoices import Invoices
from opentab.audit.lateness import Mark, billed_month
from opentab.audit.logs import Logs, open_logs
from opentab.audit.once import KeyedEvent, Memory, Once
from opentab.audit.raw import RawLines
from opentab.audit.recompute import days_in
from opentab.audit.rounding import half_even, minor_micros
from opentab.audit.verify import Journal
from opentab.audit.wire import Counted, decide
from opentab.core.errors import InputError
from opentab.core.events import REASONS_BY_OTHERS
from opentab.core.records import BatchRecord
from opentab.runtime.config import Home


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
    reverses: str | None = None  # the id of the event that it takes back
    reason: str | None = None
    actor: str | None = None


@dataclass(frozen=True, slots=True)
class TracedInvoice:
    """One revision of a customer's invoice, as it was issued."""

    revision: int
    position: int
    total_minor: int
    issued_us: int


@dataclass(frozen=True, slots=True)
class Trace:
    """One customer's bill of one period, by batch; `events` leads on to the raw log.

    What the journal rejected is left out by its place. A duplicate is told by the customer's own events: it
    repeats one of them, on the same day, so its original is in a batch that added to the same month.
    """

    period: str
    customer: str
    lines: list[TracedLine]
    _logs: Callable[[], Logs]  # asked for where the log is read, and not for the sums
    _batches: list[BatchRecord]  # all that added to the months that are billed here
    _billed: dict[tuple[int, int], bool]  # (batch, own month): the month is billed here, as an adjustment?
    _rejected: set[tuple[int, str]]  # (batch, place) of events that decode well
    _memories: dict[int, Memory]

    @property
    def amount_micros(self) -> int:
        return sum(line.amount_micros for line in self.lines)

    @property
    def event_count(self) -> int:
        return sum(line.event_count for line in self.lines)

    def total_minor(self, currency: str) -> int:
        """The amount as an invoice rounds it."""
        return half_even(self.amount_micros, minor_micros(currency))

    @property
    def gone(self) -> list[int]:
        """The batches whose events cannot be shown, because their log is gone."""
        return [record.batch for record in self._batches if self._logs().of(record.batch) is None]

    def events(self) -> Iterator[TracedEvent]:
        """The raw events that count, batch by batch in the order of the log."""
        once = Once()
        for record in self._batches:
            log = self._logs().of(record.batch)
            if log is None:
                continue
            found = [
                one
                for partition, (first, last) in sorted(record.taken.items())
                for piece in log.pieces(first, last)
                for one in self._found_in(lines_arrived(log.read(partition, *piece), record.restarts, log.base), record)
            ]
            repeats = _repeats(found, once, self._memories[record.batch])
            for index, one in enumerate(found):
                month = month_of_day(one.event.day)
                adjustment = self._billed.get((record.batch, month))
                if index not in repeats and adjustment is not None:
                    yield TracedEvent(
                        batch=record.batch,
                        place=one.place,
                        at_us=one.event.at_us,
                        type=one.event.type,
                        own_period=period_of_month(month),
                        adjustment=adjustment,
                        amount_micros=one.event.amount_micros,
                        raw=one.raw,
                        reverses=one.event.reverses,
                        reason=one.event.reason,
                        actor=one.event.actor,
                    )

    def _found_in(self, raw: RawLines, record: BatchRecord) -> Iterator[_Found]:
        """The customer's events that were not rejected."""
        needle = self.customer.encode()
        # A customer's name stands in the line as it is, or some of it is escaped.
        if needle not in raw.body and b"\\" not in raw.body:
            return
        days = days_in(record.rules.zone)
        for index in range(raw.arrived_us.size):
            line = raw.line(index)
            if needle not in line and b"\\" not in line:
                continue
            arrived_us = int(raw.arrived_us[index])
            event = decide(line, arrived_us=arrived_us, rules=record.rules, days=days)
            if not isinstance(event, Counted) or event.customer != self.customer:
                continue
            place = raw.place(index)
            if (record.batch, place) not in self._rejected:
                order = (arrived_us, raw.partition, int(raw.numbers[index]), int(raw.bytes_at[index]))
                yield _Found(record.batch, order, place, event, line)


@dataclass(frozen=True, slots=True)
class _Found:
    """An event of the customer in the log."""

    batch: int
    order: tuple[int, str, int, int]  # in which its batch is looked at; it begins with the arrival
    place: str
    event: Counted
    raw: bytes


def _repeats(found: Sequence[_Found], once: Once, memory: Memory) -> set[int]:
    """Which of a batch's events repeat one that counted."""
    repeats: set[int] = set()
    if not memory.window_us:
        return repeats
    for index in sorted(range(len(found)), key=lambda index: found[index].order):
        one = found[index]
        if one.event.id is not None and once.repeats(_keyed(one), memory):
            repeats.add(index)
    return repeats


def _keyed(one: _Found) -> KeyedEvent:
    e = one.event
    return KeyedEvent(one.batch, one.order[0], e.id, e.source, e.reverses, e.at_us, e.customer, e.type, e.amount_micros)


def trace(home: Home, journal: Journal, period: str, customer: str, *, upto: int | None = None) -> Trace:
    """Where a customer's total of a period came from: the journal's lines, and the raw events behind them.

    With `upto` only the batches that an invoice of that position was made from.
    """
    all_records = journal.batches()
    records = {record.batch: record for record in all_records if upto is None or record.batch <= upto}
    wanted = month_of_period(period)
    lines: list[TracedLine] = []
    billed: dict[tuple[int, int], bool] = {}
    batches: dict[int, set[int]] = {}  # the months that each added to
    for batch, own_month, type_, amount, count, first_us, last_us in _entries(journal, customer):
        if upto is not None and batch > upto:
            continue
        batches.setdefault(batch, set()).add(own_month)
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
    months = {own_month for _, own_month in billed}
    concerned = [records[batch] for batch in sorted(batch for batch in batches if batches[batch] & months)]
    memories = {}
    for batch, record in records.items():
        before = records.get(batch - 1)
        lapses = tuple(Lapse(r.batch, r.at_us, r.remembers_from, r.forgotten_us) for r in record.restarts)
        memories[batch] = Memory(record.rules.dedupe_us, before.forgotten_us if before else None, lapses)
    logs = cache(partial(open_logs, home, all_records))
    return Trace(period, customer, lines, logs, concerned, billed, _rejected(journal), memories)


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


def _rejected(journal: Journal) -> set[tuple[int, str]]:
    """Where events stand that decode well and were rejected: by what came before them."""
    by_others = ds.field("reason").isin([str(reason) for reason in REASONS_BY_OTHERS])
    rows = journal.rejections().scanner(columns=["batch", "place"], filter=by_others).to_table()
    return set(zip(rows["batch"].to_pylist(), rows["place"].to_pylist(), strict=True))


def _entries(journal: Journal, customer: str) -> list[tuple[int, int, str, int, int, int, int]]:
    mine = journal.entries().scanner(filter=ds.field("customer") == customer).to_table()
    with duckdb.connect(":memory:") as con:
        con.register("mine", mine)
        return con.execute(
            "SELECT batch, year(day) * 12 + month(day) - 1 AS own_month, type, sum(amount_micros),"
            " sum(event_count), min(epoch_us(first_at)), max(epoch_us(last_at))"
            " FROM mine GROUP BY batch, own_month, type ORDER BY batch, own_month, type"
        ).fetchall()
