"""`opentab invoices` and `opentab periods` on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from opentab.closing.closing import preview
from opentab.core.errors import InputError
from opentab.core.money import format_micros, format_minor
from opentab.core.periods import format_us
from opentab.ledger import period_status
from opentab.ledger.billed_in import status_of
from opentab.ledger.engine import connect
from opentab.ledger.invoice_json import Statement, StatementLine, changes, read_statement, statement_texts
from opentab.ledger.invoice_lines import INVOICE_OF_PERIOD
from opentab.ledger.invoice_text import on_paper
from opentab.ledger.invoices import Invoices
from opentab.ledger.journal import Journal
from opentab.ledger.totals import place_of
from opentab.runtime import terminal
from opentab.runtime.config import Home
from opentab.sinks.files import export_missing, file_sets

COLUMNS = ["period", "customer", "revision", "total", "currency", "previous_total", "delta", "position", "issued_at"]
NUMBERS = ["revision", "total", "previous_total", "delta", "position"]
PERIOD_COLUMNS = ["period", "status", "total", "customers", "events", "invoices", "revisions", "invoiced", "closed_at",
                  "revised_at"]  # fmt: skip
WOULD = {"open": "would be issued", "closed": "would be revised", "final": "are still to come"}


def print_invoices(home: Home, period: str | None, customer: str | None, *, all_revisions: bool, format_: str) -> None:
    """The invoices that were issued."""
    issued = Invoices.open(home.ledger)
    rows = issued.rows(period=period) if issued else INVOICE_OF_PERIOD.empty_table()
    currency = home["billing.currency"]
    with connect() as connection:
        texts = statement_texts(connection, rows, currency=currency, customer=customer, all_revisions=all_revisions)
        if format_ == "json":
            for text in texts:
                sys.stdout.write(text + "\n")
            return
        statements = map(read_statement, texts)
        if format_ == "text":
            _print_paper(home, statements)
        elif format_ == "csv":
            terminal.print_csv(COLUMNS, map(_cells, statements))
        else:
            cells = list(map(_cells, statements))
            terminal.print_table(COLUMNS, cells, right=NUMBERS)
            position = issued.position if issued else 0
            _print_note(f"{currency}, {terminal.plural(len(cells), 'invoice')}, issued up to position {position}")


def print_preview(home: Home, journal: Journal, period: str, customer: str | None, format_: str) -> None:
    """What would be issued for a period right now, what changed since, and what is still open."""
    last = journal.last()
    if last is None:
        raise InputError("no batch was billed yet", hint="run opentab run --once first")
    currency = home["billing.currency"]
    issued = Invoices.open(home.ledger)
    rows = preview(journal, issued, home.calendar, period, currency=currency)
    with connect() as connection:
        texts = statement_texts(connection, rows, currency=currency, customer=customer)
        statements = list(map(read_statement, texts))
        before = {}
        if issued is not None and any(statement.revision > 1 for statement in statements):
            texts = statement_texts(connection, issued.rows(period=period), currency=currency, customer=customer)
            before = {statement.customer: statement for statement in map(read_statement, texts)}
    changed = [(statement, changes(statement, before.get(statement.customer))) for statement in statements]
    status = status_of(period, last, home.calendar)
    watermark = format_us(last.watermark_us)
    missing = period_status.missing(status, home.calendar.end_us(period), last)
    if format_ == "json":
        state = {"status": status, "watermark": watermark, "missing": missing.as_json() if missing else None}
        terminal.print_json(
            {**statement.as_json(), "changes": [line.as_json() for line in lines], **state}
            for statement, lines in changed
        )
        return
    if format_ == "text":
        _print_paper(home, statements)
    elif format_ == "csv":
        terminal.print_csv([*COLUMNS, "changes"], ([*_cells(s), _in_short(lines)] for s, lines in changed))
    else:
        columns = [*COLUMNS[:-1], "changes"]
        terminal.print_table(columns, [[*_cells(s)[:-1], _in_short(lines)] for s, lines in changed], right=NUMBERS)
    # What programs read stays clean.
    file = sys.stdout if format_ == "table" else sys.stderr
    count = terminal.plural(len(statements), "invoice")
    _print_note(f"{period} is {status}: {count} {WOULD[status]}; watermark {watermark or 'none'}", file)
    if missing is not None:
        _print_note(f"it {missing.as_text()}", file)


def print_periods(home: Home, journal: Journal | None, format_: str) -> None:
    """Where every period stands."""
    place = place_of(journal)
    currency = home["billing.currency"]
    found = period_status.standings(journal, Invoices.open(home.ledger), home.calendar)
    if format_ == "json":
        terminal.print_json({**period.as_json(currency), **place.as_json()} for period in found)
        return
    rows = [
        [
            *(s.period, s.status, format_micros(s.amount_micros), s.customers, s.events, s.invoices, s.revisions),
            *(format_minor(s.invoiced_minor, currency), format_us(s.closed_at_us), format_us(s.revised_at_us)),
        ]
        for s in found
    ]
    if format_ == "csv":
        terminal.print_csv(PERIOD_COLUMNS, rows)
        return
    terminal.print_table(PERIOD_COLUMNS, rows, right=PERIOD_COLUMNS[2:8])
    _print_note(f"{currency}, position {place.position}, watermark {place.watermark or 'none'}")
    for s in found:
        if s.missing is not None:
            _print_note(f"{s.period} {s.missing.as_text()}")


def export_files(home: Home) -> None:
    """Write the invoice files that are missing, and name them."""
    issued = Invoices.open(home.ledger)
    if issued is None:
        terminal.write("no invoices were issued yet", sys.stderr)
        return
    written = export_missing(home.invoices_path, issued, currency=home["billing.currency"])
    for files in written:
        for name in files.names:
            terminal.write(str(home.invoices_path / name))
    terminal.write(f"{len(written):,} of {len(file_sets(issued)):,} sets of files were missing", sys.stderr)


def _cells(s: Statement) -> list[Any]:
    return [s.period, s.customer, s.revision, s.total, s.currency, s.previous_total, s.delta, s.position, s.issued_at]


def _in_short(lines: Iterable[StatementLine]) -> str:
    """Changed lines in one cell: CALL +2.000000, 2025-11 DATA -0.500000."""
    names = ((f"{line.period} {line.type}" if line.period else line.type, line.amount) for line in lines)
    return ", ".join(f"{name} {'' if amount.startswith('-') else '+'}{amount}" for name, amount in names)


def _print_paper(home: Home, statements: Iterable[Statement] | Iterator[Statement]) -> None:
    for number, statement in enumerate(statements):
        terminal.write(("\n\n" if number else "") + terminal.printable_lines(on_paper(statement, home.calendar)))


def _print_note(text: str, file: TextIO | None = None) -> None:
    terminal.write(terminal.paint(text, terminal.DIM, file), file)
