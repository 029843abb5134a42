"""What a replica has left to the ledger: periods that are final and no longer kept hot, and what was rejected.

None of it ever changes again, so it does not matter that the ledger is further than the replica.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from opentab.core.periods import Period
from opentab.ledger.engine import connect
from opentab.ledger.invoice_json import statement_texts
from opentab.ledger.invoices import Invoices
from opentab.ledger.journal import Journal
from opentab.ledger.rejections import newest_rejections, rejection_as_json
from opentab.ledger.totals import Total, customer_totals
from opentab.runtime.config import Home

RAW_BYTES_MAX = 2_000


class Archive:
    """The totals and invoices of a home's old periods."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def totals(self, *, period: Period | None = None, customer: str | None = None) -> Iterator[Total]:
        """By period and customer, in that order."""
        journal = Journal.open(self._home.ledger, self._home.identity)
        return customer_totals(journal, self._home.calendar, period=period, customer=customer)

    def invoices(self, customer: str, *, period: Period | None = None) -> list[str]:
        """All revisions of a customer's invoices, as JSON."""
        invoices = Invoices.open(self._home.ledger)
        if invoices is None:
            return []
        with connect(threads=1) as connection:
            currency = self._home["billing.currency"]
            rows = invoices.rows(period=period)
            return list(statement_texts(connection, rows, currency=currency, customer=customer, all_revisions=True))

    def rejections(self, *, upto: int, reason: str | None, limit: int) -> list[dict[str, Any]]:
        """The newest rejections up to a position; what is long is cut."""
        journal = Journal.open(self._home.ledger, self._home.identity)
        rows = newest_rejections(journal, upto=upto, reason=reason, limit=limit)
        return [
            {**rejection_as_json({**row, "raw": row["raw"][:RAW_BYTES_MAX]}), "bytes": len(row["raw"])} for row in rows
        ]
