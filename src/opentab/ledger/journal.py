"""The journal: one Delta table, one commit a batch, numbered 1, 2, 3 … The only truth there is.

A commit is fenced. Delta itself refuses a transaction only if someone else committed the same one
since our handle was read, so: read the handle anew, require that batch N-1 is the last one, and
commit N on that very handle. Whoever comes second fails, however long it slept in between.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from opentab.core.errors import Fenced, HomeMismatch, JournalGap, LedgerError
from opentab.core.records import BATCH, DID_NOT_COUNT, KINDS, BatchRecord
from opentab.dedupe.index import DedupeIndex
from opentab.dedupe.sorted_runs import Run, merged_runs, tiers_to_merge
from opentab.ledger.engine import OpenEngine, open_local
from opentab.ledger.sums import check_batches, sums_of
from opentab.runtime import crash
from opentab.runtime.storage import Place
from opentab.tables.error_text import unreadable, unwritable
from opentab.tables.files import LedgerFile, StagedFile, dataset_of, read_table, stage
from opentab.tables.listing import check_list, damaged_log, live_files
from opentab.tables.table import (
    JOURNAL_KEEPING,
    add_action,
    check_version,
    create_table,
    look_at,
    make_durable,
    no_panic,
    remove_action,
    sweep,
    tidy_log,
    write_actions,
)

JOURNAL_APP = "opentab-journal"
COMPACTION_APP = "opentab-compaction"
IDENTITY_KEYS = {"currency": "opentab.currency", "zone": "opentab.zone", "period": "opentab.period"}
LOG_KEY = "opentab.logId"
# Well below the time that the log keeps a commit behind a checkpoint.
SLEEP_SECONDS = 3.0

SMALL_BYTES = 4 * 1024 * 1024
LARGE_BYTES = 64 * 1024 * 1024
MIDDLE_FILES_MAX = 32


def table_schema() -> pa.Schema:
    """All columns of all kinds; a file holds those of its kind and the rest are null."""
    fields: dict[str, pa.Field] = {"kind": pa.field("kind", pa.string())}
    for schema in KINDS.values():
        for field in schema:
            fields.setdefault(field.name, field.with_nullable(True))
    return pa.schema(list(fields.values()))


class Journal:
    """A snapshot of the journal, and the fenced way to add to it."""

    def __init__(self, root: Place, table: DeltaTable) -> None:
        self.root = root
        self._table = table
        self._position = 0
        self._files: list[dict[str, Any]] | None = None
        self._see()
        self._check_list()

    @classmethod
    def open(cls, ledger: Place, identity: dict[str, str]) -> Journal | None:
        """The journal of a ledger, or None where no batch was ever begun.

        Stops where another version wrote it, or where the home was made with other settings.
        """
        root = ledger / "journal"
        try:
            journal = look_at(root, partial(cls, root))
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise unreadable(root, error) from error
        configuration = journal._table.metadata().configuration
        check_version(root, configuration)
        _check_identity(configuration, identity)
        return journal

    @classmethod
    def create(cls, ledger: Place, identity: dict[str, str], *, log_id: str | None = None) -> Journal:
        """The journal of a ledger, made empty where there is none. A new one belongs to the log of that id."""
        journal = cls.open(ledger, identity)
        if journal is not None:
            return journal
        root = ledger / "journal"
        configuration = {IDENTITY_KEYS[name]: value for name, value in identity.items()}
        if log_id is not None:
            configuration[LOG_KEY] = log_id
        try:
            table = create_table(root, table_schema(), keeping=JOURNAL_KEEPING, configuration=configuration)
        except (DeltaError, OSError) as error:
            raise unwritable(root, error) from error
        return cls(root, table)

    def refresh(self) -> None:
        """See what was committed since."""
        try:
            with no_panic(self.root):
                self._table.update_incremental()
                self._see()
        except (DeltaError, OSError) as error:
            raise unreadable(self.root, error) from error

    @property
    def position(self) -> int:
        """The number of the last batch; 0 before the first."""
        return self._position

    def last(self) -> BatchRecord | None:
        """The record of the last batch."""
        records = self.batches(after=self.position - 1)
        return records[-1] if records else None

    def log_id(self) -> str | None:
        """Which log the ledger is billed from: what the last record with an id says, or else the table itself.

        None in a ledger of an earlier version. The next batch records the id then.
        """
        last = self.last()
        if last is not None and last.log_id is None:
            last = next((record for record in reversed(self.batches()) if record.log_id is not None), None)
        return last.log_id if last is not None else self._table.metadata().configuration.get(LOG_KEY)

    def batches(self, after: int = 0, upto: int | None = None) -> list[BatchRecord]:
        """The records of the batches behind `after`, in order and without a gap."""
        table = self._dataset("batch", after, upto).to_table(columns=["record"])
        records = [msgspec.json.decode(text, type=BatchRecord) for text in table["record"].to_pylist()]
        records.sort(key=lambda record: record.batch)
        first = max(after, 0) + 1
        last = self.position if upto is None else min(upto, self.position)
        found = [record.batch for record in records]
        if found != list(range(first, last + 1)):
            wrong = next((n for n, m in zip(range(first, last + 1), found, strict=False) if n != m), last)
            raise JournalGap(
                f"the journal's batch {wrong} is missing or there twice",
                hint="restore the ledger from a backup: its log goes on from there",
            )
        return records

    def entries(self, after: int = 0, upto: int | None = None, *, encoded: Sequence[str] = ()) -> ds.Dataset:
        """The entries of the batches behind `after`, up to `upto`; some columns as numbers and a dictionary."""
        return self._dataset("entry", after, upto, encoded)

    def entry_files(self, after: int = 0, upto: int | None = None) -> list[LedgerFile]:
        """The files that hold the entries of those batches, and of others as well."""
        return self._between("entry", after, self.position if upto is None else upto)

    def entry_rows(self, after: int = 0) -> int:
        """About how many entries there are behind `after`, without reading them."""
        return sum(file["num_records"] for file in self._of_kind("entry") if file["max.batch"] > after)

    def rejections(self, after: int = 0, upto: int | None = None) -> ds.Dataset:
        """The rejections of the batches behind `after`, up to `upto`."""
        return self._dataset("rejection", after, upto)

    def seen(self, after: int = 0, upto: int | None = None) -> ds.Dataset:
        """The events with an id of the batches behind `after`, as far as they are not forgotten."""
        return self._dataset("seen", after, upto)

    def runs(self) -> list[Run]:
        """The runs of what was seen."""
        return [Run(file["path"], file["num_records"]) for file in self._of_kind("seen")]

    def remembers_from(self) -> int:
        """The first batch from which on the runs hold every event with an id that counted.

        Merges drop what is forgotten, so of earlier batches some may be missing.
        """
        place = ["batch", "partition", "number", "byte"]  # an event that reverses another has two rows
        seen = self.seen().to_table(columns=place, filter=ds.field("payload") != DID_NOT_COUNT)
        events = Counter(seen.group_by(place).aggregate([])["batch"].to_pylist())
        lacking = (one.batch for one in self.batches() if events[one.batch] < one.event_count - one.without_id)
        return max(lacking, default=0) + 1

    def batch_rows(self) -> ds.Dataset:
        """The batches' own rows, for SQL."""
        return self._dataset("batch", 0, None)

    def commit(self, record: BatchRecord, files: Sequence[StagedFile]) -> None:
        """Make a batch visible, all of it at once, or raise Fenced if its number is taken. On return it is durable."""
        row = pa.table(
            {
                "batch": [record.batch],
                "watermark_at": [record.watermark_us],
                "committed_at": [record.committed_us],
                "event_count": [record.event_count],
                "rejection_count": [record.rejection_count],
                "sum_micros": [Decimal(record.sum_micros)],
                "record": [msgspec.json.encode(record).decode()],
            },
            schema=BATCH,
        )
        started = time.monotonic()
        version_before = self._table.version()
        try:
            self._table.update_incremental()
            self._see()
            if self.position != record.batch - 1:
                raise fenced(self.position)
            batch_file = stage(self.root, "batch", row, run=record.run, batches=(record.batch,) * 2)
            actions = [add_action(file, new=True) for file in (*files, batch_file)]
            write_actions(self._table, actions, (JOURNAL_APP, record.batch), others=[COMPACTION_APP])
            self._table.update_incremental()
            self._see()
            # A writer that slept while its successor's commits were cleared away writes where nobody
            # looks. Whoever was quick cannot have slept; whoever was slow looks who made the batch.
            slow = time.monotonic() - started > SLEEP_SECONDS
            if self.position != record.batch or (slow and self._run_of(record.batch) != record.run):
                raise fenced(self.position)
        except (DeltaError, OSError) as error:
            found = self._found(record.batch)
            if not self.root.is_local and found is not None and _same(found, record):
                # The bucket took the commit and its answer was lost: the second try met the first one.
                self.refresh()
            elif (found is not None and found.run != record.run) or "Concurrent transaction" in str(error):
                raise fenced(record.batch) from error
            else:
                raise unwritable(self.root, error) from error
        finally:
            self._files = None
        tidy_log(self.root, self._table, version_before, JOURNAL_KEEPING)

    def compact(
        self, *, run: str, files_max: int, is_behind: bool = False, open_engine: OpenEngine = open_local
    ) -> int:
        """Merge small files into larger ones, if there are `files_max`. Returns how many were merged.

        Each merge is a task of its own. Runs of ids are large, and merging them can wait while the pipeline is behind.

        Rows stay as they are, batch by batch. Two programs that merge the same files would count
        them twice, so this is fenced like a batch, with a number of its own.
        """
        journal = look_at(self.root, partial(Journal, self.root))
        table = journal._table
        done = table.transaction_version(COMPACTION_APP) or 0
        merges = journal._merges(run, files_max, is_behind=is_behind)
        if not merges:
            return 0
        crash.moment("compacting")
        with open_engine(f"compaction at batch {journal.position}", 0) as engine:
            answers = engine.each(partial(merge_files, merges=merges), len(merges))
        actions: list[AddAction | RemoveAction] = [
            add_action(msgspec.json.decode(answer, type=StagedFile), new=False) for answer in answers if answer
        ]
        actions += [remove_action(file) for merge in merges for file in merge.files]
        try:
            write_actions(table, actions, (COMPACTION_APP, done + 1))
            table.update_incremental()
            make_durable(self.root, table)
        except CommitFailedError as error:
            if "Concurrent transaction" in str(error):
                return 0  # someone else was faster; our files stay unnamed and are swept
            raise unwritable(self.root, error) from error
        except (DeltaError, OSError) as error:
            raise unwritable(self.root, error) from error
        crash.moment("compacted")
        return sum(len(merge.files) for merge in merges)

    def sweep(self) -> int:
        """Delete the files that no commit names any more, or never did. Returns how many."""
        try:
            return look_at(self.root, partial(sweep, self.root))
        except (DeltaError, OSError) as error:
            raise unwritable(self.root, error) from error

    def live_files(self) -> int:
        """How many files the journal consists of."""
        return sum(len(self._of_kind(kind)) for kind in KINDS)

    def small_files(self) -> int:
        """How many of them are small. Compaction makes few large ones of them."""
        return sum(file["size_bytes"] < SMALL_BYTES for kind in KINDS for file in self._of_kind(kind))

    def _see(self) -> None:
        """Take the position from the handle. The handle would read it from the log whenever it is
        asked, and by then the log may be cleared away; the files it knows by heart."""
        make_durable(self.root, self._table)
        self._files = None
        if self.root.is_local:
            self._position = self._table.transaction_version(JOURNAL_APP) or 0
        else:
            # To read the log of a bucket is a request for each commit. A batch's own file has the same number.
            self._position = max((file["max.batch"] for file in self._of_kind("batch")), default=0)

    def _found(self, batch: int) -> BatchRecord | None:
        """A batch as it stands now, on a new handle: while we slept, the log that ours knew may have been cleared."""
        try:
            journal = look_at(self.root, partial(Journal, self.root))
            return journal.batches(after=batch - 1, upto=batch)[0] if journal.position >= batch else None
        except (LedgerError, DeltaError, OSError):
            return None

    def _merges(self, run: str, files_max: int, *, is_behind: bool) -> list[Merge]:
        """Which files are to become one."""
        merges = []
        for kind in KINDS:
            files = self._of_kind(kind)
            for chosen in tiers_to_merge(files, is_behind=is_behind) if kind == "seen" else _tiers(files, files_max):
                batches = (min(f["min.batch"] for f in chosen), max(f["max.batch"] for f in chosen))
                records: list[BatchRecord] = []
                if kind == "entry":
                    others = [file for file in files if file not in chosen]
                    found = self.batches(after=batches[0] - 1, upto=batches[1])
                    records = [record for record in found if not _is_in(others, record.batch)]
                merges.append(Merge(self.root, run, kind, chosen, batches, records, self.last()))
        return merges

    def _run_of(self, batch: int) -> str:
        return self.batches(after=batch - 1, upto=batch)[0].run

    def _of_kind(self, kind: str) -> list[dict[str, Any]]:
        if self._files is None:
            self._files = live_files(self.root, self._table)
        return [file for file in self._files if file["partition.kind"] == kind]

    def _check_list(self) -> None:
        """Raise FileDamaged if Delta's log does not name the files and the batches that were committed."""
        self._of_kind("batch")
        check_list(self.root, self._table, (JOURNAL_APP, COMPACTION_APP), self._files or [])
        last = max((file["max.batch"] for file in self._of_kind("batch")), default=0)
        if last != self._position:
            raise damaged_log(self.root, f"it ends at batch {self._position}, but its files at batch {last}")

    def _between(self, kind: str, after: int, last: int) -> list[LedgerFile]:
        return sorted(
            LedgerFile(file["path"], file["num_records"])
            for file in self._of_kind(kind)
            if file["max.batch"] > after and file["min.batch"] <= last
        )

    def _dataset(self, kind: str, after: int, upto: int | None, encoded: Sequence[str] = ()) -> ds.Dataset:
        last = self.position if upto is None else upto
        batch = ds.field("batch")
        files = self._between(kind, after, last)
        dataset = dataset_of(self.root, files, KINDS[kind], encoded=encoded, counts=kind == "seen")
        return dataset.filter((batch > after) & (batch <= last))


def _tiers(files: list[dict[str, Any]], files_max: int) -> list[list[dict[str, Any]]]:
    """Which files to merge: all small ones once there are many, and the middling ones likewise."""
    chosen = []
    small = [file for file in files if file["size_bytes"] < SMALL_BYTES]
    middle = [file for file in files if SMALL_BYTES <= file["size_bytes"] < LARGE_BYTES]
    for tier, enough in ((small, files_max), (middle, MIDDLE_FILES_MAX)):
        if len(tier) < enough:
            continue
        taken: list[dict[str, Any]] = []
        size = 0
        for file in sorted(tier, key=lambda file: file["min.batch"]):
            if size + file["size_bytes"] > 2 * LARGE_BYTES:
                break
            taken.append(file)
            size += file["size_bytes"]
        if len(taken) > 1:
            chosen.append(taken)
    return chosen


def _is_in(files: list[dict[str, Any]], batch: int) -> bool:
    """Whether one of the files may have rows of a batch."""
    return any(file["min.batch"] <= batch <= file["max.batch"] for file in files)


@dataclass(frozen=True)
class Merge:
    """Files of one kind that are to become one."""

    root: Place
    run: str
    kind: str
    files: list[dict[str, Any]]
    batches: tuple[int, int]
    whole: list[BatchRecord]  # of batches that have no entries elsewhere: theirs must add up
    last: BatchRecord | None


def merge_files(number: int, *, merges: Sequence[Merge]) -> bytes:
    """What a task does: one of the merges. The file that it staged; nothing where no row is left to keep."""
    merge = merges[number]
    if merge.kind == "seen":
        run = merged_runs(merge.root, merge.files, run=merge.run, last=merge.last)
        if run is None:
            return b""
        DedupeIndex(merge.root).prepare(run)
        return msgspec.json.encode(run)
    schema = KINDS[merge.kind]
    table = pa.concat_tables(
        [read_table(merge.root / f["path"], schema, f["num_records"]).cast(schema) for f in merge.files]
    )
    if merge.kind == "entry":
        check_batches(sums_of(table), merge.whole)
    return msgspec.json.encode(stage(merge.root, merge.kind, table, run=merge.run, batches=merge.batches))


def _same(one: BatchRecord, other: BatchRecord) -> bool:
    return msgspec.json.encode(one) == msgspec.json.encode(other)


def _check_identity(configuration: Mapping[str, str | None], identity: dict[str, str]) -> None:
    for name, key in IDENTITY_KEYS.items():
        made_with = configuration.get(key)
        if made_with != identity[name]:
            raise HomeMismatch(
                f"billing.{name} is {identity[name]!r}, but this home was made with {made_with!r}",
                hint=f'set it back to "{made_with}", or start a new home',
            )


def fenced(position: int) -> Fenced:
    """What a pipeline says when a batch is in the journal that is not its own."""
    return Fenced(
        f"another pipeline has taken over this home: batch {position} is its own",
        hint="this pipeline stops; nothing was counted twice",
    )
