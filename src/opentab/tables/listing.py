"""A checksum for the list of files in Delta's log.

Delta's log has no checksums. One flipped bit in it can drop a file from a table, or keep one that was replaced. So each
commit carries a second transaction number: a checksum of all files that its writer has added, less those it removed.
A sum is used, so writers that work at the same time (batches, compaction) need not know of each other: together their
sums are the checksum of all live files. Whoever opens a table compares.

The number is the writer's own transaction number and the checksum side by side, so neither can change alone. Where an
earlier version of opentab has written, which keeps no checksum, nothing is compared and the next batch starts anew; the
names of its files must say so. A bucket is not checked: stores keep checksums of their objects, and each look would be
many requests.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
from deltalake import DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from opentab.core.errors import FileDamaged
from opentab.runtime.storage import Place
from opentab.tables.delta_log import LOG_NAME
from opentab.tables.files import is_checked

NUMBERS = {"kind": "batch", "period": "position"}  # by a table's partition column: the number in its files' statistics
_CHECKSUM_BITS = 32
_MASK = 2**_CHECKSUM_BITS - 1

_WRITTEN: dict[tuple[str, str], tuple[int, int]] = {}  # by table and writer: the last number and checksum


def live_files(root: Place, table: DeltaTable, *, partition_by: str = "kind") -> list[dict[str, Any]]:
    """The files that a table consists of now."""
    actions = pa.table(table.get_add_actions(flatten=True))
    if not actions.num_rows:
        return []
    number = NUMBERS[partition_by]
    names = ["path", "size_bytes", "num_records", f"min.{number}", f"max.{number}", f"partition.{partition_by}"]
    if not set(names) <= set(actions.schema.names) or any(actions[name].null_count for name in names):
        raise damaged_log(root, "it does not say what is in the files")
    files: list[dict[str, Any]] = actions.select(names).to_pylist()
    return files


def check_list(root: Place, table: DeltaTable, apps: Sequence[str], files: Iterable[dict[str, Any]]) -> None:
    """Raise FileDamaged unless the live files, and the number of the first app, are those that were committed.

    `apps` are all writers of the table. The first one's number says where the table stands.
    """
    if not root.is_local:
        return
    live = list(files)
    number = table.transaction_version(apps[0]) or 0
    own, *others = [table.transaction_version(_name(app)) or 0 for app in apps]
    if own >> _CHECKSUM_BITS == number and sum(map(_of_live, live)) & _MASK == (own + sum(others)) & _MASK:
        return
    unchecked = [high for path, _, _, _, high, _ in (file.values() for file in live) if not is_checked(path)]
    begun = own or any(others) or len(unchecked) < len(live)  # by this version
    if number in unchecked or not begun or (not own and any(others)):
        return  # an earlier version has written last, at most its files were merged
    raise damaged_log(root, "its list of files does not match its checksum")


def list_transaction(
    table: DeltaTable, actions: Sequence[AddAction | RemoveAction], app: str, number: int, *,
    partition_by: str, replaces_all: bool, others: Sequence[str],
) -> list[Transaction]:  # fmt: skip
    """The checksum that goes with a commit, for a table on a disk. `others` are the table's other writers."""
    root = Place(table.table_uri.removeprefix("file://").rstrip("/"))
    if not root.is_local:
        return []
    added = sum(_of_add(action) for action in actions if isinstance(action, AddAction))
    removed = {action.path for action in actions if isinstance(action, RemoveAction)}
    live = partial(live_files, root, table, partition_by=partition_by)
    if replaces_all:
        before = 0
    elif removed:
        gone = sum(_of_live(file) for file in live() if file["path"] in removed)
        before = (table.transaction_version(_name(app)) or 0) - gone
    else:
        before = _before(table, app, number, others, live)
    return [Transaction(_name(app), number << _CHECKSUM_BITS | (before + added) & _MASK)]


def committed(table: DeltaTable, app: str, number: int, listed: Iterable[Transaction]) -> None:
    """Remember what was committed, so that the next commit need not read it."""
    for transaction in listed:
        _WRITTEN[table.table_uri, app] = (number, transaction.version)


def damaged_log(root: Place, why: str) -> FileDamaged:
    """What to say of a table whose log is not as it was written."""
    hint = f"opentab doctor --repair, if the power was cut; otherwise restore {root} from a backup"
    if root.uri.endswith("/balances"):
        hint = f"remove {root}: it is written again from the journal"
    return FileDamaged(f"{root / LOG_NAME} is damaged: {why}", hint=hint)


def _before(
    table: DeltaTable, app: str, number: int, others: Sequence[str], live: Callable[[], list[dict[str, Any]]]
) -> int:
    """What the writer's commits come to; where an earlier version wrote the last one, all files but others' count."""
    last, listed = _WRITTEN.get((table.table_uri, app), (0, 0))
    if last and last == number - 1:
        return listed
    if all(_is_newest(table, one) for one in (app, *others)):
        return table.transaction_version(_name(app)) or 0
    return sum(map(_of_live, live())) - sum(table.transaction_version(_name(other)) or 0 for other in others)


def _is_newest(table: DeltaTable, app: str) -> bool:
    """Whether the writer's last commit carries this checksum."""
    return (table.transaction_version(_name(app)) or 0) >> _CHECKSUM_BITS == (table.transaction_version(app) or 0)


def _name(app: str) -> str:
    return f"{app}-files"


def _of_live(file: dict[str, Any]) -> int:
    path, size, rows, low, high, part = file.values()
    return _of(path, size, rows, low, high, part)


def _of_add(action: AddAction) -> int:
    statistics = msgspec.json.decode(action.stats)
    ((number, low),) = statistics["minValues"].items()
    (part,) = action.partition_values.values()
    return _of(action.path, action.size, statistics["numRecords"], low, statistics["maxValues"][number], part)


def _of(*facts: str | int | None) -> int:
    return zlib.crc32("|".join(map(str, facts)).encode())
