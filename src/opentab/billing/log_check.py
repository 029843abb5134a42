"""One log for one ledger: what is written to another log would never be billed.

Every batch records the id of its log. Whoever bills or appends compares it with the id of the log that `log.uri` names.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from opentab.billing.source import Source, open_source
from opentab.core.errors import HomeMismatch, LogMismatch, OpentabError
from opentab.core.records import Spot
from opentab.ledger.journal import Journal
from opentab.log import Appends, open_log, open_producer
from opentab.log.directory import Clock, wall_clock
from opentab.runtime.config import Home
from opentab.tables.table import news_of

LOOK_SECONDS = 2.0  # how often a producer looks whether the ledger has moved to another log
WAIT_SECONDS = 2.0  # how long an append waits for a ledger that does not answer
FIRST_WAIT_SECONDS = 30.0  # the same until there was a first answer: nothing says yet which log is the right one


def join_log(home: Home, source: Source | None = None) -> tuple[Journal, str]:
    """The home's journal and the id of its log, both made where they are missing.

    Raises LogMismatch where the ledger is billed from another log. Nothing is made then.
    """
    source = source or open_source(home)
    check_log(home, source)
    log_id = source.make_id()
    journal = Journal.create(home.ledger, home.identity, log_id=log_id)
    _compare(home, journal.log_id(), log_id, source.uri)  # another pipeline may have made the journal in the meantime
    return journal, log_id


def check_log(home: Home, source: Source | None = None) -> str | None:
    """The id of the log that the home's ledger is billed from; None where it has none yet. Raises LogMismatch."""
    journal = Journal.open(home.ledger, home.identity)
    expected = None if journal is None else journal.log_id()
    if expected is not None:
        source = source or open_source(home)
        _compare(home, expected, source.find_id(), source.uri)
    return expected


def open_checked_producer(home: Home, partition: str | None = None, *, clock: Clock = wall_clock) -> Appends:
    """What appends to a home's log for as long as the home's ledger is billed from it; raises LogMismatch otherwise."""
    check = LogCheck(home)
    check.check()
    return _CheckedProducer(open_producer(home, partition, clock=clock), check)


class LogCheck:
    """Looks now and then whether a home's log is the one that its ledger is billed from. For one thread at a time.

    A ledger that does not exist yet has no opinion. One that cannot be read leaves the last answer standing: the log
    must stay available when the ledger is not.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._log = open_log(home)
        self._root = home.ledger / "journal"
        self._journal: Journal | None = None
        self._news: object = self  # equal to no news
        self._expected: str | None = None
        self._refusal: LogMismatch | HomeMismatch | None = None
        self._thread = ThreadPoolExecutor(1, "log-check")
        self._look: Future[None] | None = None
        self._looked = self._answered = float("-inf")
        self._first_until: float | None = None

    def check(self) -> None:
        """Raise LogMismatch if it is not, and HomeMismatch if the ledger was made with other settings."""
        now = time.monotonic()
        if now - self._looked > LOOK_SECONDS and (self._look is None or self._look.done()):
            self._looked = now
            self._look = self._thread.submit(self._look_again)
        # While appends follow each other they need not wait for a look: the last answer is young.
        if self._look is not None and now - self._answered > 2 * LOOK_SECONDS:
            if self._first_until is None:
                self._first_until = now + FIRST_WAIT_SECONDS
            is_first = self._answered == float("-inf")
            wait([self._look], max(WAIT_SECONDS, self._first_until - now) if is_first else WAIT_SECONDS)
        if self._refusal is not None:
            raise self._refusal

    def _look_again(self) -> None:
        try:
            expected = self._expected_id()
            _compare(self._home, expected, None if expected is None else self._log.find_id(), self._home["log.uri"])
        except (LogMismatch, HomeMismatch) as error:
            self._refusal = error
        except (OpentabError, OSError):
            self._journal, self._news = None, self
        else:
            self._refusal = None
        self._answered = time.monotonic()

    def _expected_id(self) -> str | None:
        news = news_of(self._root)
        if news != self._news:
            if self._journal is None:
                self._journal = Journal.open(self._home.ledger, self._home.identity)
            else:
                self._journal.refresh()
            self._expected = self._journal.log_id() if self._journal else None
            self._news = news
        return self._expected


class _CheckedProducer:
    """A producer that stops when the ledger moves to another log."""

    def __init__(self, producer: Appends, check: LogCheck) -> None:
        self.partition = producer.partition
        self._producer = producer
        self._check = check

    def append(self, body: bytes) -> int:
        self._check.check()
        return self._producer.append(body)

    def put(self, lines: Sequence[bytes]) -> list[Spot]:
        self._check.check()
        return self._producer.put(lines)


def _compare(home: Home, expected: str | None, found: str | None, uri: str) -> None:
    """Raise if the ledger is billed from another log than the one that was found at `uri`."""
    if expected is None or found == expected:
        return
    if uri != home["log.uri"]:
        raise LogMismatch(
            f"the ledger {home.ledger} is billed from log {expected}, but the source is log {found}",
            hint="use the source that the ledger is billed from, or another home",
        )
    if expected.startswith("source:"):
        raise LogMismatch(
            f"the ledger {home.ledger} is billed from {expected.removeprefix('source:')!r}, a source of its own",
            hint="call opentab.run(home, source=…) with that source, or use another home",
        )
    if found is not None:
        what, fix = f"log {found}", f"move the ledger to this log: opentab log adopt {uri}"
    elif home.kafka is not None:
        what, fix = "a topic that does not exist", f"move the ledger to a new one: opentab log adopt {uri}"
    else:
        what = "a directory without a log id"
        fix = f"if only its id was lost: opentab log adopt {uri} --same-offsets"
    raise LogMismatch(
        f"the ledger {home.ledger} is billed from log {expected}, but log.uri = {uri!r} is {what}",
        hint=f"set log.uri to the ledger's log, or {fix}",
    )
