"""What a replica answers, as plain data: one function a question. No framework, no clock, no network."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from opentab.ledger.billed import status_of
from opentab.ledger.standing import missing
from opentab.ledger.totals import Adjustment, Place, Total, total_as_json
from opentab.money import format_micros
from opentab.periods import Calendar, Period, format_us
from opentab.records import BatchRecord
from opentab.replica.fold import SEPARATOR
from opentab.replica.store import PERIOD_BYTES, Meta, Snapshot
from opentab.replica.tops import Tops
from opentab.replica.wide import CELL, micros_of

LIST_MAX = 1_000


class Answers:
    """Answers from one snapshot: several of them agree with each other."""

    def __init__(self, snapshot: Snapshot, calendar: Calendar) -> None:
        self._snapshot = snapshot
        self._calendar = calendar
        self.meta: Meta | None = snapshot.meta()
        text = self.meta.record if self.meta else None
        self.record: BatchRecord | None = msgspec.json.decode(text, type=BatchRecord) if text else None

    @property
    def place(self) -> Place:
        return Place(self.record.batch, self.record.watermark_us) if self.record else Place(0, None)

    @property
    def current_period(self) -> Period | None:
        """The one that contains the newest event time that has counted."""
        if self.record is None or self.record.newest_us is None:
            return None
        return self._calendar.period_of(self.record.newest_us)

    def status(self, period: Period) -> str:
        return status_of(period, self.record, self._calendar)

    def periods(self) -> list[Period]:
        """All periods that anything is billed in."""
        return [key.decode() for key, _ in self._snapshot.scan("periods", b"")]

    def total(self, period: Period, customer: str) -> Total | None:
        """What a customer owes for a period; None if nothing was billed."""
        prefix = f"{period}{customer}{SEPARATOR}".encode()
        total = Total(period, customer, self.status(period))
        found = False
        for key, value in self._snapshot.scan("lines", prefix):
            found = True
            cell = np.frombuffer(value, CELL)[0]
            rest = key[len(prefix) :].decode()
            own, type_ = rest[:PERIOD_BYTES], rest[PERIOD_BYTES:]
            if own == period:
                total.types[type_] = micros_of(cell)
            else:
                total.adjustments.append(Adjustment(own, type_, micros_of(cell), int(cell["events"])))
            total.event_count += int(cell["events"])
        return total if found else None

    def total_json(self, period: Period, customer: str) -> dict[str, object] | None:
        total = self.total(period, customer)
        if total is None:
            return None
        cell = self._snapshot.cell("customers", f"{period}{customer}".encode())
        last_us = int(cell["last_us"]) if cell is not None else None
        return {**total_as_json(total, self.place), "last_event": format_us(last_us)}

    def types(self, period: Period | None = None) -> Iterator[dict[str, object]]:
        """Totals by type, by the events' own days."""
        for key, value in self._snapshot.scan("types", (period or "").encode()):
            text = key.decode()
            cell = np.frombuffer(value, CELL)[0]
            yield {
                "period": text[:PERIOD_BYTES],
                "type": text[PERIOD_BYTES:],
                "total": format_micros(micros_of(cell)),
                "events": int(cell["events"]),
            }

    def period_json(self, period: Period) -> dict[str, object] | None:
        """Where a period stands."""
        cell = self._snapshot.cell("periods", period.encode())
        if cell is None or self.record is None:
            return None
        status = self.status(period)
        end_us = self._calendar.end_us(period)
        waits = missing(status, end_us, self.record)
        return {
            "period": period,
            "status": status,
            "start": format_us(self._calendar.start_us(period)),
            "end": format_us(end_us),
            "total": format_micros(micros_of(cell)),
            "events": int(cell["events"]),
            "last_event": format_us(int(cell["last_us"])),
            "missing": waits.as_json() if waits else None,
        }

    def customers(
        self, period: Period, *, prefix: str = "", after: str | None = None, limit: int = 100
    ) -> Iterator[dict[str, object]]:
        """The customers of a period whose names begin with a prefix, in order, a page at a time."""
        begin = f"{period}{prefix}".encode()
        behind = None if after is None else f"{period}{after}".encode()
        for count, (key, value) in enumerate(self._snapshot.scan("customers", begin, after=behind)):
            if count == min(limit, LIST_MAX):
                return
            cell = np.frombuffer(value, CELL)[0]
            yield {
                "customer": key[PERIOD_BYTES:].decode(),
                "total": format_micros(micros_of(cell)),
                "events": int(cell["events"]),
                "last_event": format_us(int(cell["last_us"])),
            }

    def top_customers(self, period: Period, *, limit: int = 100) -> list[dict[str, object]]:
        """The customers of a period with the largest totals, the largest first."""
        known = self._snapshot.get("tops", period.encode())
        if known is None:
            return []
        found = []
        for customer, micros in msgspec.json.decode(known, type=Tops).ordered()[:limit]:
            cell = self._snapshot.cell("customers", f"{period}{customer}".encode())
            assert cell is not None
            found.append(
                {
                    "customer": customer,
                    "total": format_micros(micros),
                    "events": int(cell["events"]),
                    "last_event": format_us(int(cell["last_us"])),
                }
            )
        return found

    def invoices(self, period: Period, customer: str) -> list[dict[str, object]]:
        """All revisions of a customer's invoice for a period."""
        prefix = f"{period}{customer}{SEPARATOR}".encode()
        return [msgspec.json.decode(value) for _, value in self._snapshot.scan("invoices", prefix)]
