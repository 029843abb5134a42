"""One thing that the audit compared, and how it speaks of differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import duckdb

from opentab.audit.days import EPOCH
from opentab.core.money import format_micros

SAMPLES_MAX = 20


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was compared: how much of it, how many differences, and the first of them."""

    name: str
    compared: int
    differences: int
    samples: list[str]
    note: str = ""

    @property
    def agrees(self) -> bool:
        return self.differences == 0


@dataclass(slots=True)
class Tally:
    """A check in the making."""

    name: str
    compared: int = 0
    differences: int = 0
    samples: list[str] = field(default_factory=list)

    def differ(self, text: str) -> None:
        self.differences += 1
        if len(self.samples) < SAMPLES_MAX:
            self.samples.append(text)

    def compare(self, what: str, *, journal: object, log: object) -> None:
        if journal != log:
            self.differ(f"{what}: the journal says {shown(journal)}, the log says {shown(log)}")

    def done(self, note: str = "") -> Check:
        return Check(self.name, self.compared, self.differences, self.samples, note)


def count(con: duckdb.DuckDBPyConnection, sql: str) -> int:
    """The one number that a query gives."""
    ((number,),) = con.execute(sql).fetchall()
    return int(number)


def shown(value: object) -> str:
    return "nothing" if value is None else str(value)


def instant(at_us: int | None) -> str | None:
    """An instant to the microsecond; as a number where Python's calendar does not reach."""
    if at_us is None:
        return None
    try:
        at = EPOCH + timedelta(microseconds=at_us)
    except OverflowError:
        return f"{at_us} us"
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def money(micros: Any) -> str:
    return "nothing" if micros is None else format_micros(int(micros))


def sums(side: Sequence[Any]) -> str:
    """An amount, a count of events, and their first and last time."""
    amount, events, first_us, last_us = side
    if amount is None:
        return "nothing"
    span = f"{shown(instant(first_us))} to {shown(instant(last_us))}"
    return f"{format_micros(int(amount))} in {events} events ({span})"
