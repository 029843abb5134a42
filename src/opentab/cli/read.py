"""Commands that read the ledger: totals, invoices, periods, rejections, receipts, raw events, SQL."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opentab.cli.base import DIFFERENT, FORMATS, OK, at_home, at_log, commands, open_journal, open_journal_now
from opentab.core.errors import InputError
from opentab.runtime import terminal
from opentab.runtime.config import Home

if TYPE_CHECKING:
    pass


@commands.command()
@click.option("--period", metavar="2026-01", help="this period only")
@click.option("--customer", metavar="NAME", help="this customer only")
@click.option("--from", "first_day", metavar="2026-01-10", help="by the events' own days, from this one on")
@click.option("--to", "last_day", metavar="2026-01-20", help="and up to this one, itself included")
@click.option("--by", type=click.Choice(["customer", "type"]), default="customer", show_default=True)
@click.option("--format", "format_", type=FORMATS, default="table", show_default=True)
@at_home
def totals(
    home: Home,
    period: str | None,
    customer: str | None,
    first_day: str | None,
    last_day: str | None,
    by: str,
    format_: str,
) -> None:
    """Running totals by customer or by type, of periods or of a range of days."""
    from opentab.cli.tables import totals as views
    from opentab.core.periods import parse_day, parse_period

    if by == "type" and customer is not None:
        raise InputError("--customer goes with totals by customer only", hint="leave out --by type")
    journal = open_journal(home)
    if first_day is not None or last_day is not None:
        if period is not None:
            raise InputError("--period and a range of days exclude each other", hint="leave one of them out")
        days = parse_day(first_day or "0001-01-01"), parse_day(last_day or "9999-12-31")
        if days[0] > days[1]:
            raise InputError(f"--from {first_day} is after --to {last_day}", hint="turn them round")
        views.print_range(home, journal, days, customer, by=by, format_=format_)
        return
    if period is not None:
        parse_period(period)
    if by == "type":
        views.print_by_type(home, journal, period, format_)
    else:
        views.print_by_customer(home, journal, period, customer, format_)


@commands.command()
@click.option("--period", metavar="2026-01", help="this period only")
@click.option("--customer", metavar="NAME", help="this customer only")
@click.option("--all-revisions", is_flag=True, help="every revision, not only the latest of each")
@click.option("--preview", is_flag=True, help="what would be issued for the period right now, and what is still open")
@click.option("--export", is_flag=True, help="write the invoice files that are missing, and print nothing else")
@click.option(
    "--format", "format_", type=click.Choice(["table", "csv", "json", "text"]), default="table", show_default=True
)
@at_home
def invoices(
    home: Home,
    period: str | None,
    customer: str | None,
    all_revisions: bool,
    preview: bool,
    export: bool,
    format_: str,
) -> None:
    """Invoices: the latest revision of each customer and period."""
    from opentab.cli.tables import invoices as views
    from opentab.core.periods import parse_period

    open_journal(home)

    if period is not None:
        parse_period(period)
    if export:
        if preview or period or customer or all_revisions or format_ != "table":
            raise InputError("--export goes alone: it writes all files that are missing")
        views.export_files(home)
    elif preview:
        if period is None or all_revisions:
            raise InputError("a preview is of one period", hint="opentab invoices --preview --period 2026-01")
        views.print_preview(home, open_journal_now(home), period, customer, format_)
    else:
        views.print_invoices(home, period, customer, all_revisions=all_revisions, format_=format_)


@commands.command()
@click.option("--format", "format_", type=FORMATS, default="table", show_default=True)
@at_home
def periods(home: Home, format_: str) -> None:
    """Every period: open, closed or final, what it comes to, and what is missing for the next step."""
    from opentab.cli.tables.invoices import print_periods

    print_periods(home, open_journal(home), format_)


@commands.command()
@click.option("--reason", metavar="R", help="this reason only")
@click.option("--format", "format_", type=FORMATS, default="table", show_default=True)
@click.option(
    "--export",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="write the raw lines, to mend and ingest again",
)
@at_home
def rejections(home: Home, reason: str | None, format_: str, export: Path | None) -> None:
    """Inputs that could not be billed, with the reason and their place in the log."""
    from opentab.ledger.rejections import reason_counts, rejection_as_json, rejection_rows
    from opentab.ledger.totals import place_of

    if reason is not None:
        from opentab.core.events import Reason

        if reason not in list(Reason):
            raise InputError(f"{reason!r} is no reason", hint=f"there are: {', '.join(Reason)}")
    journal = open_journal(home)
    rows = rejection_rows(journal, reason=reason)
    if export is not None:
        count = 0
        with export.open("wb") as file:
            for row in rows:
                file.write(row["raw"] + b"\n")
                count += 1
        sys.stderr.write(f"{terminal.plural(count, 'line')} written to {export}\n")
        return
    if format_ == "json":
        terminal.print_json(map(rejection_as_json, rows))
        return
    columns = ["batch", "reason", "place", "raw", "detail"]
    if format_ == "csv":
        shown = map(rejection_as_json, rows)
        terminal.print_csv(columns, ([_without_controls(row[c]) for c in columns] for row in shown))
        return
    terminal.print_table(columns, ([_shortened(row[c]) for c in columns] for row in rows), right=["batch"])
    counts = ", ".join(f"{name} {count:,}" for name, count in reason_counts(journal, reason=reason))
    terminal.write(terminal.paint(f"{counts or 'none'}; position {place_of(journal).position}", terminal.DIM))


def _without_controls(value: Any) -> Any:
    return terminal.without_controls(value) if isinstance(value, str) else value


def _shortened(value: Any) -> str:
    text = terminal.printable(value)
    return text if len(text) <= 60 else text[:59] + "…"


@commands.command()
@click.argument("event_id", metavar="ID")
@click.option("--source", metavar="S", help="of the CloudEvents envelope that it came in")
@click.option("--format", "format_", type=click.Choice(["table", "json"]), default="table", show_default=True)
@at_home
@at_log
def receipt(home: Home, event_id: str, source: str | None, format_: str) -> int:
    """What became of an event: counted, in which batch, period and invoice; or rejected, and why."""
    from opentab.cli.tables.receipt import find_receipt, receipt_rows

    journal = open_journal(home)
    found = find_receipt(home, journal, event_id, source)
    if found is None:
        terminal.complain(f"no event with the id {terminal.printable(event_id)!r} is known within the dedupe window")
        return DIFFERENT
    if format_ == "json":
        terminal.print_json([{**found.as_json(), "position": journal.position if journal else 0}])
        return OK
    terminal.print_table(["fact", "value"], receipt_rows(found, home["billing.currency"]))
    return OK


@commands.command()
@click.option("-n", "--lines", default=10, show_default=True, help="begin with so many earlier lines")
@click.option("--follow/--no-follow", default=True, show_default=True, help="go on as events arrive")
@click.option("--raw", is_flag=True, help="the bytes as they came")
@at_home
@at_log
def tail(home: Home, lines: int, follow: bool, raw: bool) -> None:
    """The events as readable lines, as they arrive."""
    from opentab.cli.tail import follow_log, readable

    for line in follow_log(home, lines=lines, follow=follow):
        if raw:
            sys.stdout.buffer.write(line.raw + b"\n")
            sys.stdout.buffer.flush()
        else:
            terminal.write(readable(line, home))
            sys.stdout.flush()


@commands.command()
@click.argument("query")
@click.option("--format", "format_", type=FORMATS, default="table", show_default=True)
@at_home
def sql(home: Home, query: str, format_: str) -> None:
    """Ad-hoc SQL over the ledger: the views entries, rejections, batches, balances and invoices."""
    from opentab.ledger.sql import run_query

    columns, rows = run_query(home, open_journal(home), query)
    if format_ == "json":
        terminal.print_json(dict(zip(columns, row, strict=True)) for row in rows)
    elif format_ == "csv":
        terminal.print_csv(columns, rows)
    else:
        kept = list(rows)
        numbers = [c for i, c in enumerate(columns) if kept and isinstance(kept[0][i], int | float)]
        terminal.print_table(columns, kept, right=numbers)
