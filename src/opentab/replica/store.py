"""The replica's own copy: an LMDB whose every transaction leads from one position to a later one.

Whoever reads sees the state after exactly one batch, over all customers, however many processes read. The
only importer of lmdb.

    meta         what it is a copy of, and how far it is
    customers    period, last customer               ->  block    rows: adjustments, then each type (see blocks.py)
    adjustments  period, customer, own period, type  ->  cell     what the adjustments of a row are made of
    types        own period, type                    ->  cell     by the events' own days
    days         own day, type                       ->  cell     the same, by day
    periods      period                              ->  cell     all customers together
    facts        period                              ->  customers and invoices of a period, as JSON
    tops         period                              ->  those with the largest totals
    invoices     period, customer, revision          ->  the statement as JSON
    batches      batch                               ->  a summary as JSON, of the last ones

Every value ends with a checksum (checksum.py), which is checked whenever it is read; blocks have several of their own.
What does not match, or makes LMDB itself fail, is ReplicaDamaged. Whoever reads a copy that another process writes
reports it (flags.py), and the writer begins anew.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import lmdb
import msgspec

from opentab.core.errors import DiskFull, ReplicaDamaged, ReplicaError, means_disk_full
from opentab.replica.cell import Cell, read_cell
from opentab.replica.checksum import damaged, opened, sealed
from opentab.replica.flags import report_damage

FORMAT = 6
BLOCKS = "customers"  # the table whose values have checksums of their own (blocks.py)
SUMMED = ("customers", "adjustments", "types", "days", "periods")
TABLES = (*SUMMED, "facts", "tops", "invoices", "batches")
BY_PERIOD = ("customers", "adjustments", "tops", "invoices")  # what may be left to the ledger once it is final
MAP_BYTES = 1 << 40  # address space, not disk
READERS_MAX = 1024
DATA_NAME = "data.mdb"
LOCK_BYTES = 128 * 1024  # enough for so many readers
PERIOD_BYTES = 7
KEY_BYTES_MAX = 511
# No customer and no type holds a control character.
SEPARATOR = "\x01"

Buffer = bytes | memoryview
# Errors of LMDB that say nothing about the copy itself.
NOT_ITS_FAULT = (
    lmdb.ReadersFullError,
    lmdb.TlsFullError,
    lmdb.MapResizedError,
    lmdb.MemoryError,
    lmdb.LockError,
    lmdb.DiskError,
)


class Meta(msgspec.Struct, frozen=True):
    """What a replica is a copy of, and how far it is."""

    position: int
    invoices_position: int
    run: str  # of the batch at `position`: a ledger restored from a backup may number other batches alike
    identity: dict[str, str]
    record: str | None  # the record of that batch, as JSON
    types: list[str]  # the columns of a customer's row, behind the adjustments
    cold_upto: str  # periods up to this one are left to the ledger; "" for none
    sums: dict[str, tuple[str, int]]  # by table: micros and events of all its cells
    events: int = 0
    late_events: int = 0  # of months that were closed when they came
    duplicates: int = 0
    without_id: int = 0
    rejections: dict[str, int] = {}  # by reason
    input_bytes: int = 0
    steps_ms: dict[str, float] = {}  # what all batches together spent on what
    fold_seconds: float = 0.0  # the last step took
    format: int = FORMAT


class Store:
    """A replica's copy, for one writer and any number of readers."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        self.path = path
        self._writable = writable
        self._meta: tuple[int, Meta | None] | None = None
        try:
            if writable:
                path.mkdir(parents=True, exist_ok=True)
                _reserve(path / "lock.mdb")
            self._env = lmdb.open(
                str(path),
                map_size=MAP_BYTES,
                max_dbs=len(TABLES) + 1,
                max_readers=READERS_MAX,
                readonly=not writable,
                create=writable,
                lock=True,
                readahead=False,
            )
            self._check_size()
            self._tables = {name: self._env.open_db(name.encode(), create=writable) for name in (*TABLES, "meta")}
            self._inode = (path / DATA_NAME).stat().st_ino
        except lmdb.Error as error:
            raise _trouble(path, error) from error

    def close(self) -> None:
        self._env.close()

    def clear_dead_readers(self) -> int:
        """Free the slots of readers that died in a view: LMDB keeps a view's pages for as long as its slot lives."""
        try:
            return self._env.reader_check()
        except lmdb.Error as error:
            raise _trouble(self.path, error) from error

    def read(self) -> Reading:
        """A view of one position, for as long as it is held."""
        return Reading(self, self._env)

    @contextmanager
    def write(self) -> Iterator[Change]:
        """A step to a later position: all of it, or nothing."""
        try:
            with self._env.begin(write=True) as transaction:
                yield Change(self, transaction)
        except lmdb.Error as error:
            raise _trouble(self.path, error) from error

    def failed(self, error: BaseException | None) -> BaseException | None:
        """What an error of a reader means. Damage is reported to the copy's writer, which begins anew."""
        if isinstance(error, lmdb.Error):
            error = _trouble(self.path, error)
        if isinstance(error, ReplicaDamaged) and not self._writable:
            report_damage(self.path, error.fact, inode=self._inode)
        return error

    def table(self, name: str) -> lmdb._Database:
        return self._tables[name]

    def meta_of(self, transaction: lmdb.Transaction) -> Meta | None:
        """What the copy is, as this transaction sees it; decoded once a state, not once a reader."""
        number, known = transaction.id(), self._meta
        if known is not None and known[0] == number:
            return known[1]
        found = transaction.get(b"meta", db=self._tables["meta"])
        meta = None if found is None else msgspec.json.decode(opened(b"meta", bytes(found)), type=Meta)
        self._meta = (number, meta)
        return meta

    def _check_size(self) -> None:
        """A file that was cut short would kill whoever touches what is missing."""
        info, stat = self._env.info(), self._env.stat()
        needed = (info["last_pgno"] + 1) * stat["psize"]
        size = (self.path / DATA_NAME).stat().st_size
        if size < needed:
            raise damaged(f"it has {size:,} bytes of {needed:,}")


class Reading:
    """Holds a view: a class of its own, since every answer opens one."""

    __slots__ = ("_env", "_store", "_transaction")

    def __init__(self, store: Store, env: lmdb.Environment) -> None:
        self._store = store
        self._env = env

    def __enter__(self) -> Snapshot:
        try:
            self._transaction = self._env.begin(buffers=True)
        except lmdb.Error as error:
            raise _trouble(self._store.path, error) from error
        return Snapshot(self._store, self._transaction)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._transaction.abort()
        meaning = self._store.failed(error) if error is not None else None
        if meaning is not None and meaning is not error:
            raise meaning from error


class Snapshot:
    """The state after one position."""

    def __init__(self, store: Store, transaction: lmdb.Transaction) -> None:
        self._store = store
        self._transaction = transaction
        self._block_cursor: lmdb.Cursor | None = None

    def meta(self) -> Meta | None:
        """How far the replica is; None where nothing was folded yet."""
        return self._store.meta_of(self._transaction)

    def get(self, table: str, key: bytes) -> bytes | None:
        if len(key) > KEY_BYTES_MAX:
            return None
        value = self._transaction.get(key, db=self._store.table(table))
        if value is not None:
            return opened(key, bytes(value))
        with self._transaction.cursor(db=self._store.table(table)) as cursor:
            _check_absent(cursor, key)
        return None

    def first_block(self, key: bytes, *, prefix: bytes) -> tuple[bytes, Buffer] | None:
        """The first block from this key on, if its key begins with a prefix. It is not checked: blocks.py does that.

        Its value is good while the view is held.
        """
        cursor = self._block_cursor
        if cursor is None:  # one for all: to open one takes as long as to find a block
            cursor = self._block_cursor = self._transaction.cursor(self._store.table(BLOCKS))
        return _first(cursor, key, prefix)

    def scan_blocks(self, prefix: bytes, *, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """All blocks whose keys begin with a prefix, in order, from `start` on. They are not checked, either."""
        with self._transaction.cursor(db=self._store.table(BLOCKS)) as cursor:
            yield from self._scan(cursor, BLOCKS, prefix, max(prefix, start)[:KEY_BYTES_MAX])

    def scan(
        self, table: str, prefix: bytes, *, start: bytes = b"", after: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """All keys that begin with a prefix, in order, from `start` on; `after` leaves out all up to that key."""
        # No key is longer, so a longer text stands right behind where its first part would.
        first = max(prefix, start, after or b"")[:KEY_BYTES_MAX]
        with self._transaction.cursor(db=self._store.table(table)) as cursor:
            _check_before(cursor, first)
            for key, value in self._scan(cursor, table, prefix, first):
                plain = opened(key, value)
                if after is None or key > after:
                    yield key, plain
            _check_from(cursor)

    def _scan(self, cursor: lmdb.Cursor, table: str, prefix: bytes, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        last, count = first, 0
        for found, value in cursor if cursor.set_range(first) else ():
            key = bytes(found)
            if key < last or (count and key == last):
                raise damaged(f"{key!r} is out of order")
            if not key.startswith(prefix):
                return
            yield key, bytes(value)
            last, count = key, count + 1
        known = self._transaction.stat(self._store.table(table))["entries"]
        if not first and count != known:
            raise damaged(f"{count} of {known} {table} are found")


class Change(Snapshot):
    """A step under way."""

    def add(self, table: str, cells: Mapping[bytes, Cell]) -> None:
        """Add cells to those that are there."""
        keys = sorted(cells)
        with self._transaction.cursor(db=self._store.table(table)) as cursor:
            found = cast("list[tuple[bytes, bytes]]", cursor.getmulti(keys))
            known = {key: read_cell(opened(key, value)) for key, value in found}
            if len(known) < len(keys) and cursor.first():
                for key in cells.keys() - known.keys():
                    _check_absent(cursor, key)
            now = [(key, cells[key].plus(known.get(key, Cell()))) for key in keys]
            cursor.putmulti([(key, sealed(key, cell.packed())) for key, cell in now], overwrite=True)

    def put(self, table: str, items: Iterable[tuple[bytes, bytes]]) -> None:
        with self._transaction.cursor(db=self._store.table(table)) as cursor:
            cursor.putmulti([(key, sealed(key, value)) for key, value in items], overwrite=True)

    def put_blocks(self, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Put blocks, which have their checksums."""
        with self._transaction.cursor(db=self._store.table(BLOCKS)) as cursor:
            cursor.putmulti(items, overwrite=True)

    def take_out(self, table: str, upto: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Take out all keys that begin with `upto` or come before it; yields them, and what they held.

        Blocks are not checked here.
        """
        with self._transaction.cursor(db=self._store.table(table)) as cursor:
            cursor.first()
            # A cursor that has gone past the end stands on an empty key.
            while (key := bytes(cursor.key())) and key[: len(upto)] <= upto:
                value = bytes(cursor.value())
                cursor.delete()  # and stands on the next one
                yield key, value if table == BLOCKS else opened(key, value)

    def clear(self) -> None:
        """Forget everything: the state before the first batch."""
        for name in (*TABLES, "meta"):
            self._transaction.drop(self._store.table(name), delete=False)

    def set_meta(self, meta: Meta) -> None:
        self._transaction.put(b"meta", sealed(b"meta", msgspec.json.encode(meta)), db=self._store.table("meta"))

    def meta(self) -> Meta | None:
        raise AssertionError("a step under way is at no position")


def _reserve(lock: Path) -> None:
    """Make room for what LMDB maps and writes to: on a full disk that would kill the process, not fail."""
    try:
        with lock.open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, LOCK_BYTES)
    except OSError as error:
        if means_disk_full(error):
            raise DiskFull(str(lock.parent)) from error
        raise


def remove(path: Path) -> None:
    """Take a copy away that is of no use any more. Readers keep what they have open."""
    shutil.rmtree(path, ignore_errors=True)


def _first(cursor: lmdb.Cursor, key: bytes, prefix: bytes) -> tuple[bytes, Buffer] | None:
    if len(key) > KEY_BYTES_MAX or not cursor.set_range(key):
        return None
    found, value = cursor.item()
    found = bytes(found)
    if found < key:
        raise damaged(f"{found!r} is found in place of {key!r}")
    return (found, value) if found.startswith(prefix) else None


def _check_absent(cursor: lmdb.Cursor, key: bytes) -> None:
    """Raise ReplicaDamaged unless a key that is not found lies between its neighbours, and these are in order.

    Where a key's bits are flipped, or those of the pointer to it, the search for it, or for others, ends next to it.
    """
    _check_before(cursor, key)
    if cursor.set_range(key):
        if bytes(cursor.key()) <= key:
            raise damaged(f"{key!r} is found and is not")
        _check_from(cursor)


def _check_before(cursor: lmdb.Cursor, key: bytes) -> None:
    """Check the two that come before a key."""
    later = key
    has_one = cursor.prev() if cursor.set_range(key) else cursor.last()
    for _ in range(2):
        if not has_one:
            return
        found, value = map(bytes, cursor.item())
        opened(found, value)
        if found >= later:
            raise damaged(f"{found!r} is found before {later!r}")
        later, has_one = found, cursor.prev()


def _check_from(cursor: lmdb.Cursor) -> None:
    """Check the one that a cursor stands on, and the next one."""
    found, value = map(bytes, cursor.item())
    if not found:
        return  # it has gone past the end
    opened(found, value)
    if cursor.next():
        following, value = map(bytes, cursor.item())
        opened(following, value)
        if following <= found:
            raise damaged(f"{following!r} is found after {found!r}")


def _trouble(path: Path, error: lmdb.Error) -> DiskFull | ReplicaError:
    if means_disk_full(error):
        return DiskFull(str(path))
    if isinstance(error, NOT_ITS_FAULT) or type(error) is lmdb.Error:  # the last: the system's own, like EACCES
        return ReplicaError(f"the replica {path} cannot be read: {error}", retry_helps=True)
    return damaged(str(error))
