"""The journal as one process keeps it open, to say what became of single events."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from opentab.api.answers import Receipt
from opentab.core.errors import OpentabError
from opentab.core.records import Spot
from opentab.dedupe.lookup import KeyLookup
from opentab.ledger.journal import Journal
from opentab.ledger.outcomes import Fate, Fates
from opentab.ledger.receipt import Trails
from opentab.ledger.reread import Reread
from opentab.runtime.config import Home
from opentab.server.answers import Answers
from opentab.tables.table import news_of

REOPEN_SECONDS = 60.0  # files that were merged away are there for an hour
STEP_SECONDS = 0.03


class Book:
    """Answers from the journal about single events."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._root = home.ledger / "journal"
        self._reread = Reread(home)
        self._remembered = KeyLookup(self._root)
        self._lock = threading.Lock()
        self._trails: Trails | None = None
        self._opened = 0.0
        self._news: object = None

    def receipt(self, answers: Answers, id_: str, source: str | None, *, customer: str | None) -> Receipt | None:
        """What became of an event, at the position of the answers; for one customer, of this one's own alone."""
        record = answers.moment.record
        if record is None:
            return None
        answers.take_turn()
        with self._read(record.batch) as trails:
            if trails is None:
                return None
            trail = trails.of(id_, source, upto=record)

        def revisions(period: str, customer: str) -> list[tuple[int, int]]:
            return sorted((one.revision, one.position) for one in answers.invoices(customer, period))

        receipt = trail.receipt(self._reread, revisions, self._home.calendar, customer=customer)
        return msgspec.convert(answers.whole(dict, **receipt.as_json()), type=Receipt) if receipt else None

    async def position(self) -> int | None:
        """The last batch in the journal; None if it cannot be read now."""
        try:
            return await asyncio.to_thread(self._position)
        except OpentabError:
            return None

    async def wait(self, with_id: dict[Spot, bool], *, after: int | None, deadline: float) -> dict[Spot, Fate] | None:
        """What became of lines of the log, once the journal holds them all; None if it does not in time."""
        if after is None:
            return None
        fates = Fates(with_id, after=after)
        while True:
            try:
                found = await asyncio.to_thread(self._look, fates, with_id)
            except OpentabError:
                found = None  # the ledger may be back in time
            if found is not None or time.monotonic() >= deadline:
                return found
            await asyncio.sleep(STEP_SECONDS)

    def close(self) -> None:
        """Let go of all that is open."""
        self._remembered.close()
        self._reread.close()

    def _position(self) -> int:
        with self._read() as trails:
            return trails.journal.position if trails else 0

    def _look(self, fates: Fates, with_id: dict[Spot, bool]) -> dict[Spot, Fate] | None:
        with self._read() as trails:
            if trails is None or not fates.complete(trails.journal):
                return None
            return fates.of(trails.journal, with_id)

    @contextmanager
    def _read(self, position: int | None = None) -> Iterator[Trails | None]:
        """The journal at this position at least, or as it is now; for one thread at a time."""
        with self._lock:
            try:
                self._see(position)
                yield self._trails
            except OpentabError:
                self._trails = None
                raise

    def _see(self, position: int | None) -> None:
        now = time.monotonic()
        if self._trails is None or now - self._opened > REOPEN_SECONDS:
            self._news = news_of(self._root)
            journal = Journal.open(self._home.ledger, self._home.identity)
            self._trails = Trails(journal, self._remembered) if journal else None
            self._opened = now
        elif position is not None:
            if self._trails.journal.position < position:
                self._trails.journal.refresh()
        elif (news := news_of(self._root)) != self._news:
            self._trails.journal.refresh()
            self._news = news
