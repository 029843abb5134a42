"""Commands that judge: verify compares the bills with the log, trace leads a bill back to its events."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from opentab.cli.base import DIFFERENT, FORMATS, OK, at_home, at_log, commands, open_journal_now, progress_bar
from opentab.core.errors import LedgerError
from opentab.runtime import terminal
from opentab.runtime.config import Home

if TYPE_CHECKING:
    from opentab.audit import Report
    from opentab.audit.check import Check
    from opentab.ledger.invoices import Invoices

FILES = "files"  # what `verify` calls the invoice files
FILES_SHOWN_MAX = 20


@commands.command()
@click.option(
    "--expected/--no-expected",
    default=True,
    help="compare with the simulator's known bills too, if there are any",
)
@click.option("--format", "format_", type=click.Choice(["table", "json"]), default="table", show_default=True)
@at_home
@at_log
def verify(home: Home, expected: bool, format_: str) -> int:
    """The independent audit: everything recomputed from the raw log, and compared."""
    return verify_home(home, expected=expected, format_=format_)


def verify_home(home: Home, *, expected: bool, format_: str = "table") -> int:
    from opentab.audit import NoInvoices
    from opentab.audit import verify as audit
    from opentab.cli.tables.verdict import print_checks, verdict_json
    from opentab.ledger import balances
    from opentab.ledger.invoices import Invoices
    from opentab.tables.damage import check_files

    journal = open_journal_now(home)
    unverified = check_files(home.ledger)
    invoices = Invoices.open(home.ledger)
    snapshot = balances.latest(home.ledger)
    journal.refresh()  # a pipeline may be at work: by now the journal has all that the invoices were made from
    if invoices is not None and invoices.position > journal.position:
        raise LedgerError(
            f"invoices were issued at position {invoices.position}, but the journal ends at {journal.position}",
            hint="restore the whole ledger from one backup",
        )
    with progress_bar(0, "verifying", always=True) as advance:
        report = audit(
            home,
            journal,
            invoices=invoices or NoInvoices(),
            balances=snapshot,
            expected=expected,
            progress=lambda _, total: advance(1, total=total, label="verifying"),
        )
        if invoices is not None and home.invoices_path.is_dir():
            report = replace(report, checks=[*report.checks, _check_files(home, invoices)])
    if format_ == "json":
        terminal.print_json([verdict_json(report, unverified)])
        return OK if report.agrees else DIFFERENT
    print_checks(report, unverified)
    return _print_verdict(report, home["billing.currency"])


def _print_verdict(report: Report, currency: str) -> int:
    """Say whether the ledger agrees with the log; returns the exit code."""
    from opentab.cli.tables.verdict import sums_text

    sums = sums_text(report, currency)
    if report.agrees:
        terminal.write(terminal.paint(f"The ledger agrees with the log: {sums}.", terminal.GREEN))
        return OK
    if all(check.agrees for check in report.checks if check.name != FILES):
        terminal.write(f"The ledger agrees with the log: {sums}.")
        terminal.write(terminal.paint("The invoice files DO NOT agree with the ledger.", terminal.RED))
    elif report.gone and report.agrees_otherwise:
        gone = "; ".join(report.gone)
        terminal.write(terminal.paint(f"Not all could be verified: {gone}. The rest agrees.", terminal.RED))
    else:
        terminal.write(terminal.paint(f"The ledger DOES NOT agree with the log: {sums}.", terminal.RED))
    return DIFFERENT


def _check_files(home: Home, invoices: Invoices) -> Check:
    """The invoice files, held against the invoices in the ledger."""
    from opentab.audit.check import Check
    from opentab.sinks.files import compare

    count, differing = compare(home.invoices_path, invoices, currency=home["billing.currency"])
    samples = [
        f"{path} is not what the ledger says: delete it, then opentab invoices --export writes it again"
        for path in differing[:FILES_SHOWN_MAX]
    ]
    return Check(FILES, count, len(differing), samples)


@commands.command()
@click.option("--period", required=True, metavar="2026-01")
@click.option("--customer", required=True, metavar="NAME")
@click.option("--revision", type=int, metavar="R", help="only what this revision of the invoice was made from")
@click.option("--events", is_flag=True, help="every raw event with its place in the log, not only the batches")
@click.option("--format", "format_", type=FORMATS, default="table", show_default=True)
@at_home
@at_log
def trace(home: Home, period: str, customer: str, revision: int | None, events: bool, format_: str) -> int:
    """The batches and log places that a customer's cents of a period came from."""
    from opentab.audit import NoInvoices, invoice_of
    from opentab.audit import trace as follow
    from opentab.cli.tables.trace import print_trace
    from opentab.core.periods import parse_period
    from opentab.ledger.invoices import Invoices

    parse_period(period)
    journal = open_journal_now(home)
    invoice = None
    if revision is not None:
        invoice = invoice_of(Invoices.open(home.ledger) or NoInvoices(), period, customer, revision)
        journal.refresh()  # by now it has all that the invoice was made from
    found = follow(home, journal, period, customer, upto=invoice.position if invoice else None)
    currency = home["billing.currency"]
    adds_up = invoice is None or invoice.total_minor == found.total_minor(currency)
    taken = {record.batch: record.taken for record in journal.batches()}
    print_trace(found, taken, invoice, currency=currency, adds_up=adds_up, events=events, format_=format_)
    if events and found.gone:
        shown = ", ".join(f"{batch:,}" for batch in found.gone)
        terminal.complain(f"the log of these batches is gone, so their events are not shown: {shown}")
        return DIFFERENT
    return OK if found.lines and adds_up else DIFFERENT
