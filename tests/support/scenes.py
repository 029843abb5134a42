"""A telecom's months as a page shows them: seeded, billed in this process, with all that can happen to a month."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from background import repeated
from ledgers import bill
from opentab.runtime.config import Home
from opentab.runtime.heartbeat import Heartbeat, write_heartbeat
from product import event

SETTINGS = '[billing]\nout_of_orderness = "1d"\nallowed_lateness = "25d"\nrevision_step = "1d"\n[pipeline]\nidle_after = "1s"\n'
CUSTOMERS = ("emma", "noah", "olivia", "liam", "mia", "lucas", "sofia", "leo", "ella")
PRICES = {"MESSAGE": 0.02, "DATA": 0.9, "CALL": 0.35, "PACK": 4.0, "MISC": 0.6}
BAD = (
    '{"time":"2026-01-05T00:00:00Z","customer":"mia","type":"FAX","amount":"1"}',
    '{"time":"2026-01-05T00:00:00Z","customer":"leo","type":"CALL","amount":"1e3"}',
    '{"time":"yesterday","customer":"leo","type":"CALL","amount":"1"}',
    "<script>alert(1)</script> \x1b[31m \u202e",
)


class Scene:
    """A home with a pipeline that is played: its sign of life by a thread, its batches by hand."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.position = 0
        self.alive = True
        self._dice = random.Random(20260131)

    def bill(self, *lines: str, revise: bool = False, partition: str = "north", close: bool = True) -> None:
        """Bill some lines as one batch, and issue what is due."""
        self.position = bill(self.home, *lines, revise=revise, partition=partition, close=close).batch

    def days(self, first: datetime, days: int, *, a_day: int) -> list[str]:
        """What the telecom's customers used in some days."""
        return [self._use(first + timedelta(days=day)) for day in range(days) for _ in range(a_day)]

    def play(self) -> None:
        """December is revised and then final, with adjustments later; January is closed; February is open."""
        self.bill(*self.days(date(2025, 12, 1), 31, a_day=14))
        self.bill(*self.days(date(2026, 1, 1), 4, a_day=14))
        self.bill(*self.days(date(2025, 12, 28), 2, a_day=4), revise=True)
        self.bill(*self.days(date(2026, 1, 5), 27, a_day=13), *BAD)
        self.bill(*self.days(date(2025, 12, 20), 2, a_day=2))
        for day in range(1, 20, 2):
            partition = "south" if day == 7 else "north"
            lines = self.days(date(2026, 2, day), 2, a_day=self._dice.randint(9, 20))
            self.bill(*lines, *BAD[: day % 3], partition=partition, close=day == 3)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Say five times a second that the pipeline lives, while it does."""

        def beat() -> None:
            if self.alive:
                at_us = time.time_ns() // 1000
                one = Heartbeat(at_us, "run", os.getpid(), True, self.position, True, at_us, 0, self.position)
                write_heartbeat(self.home.ledger, one)

        with repeated(beat, every_seconds=0.2):
            yield

    def _use(self, day: datetime) -> str:
        dice = self._dice
        type_ = dice.choices(list(PRICES), weights=(36, 28, 26, 4, 6))[0]
        customer = dice.choices(CUSTOMERS, weights=range(len(CUSTOMERS) + 3, 3, -1))[0]
        at = day + timedelta(seconds=dice.uniform(0, 86_000))
        amount = f"{PRICES[type_] * dice.uniform(0.3, 1.9):.6f}"
        return event(customer, amount, at.isoformat().replace("+00:00", "Z"), type_)


def date(year: int, month: int, day: int) -> datetime:
    return datetime(year, month, day, tzinfo=UTC)
