"""The invoices: one Delta table, one commit for all that was due at a position.

A commit is fenced like a batch: it is made on the very handle that the invoices before it were read
from, so two pipelines cannot issue the same round twice, however long one of them slept.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow.dataset as ds
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from opentab.core.errors import Fenced
from opentab.core.periods import Period
from opentab.ledger.invoice_lines import INVOICE_OF_PERIOD
from opentab.runtime.storage import Place
from opentab.tables.error_text import unreadable, unwritable
from opentab.tables.files import LedgerFile, StagedFile, dataset_of
from opentab.tables.listing import check_list, damaged_log, live_files
from opentab.tables.table import (
    WEEK_KEEPING,
    add_action,
    check_version,
    create_table,
    look_at,
    make_durable,
    sweep,
    tidy_log,
    write_actions,
)

APP = "opentab-invoices"
ID_APP = "opentab-invoices-id"  # its number is a checksum of the table's id


@dataclass(frozen=True, slots=True, order=True)
class InvoiceFile:
    """Some invoices of one period that were issued at one position: whole ones, in the customers' order."""

    period: Period
    position: int
    path: str  # below the table's root
    rows: int


class Invoices:
    """A snapshot of all invoices, and the fenced way to add to them."""

    def __init__(self, root: Place, table: DeltaTable) -> None:
        self.root = root
        self._table = table
        self._see()

    @classmethod
    def open(cls, ledger: Place) -> Invoices | None:
        """The invoices of a ledger, or None where none was ever due."""
        root = ledger / "invoices"
        try:
            invoices = look_at(root, partial(cls, root))
            check_version(root, invoices._table.metadata().configuration)
            return invoices
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise unreadable(root, error) from error

    @classmethod
    def create(cls, ledger: Place) -> Invoices:
        """The invoices of a ledger, made empty where there are none."""
        found = cls.open(ledger)
        if found is not None:
            return found
        root = ledger / "invoices"
        try:
            table = create_table(root, INVOICE_OF_PERIOD, keeping=WEEK_KEEPING, partition_by="period")
        except (DeltaError, OSError) as error:
            raise unwritable(root, error) from error
        return cls(root, table)

    @property
    def id(self) -> str:
        """Which ledger this is; a copy of it has the same."""
        return str(self._table.metadata().id)

    @property
    def position(self) -> int:
        """The last position at which all that was due has been issued; 0 before the first."""
        return self._position

    @property
    def files(self) -> Sequence[InvoiceFile]:
        """The files of the table in order of period, position and customer."""
        return self._files

    def place_of(self, file: InvoiceFile) -> Place:
        """Where a file of the table lies."""
        return self.root / file.path

    def rows(self, *, period: Period | None = None) -> ds.Dataset:
        """The invoices' lines, of all periods or of one."""
        return self.rows_of([file for file in self._files if period is None or file.period == period])

    def rows_of(self, files: Sequence[InvoiceFile]) -> ds.Dataset:
        """The lines in some of the files."""
        named = [LedgerFile(file.path, file.rows, file.period) for file in files]
        return dataset_of(self.root, named, INVOICE_OF_PERIOD, counts=True)

    def latest_position(self, period: Period) -> int:
        """The last position at which an invoice of the period was issued; 0 where there is none."""
        return max((file.position for file in self._files if file.period == period), default=0)

    def revisions(self, period: Period, customer: str) -> list[tuple[int, int]]:
        """The revisions of one invoice in order, each with the position that it was computed at."""
        table = self.rows(period=period).to_table(
            columns=["revision", "position"], filter=ds.field("customer") == customer
        )
        return sorted(set(zip(table["revision"].to_pylist(), table["position"].to_pylist(), strict=True)))

    def commit(self, position: int, files: Sequence[StagedFile]) -> None:
        """Issue all that was due at a position, as one; raise Fenced if someone else has issued since.

        Without files it records that nothing had to be issued up to there.
        """
        version = self._table.version()
        actions = [add_action(file, new=True, number="position") for file in files]
        try:
            write_actions(self._table, actions, (APP, position), partition_by="period", marks=[id_mark(self._table)])
            self._table.update_incremental()
            self._see()
        except CommitFailedError as error:
            if "Concurrent transaction" in str(error):
                raise fenced(position) from error
            raise unwritable(self.root, error) from error
        except (DeltaError, OSError) as error:
            raise unwritable(self.root, error) from error
        if self.position != position:
            raise fenced(self.position)
        tidy_log(self.root, self._table, version, WEEK_KEEPING)

    def sweep(self) -> int:
        """Delete the files that no commit names: what a closing that was killed had staged. Returns how many."""
        try:
            return sweep(self.root, self._table)
        except (DeltaError, OSError) as error:
            raise unwritable(self.root, error) from error

    def _see(self) -> None:
        make_durable(self.root, self._table)
        self._position = self._table.transaction_version(APP) or 0
        files = live_files(self.root, self._table, partition_by="period")
        check_list(self.root, self._table, [APP], files)
        last = max((file["max.position"] for file in files), default=0)
        if self._position < last:
            raise damaged_log(self.root, f"it ends at position {self._position}, but its files at {last}")
        # Invoices are delivered under the table's id. An earlier version kept no copy of it.
        if self._table.transaction_version(ID_APP) not in (None, _checksum(self.id)):
            raise damaged_log(self.root, "the table's id does not match its checksum")
        self._files = sorted(
            InvoiceFile(file["partition.period"], file["max.position"], file["path"], file["num_records"])
            for file in files
        )


def id_mark(table: DeltaTable) -> Transaction:
    """The copy of the table's id that goes with each commit."""
    return Transaction(ID_APP, _checksum(str(table.metadata().id)))


def _checksum(id_: str) -> int:
    return zlib.crc32(id_.encode())


def fenced(position: int) -> Fenced:
    """What a pipeline says when another has issued invoices in its place."""
    return Fenced(
        f"another pipeline has taken over this home: it issued the invoices of position {position}",
        hint="this pipeline stops; nothing was issued twice",
    )
