"""`opentab deliver`: puts every revision of every invoice to the receiver until it has it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random

from opentab import __version__
from opentab.core.errors import HomeLocked, OpentabError, SinkError
from opentab.runtime.config import MICROSECOND, Home
from opentab.runtime.lock import Lock
from opentab.runtime.logs import TroubleLog, fields
from opentab.sinks.collect import Collector
from opentab.sinks.delivery_status import Backlog, read_backlog, write_backlog
from opentab.sinks.http import Outcome, Receiver, Sender, Verdict, receiver_of
from opentab.sinks.outbox import Failure, Outbox, OutboxDamaged, ParcelDamaged, set_aside
from opentab.sinks.pace import Pace, pause_of
from opentab.sinks.parcel import Parcel

TICK_SECONDS = 0.1
TELL_SECONDS = 1.0
STOP_SECONDS_MAX = 5.0  # for what is under way; it is sent again otherwise
READY_PARCELS = 256
SETTLE_PARCELS = 256
SETTLE_SECONDS = 0.1

logger = logging.getLogger("opentab.sinks")


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a watcher of the deliverer is told."""

    backlog: Backlog
    trouble: OpentabError | None  # why new invoices cannot be read right now


def deliver(
    home: Home,
    *,
    once: bool,
    patience: timedelta,
    say: Callable[[str], None],
    watch: Callable[[Outlook], None] = lambda outlook: None,
) -> Backlog:
    """Deliver until a signal comes or, once, until nothing is left that the receiver takes.

    Once, it raises SinkError if something is left: refused, or not taken for so long as `patience` says.
    """
    receiver = receiver_of(home)
    lock = Lock(home.sinks_path / "http.lock")
    try:
        if not lock.take_if_free():
            raise HomeLocked(
                f"the invoices of {home.path} are being delivered already: {lock.holder()}", hint="stop it first"
            )
        logger.info("deliverer starts", extra=fields(version=__version__, url=receiver.url))
        backlog = _deliver(home, receiver, patience if once else None, say, watch)
        told = fields(delivered=backlog.delivered, waiting=backlog.waiting, refused=backlog.stuck)
        logger.info("deliverer stops", extra=told)
        return backlog
    except OpentabError as error:
        logger.error("deliverer stops", extra=fields(reason=str(error)))
        raise
    finally:
        lock.release()


def _deliver(
    home: Home,
    receiver: Receiver,
    patience: timedelta | None,
    say: Callable[[str], None],
    watch: Callable[[Outlook], None],
) -> Backlog:
    path = home.sinks_path / "http.sqlite"
    while True:
        try:
            outbox = Outbox(path)
            try:
                return asyncio.run(Deliverer(home, receiver, outbox, say=say, watch=watch).run(patience))
            finally:
                outbox.close()
        except OutboxDamaged as damage:
            logger.warning("outbox is damaged", extra=fields(reason=str(damage)))
            # Every delivery is idempotent: the ledger has them all, and the receiver knows those it has.
            say(f"the outbox is damaged ({damage}): moved to {set_aside(path)}, every invoice is delivered again")


class Deliverer:
    """Sends what is in the outbox, and notes what came of it."""

    def __init__(
        self,
        home: Home,
        receiver: Receiver,
        outbox: Outbox,
        *,
        say: Callable[[str], None],
        watch: Callable[[Outlook], None],
    ) -> None:
        self._home = home
        self._receiver = receiver
        self._outbox = outbox
        self._collector = Collector(home, outbox, say=say)
        self._watch = watch
        self._trouble_log = TroubleLog(logger)
        self._parallel = home["invoices.http_parallel"]
        self._dice = Random()
        self._pace = Pace(self._parallel, self._dice)
        self._stopping = False
        self._ready: deque[Parcel] = deque()
        self._ready_of = outbox.past
        self._under_way: dict[asyncio.Task[Verdict], Parcel] = {}
        self._delivered: list[Parcel] = []  # not yet noted in the outbox
        self._failed: list[Failure] = []
        self._settled_at = self._told_at = 0.0
        self._progress_at = time.monotonic()
        self._failing_since_us: int | None = None
        self._error = outbox.last_error()
        said = read_backlog(home.sinks_path)
        self._delivered_us = said.delivered_us if said else None

    async def run(self, patience: timedelta | None) -> Backlog:
        """Go on until a signal comes; with patience, until nothing can be delivered or it is at its end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        # Whoever starts it may have mended what was wrong.
        self._outbox.release(tried_since_us=0, now_us=_now_us())
        collecting = asyncio.create_task(self._collector.follow())
        try:
            async with Sender(self._receiver, parallel=self._parallel) as sender:
                while not self._stopping:
                    self._settle()
                    if self._collector.has_looked:
                        self._send(sender)
                    if time.monotonic() - self._told_at > TELL_SECONDS:
                        self._tell()
                    if patience is not None and self._is_done(patience):
                        break
                    await self._wait()
                    if collecting.done():
                        collecting.result()  # raises what stopped it
                await self._end()
        finally:
            collecting.cancel()
            with suppress(asyncio.CancelledError, OpentabError, OutboxDamaged):
                await collecting
        backlog = self._tell()
        if patience is not None and not self._stopping:
            self._check_all_delivered(backlog)
        return backlog

    def _stop(self) -> None:
        self._stopping = True

    def _send(self, sender: Sender) -> None:
        """Put as many on the way as the receiver's last answers allow."""
        while len(self._under_way) < self._pace.room(time.monotonic()):
            parcel = self._next()
            if parcel is None:
                return
            task = asyncio.create_task(sender.send(parcel, at=datetime.now(UTC)))
            self._under_way[task] = parcel

    def _next(self) -> Parcel | None:
        if self._ready_of != self._outbox.past:
            self._ready.clear()
            self._ready_of = self._outbox.past
        if not self._ready:
            unsettled = [*self._delivered, *(failure.parcel for failure in self._failed)]
            held = {parcel.number for parcel in (*self._under_way.values(), *unsettled)}
            try:
                # While the receiver is gone, any parcel will do to find out whether it is back.
                probe = self._outbox.probe(without=held) if self._pace.gone else []
                self._ready.extend(probe or self._outbox.due(_now_us(), READY_PARCELS, without=held))
            except ParcelDamaged as damage:
                self._collector.make_again(damage.file)
        return self._ready.popleft() if self._ready else None

    async def _wait(self) -> None:
        if not self._under_way:
            await asyncio.sleep(TICK_SECONDS)
            return
        done, _ = await asyncio.wait(self._under_way, timeout=TICK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            self._saw(self._under_way.pop(task), task.result())

    def _saw(self, parcel: Parcel, verdict: Verdict) -> None:
        """Take note of an answer, for the parcel and for the receiver as a whole."""
        now_us = _now_us()
        came_back = self._pace.saw(verdict, time.monotonic())
        if verdict.outcome is Outcome.DELIVERED:
            self._delivered.append(parcel)
            self._delivered_us, self._progress_at = now_us, time.monotonic()
        else:
            try_at_us = now_us + pause_of(verdict, parcel.attempts, self._dice) // MICROSECOND
            stuck = verdict.outcome is Outcome.REFUSED
            self._failed.append(Failure(parcel, verdict.error, try_at_us, stuck))
            self._failing_since_us = self._failing_since_us or now_us
            self._error = verdict.error
            if stuck:
                told = fields(id=parcel.id, period=parcel.period, revision=parcel.revision, reason=verdict.error)
                logger.warning("invoice refused", extra=told)
        self._trouble_log.see("receiver", (self._error or "no answer") if self._pace.gone else None)
        if self._pace.gone:
            self._ready.clear()
        if came_back:
            # What failed meanwhile did so for the receiver's sake: it need not wait for its own turn.
            self._settle(at_once=True)
            self._outbox.release(tried_since_us=self._failing_since_us or now_us, now_us=now_us)
        if verdict.outcome is Outcome.DELIVERED:
            self._failing_since_us = None

    def _settle(self, *, at_once: bool = False) -> None:
        """Note in the outbox what came of the last tries: many in one transaction, and soon."""
        count, age = len(self._delivered) + len(self._failed), time.monotonic() - self._settled_at
        if count and (at_once or not self._under_way or count >= SETTLE_PARCELS or age > SETTLE_SECONDS):
            self._outbox.settle(self._delivered, self._failed, now_us=_now_us())
            self._delivered, self._failed = [], []
            self._settled_at = time.monotonic()

    async def _end(self) -> None:
        """Let what is under way come to its end, if that is soon."""
        if self._under_way:
            done, left = await asyncio.wait(self._under_way, timeout=STOP_SECONDS_MAX)
            for task in done:
                self._saw(self._under_way[task], task.result())
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            self._under_way.clear()
        self._settle(at_once=True)

    def _is_done(self, patience: timedelta) -> bool:
        """Whether there is no use in going on: nothing left to deliver, or nothing delivered for too long."""
        if not (self._collector.is_caught_up or self._collector.trouble):
            self._progress_at = time.monotonic()  # what there is to deliver is still being found out
            return False
        if time.monotonic() - self._progress_at > patience.total_seconds():
            return True
        idle = not (self._under_way or self._ready or self._delivered or self._failed)
        return idle and self._collector.is_caught_up and not self._outbox.can_go_on()

    def _check_all_delivered(self, backlog: Backlog) -> None:
        if not self._collector.is_caught_up and self._collector.trouble is not None:
            raise self._collector.trouble
        url = self._receiver.url
        if self._outbox.can_go_on():
            raise SinkError(
                f"{url} does not take invoices: {self._error}; {backlog.waiting:,} are waiting",
                hint="they stay in the outbox, and are delivered by the next opentab deliver",
                retry_helps=True,
            )
        if backlog.stuck:
            behind = backlog.waiting - backlog.stuck
            raise SinkError(
                f"{url} refuses {backlog.stuck:,} invoices: {self._error}"
                + (f"; {behind:,} later revisions wait behind them" if behind else ""),
                hint="mend the receiver; they stay in the outbox, and are tried by the next opentab deliver",
                retry_helps=True,
            )

    def _tell(self) -> Backlog:
        """Say how it goes."""
        self._told_at = time.monotonic()
        counts = self._outbox.counts()
        backlog = Backlog(
            at_us=_now_us(),
            pid=os.getpid(),
            position=self._collector.position,
            waiting=counts.waiting,
            stuck=counts.stuck,
            delivered=counts.delivered,
            oldest_us=counts.oldest_us,
            delivered_us=self._delivered_us,
            gone=self._pace.gone,
            error=(self._error or None) if counts.waiting else None,
        )
        write_backlog(self._home.sinks_path, backlog)
        self._trouble_log.see("ledger", self._collector.trouble)
        self._watch(Outlook(backlog, self._collector.trouble))
        return backlog


def _now_us() -> int:
    return time.time_ns() // 1000
