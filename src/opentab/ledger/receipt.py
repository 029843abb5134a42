"""A receipt: what became of an event, by its id.

The runs of what was seen say where it stands in the log and in which batch it counted; the log says what it was; the
batch before its own says in which period it is billed, and the invoices since in which revision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from opentab.core.errors import LogError
from opentab.core.money import format_micros
from opentab.core.periods import Calendar, Period, day_of_number, period_of_month
from opentab.core.records import BatchRecord, Spot
from opentab.dedupe.lookup import KeyLookup
from opentab.ledger.billed_in import billed_months, months_of_days
from opentab.ledger.journal import Journal
from opentab.log.arrivals import NEVER_US, remembered_us
from opentab.wire.hashing import key_of

REJECTIONS_MAX = 100  # the newest ones that a receipt lists
RECORDS_MAX = 1_000


class Told(Protocol):
    """What an event that counted says."""

    @property
    def day(self) -> int: ...
    @property
    def customer(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def amount_micros(self) -> int: ...


class Reads(Protocol):
    """Reads inputs again."""

    def event(self, id_: str, source: str | None, seen: Seen) -> Told | None:
        """What stands in the log; None if that is not this event. Raises LogError where it cannot be read."""
        ...

    def customer_of(self, raw: bytes) -> str | None:
        """Whose an input is that could not be billed, as far as it can be told."""
        ...


# The revisions of the invoice of a period and customer, each with its position, in order.
Revisions = Callable[[Period, str], Sequence[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class Seen:
    """An event that counted, as the journal remembers it."""

    spot: Spot
    arrived_us: int
    record: BatchRecord  # its batch
    before: BatchRecord | None
    payload: int  # a hash of its values


@dataclass(frozen=True, slots=True)
class Rejected:
    """One time that it was rejected."""

    batch: int
    reason: str
    detail: str | None
    place: str
    raw: bytes

    def as_json(self) -> dict[str, object]:
        return {"batch": self.batch, "reason": self.reason, "detail": self.detail, "place": self.place}


@dataclass(frozen=True, slots=True)
class Invoiced:
    """The first revision of an invoice that the event is in, and the latest there is."""

    period: Period
    revision: int
    position: int
    latest_revision: int

    def as_json(self) -> dict[str, object]:
        return {
            "period": self.period,
            "revision": self.revision,
            "position": self.position,
            "latest_revision": self.latest_revision,
        }


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of an event. What the log no longer tells is None."""

    id: str
    source: str | None
    counted: bool
    batch: int
    place: str
    customer: str | None
    day: date | None = None
    type: str | None = None
    amount_micros: int | None = None
    period: Period | None = None
    invoice: Invoiced | None = None
    reversed: bool = False
    rejections: list[Rejected] = field(default_factory=list)  # the newest first

    @property
    def state(self) -> str:
        return "counted" if self.counted else "rejected"

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "source": self.source,
            "state": self.state,
            "batch": self.batch,
            "place": self.place,
            "day": None if self.day is None else str(self.day),
            "customer": self.customer,
            "type": self.type,
            "amount": None if self.amount_micros is None else format_micros(self.amount_micros),
            "period": self.period,
            "invoice": None if self.invoice is None else self.invoice.as_json(),
            "reversed": self.reversed,
            "rejections": [one.as_json() for one in self.rejections],
        }


@dataclass(frozen=True, slots=True)
class Trail:
    """All that the journal knows of an id at a position, the newest first."""

    id: str
    source: str | None
    counted: list[Seen]
    rejections: list[Rejected]
    reversed_in: list[int]  # batches

    def receipt(
        self, reads: Reads, revisions: Revisions, calendar: Calendar, *, customer: str | None = None
    ) -> Receipt | None:
        """What became of the event, or None if nothing is known; for one customer, of this one's own events alone."""
        rejections = [r for r in self.rejections if customer is None or reads.customer_of(r.raw) == customer]
        for seen in self.counted:
            told = self._told(reads, seen, must=customer is not None)
            if customer is None or (told is not None and told.customer == customer):
                return self._counted(seen, told, revisions, calendar, rejections)
        if not rejections:
            return None
        last = rejections[0]
        return Receipt(
            self.id, self.source, False, last.batch, last.place, reads.customer_of(last.raw), rejections=rejections
        )

    def _told(self, reads: Reads, seen: Seen, *, must: bool) -> Told | None:
        try:
            return reads.event(self.id, self.source, seen)
        except LogError as error:
            # Whose it is may be known again later: to call it unknown now would be wrong.
            if must and error.retry_helps:
                raise
            return None

    def _counted(
        self, seen: Seen, told: Told | None, revisions: Revisions, calendar: Calendar, rejections: list[Rejected]
    ) -> Receipt:
        batch = seen.record.batch
        is_reversed = any(later > batch for later in self.reversed_in)
        if told is None:
            return Receipt(
                self.id, self.source, True, batch, seen.spot.place, None, reversed=is_reversed, rejections=rejections
            )
        period = _billed_in(told, seen, calendar)
        return Receipt(
            id=self.id,
            source=self.source,
            counted=True,
            batch=batch,
            place=seen.spot.place,
            customer=told.customer,
            day=day_of_number(told.day),
            type=told.type,
            amount_micros=told.amount_micros,
            period=period,
            invoice=_invoiced(period, batch, revisions(period, told.customer)),
            reversed=is_reversed,
            rejections=rejections,
        )


class Trails:
    """Follows ids through a journal. For one thread at a time."""

    def __init__(self, journal: Journal, remembered: KeyLookup) -> None:
        self.journal = journal
        self._remembered = remembered
        self._records: dict[int, list[BatchRecord]] = {}

    def of(self, id_: str, source: str | None, *, upto: BatchRecord | None) -> Trail:
        """What the journal knows of an id after a batch; what is forgotten by then is not known."""
        if upto is None or not id_:
            return Trail(id_, source, [], [], [])
        key, mark = key_of(id_, source), key_of(id_, source, reversal=True)
        found = self._remembered.rows(self.journal.runs(), [key, mark])
        arrived_us, batch = (found[name].to_numpy() for name in ("arrived_us", "batch"))
        known = remembered_us(arrived_us, batch, upto.restarts, upto.forgotten_us) != NEVER_US
        rows = found.filter(pa.array(known & (batch <= upto.batch))).to_pylist()
        rows.sort(key=lambda row: (row["batch"], row["arrived_us"]), reverse=True)
        own = [row for row in rows if (row["key_high"], row["key_low"]) == key]
        return Trail(
            id=id_,
            source=source,
            counted=[self._seen(row) for row in own if row["payload"]],
            rejections=self._rejections([row for row in own if not row["payload"]][:REJECTIONS_MAX]),
            reversed_in=[row["batch"] for row in rows if (row["key_high"], row["key_low"]) == mark and row["payload"]],
        )

    def _seen(self, row: dict[str, Any]) -> Seen:
        batch = row["batch"]
        if batch not in self._records:
            if len(self._records) >= RECORDS_MAX:
                self._records.clear()
            self._records[batch] = self.journal.batches(after=batch - 2, upto=batch)
        *before, record = self._records[batch]
        return Seen(_spot(row), row["arrived_us"], record, before[0] if before else None, row["payload"])

    def _rejections(self, rows: list[dict[str, Any]]) -> list[Rejected]:
        if not rows:
            return []
        places = {(row["batch"], _spot(row).place): at for at, row in enumerate(rows)}
        batches = {row["batch"] for row in rows}
        columns = ["batch", "reason", "detail", "place", "raw"]
        wanted = ds.field("batch").isin(batches) & ds.field("place").isin({place for _, place in places})
        dataset = self.journal.rejections(after=min(batches) - 1, upto=max(batches))
        found = [Rejected(**row) for row in dataset.to_table(columns=columns, filter=wanted).to_pylist()]
        known = [one for one in found if (one.batch, one.place) in places]
        return sorted(known, key=lambda one: places[one.batch, one.place])


def _spot(row: dict[str, Any]) -> Spot:
    return Spot(row["partition"], row["number"], row["byte"])


def _billed_in(told: Told, seen: Seen, calendar: Calendar) -> Period:
    records = [seen.record] if seen.before is None else [seen.before, seen.record]
    own = months_of_days(np.array([told.day], np.int64))
    return period_of_month(int(billed_months(own, np.array([seen.record.batch], np.int64), records, calendar)[0]))


def _invoiced(period: Period, batch: int, revisions: Sequence[tuple[int, int]]) -> Invoiced | None:
    """The first revision that was computed with this batch; what was issued before does not know it."""
    for revision, position in revisions:
        if position >= batch:
            return Invoiced(period, revision, position, revisions[-1][0])
    return None
