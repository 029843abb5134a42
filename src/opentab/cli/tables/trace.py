"""What `opentab trace` found: batches, or single events, that a customer's cents of a period came from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from opentab.core.money import format_micros, format_minor
from opentab.core.periods import format_us
from opentab.runtime import terminal

if TYPE_CHECKING:
    from opentab.audit.trace import Trace, TracedInvoice

Taken = dict[int, dict[str, tuple[int, int]]]  # by batch and partition, the first and the last segment

EVENTS = ("batch", "place", "time", "type", "kind", "period", "amount", "reverses", "reason", "actor")
LINES = ("batch", "segments", "type", "kind", "period", "amount", "events", "first", "last")
NUMBERS = ("batch", "amount", "events")


def print_trace(
    found: Trace,
    taken: Taken,
    invoice: TracedInvoice | None,
    *,
    currency: str,
    adds_up: bool,
    events: bool,
    format_: str,
) -> None:
    """All of it; as a table with the invoice above it, and what it comes to below."""
    columns = EVENTS if events else LINES
    rows = _events(found) if events else _lines(found, taken)
    if format_ == "json":
        terminal.print_json(dict(zip(columns, row, strict=True)) for row in rows)
        return
    if format_ == "csv":
        terminal.print_csv(columns, rows)
        return
    whose = f"{found.period} for {terminal.printable(found.customer)}"
    total = f"{terminal.plural(found.event_count, 'event')}, {format_micros(found.amount_micros)} {currency} in {whose}"
    if invoice is not None:
        head = f"invoice of {whose}, revision {invoice.revision}: {format_minor(invoice.total_minor, currency)}"
        issued = f"position {invoice.position}, issued at {format_us(invoice.issued_us)}"
        terminal.write(f"{head} {currency}, {issued}")
        rounded = format_minor(found.total_minor(currency), currency)
        total += f"; rounded {rounded}, {'as the invoice says' if adds_up else 'NOT what the invoice says'}"
    terminal.print_table(columns, rows, right=[name for name in NUMBERS if name in columns])
    terminal.write(terminal.paint(total, terminal.DIM))


def _events(found: Trace) -> Iterator[list[Any]]:
    for one in found.events():
        amount, kind = format_micros(one.amount_micros), _kind(one.adjustment)
        what = [one.batch, one.place, format_us(one.at_us), one.type, kind, one.own_period, amount]
        yield [*what, one.reverses, one.reason, one.actor]


def _lines(found: Trace, taken: Taken) -> Iterator[list[Any]]:
    for one in found.lines:
        what = [one.batch, _segments(taken[one.batch]), one.type, _kind(one.adjustment), one.own_period]
        yield [
            *what, format_micros(one.amount_micros), one.event_count, format_us(one.first_us), format_us(one.last_us)
        ]  # fmt: skip


def _kind(adjustment: bool) -> str:
    return "adjustment" if adjustment else "usage"


def _segments(taken: dict[str, tuple[int, int]]) -> str:
    """The segments of a batch: default/3-7."""
    return " ".join(f"{name}/{first}" + (f"-{last}" if last > first else "") for name, (first, last) in taken.items())
