"""What can go wrong outside of us.

    OpentabError                a fact in lower case, a hint that mends it
    ├── ConfigError             a setting is wrong: named before anything starts
    ├── InputError              what the user gave cannot be taken
    ├── MachineError            something is missing on this machine, Java for example
    ├── LogError                the log cannot be read or written
    │   ├── SegmentDamaged      a segment's bytes are not those that were written
    │   ├── LogMismatch         the log is not the one that the ledger is billed from
    │   ├── ClockMismatch       the arrivals in the log contradict this machine's clock
    │   └── LogUnreachable      the brokers do not answer; it is tried again
    ├── LedgerError             the ledger cannot be read or written
    │   ├── SchemaMismatch      written by a program that is newer or older than this one
    │   ├── HomeMismatch        zone, currency or period differ from those the home was made with
    │   ├── JournalGap          batch numbers are not 1, 2, 3 …
    │   ├── FileDamaged         a file's content is not what was written
    │   ├── QueryFailed         a query over the ledger failed in Spark's tasks; it is tried again
    │   └── Fenced              another pipeline has committed in our place
    ├── ReplicaError            a replica cannot answer
    │   ├── ReplicaDamaged      its copy is torn or of something else: it is made anew
    │   ├── ReplicaMismatch     the ledger does not add up: it stops rather than show a wrong number
    │   └── TotalTooLarge       a customer's total leaves 64 bits: it stops rather than show a wrong number
    ├── TasksFailed             Spark's tasks failed for good, though not by our own code; it is tried again
    ├── SinkError               the place that invoices go to is gone; it is tried again
    ├── HomeLocked              another pipeline works on this home
    └── DiskFull                no room to write

Bad *input rows* are not here: they are values (see events.Reason). A broken promise of our own
code is a LedgerBug, which nothing catches.
"""

from __future__ import annotations

import errno


class OpentabError(Exception):
    """Trouble outside: what happened, what mends it, and whether trying again can help."""

    exit_code = 1

    def __init__(self, fact: str, *, hint: str | None = None, retry_helps: bool = False) -> None:
        super().__init__(fact)
        self.fact = fact
        self.hint = hint
        self.retry_helps = retry_helps

    def __str__(self) -> str:
        return f"{self.fact} ({self.hint})" if self.hint else self.fact


class ConfigError(OpentabError):
    exit_code = 2


class InputError(OpentabError):
    exit_code = 2


class MachineError(OpentabError):
    exit_code = 3


class LogError(OpentabError):
    pass


class SegmentDamaged(LogError):
    pass


class LogMismatch(LogError):
    exit_code = 2


class ClockMismatch(LogError):
    pass


class LogUnreachable(LogError):
    pass


class LedgerError(OpentabError):
    pass


class SchemaMismatch(LedgerError):
    pass


class HomeMismatch(LedgerError):
    exit_code = 2


class JournalGap(LedgerError):
    pass


class FileDamaged(LedgerError):
    pass


class QueryFailed(LedgerError):
    pass


class Fenced(LedgerError):
    exit_code = 4


class ReplicaError(OpentabError):
    pass


class ReplicaDamaged(ReplicaError):
    pass


class ReplicaMismatch(ReplicaError):
    pass


class TotalTooLarge(ReplicaError):
    def __init__(self, period: str) -> None:
        super().__init__(
            f"a customer's total of {period} is beyond 9,223,372,036,854.775807, which a replica cannot hold",
            hint=f"opentab totals --period {period} shows whose: reverse the events that are wrong",
        )


class TasksFailed(OpentabError):
    pass


class SinkError(OpentabError):
    pass


class HomeLocked(OpentabError):
    exit_code = 4


class DiskFull(OpentabError):
    exit_code = 5

    def __init__(self, where: str) -> None:
        super().__init__(
            f"no space left on the disk of {where}",
            hint="free some space and start again: nothing is lost",
            retry_helps=True,
        )


class LedgerBug(AssertionError):
    """One of our own invariants is broken: stop before a wrong number is written."""


DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)


def means_disk_full(error: BaseException) -> bool:
    """True if `error`, or what caused it, says that a disk is full."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, DiskFull) or (isinstance(seen, OSError) and seen.errno in DISK_FULL_ERRNOS):
            return True
        text = str(seen).lower()
        if "no space left on" in text or "disk quota exceeded" in text:
            return True
        seen = seen.__cause__ or seen.__context__
    return False
