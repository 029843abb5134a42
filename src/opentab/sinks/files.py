"""Invoice files: for each period a folder, for each position at which it was closed or revised a set of files.

    invoices/2026-01/invoices-000000042.csv       one row an invoice
    invoices/2026-01/invoices-000000042.jsonl     the same with their lines, one object a row
    invoices/2026-01/lines/lines-000000042.csv    one row a line

A file has its name only once it is whole, and what it holds follows from the ledger alone. So a file that is
there is right as long as the ledger is the same, a file that is gone can be written again, and nothing else has
to be remembered. Whether a disk has changed one since is found by writing all of them again and comparing
(`opentab verify`).
"""

from __future__ import annotations

import filecmp
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import duckdb

from opentab.core.errors import LedgerError, SinkError
from opentab.core.periods import Period
from opentab.ledger.engine import connect
from opentab.ledger.invoice_json import lines_sql, statements_sql
from opentab.ledger.invoices import InvoiceFile, Invoices
from opentab.runtime import crash
from opentab.runtime.csv_cells import guarded_sql
from opentab.runtime.disk import make_directories, sync
from opentab.tables.damage import damage_behind
from opentab.tables.files import first_line

INVOICE_CSV_COLUMNS = "period, customer, revision, total, currency, previous_total, delta, position, issued_at"
GUARDED_COLUMNS = ("customer", "type")  # texts of others
MEMORY_LIMIT = "512MB"
ASIDE_SECONDS_MAX = 600


@dataclass(frozen=True, slots=True)
class FileSet:
    """The files of one period at one position, and what of the ledger goes into them."""

    period: Period
    position: int
    sources: tuple[InvoiceFile, ...]

    @property
    def names(self) -> tuple[str, str, str]:
        """Below the folder of all invoice files: invoices as CSV, as JSON lines, and their lines as CSV."""
        number = f"{self.position:09d}"
        return (
            f"{self.period}/invoices-{number}.csv",
            f"{self.period}/invoices-{number}.jsonl",
            f"{self.period}/lines/lines-{number}.csv",
        )


def file_sets(invoices: Invoices) -> list[FileSet]:
    """All sets of files that there should be."""
    groups = groupby(invoices.files, key=lambda file: (file.period, file.position))
    return [FileSet(*key, tuple(files)) for key, files in groups]


def missing(root: Path, invoices: Invoices) -> list[FileSet]:
    """The sets that are not whole. The files themselves are the only memory."""
    return [files for files in file_sets(invoices) if not all((root / name).exists() for name in files.names)]


def export_missing(root: Path, invoices: Invoices, *, currency: str) -> list[FileSet]:
    """Write every file that is not there; raises SinkError where the place cannot be written to."""
    done = []
    try:
        _sweep_aside(root)
        for files in missing(root, invoices):
            _check_sources(invoices, files)
            _export(root, invoices, files, currency)
            done.append(files)
    except (OSError, duckdb.Error) as error:
        reason = (isinstance(error, OSError) and error.strerror) or first_line(error)
        raise damage_behind(invoices.root.parent, error) or unreachable(root, reason) from error
    return done


def compare(root: Path, invoices: Invoices, *, currency: str) -> tuple[int, list[Path]]:
    """Write every file that is there again, elsewhere: how many there are, and which of them differ."""
    count, differing = 0, []
    with tempfile.TemporaryDirectory(prefix="opentab-files-") as scratch:
        again = Path(scratch) / "again"
        for files in file_sets(invoices):
            contents = zip(files.names, _contents(currency), _contents(currency, guard=False), strict=True)
            for name, now, earlier in contents:
                if (root / name).exists():
                    count += 1
                    # Earlier versions wrote texts that look like formulas as they are.
                    for query, form in dict.fromkeys((now, earlier)):
                        _write(again, invoices, files, query, form)
                        is_same = filecmp.cmp(root / name, again, shallow=False)
                        again.unlink()
                        if is_same:
                            break
                    else:
                        differing.append(root / name)
    return count, differing


def _export(root: Path, invoices: Invoices, files: FileSet, currency: str) -> None:
    for name, (query, form) in zip(files.names, _contents(currency), strict=True):
        path = root / name
        if path.exists():
            continue
        make_directories(path.parent)
        aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            _write(aside, invoices, files, query, form)
            sync(aside)
            crash.moment("exporting")
            aside.rename(path)
        finally:
            aside.unlink(missing_ok=True)
        sync(path.parent)
    crash.moment("exported")


def _write(path: Path, invoices: Invoices, files: FileSet, query: str, form: str) -> None:
    """Write one file of a set."""
    piece = path.with_name(f"{path.name}-piece")
    try:
        with path.open("xb") as whole:
            for number, source in enumerate(files.sources):
                _copy(invoices, source, query, f"format csv, header {not number}" if form == "csv" else form, piece)
                with piece.open("rb") as rows:
                    shutil.copyfileobj(rows, whole)
                piece.unlink()
    finally:
        piece.unlink(missing_ok=True)


def _copy(invoices: Invoices, source: InvoiceFile, query: str, form: str, path: Path) -> None:
    """Write what a query makes of some invoices. They are whole and in order, so pieces can be joined."""
    with connect(threads=1, memory_limit=MEMORY_LIMIT) as connection:
        connection.register("invoices", invoices.rows_of([source]))
        connection.execute(f"copy ({query}) to '{_quoted(path)}' ({form})")


def _check_sources(invoices: Invoices, files: FileSet) -> None:
    """Tell a ledger that is damaged from a place that is gone."""
    sources = [invoices.place_of(file) for file in files.sources]
    gone = [source for source in sources if not source.exists()]
    if gone:
        raise LedgerError(f"the ledger's file {gone[0]} is gone", hint="restore the ledger from a backup")


def _sweep_aside(root: Path) -> None:
    """Remove what a killed export left behind; a younger file may be someone's who is still at it."""
    for pattern in ("*/.*", "*/lines/.*"):
        for aside in root.glob(pattern):
            with suppress(FileNotFoundError):
                if time.time() - aside.stat().st_mtime > ASIDE_SECONDS_MAX:
                    aside.unlink()


def _contents(currency: str, *, guard: bool = True) -> Iterator[tuple[str, str]]:
    """For each name of a set: the query and the form of its file."""
    customer, type_ = (f"{guarded_sql(name) if guard else name} as {name}" for name in GUARDED_COLUMNS)
    statements = statements_sql(currency)
    yield f"select * replace ({customer}) from (select {INVOICE_CSV_COLUMNS} from ({statements}))", "csv"
    yield statements, "format json"
    yield f"select * replace ({customer}, {type_}) from ({lines_sql()})", "csv"


def unreachable(root: Path, reason: str) -> SinkError:
    """What to say while the place that invoice files go to is gone."""
    return SinkError(
        f"the invoice files cannot be written to {root}: {reason}",
        hint="the invoices are safe in the ledger; once the place is back: opentab invoices --export",
        retry_helps=True,
    )


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
