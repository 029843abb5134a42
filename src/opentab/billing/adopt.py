"""`opentab log adopt`: the ledger moves to another log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from opentab.billing.bill import Job, offsets_of
from opentab.billing.pipeline_lock import Claim, HomeLock
from opentab.billing.source import open_source
from opentab.core.errors import InputError, OpentabError
from opentab.core.periods import to_us
from opentab.ledger.journal import Journal
from opentab.log import open_log
from opentab.runtime.config import Home
from opentab.tables.files import new_run


@dataclass(frozen=True, slots=True)
class Adopted:
    """What came of it."""

    batch: int | None  # that records the move; None: the ledger was billed from this log already
    before_id: str | None
    log_id: str


def adopt_log(home: Home, uri: str, *, same_offsets: bool, leave_unread: bool = False) -> Adopted:
    """Let the ledger be billed from the log at `uri`, which is made if there is none.

    The move is a batch without events, committed like any other: whoever works on the ledger meanwhile is fenced.
    With `same_offsets` reading goes on at the journal's offsets, else it starts at the log's beginning. What the ledger
    has not read of the old log is never billed then: so it is refused, unless `leave_unread` says that this is meant.
    """
    target = home.with_setting("log.uri", uri)
    lock = HomeLock(home.path, take_over=False)
    try:
        journal = Journal.open(home.ledger, home.identity)
        if journal is None:
            raise InputError(
                f"the ledger {home.ledger} does not exist yet, so it has no log to leave",
                hint=f'set uri = "{uri}" under [log] and start opentab run',
            )
        before_id = journal.log_id()
        if before_id is None and not same_offsets and uri == home["log.uri"]:
            raise InputError(
                f"the ledger {home.ledger} has recorded no log id yet, and {uri} is the log of this home",
                hint="opentab run records its id with the next batch; there is nothing to adopt",
            )
        is_same = before_id is not None and open_log(target).find_id() == before_id
        if not leave_unread and not is_same:
            _check_nothing_is_left(home, journal, target if same_offsets else None)
        log_id = open_log(target).make_id()
        if log_id == before_id:
            return Adopted(None, before_id, log_id)
        run = new_run()
        claim = Claim(home.ledger, run)
        source = open_source(target)
        job = Job(target, journal, source, run=run, log_id=log_id, is_ours=claim.is_ours)
        if same_offsets:
            source.open(job.offsets)  # raises where the log ends before them
        record = job.adopt(to_us(datetime.now(UTC)), "same_offsets" if same_offsets else "beginning")
        source.close()
        return Adopted(record.batch, before_id, log_id)
    finally:
        lock.release()


def _check_nothing_is_left(home: Home, journal: Journal, copy: Home | None) -> None:
    """Raise if the old log has what neither the journal nor the log's copy has. One that cannot be read has nothing."""
    last = journal.last()
    if last is None:
        return
    old = home.with_setting("log.uri", last.log_uri or home["log.uri"])
    offsets = offsets_of(last)
    try:
        if journal.log_id() is not None and open_log(old).find_id() != journal.log_id():
            return
        if copy is not None:
            offsets |= open_source(copy).ends()
        source = open_source(old)
        unread = source.unread(offsets)
        source.close()
    except (OpentabError, OSError):
        return
    if unread:
        raise InputError(
            f"the old log {old['log.uri']} has {unread:,} {source.unit} that are not billed yet, and would never be",
            hint="bill them first: opentab run --once; to leave them unbilled: --leave-unread",
        )
