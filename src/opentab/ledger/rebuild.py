"""A table's log made again from its data files, where a power cut took commits that it cannot be read without.

Data files are synced before a commit names them, so what was committed is on the disk. What the lost log knew is which
files count: not those that compaction replaced, nor those of a task that died. The batch records tell: the rows that
count of a batch add up to what its record says. Where they do not, nothing is changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from opentab.core.errors import LedgerError
from opentab.core.records import SEEN, BatchRecord
from opentab.dedupe.sorted_runs import sorted_run, stage_run
from opentab.ledger.invoices import APP as INVOICES_APP
from opentab.ledger.invoices import Invoices
from opentab.ledger.journal import JOURNAL_APP, Journal
from opentab.runtime.disk import sync
from opentab.runtime.storage import Place
from opentab.tables.delta_log import LOG_NAME, DeltaLog
from opentab.tables.files import StagedFile, new_run
from opentab.tables.table import add_action, open_table, write_actions

CHOICES_MAX = 14  # files of one batch that are tried in every combination

Sums = tuple[int, ...]  # rows, then what else is known of them


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file, and what each batch has in it."""

    path: str  # below the table's root
    rows: int
    bytes: int
    sums: dict[int, Sums]  # by batch

    def staged(self, kind: str, column: str = "kind") -> StagedFile:
        return StagedFile(kind, self.path, self.rows, self.bytes, min(self.sums), max(self.sums), column)


def rebuild_journal(ledger: Place, identity: dict[str, str]) -> int:
    """Make the journal's log again. Returns the position that it leads to."""
    root = ledger / "journal"
    records = _records(root)
    if not records:
        raise _irreparable(root, "no record of a batch is left")
    position = len(records)
    entries = {r.batch: (r.entry_rows, r.event_count, r.amount_micros) for r in records}
    rejections = {r.batch: (r.rejection_count,) for r in records}
    chosen = [
        *_chosen(root, "entry", entries, ["event_count", "amount_micros"]),
        *_chosen(root, "rejection", rejections, []),
        *_chosen(root, "batch", {r.batch: (1,) for r in records}, []),
        *_seen(root, records),
    ]
    _set_log_aside(root)
    Journal.create(ledger, identity)
    _name(root, chosen, (JOURNAL_APP, position))
    return position


def rebuild_invoices(ledger: Place) -> int:
    """Make the log of the invoices again. Returns the position that it leads to.

    A position is issued only after the one before it was. So of each but the last one the newest attempt was committed;
    the last one was if a commit that is left names it, and is issued again otherwise.
    """
    root = ledger / "invoices"
    attempts: dict[int, dict[str, list[Path]]] = {}
    for path in sorted(root.path.glob("period=*/*.parquet"), key=lambda path: path.stat().st_mtime_ns):
        number, run, *_ = path.name.split("-")
        attempts.setdefault(int(number), {}).setdefault(run, []).append(path)
    named, marked = _left_commits(root)
    last = max(attempts, default=0)
    if last and not any(_below(root, path) in named for paths in attempts[last].values() for path in paths):
        del attempts[last]
    files = _invoice_files(root, [path for runs in attempts.values() for path in list(runs.values())[-1]])
    position = max((marked, *attempts))
    _set_log_aside(root)
    Invoices.create(ledger)
    kinds = [file.staged(Path(file.path).parent.name.partition("=")[2], "period") for file in files]
    _name(root, kinds, (INVOICES_APP, position), column="period", number="position")
    return position


def _invoice_files(root: Place, paths: Sequence[Path]) -> list[DataFile]:
    """These files, each invoice in one of them. A closing that failed and was tried again left some twice."""
    found = []
    issued: dict[tuple[str, str, int], Path] = {}
    for path in paths:
        table = _read(path, ["customer", "revision"])
        file = _data_file(root, path, "position", [])
        if table is None or file is None:
            raise _irreparable(root, f"{path} is damaged")
        period = path.parent.name
        for customer, revision in set(zip(*(column.to_pylist() for column in table.columns), strict=True)):
            if other := issued.get((period, customer, revision)):
                raise _irreparable(root, f"revision {revision} for {customer} is in {other} and in {path}")
            issued[period, customer, revision] = path
        found.append(file)
    return found


def _records(root: Place) -> list[BatchRecord]:
    """The records of the batches 1, 2, 3 … as far as each is there, and says one thing."""
    found: dict[int, set[str]] = {}
    for path in sorted((root.path / "kind=batch").glob("*.parquet")):
        table = _read(path, ["batch", "record"])
        if table is not None:
            for batch, record in zip(table["batch"].to_pylist(), table["record"].to_pylist(), strict=True):
                found.setdefault(batch, set()).add(record)
    last = max(found, default=0)
    if len(found.get(last, ())) > 1:
        del found[last]  # it was being tried again: it is billed again
    for batch in range(1, max(found, default=0) + 1):
        if len(found.get(batch, ())) != 1:
            raise _irreparable(root, f"batch {batch} is {'there twice' if batch in found else 'missing'}")
    return [msgspec.json.decode(found[batch].pop(), type=BatchRecord) for batch in sorted(found)]


def _chosen(root: Place, kind: str, wanted: Mapping[int, Sums], columns: list[str]) -> list[StagedFile]:
    """The files of a kind whose rows add up to what each batch has.

    What compaction made of many batches goes first; what is left of a batch is looked for among its own files.
    """
    paths = sorted((root.path / f"kind={kind}").glob("*.parquet"))
    files = [file for path in paths if (file := _data_file(root, path, "batch", columns)) is not None]
    files = [file for file in files if file.sums.keys() <= wanted.keys()]
    left = {batch: sums for batch, sums in wanted.items() if sums[0]}
    chosen = []
    for file in sorted((f for f in files if len(f.sums) > 1), key=lambda f: (-len(f.sums), -f.rows)):
        if all(batch in left and sums[0] <= left[batch][0] for batch, sums in file.sums.items()):
            chosen.append(file)
            for batch, sums in file.sums.items():
                left[batch] = _less(left[batch], sums)
    own: dict[int, list[DataFile]] = {}
    for file in files:
        if len(file.sums) == 1:
            own.setdefault(min(file.sums), []).append(file)
    for batch, sums in left.items():
        chosen += _adding_up(root, kind, batch, sums, own.get(batch, []))
    return [file.staged(kind) for file in chosen]


def _adding_up(root: Place, kind: str, batch: int, sums: Sums, files: Sequence[DataFile]) -> list[DataFile]:
    """Those of a batch's own files that add up to these sums."""
    for count in range(len(files) + 1) if len(files) <= CHOICES_MAX else (len(files),):
        for some in combinations(files, count):
            left = sums
            for file in some:
                left = _less(left, file.sums[batch])
            if not any(left):
                return list(some)
    raise _irreparable(root, f"no files of the kind {kind!r} add up to what batch {batch} has")


def _seen(root: Place, records: Sequence[BatchRecord]) -> list[StagedFile]:
    """The remembered ids as one run: each place in the log once, as the batch has it that took the place."""
    tables = [_read(path, SEEN.names) for path in sorted((root.path / "kind=seen").glob("*.parquet"))]
    whole = [table.select(SEEN.names).cast(SEEN) for table in tables if table is not None]
    if not whole:
        return []
    taken = [(r.batch, name, first, last) for r in records for name, (first, last) in r.taken.items()]
    ranges = pa.table(
        [pa.array(column) for column in zip(*taken, strict=True)], ["batch", "partition", "first", "last"]
    )
    rows = (
        pa.concat_tables(whole)
        .group_by(SEEN.names)
        .aggregate([])
        .join(ranges, ["batch", "partition"], join_type="inner")
    )
    # A Kafka position is the offset that is read next: an offset and its number differ by one.
    number = pc.if_else(pc.equal(rows["byte"], 0), pc.add(rows["number"], 1), rows["number"])
    rows = rows.filter(pc.and_(pc.greater_equal(number, rows["first"]), pc.less_equal(number, rows["last"])))
    run = stage_run(
        root, iter([sorted_run(rows.select(SEEN.names).cast(SEEN))]), run=new_run(), batches=(1, len(records))
    )
    return [run] if run is not None else []


def _data_file(root: Place, path: Path, number: str, columns: list[str]) -> DataFile | None:
    """A data file with the sums of each batch in it; None where it is damaged or empty."""
    table = _read(path, [number, *columns])
    if table is None or not table.num_rows:
        return None
    groups = table.group_by(number).aggregate([([], "count_all"), *((name, "sum") for name in columns)])
    names = ["count_all", *(f"{name}_sum" for name in columns)]
    sums = {row[number]: tuple(row[name] for name in names) for row in groups.to_pylist()}
    return DataFile(_below(root, path), table.num_rows, path.stat().st_size, sums)


def _below(root: Place, path: Path) -> str:
    return str(path.relative_to(root.path))


def _read(path: Path, columns: Sequence[str]) -> pa.Table | None:
    try:
        return pq.read_table(path, columns=list(columns), partitioning=None, page_checksum_verification=True)
    except (OSError, pa.ArrowException):
        return None


def _left_commits(root: Place) -> tuple[set[str], int]:
    """The files that the commits that are left name, and the last position among them."""
    log = DeltaLog(root.path)
    named: set[str] = set()
    position = 0
    for version in log.commits():
        for line in log.commit_path(version).read_bytes().splitlines():
            try:
                action: dict[str, Any] = msgspec.json.decode(line, type=dict)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue
            if "add" in action:
                named.add(action["add"]["path"].replace("%3D", "="))
            if action.get("txn", {}).get("appId") == INVOICES_APP:
                position = max(position, action["txn"]["version"])
    return named, position


def _set_log_aside(root: Place) -> None:
    name = f"{LOG_NAME}.torn-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    (root.path / LOG_NAME).rename(root.path / name)
    sync(root.path)


def _name(
    root: Place,
    files: Sequence[StagedFile],
    transaction: tuple[str, int],
    *,
    column: str = "kind",
    number: str = "batch",
) -> None:
    """Let the new log name these files, as one commit."""
    paths = Counter(file.path for file in files)
    assert max(paths.values(), default=1) == 1, paths
    actions = [add_action(file, new=True, number=number) for file in files]
    write_actions(open_table(root), actions, transaction, partition_by=column)


def _less(sums: Sums, taken: Sums) -> Sums:
    return tuple(one - other for one, other in zip(sums, taken, strict=True))


def _irreparable(root: Place, fact: str) -> LedgerError:
    return LedgerError(
        f"the ledger {root} lost commits, and its files do not say what they held: {fact}",
        hint="restore the ledger from a backup: its log goes on from there",
    )
