"""From the ledger into the outbox: every revision of every invoice, as it is issued."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import islice

import duckdb
import pyarrow as pa

from opentab.core.errors import LedgerError, OpentabError
from opentab.ledger.engine import connect
from opentab.ledger.invoice_json import statement_texts
from opentab.ledger.invoices import InvoiceFile, Invoices
from opentab.runtime.config import Home
from opentab.sinks.outbox import Outbox, OutboxDamaged
from opentab.sinks.parcel import Parcel, parcel_of
from opentab.tables.damage import damage_behind
from opentab.tables.error_text import reading
from opentab.tables.files import first_line
from opentab.tables.table import news_of

TICK_SECONDS = 0.1
BUCKET_TICK_SECONDS = 0.5  # a look at a bucket is a request that is paid for
LOOK_SECONDS = 10.0  # a look at the table itself, whatever its directory says
TROUBLE_SECONDS = 5.0
TAKE_UP_PARCELS = 2_000
MEMORY_LIMIT = "512MB"


class Collector:
    """Follows a home's invoices."""

    def __init__(self, home: Home, outbox: Outbox, *, say: Callable[[str], None]) -> None:
        self._home = home
        self._outbox = outbox
        self._say = say
        self.position = 0  # all invoices up to this batch are in the outbox, or were
        self.has_looked = False  # whether what waits in the outbox is of this ledger and of its past
        self._taken_up_of: int | None = None  # the outbox's past when all was taken up
        self.trouble: OpentabError | None = None  # why they cannot be read right now

    async def follow(self) -> None:
        """Take up whatever is issued, until cancelled; waits where a second try can help."""
        seen: object = None
        looked = 0.0
        ledger = self._home.ledger
        tick_seconds = TICK_SECONDS if ledger.is_local else BUCKET_TICK_SECONDS
        while True:
            try:
                with reading(ledger):
                    now = await asyncio.to_thread(news_of, ledger / "invoices")
                    if now != seen or not self.is_caught_up or time.monotonic() - looked > LOOK_SECONDS:
                        await self._take_up_new()
                        seen, looked = now, time.monotonic()
            except OpentabError as error:
                self.trouble = error
                self.has_looked = True  # as far as can be known; what waits need not wait for the ledger
                if not error.retry_helps:
                    raise
                await asyncio.sleep(TROUBLE_SECONDS)
                continue
            self.trouble = None
            await asyncio.sleep(tick_seconds)

    def make_again(self, file: str) -> None:
        """Let go of a file's parcels, of which one is damaged; they are made again from the ledger."""
        self._say(f"a parcel of {file} in the outbox is damaged; all invoices of this file are delivered again")
        if file not in self._outbox.files():
            raise OutboxDamaged(f"a parcel is of {file!r}, which is no file")
        self._outbox.forget([file])

    @property
    def is_caught_up(self) -> bool:
        """Whether all that was issued is in the outbox, or was: since the start, and since something was forgotten."""
        return self._taken_up_of == self._outbox.past

    async def _take_up_new(self) -> None:
        invoices = await asyncio.to_thread(Invoices.open, self._home.ledger)
        if invoices is None:
            self.has_looked = True
            self._taken_up_of = self._outbox.past
            return
        self._check_past(invoices)
        past = self._outbox.past
        self.has_looked = True
        taken = self._outbox.files()
        for file in sorted(invoices.files, key=lambda file: (file.position, file.period, file.path)):
            count, whole = taken.get(file.path, (0, False))
            if not whole:
                await self._take_up(invoices, file, count)
        self.position = invoices.position
        self._taken_up_of = past

    def _check_past(self, invoices: Invoices) -> None:
        """Let go of what belongs to another ledger, or to a past that a restored one does not have."""
        if self._outbox.ledger != invoices.id:
            if self._outbox.ledger:
                self._say("the outbox is of another ledger; every invoice of this one is delivered")
            self._outbox.begin(invoices.id)
        gone = self._outbox.files().keys() - {file.path for file in invoices.files}
        if gone:
            self._say("the ledger was restored to an earlier position; what is issued again is delivered again")
            self._outbox.forget(gone)

    async def _take_up(self, invoices: Invoices, file: InvoiceFile, count: int) -> None:
        """Make parcels of a file, some at a time, from where it was left: its invoices keep their order."""
        parcels = islice(_parcels(invoices, file, currency=self._home["billing.currency"]), count, None)
        past, whole = self._outbox.past, False
        while not whole:
            some = await asyncio.to_thread(lambda: list(islice(parcels, TAKE_UP_PARCELS)))
            if self._outbox.past != past:
                return  # it may be this file whose parcels are to be made again: from the first one
            whole = len(some) < TAKE_UP_PARCELS
            self._outbox.take_up(file.path, some, whole=whole, now_us=time.time_ns() // 1000)


def _parcels(invoices: Invoices, file: InvoiceFile, *, currency: str) -> Iterator[Parcel]:
    try:
        with connect(threads=1, memory_limit=MEMORY_LIMIT) as connection:
            texts = statement_texts(connection, invoices.rows_of([file]), currency=currency, all_revisions=True)
            for text in texts:
                yield parcel_of(text, ledger=invoices.id)
    except (OSError, duckdb.Error, pa.ArrowException) as error:
        damage = damage_behind(invoices.root.parent, error)
        unread = LedgerError(f"the invoices {file.path} cannot be read: {first_line(error)}", retry_helps=True)
        raise damage or unread from error
