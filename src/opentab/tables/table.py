"""What all tables of the ledger have in common: their making, versions and file actions."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from opentab.core.errors import FileDamaged, SchemaMismatch
from opentab.core.records import SCHEMA_VERSION
from opentab.runtime.disk import sync
from opentab.runtime.storage import Place
from opentab.tables.delta_log import LOG_NAME, DeltaLog
from opentab.tables.files import StagedFile, first_line
from opentab.tables.listing import committed, damaged_log, list_transaction

logger = logging.getLogger(__name__)

VERSION_KEY = "opentab.schemaVersion"
# delta-rs would write checkpoints that a power cut may tear, and delete the commits that they cover (delta_log.py).
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
# Readers hold a snapshot for seconds at most; what compaction replaced is kept this long for them.
RETENTION_HOURS = 1
CHECKPOINT_COMMITS = 100
# In a bucket each commit after the checkpoint is a request for whoever opens the table.
BUCKET_CHECKPOINT_COMMITS = 10
LOOKS_MAX = 3
GONE = re.compile(r"not found|no such file", re.IGNORECASE)

Seen = TypeVar("Seen")


@dataclass(frozen=True, slots=True)
class LogKeeping:
    """How often a table gets a checkpoint, and how long the commits that it covers are kept."""

    kept_seconds: int
    checkpoint_commits: int = CHECKPOINT_COMMITS

    @property
    def configuration(self) -> dict[str, str]:
        """The same as table properties, for other programs that write Delta tables."""
        return {
            "delta.checkpointInterval": str(self.checkpoint_commits),
            "delta.logRetentionDuration": f"interval {self.kept_seconds} seconds",
            "delta.deletedFileRetentionDuration": f"interval {RETENTION_HOURS} hours",
        }


# Every look at the journal lists its log, so each commit file that lies there makes the next commit slower (ADR 9).
JOURNAL_KEEPING = LogKeeping(kept_seconds=60)
# The other tables get few commits; these are kept for ordinary Delta readers.
WEEK_KEEPING = LogKeeping(kept_seconds=7 * 24 * 3600)

_durable: dict[str, int] = {}  # by table: this process has made all commits up to this version durable


@contextmanager
def no_panic(root: Place) -> Iterator[None]:
    """Let a panic of delta-rs be FileDamaged: it panics where a checkpoint is not as it was written.

    A panic is no Exception, and its class cannot be imported.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise damaged_log(root, "a checkpoint in it cannot be read") from error


def open_table(root: Place) -> DeltaTable:
    """The table at a place, as it is now."""
    with no_panic(root):
        return DeltaTable(root.uri, storage_options=root.delta_options)


def look_at(root: Place, look: Callable[[DeltaTable], Seen]) -> Seen:
    """What someone sees in a table.

    Its commits and checkpoints may be cleared away between the look at their names and at them: then it looks again.
    """
    with no_panic(root):
        for _ in range(LOOKS_MAX - 1):
            try:
                return look(open_table(root))
            except TableNotFoundError:
                raise
            except (DeltaError, FileNotFoundError) as error:
                if not GONE.search(str(error)):
                    raise
        return look(open_table(root))


def create_table(
    root: Place,
    schema: pa.Schema,
    *,
    keeping: LogKeeping,
    configuration: Mapping[str, str] | None = None,
    partition_by: str = "kind",
) -> DeltaTable:
    """The table at a place, made empty where there is none. On return it is durable."""
    root.make()
    table = DeltaTable.create(
        root.uri,
        schema,
        mode="ignore",
        partition_by=[partition_by],
        configuration={
            **keeping.configuration,
            **({} if root.is_local else {"delta.checkpointInterval": str(BUCKET_CHECKPOINT_COMMITS)}),
            **(configuration or {}),
            VERSION_KEY: str(SCHEMA_VERSION),
        },
        raise_if_key_not_exists=False,
        storage_options=root.delta_options,
        post_commithook_properties=NO_HOOKS,
    )
    if root.is_local:
        sync(root.path)  # the log's own name
    make_durable(root, table)
    return table


def check_version(root: Place, configuration: Mapping[str, str | None]) -> None:
    """Stop before touching a table that another version of opentab wrote."""
    found = configuration.get(VERSION_KEY)
    if found == str(SCHEMA_VERSION):
        return
    if found is None or not found.isdigit():
        raise SchemaMismatch(f"{root} is not a table of opentab", hint="give the ledger another place")
    age = "newer" if int(found) > SCHEMA_VERSION else "older"
    raise SchemaMismatch(
        f"the ledger {root.parent} has schema version {found}, written by {'a ' + age} opentab; "
        f"this one reads version {SCHEMA_VERSION}",
        hint="use that version of opentab",
    )


def write_actions(
    table: DeltaTable,
    actions: Sequence[AddAction | RemoveAction],
    transaction: tuple[str, int],
    *,
    mode: str = "append",
    partition_by: str = "kind",
    others: Sequence[str] = (),
    marks: Sequence[Transaction] = (),
) -> None:
    """Commit file actions as one, with the number that fences them. It is visible then, and not durable yet.

    `others` are the table's other writers, and `marks` are transaction numbers that are committed with it.
    """
    app, number = transaction
    listed = list_transaction(
        table, actions, app, number, partition_by=partition_by, replaces_all=mode == "overwrite", others=others
    )
    table.create_write_transaction(
        list(actions),
        mode,
        table.schema(),
        [partition_by],
        commit_properties=CommitProperties(app_transactions=[Transaction(app, number), *listed, *marks]),
        post_commithook_properties=NO_HOOKS,
    )
    committed(table, app, number, listed)


def make_durable(root: Place, table: DeltaTable) -> None:
    """Let all commits that a handle sees survive a power cut, before anyone is told of them.

    Readers call it, too: they may see a commit before its writer has synced it. A bucket is durable by itself.
    """
    version = table.version()
    known = _durable.get(root.uri, version + 1)
    if not root.is_local or known == version:
        return
    log = DeltaLog(root.path)
    if known > version:  # new to this process, or restored from a backup
        known = log.settled(version)
    log.sync_commits(known, version)
    _durable[root.uri] = version


def tidy_log(root: Place, table: DeltaTable, version_before: int, keeping: LogKeeping) -> None:
    """Write a checkpoint every so many commits, then delete the commits that it covers.

    Of several writers of a table only one calls it. It follows a commit that was made, so trouble here is only told:
    the next commit tries again.
    """
    try:
        with no_panic(root):
            _tidy_log(root, table, version_before, keeping)
    except (DeltaError, OSError, FileDamaged) as error:
        logger.warning("no checkpoint of %s: %s", root, first_line(error))


def _tidy_log(root: Place, table: DeltaTable, version_before: int, keeping: LogKeeping) -> None:
    version = table.version()
    if not root.is_local:
        if version_before // BUCKET_CHECKPOINT_COMMITS != version // BUCKET_CHECKPOINT_COMMITS:
            table.create_checkpoint()
            table.cleanup_metadata()
        return
    log = DeltaLog(root.path)
    if version - max(log.checkpoints(), default=0) < keeping.checkpoint_commits:
        return
    log.write_checkpoint(version)
    log.clear(version, older_than_seconds=keeping.kept_seconds)


def news_of(root: Place) -> object:
    """Something that is another after each commit. To look costs next to nothing, or a request."""
    if not root.is_local:
        return sorted((root / LOG_NAME).names())
    try:
        return (root / LOG_NAME).path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def sweep(root: Place, table: DeltaTable) -> int:
    """Delete the files that no commit names any more, or never did, once nobody can be reading them."""
    gone = table.vacuum(
        retention_hours=RETENTION_HOURS,
        dry_run=False,
        enforce_retention_duration=False,
        full=True,
        post_commithook_properties=NO_HOOKS,
    )
    table.update_incremental()
    make_durable(root, table)  # vacuum notes in the log that it ran
    return len(gone)


def add_action(file: StagedFile, *, new: bool, number: str = "batch") -> AddAction:
    """Take up a staged file; `new` says whether its rows are new to readers, `number` names their number."""
    statistics = {
        "numRecords": file.rows,
        "minValues": {number: file.batch_min},
        "maxValues": {number: file.batch_max},
        "nullCount": {number: 0},
    }
    return AddAction(
        path=file.path,
        size=file.bytes,
        partition_values={file.column: file.kind},
        modification_time=_now_ms(),
        data_change=new,
        stats=msgspec.json.encode(statistics).decode(),
    )


def remove_action(file: dict[str, Any]) -> RemoveAction:
    """Let go of a live file whose rows stand elsewhere now."""
    return RemoveAction(
        path=file["path"],
        data_change=False,
        deletion_timestamp=_now_ms(),
        size=file["size_bytes"],
        partition_values={"kind": file["partition.kind"]},
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
