"""What a person sees of the demo: totals that tick, and the bills compared at the end."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from opentab import terminal
from opentab.config import Home
from opentab.lab.bills import bills_by_own_month
from opentab.lab.demo import Scene, play, simulated_day
from opentab.lab.generator import read_bills
from opentab.ledger.journal import Journal
from opentab.ledger.totals import customer_totals
from opentab.money import format_micros


def watch(home: Home, **options: Any) -> None:
    """Play the demo and show it: a table that ticks on a terminal, a line now and then elsewhere."""
    terminal.write(
        f"opentab demo in {home.path}: nine customers, {options['months']} months of {options['month_seconds']:g} s"
    )

    def summary(scene: Scene) -> str:
        events = sum(total.event_count for total in scene.totals)
        state = "caught up" if scene.caught_up else "behind" if scene.place.position else "starting Spark …"
        return f"batch {scene.place.position:,}  {events:,} events  watermark {simulated_day(scene)}  {state}"

    if sys.stdout.isatty():
        with Live(refresh_per_second=4) as live:
            for scene in play(home, **options):
                live.update(_demo_table(scene, summary(scene)))
        return
    line = terminal.LiveLine(sys.stdout)
    for scene in play(home, **options):
        line.show(summary(scene), time.monotonic())
    line.close()


def _demo_table(scene: Scene, caption: str) -> Group:
    periods = sorted({total.period for total in scene.totals})
    status = {total.period: total.status for total in scene.totals}
    table = Table(title="running totals, EUR", title_justify="left")
    table.add_column("customer")
    for period in periods:
        table.add_column(f"{period}\n{status[period]}", justify="right", min_width=12)
    amounts = {(total.customer, total.period): total.amount_micros for total in scene.totals}
    for customer in sorted({total.customer for total in scene.totals}):
        cells = [format_micros(amounts.get((customer, period), 0)) for period in periods]
        table.add_row(customer, *cells)
    return Group(table, Text(caption, style="dim"))


def compare_bills(home: Home) -> bool:
    """Print what was counted beside what the simulator knows to be right; True if all of it is equal."""
    journal = Journal.open(home.ledger_path, home.identity)
    expected = read_bills(home.expected_path)
    counted = bills_by_own_month(customer_totals(journal, home.calendar))
    rows = [
        (*key, format_micros(expected.get(key, 0)), format_micros(counted.get(key, 0)), _mark(expected, counted, key))
        for key in sorted(expected.keys() | counted.keys())
    ]
    terminal.write()
    terminal.print_table(["period", "customer", "expected", "counted", ""], rows, right=["expected", "counted"])
    exact = expected == counted
    colour = terminal.GREEN if exact else terminal.RED
    verdict = "every bill is exact to the micro" if exact else "bills DIFFER from what was expected"
    terminal.write(terminal.paint(f"Verdict: {verdict} ({len(expected)} bills).", colour))
    return exact


def _mark(expected: dict[tuple[str, str], int], counted: dict[tuple[str, str], int], key: tuple[str, str]) -> str:
    return "=" if expected.get(key) == counted.get(key) else "DIFFERS"
