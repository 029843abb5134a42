"""What `opentab receipt` shows."""

from __future__ import annotations

from opentab.core.money import format_micros
from opentab.core.periods import Period
from opentab.dedupe.lookup import KeyLookup
from opentab.ledger.invoices import Invoices
from opentab.ledger.journal import Journal
from opentab.ledger.receipt import Receipt, Trails
from opentab.ledger.reread import Reread
from opentab.runtime.config import Home


def find_receipt(home: Home, journal: Journal | None, id_: str, source: str | None) -> Receipt | None:
    """What became of an event, as the ledger knows it now; None if it is not known."""
    if journal is None:
        return None
    invoices = Invoices.open(home.ledger)

    def revisions(period: Period, customer: str) -> list[tuple[int, int]]:
        return invoices.revisions(period, customer) if invoices else []

    remembered, reread = KeyLookup(journal.root), Reread(home)
    try:
        trail = Trails(journal, remembered).of(id_, source, upto=journal.last())
        return trail.receipt(reread, revisions, home.calendar)
    finally:
        remembered.close()
        reread.close()


def receipt_rows(receipt: Receipt, currency: str) -> list[tuple[str, object]]:
    """A receipt for people, a fact a row."""
    rows: list[tuple[str, object]] = [("state", receipt.state + (", then reversed" if receipt.reversed else ""))]
    rows += [("batch", receipt.batch), ("place", receipt.place), ("customer", receipt.customer)]
    if receipt.counted:
        amount = receipt.amount_micros
        rows += [
            ("day", receipt.day),
            ("type", receipt.type),
            ("amount", None if amount is None else f"{format_micros(amount)} {currency}"),
            ("billed in", receipt.period),
            ("invoice", _invoice(receipt)),
        ]
    for one in receipt.rejections:
        rows.append(("rejected", f"batch {one.batch}, {one.place}, {one.reason}: {one.detail or '-'}"))
    return rows


def _invoice(receipt: Receipt) -> str:
    invoice = receipt.invoice
    if invoice is None:
        return "not issued yet" if receipt.period else "-"
    latest = f", the latest is {invoice.latest_revision}" if invoice.latest_revision > invoice.revision else ""
    return f"{invoice.period} revision {invoice.revision}{latest}"
