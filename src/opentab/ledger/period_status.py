"""Where each period stands: open, closed or final, what it comes to, and what is missing for the next step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from opentab.core.money import format_micros, format_minor
from opentab.core.periods import Calendar, Period, format_us
from opentab.core.records import BatchRecord
from opentab.ledger.billed_in import register, status_of
from opentab.ledger.engine import LocalEngine, connect
from opentab.ledger.invoices import Invoices
from opentab.ledger.journal import Journal

Minor = Decimal | int


@dataclass(frozen=True, slots=True)
class Holder:
    """A partition of the log that holds a period back, and the event that would let it go."""

    partition: str
    latest_us: int
    needed_us: int  # an event of this time or later


@dataclass(frozen=True, slots=True)
class Missing:
    """What a period waits for."""

    step: str  # close or final
    watermark_needed_us: int
    holders: tuple[Holder, ...]

    def as_json(self) -> dict[str, object]:
        return {
            "for": self.step,
            "watermark": format_us(self.watermark_needed_us),
            "partitions": [
                {"partition": h.partition, "latest": format_us(h.latest_us), "needed": format_us(h.needed_us)}
                for h in self.holders
            ],
        }

    def as_text(self) -> str:
        """For people: which partition must bring an event of which time."""
        step = "closes" if self.step == "close" else "is final"
        if not self.holders:
            return f"{step} when the watermark reaches {_short(self.watermark_needed_us)}"
        needs = ", ".join(f"{h.partition} is at {_short(h.latest_us)}" for h in self.holders)
        return f"{step} with an event of {_short(self.holders[0].needed_us)} or later: {needs}"


@dataclass(frozen=True, slots=True)
class Standing:
    """One period: what it comes to, what was invoiced, when, and what is missing."""

    period: Period
    status: str
    start_us: int
    end_us: int
    amount_micros: int
    customers: int
    events: int
    invoices: int  # customers that have one
    revisions: int  # issued beyond the first of each customer
    invoiced_minor: int  # the latest of each
    closed_at_us: int | None
    closed_position: int | None
    revised_at_us: int | None  # the last revision, if any
    missing: Missing | None

    def as_json(self, currency: str) -> dict[str, object]:
        return {
            "period": self.period,
            "status": self.status,
            "start": format_us(self.start_us),
            "end": format_us(self.end_us),
            "total": format_micros(self.amount_micros),
            "customers": self.customers,
            "events": self.events,
            "invoices": self.invoices,
            "revisions": self.revisions,
            "invoiced": format_minor(self.invoiced_minor, currency),
            "closed_at": format_us(self.closed_at_us),
            "closed_position": self.closed_position,
            "revised_at": format_us(self.revised_at_us),
            "missing": self.missing.as_json() if self.missing else None,
        }


def standings(journal: Journal | None, invoices: Invoices | None, calendar: Calendar) -> list[Standing]:
    """All periods that anything is billed in, in order."""
    last = journal.last() if journal else None
    if journal is None or last is None:
        return []
    with LocalEngine() as engine:
        register(engine, journal, calendar, after=0, upto=journal.position)
        billed = engine.rows(
            "select period, sum(amount_micros::decimal(38, 0)), count(distinct customer), sum(event_count)::bigint"
            " from billed group by period order by period"
        )
    issued = _issued(invoices)
    nothing = (0, 0, 0, None, None, None)
    result = []
    for period, micros, customers, events in billed:
        end_us = calendar.end_us(period)
        status = status_of(period, last, calendar)
        count, revisions, minor, closed_us, closed_position, revised_us = issued.get(period, nothing)
        result.append(
            Standing(
                period=period,
                status=status,
                start_us=calendar.start_us(period),
                end_us=end_us,
                amount_micros=int(micros),
                customers=customers,
                events=events,
                invoices=count,
                revisions=revisions,
                invoiced_minor=int(minor),
                closed_at_us=closed_us,
                closed_position=closed_position,
                revised_at_us=revised_us,
                missing=missing(status, end_us, last),
            )
        )
    return result


def missing(status: str, end_us: int, last: BatchRecord) -> Missing | None:
    """What a period that ends then waits for; None if it is final."""
    if status == "final":
        return None
    if status == "open":
        return Missing("close", end_us, held_back(last, end_us))
    needed_us = end_us + last.rules.allowed_lateness_us
    return Missing("final", needed_us, held_back(last, needed_us))


def held_back(last: BatchRecord, watermark_us: int) -> tuple[Holder, ...]:
    """The partitions that keep the watermark from reaching an instant."""
    needed_us = watermark_us + last.rules.out_of_orderness_us
    return tuple(
        Holder(name, state.latest_us, needed_us)
        for name, state in sorted(last.partitions.items())
        if state.latest_us is not None and not state.idle and state.latest_us < needed_us
    )


def partitions_json(last: BatchRecord, end_us: int) -> list[dict[str, object]]:
    """How far each partition of the log is, and whether it is complete for a period that ends then."""
    found: list[dict[str, object]] = []
    for name, state in sorted(last.partitions.items()):
        upto_us = None if state.latest_us is None else state.latest_us - last.rules.out_of_orderness_us
        found.append(
            {
                "partition": name,
                "latest": format_us(state.latest_us),
                "complete_upto": format_us(upto_us),
                # A silent one, or one that never had an event, holds nothing back.
                "complete": upto_us is None or state.idle or upto_us >= end_us,
                "idle": state.idle,
                "arrived": format_us(state.arrived_us),
            }
        )
    return found


def _issued(
    invoices: Invoices | None,
) -> Mapping[str, tuple[int, int, Minor, int | None, int | None, int | None]]:
    """By period: customers, further revisions, the sum of the latest totals, and when."""
    if invoices is None:
        return {}
    with connect() as connection:
        connection.register("invoices", invoices.rows())
        rows = connection.execute(
            """
            select period, count(*) filter (newest), count(*) filter (revision > 1),
                coalesce(sum(total_minor) filter (newest), 0),
                epoch_us(min(issued_at)), min(position), epoch_us(max(issued_at) filter (revision > 1))
            from (
                select *, revision = max(revision) over (partition by period, customer) as newest
                from (
                    select period, customer, revision, any_value(total_minor) as total_minor,
                        any_value(issued_at) as issued_at, any_value(position) as position
                    from invoices group by period, customer, revision
                )
            ) group by period
            """
        ).fetchall()
    return {row[0]: tuple(row[1:]) for row in rows}


def _short(us: int) -> str:
    text = (format_us(us) or "").replace("T", " ")
    return f"{text[:16]}Z" if text[17:23] == "00.000" else f"{text[:19]}Z"
