"""Which file is damaged, once something has read rows of it.

pyarrow and DuckDB say that a checksum is wrong, but not of which file. So every file of the ledger is read again, and
the first one that cannot be read is named.
"""

from __future__ import annotations

import duckdb
import pyarrow as pa
from deltalake.exceptions import DeltaError, TableNotFoundError

from opentab.core.errors import FileDamaged, means_disk_full
from opentab.core.records import BALANCE, INVOICE, KINDS
from opentab.runtime.storage import Place
from opentab.tables.files import first_line, is_checked, read_batches, says_damage
from opentab.tables.listing import damaged_log, live_files
from opentab.tables.table import look_at

PARTITION_OF = {"journal": "kind", "invoices": "period", "balances": "kind"}
BATCH_ROWS = 65_536


def damage_behind(ledger: Place, error: Exception) -> FileDamaged | None:
    """The damaged file that an error of pyarrow or DuckDB comes from; None where it has another cause."""
    if isinstance(error, FileDamaged):
        return error
    may_be = isinstance(error, duckdb.InvalidInputException | duckdb.IOException) or says_damage(error)
    return find_damage(ledger) if may_be and not means_disk_full(error) else None


def find_damage(ledger: Place) -> FileDamaged | None:
    """What is wrong with the first file that is damaged; None if none is, or if the storage does not answer."""
    try:
        check_files(ledger)
    except FileDamaged as damage:
        return damage
    except (DeltaError, OSError):
        return None
    return None


def check_files(ledger: Place) -> int:
    """Read all files of a ledger; FileDamaged names the first that is damaged.

    Returns how many have no checksums, because an earlier version wrote them: of these nothing can be told.
    """
    unchecked = 0
    for table, partition_by in PARTITION_OF.items():
        for place, schema, rows in _files(ledger / table, partition_by):
            unchecked += not is_checked(place.uri)
            for _ in read_batches(place, schema, rows, schema.names, batch_rows=BATCH_ROWS):
                pass
    return unchecked


def _files(root: Place, partition_by: str) -> list[tuple[Place, pa.Schema, int]]:
    schemas = {**KINDS, "balance": BALANCE}
    try:
        live = look_at(root, lambda table: live_files(root, table, partition_by=partition_by))
    except TableNotFoundError:
        return []
    except DeltaError as error:
        if not root.is_local:  # it may be out of reach
            raise
        raise damaged_log(root, first_line(error)) from error
    return [
        (root / file["path"], schemas.get(file[f"partition.{partition_by}"], INVOICE), file["num_records"])
        for file in live
    ]
