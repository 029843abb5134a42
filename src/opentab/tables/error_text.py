"""What an error of the ledger's storage means for a user: one sentence, and nothing that is secret."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb
import pyarrow as pa
from deltalake.exceptions import DeltaError

from opentab.core.errors import DiskFull, LedgerError, means_disk_full
from opentab.runtime.storage import Place
from opentab.tables.damage import damage_behind
from opentab.tables.listing import damaged_log

TEXT_CHARACTERS_MAX = 400
# A log that was cleared away since it was listed, or what the system says.
PASSES = re.compile(r"no such file|os error", re.IGNORECASE)
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def unwritable(root: Place, error: Exception) -> LedgerError | DiskFull:
    """What to say of a table that could not be written."""
    if means_disk_full(error):
        return DiskFull(str(root))
    return LedgerError(f"the ledger {root} cannot be written: {_reason(root, error)}", retry_helps=True)


def unreadable(root: Place, error: Exception) -> LedgerError:
    """What to say of a table, or of the whole ledger, that could not be read."""
    reason = _reason(root, error)
    # On a disk all that Delta's library cannot read, though the system lets it, is damaged.
    if root.is_local and isinstance(error, DeltaError) and not PASSES.search(reason):
        return damaged_log(root, reason)
    return LedgerError(f"the ledger {root} cannot be read: {reason}", retry_helps=True)


@contextmanager
def reading(ledger: Place) -> Iterator[None]:
    """Let an error of the storage's libraries be a LedgerError: it names the file that is damaged.

    A bucket that cannot be reached may answer the second time.
    """
    try:
        yield
    except (DeltaError, duckdb.Error, pa.ArrowException, OSError) as error:
        damage = damage_behind(ledger, error)
        if damage is not None:
            raise damage from error
        # DuckDB reads through pyarrow, and says what that said.
        if ledger.is_local or isinstance(error, pa.ArrowException) or not _is_of_bucket(error):
            raise
        raise unreadable(ledger, error) from error


def _is_of_bucket(error: Exception) -> bool:
    """Whether pyarrow says it of a bucket: what the system says has a number, or names a file."""
    return not isinstance(error, OSError) or (error.filename is None and error.errno in (None, errno.ENOENT))


def _reason(root: Place, error: Exception) -> str:
    text = " ".join(COLOURS.sub("", str(error)).split())
    return root.without_secrets(text)[:TEXT_CHARACTERS_MAX]
