"""The replica's own copy: an LMDB whose every transaction leads from one position to a later one.

Whoever reads sees the state after exactly one batch, over all customers, however many processes read. The
only importer of lmdb.

    meta       what it is a copy of, and how far it is
    lines      period, customer, own period, type  ->  cell     what an invoice's lines are made of
    customers  period, customer                    ->  cell     their sum
    types      own period, type                    ->  cell     by the events' own days
    periods    period                              ->  cell     all customers together
    tops       period                              ->  those with the largest totals
    invoices   period, customer, revision          ->  the statement as JSON
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import lmdb
import msgspec
import numpy as np

from opentab.errors import ReplicaDamaged, means_disk_full
from opentab.replica.wide import CELL, CELL_BYTES, Cells, add

FORMAT = 1
TABLES = ("lines", "customers", "types", "periods", "tops", "invoices")
MAP_BYTES = 1 << 40  # address space, not disk
READERS_MAX = 1024
PERIOD_BYTES = 7


class Meta(msgspec.Struct, frozen=True):
    """What a replica is a copy of, and how far it is."""

    position: int
    invoices_position: int
    run: str  # of the batch at `position`: a ledger restored from a backup may number other batches alike
    identity: dict[str, str]
    record: str | None  # the record of that batch, as JSON
    sums: dict[str, tuple[str, int]]  # by table: micros and events of all its cells
    events: int = 0
    rejections: dict[str, int] = {}  # by reason
    fold_seconds: float = 0.0  # the last step took
    format: int = FORMAT


class Store:
    """A replica's copy, for one writer and any number of readers."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        self.path = path
        try:
            if writable:
                path.mkdir(parents=True, exist_ok=True)
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
        except lmdb.Error as error:
            raise _damaged(path, error) from error

    def close(self) -> None:
        self._env.close()

    @contextmanager
    def read(self) -> Iterator[Snapshot]:
        """A view of one position, for as long as it is held."""
        try:
            with self._env.begin(buffers=False) as transaction:
                yield Snapshot(transaction, self._tables)
        except lmdb.Error as error:
            raise _damaged(self.path, error) from error

    @contextmanager
    def write(self) -> Iterator[Change]:
        """A step to a later position: all of it, or nothing."""
        try:
            with self._env.begin(write=True) as transaction:
                yield Change(transaction, self._tables)
        except lmdb.DiskError as error:
            raise _damaged(self.path, error) from error
        except lmdb.Error as error:
            if means_disk_full(error):
                raise
            raise _damaged(self.path, error) from error

    def _check_size(self) -> None:
        """A file that was cut short would kill whoever touches what is missing."""
        info, stat = self._env.info(), self._env.stat()
        needed = (info["last_pgno"] + 1) * stat["psize"]
        size = (self.path / "data.mdb").stat().st_size
        if size < needed:
            raise ReplicaDamaged(f"the replica {self.path} has {size:,} bytes of {needed:,}")


class Snapshot:
    """The state after one position."""

    def __init__(self, transaction: lmdb.Transaction, tables: dict[str, lmdb._Database]) -> None:
        self._transaction = transaction
        self._tables = tables

    def meta(self) -> Meta | None:
        """How far the replica is; None where nothing was folded yet."""
        found = self._transaction.get(b"meta", db=self._tables["meta"])
        return None if found is None else msgspec.json.decode(found, type=Meta)

    def get(self, table: str, key: bytes) -> bytes | None:
        value = self._transaction.get(key, db=self._tables[table])
        return None if value is None else bytes(value)

    def cell(self, table: str, key: bytes) -> np.void | None:
        value = self.get(table, key)
        return None if value is None else np.frombuffer(value, CELL)[0]

    def scan(self, table: str, prefix: bytes, *, after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """All keys that begin with a prefix, in order; `after` leaves out all up to that key."""
        with self._transaction.cursor(db=self._tables[table]) as cursor:
            start = prefix if after is None else after
            if not cursor.set_range(start):
                return
            for found in cursor:
                key, value = bytes(found[0]), bytes(found[1])
                if after is not None and key == after:
                    continue
                if not key.startswith(prefix):
                    return
                yield key, value


class Change(Snapshot):
    """A step under way."""

    def add(self, table: str, keys: Sequence[bytes], added: Cells) -> Cells:
        """Add cells to those that are there, and return them as they are now. Keys are sorted and different."""
        with self._transaction.cursor(db=self._tables[table]) as cursor:
            known = dict(cursor.getmulti(keys))
            if known:
                blank = bytes(CELL_BYTES)
                joined = b"".join([known.get(key, blank) for key in keys])
                before = np.frombuffer(joined, CELL).copy()
                if len(known) < len(keys):
                    fresh = np.fromiter((key not in known for key in keys), np.bool_, len(keys))
                    before["last_us"][fresh] = added["last_us"][fresh]
                now = add(before, added)
            else:
                now = added
            packed = now.tobytes()
            values = [packed[at : at + CELL_BYTES] for at in range(0, len(packed), CELL_BYTES)]
            cursor.putmulti(list(zip(keys, values, strict=True)), overwrite=True)
        return now

    def put(self, table: str, items: Sequence[tuple[bytes, bytes]]) -> None:
        with self._transaction.cursor(db=self._tables[table]) as cursor:
            cursor.putmulti(items, overwrite=True)

    def clear(self) -> None:
        """Forget everything: the state before the first batch."""
        for table in self._tables.values():
            self._transaction.drop(table, delete=False)

    def set_meta(self, meta: Meta) -> None:
        self._transaction.put(b"meta", msgspec.json.encode(meta), db=self._tables["meta"])


def remove(path: Path) -> None:
    """Take a copy away that is of no use any more. Readers keep what they have open."""
    shutil.rmtree(path, ignore_errors=True)


def _damaged(path: Path, error: Exception) -> ReplicaDamaged:
    return ReplicaDamaged(f"the replica {path} cannot be read: {error}", hint="it is made anew by itself")
