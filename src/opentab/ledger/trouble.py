"""What an error of the ledger's storage means for a user: one sentence, and nothing that is secret."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb
from deltalake.exceptions import DeltaError

from opentab.errors import DiskFull, LedgerError, means_disk_full
from opentab.place import Place

TEXT_CHARACTERS_MAX = 400
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def unwritable(root: Place, error: Exception) -> LedgerError | DiskFull:
    """What to say of a table that could not be written."""
    if means_disk_full(error):
        return DiskFull(str(root))
    return LedgerError(f"the ledger {root} cannot be written: {_reason(root, error)}", retry_helps=True)


def unreadable(root: Place, error: Exception) -> LedgerError:
    """What to say of a table, or of the whole ledger, that could not be read."""
    return LedgerError(f"the ledger {root} cannot be read: {_reason(root, error)}", retry_helps=True)


@contextmanager
def reading(ledger: Place) -> Iterator[None]:
    """Let a bucket that cannot be reached meanwhile be a LedgerError that a second try may mend."""
    try:
        yield
    except (DeltaError, duckdb.Error) as error:
        # DuckDB reads through pyarrow, and says what that said.
        if ledger.is_local:
            raise
        raise unreadable(ledger, error) from error
    except OSError as error:
        if ledger.is_local or not _is_of_bucket(error):
            raise
        raise unreadable(ledger, error) from error


def _is_of_bucket(error: OSError) -> bool:
    """Whether pyarrow says it of a bucket: what the system says has a number, or names a file."""
    return error.filename is None and error.errno in (None, errno.ENOENT)


def _reason(root: Place, error: Exception) -> str:
    text = " ".join(COLOURS.sub("", str(error)).split())
    return root.without_secrets(text)[:TEXT_CHARACTERS_MAX]
