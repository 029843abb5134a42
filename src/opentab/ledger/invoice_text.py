"""An invoice as a person would print it."""

from __future__ import annotations

from opentab.core.periods import Calendar, day_of_number, first_day, last_day
from opentab.ledger.invoice_json import Statement
from opentab.runtime.terminal import plural

WIDTH = 64


def on_paper(statement: Statement, calendar: Calendar) -> str:
    """The text of one invoice, without trailing newline."""
    first = day_of_number(first_day(statement.period))
    last = day_of_number(last_day(statement.period))
    title = "PREVIEW OF AN INVOICE" if statement.issued_at is None else "INVOICE"
    lines = [
        _ends(title, f"{statement.period}, revision {statement.revision}"),
        "=" * WIDTH,
        f"Customer   {statement.customer}",
        f"Period     {first} to {last}, {calendar.zone}",
        f"Issued     {statement.issued_at or 'not yet'}, position {statement.position}",
    ]
    for kind, title in (("usage", "Usage"), ("adjustment", "Adjustments, of earlier periods")):
        own = [line for line in statement.lines if line.kind == kind]
        if own:
            lines += ["", title]
        for line in own:
            name = line.type if line.period is None else f"{line.period}  {line.type}"
            lines.append(_ends(f"  {name:<24}{plural(line.events, 'event'):>18}", line.amount))
    lines += ["-" * WIDTH, _ends(f"Total {statement.currency}", statement.total)]
    if statement.previous_total is not None:
        lines.append(_ends(f"Revision {statement.revision - 1} was", statement.previous_total))
        lines.append(_ends("Difference", statement.delta))
    return "\n".join(lines)


def _ends(left: str, right: str) -> str:
    return f"{left}{right:>{max(WIDTH - len(left), len(right) + 1)}}"
