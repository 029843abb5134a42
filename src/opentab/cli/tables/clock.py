"""What `opentab log clock` prints."""

from __future__ import annotations

from opentab.billing.clock import clocks_of
from opentab.core.periods import format_us
from opentab.runtime import terminal
from opentab.runtime.config import Home

COLUMNS = ("partition", "last", "arrived", "billed", "billed_arrived", "appends", "held_back")


def print_clocks(home: Home, format_: str) -> bool:
    """Print where arrival stands in each partition; whether it agrees with this machine's clock."""
    now_us, clocks = clocks_of(home)
    rows = [
        (
            one.partition,
            one.last,
            format_us(one.stamp_us),
            one.billed,
            format_us(one.billed_us),
            "refused" if one.refused else "ok",
            one.held_back,
        )
        for one in clocks
    ]
    if format_ == "json":
        terminal.print_json({"clock": format_us(now_us), **dict(zip(COLUMNS, row, strict=True))} for row in rows)
    elif format_ == "csv":
        terminal.print_csv(COLUMNS, rows)
    else:
        terminal.write(f"this machine's clock: {format_us(now_us)}")
        shown = [(*row[:-1], "yes" if row[-1] else "no") for row in rows]
        terminal.print_table(COLUMNS, [["" if cell is None else cell for cell in row] for row in shown])
    for one in clocks:
        if one.refused:
            terminal.complain(one.refused)
        elif one.held_back:
            terminal.complain(f"log partition {one.partition!r} is held back until this clock is at its arrival")
    return not any(one.refused or one.held_back for one in clocks)
