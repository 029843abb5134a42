"""What waits to be delivered, in SQLite: the invoice files that were taken up, and the parcels made of them.

A parcel and the note that it was made share a transaction, so none is lost and none is made twice. A parcel is gone
only after its receiver has taken it. Killed in between, it is sent again.

Parcels and notes have a checksum. A parcel that does not match is not sent: all parcels of its file are made again. A
file that is no sound database any more is set aside, and every parcel is made again.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from opentab.core.errors import DiskFull, SinkError, means_disk_full
from opentab.runtime import crash
from opentab.runtime.disk import make_directories
from opentab.sinks.parcel import Parcel

FORM = 1
TABLES = f"""
    create table about (ledger text not null, delivered integer not null);
    create table file (
        name text primary key,
        taken integer not null,        -- so many of its invoices are parcels, or were
        whole integer not null,
        crc32 integer                  -- of the columns before it; null: written by an earlier version
    );
    create table parcel (
        number integer primary key autoincrement,
        file text not null,
        period text not null, customer text not null, revision integer not null,
        id text not null, body blob not null,
        made_us integer not null,
        try_at_us integer not null,    -- 0: never tried
        attempts integer not null default 0,
        tried_us integer not null default 0,
        stuck integer not null default 0,
        error text not null default '',
        crc32 integer                  -- of what is sent, and where to; null: written by an earlier version
    );
    create unique index parcel_invoice on parcel (period, customer, revision);
    create index parcel_due on parcel (try_at_us, number);
    create index parcel_stuck on parcel (number) where stuck;
    pragma user_version = {FORM};
"""
# A later revision waits for the earlier ones of its invoice.
IS_NEXT = """not exists (
    select 1 from parcel e where e.period = p.period and e.customer = p.customer and e.revision < p.revision
)"""


@dataclass(frozen=True, slots=True)
class Failure:
    """A parcel that was not taken, and when to try it again."""

    parcel: Parcel
    error: str
    try_at_us: int
    stuck: bool


@dataclass(frozen=True, slots=True)
class Counts:
    """What an outbox holds."""

    waiting: int  # all that is not delivered yet
    stuck: int  # of these: refused by the receiver
    delivered: int  # in all the outbox's life
    oldest_us: int | None  # when the first that waits was made


class OutboxDamaged(Exception):
    """The file is no outbox, or no longer one."""


class ParcelDamaged(Exception):
    """A parcel does not match its checksum; holds the name of its file."""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.file = file


class Outbox:
    """The parcels of one ledger that are not delivered yet."""

    def __init__(self, path: Path) -> None:
        """Open an outbox, or make an empty one; raises OutboxDamaged."""
        self.path = path
        self.past = 0  # changes when parcels are gone that were not delivered
        make_directories(path.parent)
        self._db = sqlite3.connect(path, isolation_level=None, timeout=10)
        try:
            with self._trouble():
                self._db.execute("pragma journal_mode = wal")
                self._db.execute("pragma synchronous = normal")
                (form,) = self._db.execute("pragma user_version").fetchone()
                if form == 0:
                    self._db.executescript(f"begin; {TABLES} insert into about values ('', 0); commit;")
                elif form != FORM:
                    raise OutboxDamaged(f"its form is {form}")
                self._check()
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        self._db.close()

    def _check(self) -> None:
        """Raise OutboxDamaged unless the file is a sound database; add what earlier versions did not have."""
        (found,) = self._db.execute("pragma integrity_check(1)").fetchone()
        if found != "ok":
            raise OutboxDamaged(str(found))
        for table in ("file", "parcel"):
            columns = [name for _, name, *_ in self._db.execute(f"pragma table_info({table})")]
            if "crc32" not in columns:
                self._db.execute(f"alter table {table} add column crc32 integer")

    @property
    def ledger(self) -> str:
        """Which ledger the parcels are of; nothing in a new outbox."""
        with self._trouble():
            return str(self._db.execute("select ledger from about").fetchone()[0])

    def begin(self, ledger: str) -> None:
        """Forget everything, and belong to a ledger."""
        with self._transaction():
            self._db.execute("delete from parcel")
            self._db.execute("delete from file")
            self._db.execute("update about set ledger = ?, delivered = 0", [ledger])
        self.past += 1

    def files(self) -> dict[str, tuple[int, bool]]:
        """The files that were taken up: how many invoices of each, and whether that was all."""
        with self._trouble():
            rows = self._db.execute("select name, taken, whole, crc32 from file").fetchall()
        for name, taken, whole, checksum in rows:
            if checksum not in (None, _checksum(name, taken, whole)):
                raise OutboxDamaged(f"its note of {name!r} does not match its checksum")
        return {name: (taken, bool(whole)) for name, taken, whole, _ in rows}

    def forget(self, names: Iterable[str]) -> None:
        """Let go of files that the ledger does not have any more, and of what waits from them."""
        gone = [(name,) for name in names]
        with self._transaction():
            self._db.executemany("delete from parcel where file = ?", gone)
            self._db.executemany("delete from file where name = ?", gone)
        self.past += 1

    def take_up(self, name: str, parcels: Sequence[Parcel], *, whole: bool, now_us: int) -> None:
        """Put the next parcels of a file in, and note that they are."""
        rows = [(name, p.period, p.customer, p.revision, p.id, p.body, now_us, _checksum_of(name, p)) for p in parcels]
        before, _ = self.files().get(name, (0, False))
        taken = before + len(rows)
        with self._transaction():
            self._db.executemany(
                "insert into parcel (file, period, customer, revision, id, body, made_us, try_at_us, crc32)"
                " values (?, ?, ?, ?, ?, ?, ?, 0, ?)",
                rows,
            )
            self._db.execute(
                "insert or replace into file (name, taken, whole, crc32) values (?, ?, ?, ?)",
                [name, taken, int(whole), _checksum(name, taken, int(whole))],
            )
            crash.moment("queueing")
        crash.moment("queued")

    def due(self, now_us: int, count: int, *, without: Collection[int]) -> list[Parcel]:
        """The next parcels to try. Where there are new ones, at most a quarter are ones that failed before:
        neither holds up the other.

        None whose invoice has an earlier revision waiting.
        """
        new = self._next("p.try_at_us = 0", count, without)
        failed = self._next(f"p.try_at_us between 1 and {now_us:d}", max(1, count // 4) if new else count, without)
        return [*failed, *new][:count]

    def probe(self, *, without: Collection[int]) -> list[Parcel]:
        """One parcel, if there is any that is not stuck, though it may not be its time yet."""
        return self._next("not p.stuck", 1, without)

    def _next(self, condition: str, count: int, without: Collection[int]) -> list[Parcel]:
        query = (
            "select file, crc32, period, customer, revision, id, body, number, attempts from parcel p"
            f" where {condition} and {IS_NEXT} order by try_at_us, number limit ?"
        )
        with self._trouble():
            rows = self._db.execute(query, [count + len(without)]).fetchall()
        found = []
        for file, checksum, *row in rows:
            parcel = Parcel(*row)
            if checksum not in (None, _checksum_of(file, parcel)):
                raise ParcelDamaged(file)
            if parcel.number not in without:
                found.append(parcel)
        return found[:count]

    def settle(self, delivered: Sequence[Parcel], failed: Sequence[Failure], *, now_us: int) -> None:
        """Note what came of some tries."""
        crash.moment("delivered")
        with self._transaction():
            self._db.executemany("delete from parcel where number = ?", [(parcel.number,) for parcel in delivered])
            self._db.execute("update about set delivered = delivered + ?", [len(delivered)])
            self._db.executemany(
                "update parcel set attempts = attempts + 1, tried_us = ?, try_at_us = ?, stuck = ?, error = ?"
                " where number = ?",
                [(now_us, f.try_at_us, f.stuck, f.error, f.parcel.number) for f in failed],
            )

    def release(self, *, tried_since_us: int, now_us: int) -> None:
        """Let what was tried in vain since a moment be tried again at once."""
        with self._transaction():
            self._db.execute(
                "update parcel set try_at_us = ? where try_at_us > ? and tried_us >= ?",
                [now_us, now_us, tried_since_us],
            )

    def counts(self) -> Counts:
        with self._trouble():
            (waiting,) = self._db.execute("select count(*) from parcel").fetchone()
            (stuck,) = self._db.execute("select count(*) from parcel where stuck").fetchone()
            (delivered,) = self._db.execute("select delivered from about").fetchone()
            oldest = self._db.execute("select made_us from parcel order by number limit 1").fetchone()
            return Counts(waiting, stuck, int(delivered), int(oldest[0]) if oldest else None)

    def can_go_on(self) -> bool:
        """Whether anything waits that is neither stuck nor behind one that is."""
        with self._trouble():
            return (
                self._db.execute(f"select 1 from parcel p where not stuck and {IS_NEXT} limit 1").fetchone() is not None
            )

    def last_error(self) -> str:
        """What was said of one of the tries that failed; nothing if none did."""
        with self._trouble():
            row = self._db.execute(
                "select error from parcel where try_at_us > 0 order by try_at_us desc limit 1"
            ).fetchone()
        return str(row[0]) if row else ""

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._trouble():
            self._db.execute("begin immediate")
            try:
                yield
                self._db.execute("commit")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._db.execute("rollback")
                raise

    @contextmanager
    def _trouble(self) -> Iterator[None]:
        """What an error of SQLite's means."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if means_disk_full(error) or "disk is full" in str(error):
                raise DiskFull(str(self.path)) from error
            # Our statements are always the same: if one is wrong, or a text is no UTF-8, the file has changed.
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) == sqlite3.SQLITE_ERROR:
                raise OutboxDamaged(str(error)) from error
            raise SinkError(f"the outbox {self.path} cannot be used: {error}", retry_helps=True) from error
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            raise OutboxDamaged(str(error)) from error


def _checksum_of(file: str, parcel: Parcel) -> int:
    """The checksum of what is sent, and where to."""
    return _checksum(file, parcel.period, parcel.customer, parcel.revision, parcel.id, parcel.body)


def _checksum(*values: object) -> int:
    """Of values of any kind: a flipped bit may turn a number into a text."""
    return zlib.crc32(repr(values).encode())


def set_aside(path: Path) -> Path:
    """Move a damaged outbox out of the way; returns its new place."""
    aside = path.with_suffix(".damaged")
    for end in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(path.name + end).replace(aside.with_name(aside.name + end))
    return aside
