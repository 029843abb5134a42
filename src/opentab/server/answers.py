"""What a replica answers, as structs of the API: one function a question. No framework, no clock, no network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from heapq import nsmallest
from itertools import islice
from typing import Any, TypeVar

import msgspec
from msgspec import structs
from msgspec.structs import asdict

from opentab.api.answers import (
    Adjustment,
    Batch,
    Current,
    CustomerTotal,
    Fresh,
    Invoice,
    Missing,
    Partition,
    PeriodStatus,
    PeriodTotal,
    Rejection,
    Source,
    TypeTotal,
)
from opentab.core.money import format_micros, format_minor
from opentab.core.periods import Period, format_us
from opentab.ledger import totals
from opentab.ledger.period_status import missing, partitions_json
from opentab.ledger.totals import Total
from opentab.replica import blocks
from opentab.replica.batches import BatchSummary, last_batches
from opentab.replica.checksum import damaged
from opentab.replica.period_statistics import facts_of
from opentab.replica.store import PERIOD_BYTES, SEPARATOR, Snapshot
from opentab.replica.top_customers import TOP, Tops
from opentab.replica.wide import read_cell
from opentab.server.archive import Archive
from opentab.server.name_search import spellings
from opentab.server.position_view import Moment

LIST_MAX = 1_000
LAST_CLOSED = 3
OVERVIEW_PERIODS = 12
OVERVIEW_TOPS = 10
DAY_BYTES = 10
REPLICA: Source = "replica"
LEDGER: Source = "ledger"

Answer = TypeVar("Answer")


class Answers:
    """Answers from one snapshot: several of them agree with each other."""

    def __init__(
        self,
        snapshot: Snapshot,
        moment: Moment,
        archive: Archive,
        fresh: Fresh,
        take_turn: Callable[[], object] = lambda: None,
    ) -> None:
        self._snapshot = snapshot
        self._archive = archive
        self._take_turn = take_turn
        self._has_turn = False
        self.moment = moment
        self.fresh = fresh
        self.source = REPLICA  # where the answer came from

    def take_turn(self) -> None:
        """Wait for our turn at the ledger; it lasts until the answer is there."""
        if not self._has_turn:
            self._has_turn = True
            self._take_turn()

    def ask_ledger(self) -> None:
        """Take our turn, and say that the answer comes from there."""
        self.take_turn()
        self.source = LEDGER

    def whole(self, kind: type[Answer], **fields: Any) -> Answer:
        """An answer of these fields, with where it came from and how fresh it is where they do not say it."""
        return kind(**{**asdict(self.fresh), "source": self.source, **fields})

    def at_a_glance(self, customer: str, *, hot_only: bool = False) -> Current | None:
        """The current period's running total, the other open periods, and the last closed ones that are hot.

        Whoever has none of these is looked up in the ledger, unless only what is hot is asked for.
        """
        current: PeriodTotal | None = None
        opened: list[PeriodTotal] = []
        closed: list[PeriodTotal] = []
        for period in reversed(self.moment.periods):
            if period <= self.moment.cold_upto or len(closed) == LAST_CLOSED:
                break
            total = self.total(period, customer)
            if total is None:
                continue
            if period == self.moment.current_period:
                current = total
            elif total.status == "open":
                opened.append(total)
            else:
                closed.append(total)
        if current is None and not opened and not closed:
            if hot_only:
                return None
            closed = self._old_totals(customer)[: -LAST_CLOSED - 1 : -1]
            if not closed:
                return None
        return Current(
            customer=customer,
            current_period=self.moment.current_period,
            current=current,
            open=opened[::-1],
            closed=closed[::-1],
            source=self.source,
            position=self.fresh.position,
            invoices_position=self.fresh.invoices_position,
            watermark=self.fresh.watermark,
            as_of=self.fresh.as_of,
            staleness_ms=self.fresh.staleness_ms,
        )

    def total(self, period: Period, customer: str) -> PeriodTotal | None:
        """What a customer owes for a period; None if nothing was billed."""
        if period <= self.moment.cold_upto:
            return next(iter(self._old_totals(customer, period)), None)
        row = blocks.find(self._snapshot, period.encode(), customer.encode())
        if row is None:
            return None
        cells, last_us = row
        moment, width = self.moment, len(cells)
        used: dict[str, int] = {}
        count = 0
        for type_, column in moment.columns:
            if column < width:
                micros, events = cells[column]
                if events:
                    used[type_] = micros
                    count += events
        total = Total(period, customer, moment.status(period), used, [], count)
        if cells[0][1]:
            self._add_adjustments(total, cells[0])
        return self._shown(total, last_us)

    def _add_adjustments(self, total: Total, wanted: tuple[int, int]) -> None:
        """Add the adjustments of a total, which come to the micros and events that its row says."""
        prefix = f"{total.period}{total.customer}{SEPARATOR}".encode()
        for key, value in self._snapshot.scan("adjustments", prefix):
            micros, events, _ = read_cell(value)
            line = key[len(prefix) :].decode()
            total.adjustments.append(totals.Adjustment(line[:PERIOD_BYTES], line[PERIOD_BYTES:], micros, events))
        found = total.adjustments
        if (sum(one.amount_micros for one in found), sum(one.event_count for one in found)) != wanted:
            raise damaged(f"adjustments of {prefix!r} are not found")
        total.event_count += wanted[1]

    def _shown(self, total: Total, last_us: int | None) -> PeriodTotal:
        return PeriodTotal(
            period=total.period,
            customer=total.customer,
            status=total.status,
            total=format_micros(total.amount_micros),
            types={type_: format_micros(micros) for type_, micros in total.types.items()},
            adjustments=[
                Adjustment(one.period, one.type, format_micros(one.amount_micros), one.event_count)
                for one in total.adjustments
            ],
            events=total.event_count,
            position=self.moment.place.position,
            watermark=self.moment.place.watermark,
            last_event=format_us(last_us),
        )

    def _old_totals(self, customer: str, period: Period | None = None) -> list[PeriodTotal]:
        """The same from the ledger, of periods that are no longer hot."""
        if not self.moment.cold_upto:
            return []
        self.ask_ledger()
        found = self._archive.totals(period=period, customer=customer)
        return [self._shown(total, total.last_us) for total in found if total.period <= self.moment.cold_upto]

    def types(self, period: Period | None = None, *, type_: str | None = None) -> Iterator[TypeTotal]:
        """Totals by type, by the events' own days."""
        for key, value in self._snapshot.scan("types", (period or "").encode()):
            text = key.decode()
            if type_ is None or text[PERIOD_BYTES:] == type_:
                micros, events, _ = read_cell(value)
                yield TypeTotal(
                    period=text[:PERIOD_BYTES], type=text[PERIOD_BYTES:], total=format_micros(micros), events=events
                )

    def types_of_days(self, first: date, last: date, *, by_day: bool, type_: str | None = None) -> list[TypeTotal]:
        """Totals by type over a range of days, both included; one for each day if asked to."""
        sums: dict[tuple[str, str], tuple[int, int]] = {}
        for key, value in self._snapshot.scan("days", b"", after=str(first).encode()):
            text = key.decode()
            day, name = text[:DAY_BYTES], text[DAY_BYTES:]
            if day > str(last):
                break
            if type_ is not None and name != type_:
                continue
            micros, events, _ = read_cell(value)
            at = (day if by_day else "", name)
            known = sums.get(at, (0, 0))
            sums[at] = (known[0] + micros, known[1] + events)
        return [
            TypeTotal(day=day or None, type=name, total=format_micros(micros), events=events)
            for (day, name), (micros, events) in sorted(sums.items())
        ]

    def period(self, period: Period, currency: str) -> PeriodStatus | None:
        """Where a period stands, in the shape that `opentab periods` prints, and how complete each partition is."""
        value = self._snapshot.get("periods", period.encode())
        record = self.moment.record
        if value is None or record is None:
            return None
        calendar, status = self.moment.calendar, self.moment.status(period)
        end_us = calendar.end_us(period)
        waits = missing(status, end_us, record)
        facts = facts_of(self._snapshot, period)
        if not facts.customers:
            raise damaged(f"the facts of {period} are not found")
        micros, events, last_us = read_cell(value)
        return PeriodStatus(
            period=period,
            status=status,
            start=format_us(calendar.start_us(period)),
            end=format_us(end_us),
            total=format_micros(micros),
            customers=facts.customers,
            events=events,
            last_event=format_us(last_us),
            invoices=facts.invoices,
            revisions=facts.revisions,
            invoiced=format_minor(int(facts.invoiced_minor), currency),
            closed_at=format_us(facts.closed_us),
            closed_position=facts.closed_position,
            revised_at=format_us(facts.revised_us),
            adjusted=format_micros(int(facts.adjusted_micros)),
            adjusted_events=facts.adjusted_events,
            missing=msgspec.convert(waits.as_json(), type=Missing) if waits else None,
            partitions=msgspec.convert(partitions_json(record, end_us), type=list[Partition]),
        )

    def batches(self, limit: int) -> list[Batch]:
        """The last batches, in order."""
        return [_batch(one) for one in last_batches(self._snapshot, self.moment.place.position, limit)]

    def rejections(self, reason: str | None, limit: int) -> tuple[dict[str, int], list[Rejection]]:
        """How many inputs could not be billed, by reason, and the newest of them."""
        self.ask_ledger()
        counts = self.moment.meta.rejections if self.moment.meta else {}
        items = self._archive.rejections(upto=self.moment.place.position, reason=reason, limit=limit)
        return dict(sorted(counts.items())), [Rejection(**one) for one in items]

    def overview(self, currency: str) -> dict[str, Any]:
        """What managers and operators watch: the last periods, what is billed in them by type, and the last batch;
        all of an Overview but what the pipeline says."""
        meta, current = self.moment.meta, self.moment.current_period
        shown = self.moment.periods[-OVERVIEW_PERIODS:]
        last = self.batches(1)
        return {
            "current_period": current,
            "periods": [self.period(period, currency) for period in shown],
            "types": [total for period in shown for total in self.types(period)],
            "top": self.top_customers(current, limit=OVERVIEW_TOPS) if current else [],
            "batch": last[0] if last else None,
            "events": meta.events if meta else 0,
            "late_events": meta.late_events if meta else 0,
            "duplicates": meta.duplicates if meta else 0,
            "without_id": meta.without_id if meta else 0,
            "rejections": dict(sorted(meta.rejections.items())) if meta else {},
            "input_bytes": meta.input_bytes if meta else 0,
            "fold_ms": round(meta.fold_seconds * 1000, 1) if meta else None,
        }

    def customers(
        self, period: Period, *, prefix: str = "", after: str | None = None, limit: int = 100
    ) -> list[CustomerTotal]:
        """The customers of a period whose names begin with a prefix, in order, a page at a time."""
        if period <= self.moment.cold_upto:
            names = (t for t in self._old_customers(period) if t.customer.startswith(prefix))
            return list(islice((t for t in names if after is None or _key(t) > after.encode()), limit))
        behind = None if after is None else after.encode()
        scanned = blocks.scan(self._snapshot, period.encode(), prefix.encode(), after=behind)
        return [_customer(name.decode(), row) for name, row in islice(scanned, min(limit, LIST_MAX))]

    def customers_of_any_month(self, prefix: str, *, limit: int) -> list[CustomerTotal]:
        """The customers of the replica's months whose names begin like this, in capitals or not, newest month first."""
        found: dict[str, CustomerTotal] = {}
        for period in reversed(self.moment.periods):
            if period <= self.moment.cold_upto or len(found) >= limit:
                break
            for begin in spellings(prefix, is_begun=partial(self._is_begun, period)):
                for one in self.customers(period, prefix=begin, limit=limit):
                    found.setdefault(one.customer, structs.replace(one, period=period))
        return list(islice(found.values(), limit))

    def _is_begun(self, period: Period, text: str) -> bool:
        return bool(self.customers(period, prefix=text, limit=1))

    def top_customers(
        self, period: Period, *, prefix: str = "", after: str | None = None, limit: int = 100
    ) -> list[CustomerTotal]:
        """Of the thousand customers of a period with the largest totals, the largest first, a page at a time."""
        ranked = [name for name in self._top_names(period) if name.startswith(prefix)]
        if after is not None:
            ranked = ranked[ranked.index(after) + 1 :] if after in ranked else []
        if period <= self.moment.cold_upto:
            wanted = ranked[:limit]
            found = {total.customer: total for total in self._old_customers(period) if total.customer in wanted}
            return [found[name] for name in wanted]
        rows = ((name, blocks.find(self._snapshot, period.encode(), name.encode())) for name in ranked[:limit])
        return [_customer(name, row) for name, row in rows if row is not None]

    def _top_names(self, period: Period) -> list[str]:
        if period <= self.moment.cold_upto:
            largest = nsmallest(TOP, self._old_customers(period), key=lambda t: (-_micros(t.total), _key(t)))
            return [total.customer for total in largest]
        known = self._snapshot.get("tops", period.encode())
        if known is None and period in self.moment.periods:
            raise damaged(f"the top customers of {period} are not found")
        return [name for name, _ in msgspec.json.decode(known, type=Tops).ordered()] if known else []

    def _old_customers(self, period: Period) -> Iterator[CustomerTotal]:
        self.ask_ledger()
        for one in self._archive.totals(period=period):
            yield CustomerTotal(one.customer, format_micros(one.amount_micros), one.event_count, format_us(one.last_us))

    def invoices(self, customer: str, period: Period | None = None) -> list[Invoice]:
        """All revisions of a customer's invoices, of all periods or of one."""
        cold, found = self.moment.cold_upto, list[Invoice]()
        if cold and (period is None or period <= cold):
            self.ask_ledger()
            issued = self.moment.meta.invoices_position if self.moment.meta else 0
            archived = (_invoice(text) for text in self._archive.invoices(customer, period=period))
            found += [one for one in archived if one.period <= cold and one.position <= issued]
        for hot in self.moment.periods if period is None else [period]:
            if hot > cold:
                prefix = f"{hot}{customer}{SEPARATOR}".encode()
                found += [_invoice(value) for _, value in self._snapshot.scan("invoices", prefix)]
        return found


def _invoice(text: str | bytes | memoryview) -> Invoice:
    return msgspec.json.decode(text, type=Invoice)


def _customer(customer: str, row: blocks.Row) -> CustomerTotal:
    cells, last_us = row
    micros, events = sum(micros for micros, _ in cells), sum(events for _, events in cells)
    return CustomerTotal(customer, format_micros(micros), events, format_us(last_us))


def _batch(one: BatchSummary) -> Batch:
    return Batch(
        batch=one.batch,
        started_at=format_us(one.started_us),
        committed_at=format_us(one.committed_us),
        events=one.events,
        late_events=one.late_events,
        duplicates=one.duplicates,
        rejections=one.rejections,
        input_bytes=one.input_bytes,
        files=one.files,
        steps_ms=one.steps_ms,
        watermark=format_us(one.watermark_us),
    )


def _key(total: CustomerTotal) -> bytes:
    return total.customer.encode()


def _micros(text: str) -> int:
    return int(text.replace(".", ""))
