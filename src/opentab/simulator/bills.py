"""What was counted, as bills that can stand beside the expected ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from decimal import Decimal

from opentab.core.periods import Period
from opentab.ledger.invoice_json import Statement
from opentab.ledger.totals import Total


def bills_by_own_month(totals: Iterable[Total]) -> dict[tuple[Period, str], int]:
    """Micros by period and customer, every adjustment in the month that it belongs to.

    The simulator knows what was used in a month, not how late it came.
    """
    bills: Counter[tuple[Period, str]] = Counter()
    for total in totals:
        if total.types:
            bills[total.period, total.customer] += sum(total.types.values())
        for adjustment in total.adjustments:
            bills[adjustment.period, total.customer] += adjustment.amount_micros
    return dict(bills)


def invoiced_by_own_month(statements: Iterable[Statement]) -> dict[tuple[Period, str], int]:
    """The same from the latest invoices: their usage, and every adjustment that names the month."""
    latest = {(statement.period, statement.customer): statement for statement in statements}
    bills: Counter[tuple[Period, str]] = Counter()
    for (period, customer), statement in latest.items():
        for line in statement.lines:
            bills[line.period or period, customer] += int(Decimal(line.amount).scaleb(6))
    return dict(bills)
