"""What was issued since the last look, told in a line each."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from opentab.ledger.engine import connect
from opentab.ledger.invoice_json import Statement, read_statement, statement_texts
from opentab.ledger.invoices import Invoices
from opentab.runtime.config import Home
from opentab.runtime.terminal import plural
from opentab.sinks.files import FileSet, file_sets


class News:
    """Follows the invoices of a home."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._seen: set[tuple[str, int]] = set()

    def look(self) -> list[str]:
        """One line for each period that was closed or revised since, if there is anything to pay."""
        invoices = Invoices.open(self._home.ledger)
        if invoices is None:
            return []
        new = [files for files in file_sets(invoices) if (files.period, files.position) not in self._seen]
        new.sort(key=lambda files: files.position)
        self._seen |= {(files.period, files.position) for files in new}
        found = [(files, statements_of(self._home, invoices, files)) for files in new]
        return [
            self._line(files, statements) for files, statements in found if any(Decimal(s.total) for s in statements)
        ]

    def _line(self, files: FileSet, statements: list[Statement]) -> str:
        currency = self._home["billing.currency"]
        where = f"at batch {files.position}"
        if files.position == self._first(files):
            total = sum(Decimal(s.total) for s in statements)
            return f"{files.period} closed {where}: {plural(len(statements), 'invoice')}, {total} {currency}"
        delta = sum(Decimal(s.delta) for s in statements)
        sample = max(statements, key=lambda s: abs(Decimal(s.delta)))
        was = sample.previous_total or "nothing"
        return (
            f"{files.period} revised {where}: {plural(len(statements), 'invoice')}, {delta:+} {currency}, "
            f"{sample.customer} {was} → {sample.total}"
        )

    def _first(self, files: FileSet) -> int:
        return min(position for period, position in self._seen if period == files.period)


def statements_of(home: Home, invoices: Invoices, files: FileSet) -> list[Statement]:
    """The invoices that were issued for one period at one position."""
    with connect() as connection:
        rows = invoices.rows_of(files.sources)
        texts = statement_texts(connection, rows, currency=home["billing.currency"], all_revisions=True)
        return [read_statement(text) for text in texts]


def all_statements(home: Home) -> Iterator[Statement]:
    """Every revision that was issued, in the order of period, customer and revision."""
    invoices = Invoices.open(home.ledger)
    if invoices is None:
        return
    with connect() as connection:
        texts = statement_texts(connection, invoices.rows(), currency=home["billing.currency"], all_revisions=True)
        for text in texts:
            yield read_statement(text)
