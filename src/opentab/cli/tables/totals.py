"""`opentab totals` on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date

from opentab.core.errors import InputError
from opentab.core.money import format_micros
from opentab.ledger.journal import Journal
from opentab.ledger.totals import RangeTotal, Total, customer_totals, place_of, range_totals, total_as_json, type_totals
from opentab.runtime import terminal
from opentab.runtime.config import Home


def print_by_customer(
    home: Home, journal: Journal | None, period: str | None, customer: str | None, format_: str
) -> None:
    """What each customer owes for each period."""
    place = place_of(journal)
    rows = customer_totals(journal, home.calendar, period=period, customer=customer)
    if customer is not None:
        rows = iter(list(rows) or _nothing_of(home, journal, customer))
    if format_ == "json":
        terminal.print_json(total_as_json(total, place) for total in rows)
        return
    kept = list(rows)
    types = _types(home, (total.types for total in kept))
    columns = ["period", "customer", "status", "total", *types, "adjustments", "events"]
    table = (
        [
            total.period,
            total.customer,
            total.status,
            format_micros(total.amount_micros),
            *(format_micros(total.types.get(type_, 0)) for type_ in types),
            format_micros(sum(a.amount_micros for a in total.adjustments)),
            total.event_count,
        ]
        for total in kept
    )
    if format_ == "csv":
        terminal.print_csv(columns, table)
        return
    terminal.print_table(columns, table, right=columns[3:])
    _print_place(home, journal)


def _nothing_of(home: Home, journal: Journal | None, customer: str) -> list[Total]:
    """Nothing to show of a customer; raises where nothing was ever billed to anyone of that name."""
    if not any(customer_totals(journal, home.calendar, customer=customer)):
        raise InputError(f"nothing was billed to a customer {customer!r}", hint="names are compared byte for byte")
    return []


def print_by_type(home: Home, journal: Journal | None, period: str | None, format_: str) -> None:
    """What each type comes to in each period, by the events' own days."""
    columns = ["period", "type", "total", "events"]
    rows = [
        (own, type_, format_micros(micros), events)
        for own, type_, micros, events in type_totals(journal, home.calendar, period=period)
    ]
    if format_ == "json":
        place = place_of(journal).as_json()
        terminal.print_json(dict(zip(columns, row, strict=True)) | place for row in rows)
    elif format_ == "csv":
        terminal.print_csv(columns, rows)
    else:
        terminal.print_table(columns, rows, right=["total", "events"])


def print_range(
    home: Home, journal: Journal | None, days: tuple[date, date], customer: str | None, *, by: str, format_: str
) -> None:
    """What was used in a range of days, by the events' own days."""
    found = range_totals(journal, *days, by=by, customer=customer)
    if format_ == "json":
        bounds = {"from": str(days[0]), "to": str(days[1])}
        place = place_of(journal).as_json()
        terminal.print_json({**bounds, **_range_as_json(total, by), **place} for total in found)
        return
    if customer is not None and not found:
        _nothing_of(home, journal, customer)
    types = _types(home, (total.types for total in found)) if by == "customer" else []
    columns = [by, "total", *types, "events"]
    rows = [
        [
            total.key,
            format_micros(total.amount_micros),
            *(format_micros(total.types.get(type_, 0)) for type_ in types),
            total.event_count,
        ]
        for total in found
    ]
    if format_ == "csv":
        terminal.print_csv(columns, rows)
        return
    terminal.print_table(columns, rows, right=columns[1:])
    _print_place(home, journal)


def _range_as_json(total: RangeTotal, by: str) -> dict[str, object]:
    amount = {by: total.key, "total": format_micros(total.amount_micros)}
    types = {type_: format_micros(micros) for type_, micros in total.types.items()}
    return {**amount, **({"types": types} if by == "customer" else {}), "events": total.event_count}


def _types(home: Home, found: Iterable[Mapping[str, int]]) -> list[str]:
    """The types that need a column; one that is no longer in the settings may have been billed all the same."""
    return list(dict.fromkeys([*home["billing.types"], *(type_ for types in found for type_ in types)]))


def _print_place(home: Home, journal: Journal | None) -> None:
    place = place_of(journal)
    watermark = place.watermark or "none"
    terminal.write(
        terminal.paint(f"{home['billing.currency']}, position {place.position}, watermark {watermark}", terminal.DIM)
    )
