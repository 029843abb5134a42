"""What a power cut left of a ledger on a disk, made whole: the pipeline does it as it starts, or `opentab doctor`."""

from __future__ import annotations

from datetime import UTC, datetime

from opentab.core.errors import LedgerError
from opentab.ledger.rebuild import rebuild_invoices, rebuild_journal
from opentab.runtime.disk import sync
from opentab.runtime.storage import Place
from opentab.tables.delta_log import CommitDamaged, CommitsLost, DeltaLog
from opentab.tables.listing import damaged_log

TABLES = ("journal", "invoices", "balances")


def recover(ledger: Place) -> list[str]:
    """Set aside what a power cut tore and nobody was told of. Says what was done, a sentence each.

    Only for the one pipeline of a ledger. Raises LedgerError where commits are gone that others build on.
    """
    return [sentence for table in TABLES for sentence in _recover(ledger, table, rebuild=None)]


def repair(ledger: Place, identity: dict[str, str]) -> list[str]:
    """The same, and make a log that lost commits again from the table's data files."""
    return [sentence for table in TABLES for sentence in _recover(ledger, table, rebuild=identity)]


def _recover(ledger: Place, table: str, *, rebuild: dict[str, str] | None) -> list[str]:
    if not ledger.is_local:
        return []  # a bucket has whole objects, or none
    try:
        torn = DeltaLog((ledger / table).path).recover()
        return [f"{table}: {name} was not finished when the power went, and is set aside" for name in torn]
    except CommitDamaged as error:
        raise damaged_log(ledger / table, str(error)) from error
    except CommitsLost as error:
        if table == "balances":
            return [_set_balances_aside(ledger)]
        if rebuild is None:
            raise LedgerError(
                f"the ledger {ledger / table} cannot be read: {error}",
                hint="opentab doctor --repair makes its log again from its files, or says what to restore",
            ) from error
        position = rebuild_journal(ledger, rebuild) if table == "journal" else rebuild_invoices(ledger)
        return [f"{table}: its log was made again from its files, up to position {position}; check it: opentab verify"]


def _set_balances_aside(ledger: Place) -> str:
    """Balances follow from the journal, so they are not worth a repair."""
    name = f"balances.torn-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    (ledger / "balances").path.rename((ledger / name).path)
    sync(ledger.path)
    return f"balances: commits were lost; the table is set aside as {name}, and is computed again"
