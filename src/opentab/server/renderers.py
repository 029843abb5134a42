"""Invoices in the form that a caller wants: JSON, CSV, or a page to print."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from html import escape

import msgspec

from opentab.api.answers import Invoices, OneInvoice
from opentab.core.periods import Calendar, day_of_number, first_day, last_day
from opentab.ledger.invoice_json import Statement, StatementLine, changes
from opentab.runtime.csv_cells import guarded
from opentab.server.problem import Problem
from opentab.server.queries import AS_JSON, Form

CSV_COLUMNS = ["period", "customer", "revision", "currency", "total", "previous_total", "delta", "kind", "line_period",
               "type", "amount", "events", "position", "issued_at"]  # fmt: skip
FORMATS = {"json": "application/json", "csv": "text/csv; charset=utf-8", "html": "text/html; charset=utf-8"}

STYLE = """
:root { color-scheme: light; font: 16px/1.5 system-ui, sans-serif; color: #1b1f24; background: #fff; }
body { max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
article { break-after: page; margin-bottom: 4rem; }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: 1rem 0; }
dt { color: #57606a; } dd { margin: 0; overflow-wrap: anywhere; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: 1rem 0 .3rem; }
th { text-align: left; font-weight: 500; color: #57606a; }
th, td { padding: .3rem 0; border-bottom: 1px solid #d0d7de; }
.number { text-align: right; padding-left: 1rem; }
tfoot td, tfoot th { border-bottom: 0; font-weight: 700; color: inherit; font-size: 1.15rem; }
.note { color: #57606a; }
@media print { body { margin: 0; max-width: none; } }
"""
STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
PAGE_HEADERS = {
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{STYLE_HASH}'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "vary": "accept",
}


def form_wanted(format_: str | None, accept: str | None, calendar: Calendar) -> Form:
    """The form that a caller asks for by `?format=`, or else by its Accept header; JSON where it does not matter."""
    name = format_ or _accepted(accept or "*/*")
    if name == "csv":
        return Form(FORMATS[name], _as_csv, {"vary": "accept"})
    if name == "html":
        return Form(FORMATS[name], lambda answer: _as_page(_statements(answer), calendar).encode(), PAGE_HEADERS)
    return Form(AS_JSON.media, AS_JSON.write, {"vary": "accept"})


def _accepted(accept: str) -> str:
    """The first of our formats with the highest weight in an Accept header."""
    best, best_weight = None, 0.0
    for part in accept.lower().split(","):
        media, *parameters = (piece.strip() for piece in part.split(";"))
        weight = _weight(parameters)
        for name, full in FORMATS.items():
            ours = full.partition(";")[0]
            if media in (ours, f"{ours.partition('/')[0]}/*", "*/*") and weight > best_weight:
                best, best_weight = name, weight
    if best is None:
        raise Problem(406, "invoices come as application/json, text/csv or text/html")
    return best


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return float(parameter.removeprefix("q="))
            except ValueError:
                return 0.0
    return 1.0


def _statements(answer: Invoices | OneInvoice) -> list[Statement]:
    """The invoices of an answer: one, or a list of them."""
    found = answer.items if isinstance(answer, Invoices) else [answer]
    return msgspec.convert(found, type=list[Statement], from_attributes=True)


def _as_csv(answer: Invoices | OneInvoice) -> bytes:
    """One row a line; what belongs to the invoice as a whole stands on each of its lines."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(CSV_COLUMNS)
    for s in _statements(answer):
        for line in s.lines:
            facts = [s.period, s.customer, s.revision, s.currency, s.total, s.previous_total, s.delta]
            own = [line.kind, line.period or s.period, line.type, line.amount, line.events]
            writer.writerow(map(guarded, [*facts, *own, s.position, s.issued_at]))
    return out.getvalue().encode()


def _as_page(statements: list[Statement], calendar: Calendar) -> str:
    """A page without scripts; every revision is a sheet of its own."""
    before: dict[str, Statement] = {}
    articles = []
    for statement in statements:
        articles.append(_article(statement, before.get(statement.period), calendar))
        before[statement.period] = statement
    title = f"Invoice {statements[0].period} {statements[0].customer}" if len(statements) == 1 else "Invoices"
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width">\n<style>{STYLE}</style>\n</head>\n<body>\n'
        f"{''.join(articles)}</body>\n</html>\n"
    )


def _article(statement: Statement, before: Statement | None, calendar: Calendar) -> str:
    first, last = (day_of_number(find(statement.period)) for find in (first_day, last_day))
    facts = {
        "Customer": statement.customer,
        "Period": f"{first} to {last}, {calendar.zone}",
        "Revision": str(statement.revision),
        "Issued": f"{statement.issued_at}, position {statement.position}",
    }
    parts = [f"<article>\n<h1>Invoice {escape(statement.period)}</h1>\n<dl>"]
    parts += [f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items()]
    parts.append("</dl>\n")
    for kind, title in (("usage", "Usage"), ("adjustment", "Adjustments, of earlier periods")):
        lines = [line for line in statement.lines if line.kind == kind]
        if lines:
            parts.append(_table(title, lines, statement.currency))
    parts.append('<table><tfoot><tr><th scope="row">Total</th>')
    parts.append(
        f'<td class="number">{escape(statement.total)} {escape(statement.currency)}</td></tr></tfoot></table>\n'
    )
    if statement.previous_total is not None:
        parts.append(
            f'<p class="note">Revision {statement.revision - 1} was {escape(statement.previous_total)} '
            f"{escape(statement.currency)}; the difference is {escape(statement.delta)}.</p>\n"
        )
        if before is not None:
            parts.append(_table("What changed", changes(statement, before), statement.currency))
    parts.append("</article>\n")
    return "".join(parts)


def _table(title: str, lines: list[StatementLine], currency: str) -> str:
    rows = []
    for line in lines:
        name = line.type if line.period is None else f"{line.period} {line.type}"
        rows.append(
            f'<tr><td>{escape(name)}</td><td class="number">{line.events:,}</td>'
            f'<td class="number">{escape(line.amount)}</td></tr>'
        )
    names = (f'<th scope="col" class="number">{escape(name)}</th>' for name in ("Events", currency))
    head = f'<tr><th scope="col">Type</th>{"".join(names)}</tr>'
    return f"<table><caption>{escape(title)}</caption><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>\n"
