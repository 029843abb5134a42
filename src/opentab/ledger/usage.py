"""What a customer, or everyone, used in a range of days, grouped as asked, from the entries themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any

import pyarrow.dataset as ds

from opentab.core.money import format_micros
from opentab.ledger.engine import connect
from opentab.ledger.journal import Journal

GROUPS = ("day", "type")


def usage(
    journal: Journal | None,
    *,
    upto: int,
    first: date,
    last: date,
    group: Sequence[str] = (),
    customer: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Totals by the events' own days, both ends included, as far as batch `upto` knows."""
    if journal is None:
        return
    keys = [name for name in GROUPS if name in group]
    for *key, micros, events in used(journal, upto=upto, first=first, last=last, by=keys, customer=customer):
        yield {
            **{name: str(value) for name, value in zip(keys, key, strict=True)},
            "total": format_micros(int(micros)),
            "events": events,
        }


def used(
    journal: Journal, *, upto: int, first: date, last: date, by: Sequence[str], customer: str | None = None
) -> list[tuple[Any, ...]]:
    """The columns `by`, micros and events, in the order of `by`; one row of sums if there are none."""
    wanted = (ds.field("day") >= first) & (ds.field("day") <= last)
    if customer is not None:
        wanted &= ds.field("customer") == customer
    # A row group's days are known without reading it; of the others only what is needed is read.
    columns = [*by, "amount_micros", "event_count"]
    select = "".join(f"{name}, " for name in by)
    grouping = f"group by {', '.join(by)} order by {', '.join(by)}" if by else ""
    with connect() as connection:
        connection.register("used", journal.entries(upto=upto).scanner(columns, filter=wanted).to_table())
        return connection.execute(
            f"select {select} coalesce(sum(amount_micros::decimal(38, 0)), 0), coalesce(sum(event_count), 0)::bigint"
            f" from used {grouping}"
        ).fetchall()
