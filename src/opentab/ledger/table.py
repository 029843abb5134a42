"""What all tables of the ledger have in common: their making, versions and file actions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from opentab.disk import sync
from opentab.errors import SchemaMismatch
from opentab.ledger.files import StagedFile
from opentab.place import Place
from opentab.records import SCHEMA_VERSION

VERSION_KEY = "opentab.schemaVersion"
LOG_NAME = "_delta_log"
# Readers hold a snapshot for seconds at most; what compaction replaced is kept this long for them.
RETENTION_HOURS = 1
CHECKPOINT_COMMITS = 100
# Every look at the table lists its log, so a commit costs what lies there: 4,000 commit files make it three
# times as slow. Behind a checkpoint they are of use only to who is opening the table at that moment.
LOG_RETENTION_SECONDS = 10
TABLE_CONFIGURATION = {
    "delta.checkpointInterval": str(CHECKPOINT_COMMITS),
    "delta.logRetentionDuration": f"interval {LOG_RETENTION_SECONDS} seconds",
    "delta.deletedFileRetentionDuration": f"interval {RETENTION_HOURS} hours",
}
# In a bucket each commit behind the checkpoint is a request to who opens the table, and opening takes longer.
BUCKET_CONFIGURATION = {"delta.checkpointInterval": "10", "delta.logRetentionDuration": "interval 60 seconds"}
LOOKS_MAX = 3

Seen = TypeVar("Seen")


def open_table(root: Place) -> DeltaTable:
    """The table at a place, as it is now."""
    return DeltaTable(root.uri, storage_options=root.delta_options)


def look_at(root: Place, look: Callable[[DeltaTable], Seen]) -> Seen:
    """What someone sees in a table.

    In a bucket its commits may be cleared away between the look at their names and at them: then it looks again.
    """
    for _ in range(0 if root.is_local else LOOKS_MAX - 1):
        try:
            return look(open_table(root))
        except TableNotFoundError:
            raise
        except DeltaError as error:
            if "not found" not in str(error).lower():
                raise
    return look(open_table(root))


def create_table(
    root: Place, schema: pa.Schema, *, configuration: Mapping[str, str], partition_by: str = "kind"
) -> DeltaTable:
    """The table at a place, made empty where there is none."""
    root.make()
    return DeltaTable.create(
        root.uri,
        schema,
        mode="ignore",
        partition_by=[partition_by],
        configuration={
            **configuration,
            **({} if root.is_local else BUCKET_CONFIGURATION),
            VERSION_KEY: str(SCHEMA_VERSION),
        },
        raise_if_key_not_exists=False,
        storage_options=root.delta_options,
    )


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
    clears_log: bool = True,
) -> None:
    """Commit file actions as one, with the number that fences them.

    One writer of a table clears its log: two at the same moment would miss what the other has just deleted.
    """
    table.create_write_transaction(
        list(actions),
        mode,
        table.schema(),
        [partition_by],
        commit_properties=CommitProperties(app_transactions=[Transaction(*transaction)]),
        post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=clears_log),
    )


def make_durable(root: Place, table: DeltaTable, version_before: int) -> None:
    """Let the commits behind a version outlive a power cut. A bucket has made them durable by itself."""
    if not root.is_local:
        return
    log = root.path / LOG_NAME
    for version in range(version_before + 1, table.version() + 1):
        with suppress(FileNotFoundError):
            sync(log / f"{version:020d}.json")
    sync(log)


def news_of(root: Place) -> object:
    """Something that is another after each commit. To look costs next to nothing, or a request."""
    if not root.is_local:
        return sorted((root / LOG_NAME).names())
    try:
        return (root / LOG_NAME).path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def sweep(table: DeltaTable) -> int:
    """Delete the files that no commit names any more, or never did, once nobody can be reading them."""
    gone = table.vacuum(retention_hours=RETENTION_HOURS, dry_run=False, enforce_retention_duration=False, full=True)
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
