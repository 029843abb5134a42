"""What a person sees of the demo: totals that tick, months that close, and the invoices at the end."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from opentab.core.money import format_micros, format_minor, round_to_minor
from opentab.ledger.invoice_json import Statement
from opentab.runtime import terminal
from opentab.runtime.config import Home
from opentab.simulator.bills import invoiced_by_own_month
from opentab.simulator.demo import Scene, Stage, play, simulated_day
from opentab.simulator.generator import read_bills
from opentab.simulator.invoice_ticker import all_statements

NEWS_LINES = 8


def watch(stage: Stage, **options: Any) -> None:
    """Play the demo and show it: a table that ticks on a terminal, a line now and then elsewhere."""
    terminal.write(f"opentab demo: nine customers, {options['months']} months of {options['month_seconds']:g} s each")
    terminal.write(f"Watch it live: {terminal.paint(stage.url + '/', terminal.GREEN)}")

    def summary(scene: Scene) -> str:
        events = sum(total.event_count for total in scene.totals)
        state = "caught up" if scene.caught_up else "behind" if scene.place.position else "starting Spark …"
        return f"batch {scene.place.position:,}  {events:,} events  watermark {simulated_day(scene)}  {state}"

    told: list[str] = []
    if sys.stdout.isatty():
        with Live(refresh_per_second=4) as live:
            for scene in play(stage, **options):
                told += scene.news
                live.update(_demo_table(scene, told[-NEWS_LINES:], summary(scene)))
        return
    line = terminal.LiveLine(sys.stdout)
    for scene in play(stage, **options):
        for news in scene.news:
            terminal.write(news)
        line.show(summary(scene), time.monotonic())
    line.close()


def _demo_table(scene: Scene, news: list[str], caption: str) -> Group:
    # Behind the simulated months come events of 0.00 only, to let time pass.
    periods = sorted({total.period for total in scene.totals if total.amount_micros})
    status = {total.period: total.status for total in scene.totals}
    table = Table(title="running totals, EUR", title_justify="left")
    table.add_column("customer")
    for period in periods:
        table.add_column(f"{period}\n{status[period]}", justify="right", min_width=12)
    amounts = {(total.customer, total.period): total.amount_micros for total in scene.totals}
    for customer in sorted({total.customer for total in scene.totals}):
        cells = [format_micros(amounts.get((customer, period), 0)) for period in periods]
        table.add_row(customer, *cells)
    return Group(table, *(Text(line) for line in news), Text(caption, style="dim"))


def compare_bills(home: Home) -> bool:
    """Print every invoice beside the bill that the simulator knows to be right; True if all are equal."""
    expected = read_bills(home.expected_path)
    statements = list(all_statements(home))
    invoiced = invoiced_by_own_month(statements)
    revisions: dict[tuple[str, str], list[Statement]] = {}
    for statement in statements:
        revisions.setdefault((statement.period, statement.customer), []).append(statement)
    currency = home["billing.currency"]
    rows = []
    for key in sorted(key for key, micros in expected.items() if micros or invoiced.get(key)):
        own = revisions.get(key, [])
        bill = format_minor(round_to_minor(expected[key], currency), currency)
        first, last = (own[0].total, own[-1].total) if own else ("-", "-")
        rows.append((*key, first, last, len(own), bill, "=" if invoiced.get(key) == expected[key] else "DIFFERS"))
    terminal.write()
    columns = ["period", "customer", "first", "last", "revisions", "expected", ""]
    terminal.print_table(columns, rows, right=columns[2:6])
    wrong = {key for key in expected.keys() | invoiced.keys() if expected.get(key, 0) != invoiced.get(key, 0)}
    late = sum(own[0].total != own[-1].total for own in revisions.values())
    if wrong:
        terminal.write(terminal.paint(f"Verdict: {len(wrong)} invoices DIFFER from the expected bills.", terminal.RED))
    else:
        verdict = f"all {len(rows)} invoices are exact, {late} of them after late events"
        terminal.write(terminal.paint(f"Verdict: {verdict}.", terminal.GREEN))
    return not wrong
