"""The balances: all running totals at a batch, so that readers need not add up the whole journal.

A snapshot holds the periods that are not final: what is final never changes again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from opentab.core.errors import LedgerBug
from opentab.core.periods import Calendar, Period
from opentab.core.records import BALANCE
from opentab.ledger.billed_in import register, status_of
from opentab.ledger.engine import CHUNK_ROWS, CUT, Engine, LocalEngine, OpenEngine, open_local
from opentab.ledger.journal import Journal
from opentab.runtime import crash
from opentab.runtime.storage import Place
from opentab.tables.error_text import unreadable, unwritable
from opentab.tables.files import LedgerFile, StagedFile, damaged, dataset_of, facts_of, stage
from opentab.tables.listing import check_list, damaged_log, live_files
from opentab.tables.table import (
    WEEK_KEEPING,
    add_action,
    check_version,
    create_table,
    look_at,
    make_durable,
    sweep,
    tidy_log,
    write_actions,
)

Sums = Mapping[Period, tuple[int, int]]  # events and micros by period

APP = "opentab-balances"
SUMS_KEY = "opentab.sums"  # in the footer of each file: its events and its micros

RUNNING = f"""
    select period, day, customer, type, cast(sum(micros) as decimal(38, 0)) as sum_micros,
           cast(sum(event_count) as bigint) as event_count, max(last_at) as last_at
    from (
        select {CUT} * from (
            select period, day, customer, type, sum_micros as micros, event_count, last_at from snapshot
            union all
            select period, day, customer, type, cast(amount_micros as decimal(38, 0)), event_count, last_at from billed
        ) used
    ) cut
    group by period, day, customer, type
"""
RUNNING_ORDER = ("customer", "day", "type")


@dataclass(frozen=True)
class Snapshot:
    """All balances that were not final at a batch."""

    batch: int
    rows: ds.Dataset
    run: str = ""  # of the batch it was drawn at
    root: Place | None = None
    files: list[LedgerFile] = field(default_factory=list)

    @property
    def row_count(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def sums(self) -> tuple[int, int] | None:
        """Events and micros of all rows, as they were when it was written; None where an earlier version wrote it."""
        assert self.root is not None or not self.files
        kept = [facts_of(self.root / file.path).get(SUMS_KEY) for file in self.files if self.root is not None]
        pairs = [text.split() for text in kept if text is not None]
        if len(pairs) < len(self.files):
            return None
        return sum(int(events) for events, _ in pairs), sum(int(micros) for _, micros in pairs)

    def check(self, rows: int, event_count: int, sum_micros: int) -> None:
        """Raise FileDamaged if what was read of it comes to something else than what was written."""
        wanted = self.sums
        if self.root is None or (rows == self.row_count and wanted in (None, (event_count, sum_micros))):
            return
        raise damaged(
            self.root / self.files[0].path if len(self.files) == 1 else self.root,
            f"its {rows} rows come to {sum_micros} micros and {event_count} events,"
            f" not to what was written: {self.row_count} rows, {wanted}",
        )

    def belongs_to(self, journal: Journal) -> bool:
        """Whether the journal holds the very batch that the snapshot was drawn at.

        A ledger restored to an earlier batch may number other batches alike.
        """
        if self.batch == 0:
            return True
        return self.batch <= journal.position and self.run == journal.batches(self.batch - 1, self.batch)[0].run


def empty() -> Snapshot:
    """The balances before the first batch."""
    return Snapshot(0, ds.dataset(BALANCE.empty_table()))


def latest(ledger: Place) -> Snapshot:
    """The newest snapshot; at batch 0 and empty where none was written."""
    root = ledger / "balances"
    try:
        return look_at(root, partial(_snapshot, root))
    except TableNotFoundError:
        return empty()
    except (DeltaError, OSError) as error:
        raise unreadable(root, error) from error


def _snapshot(root: Place, table: DeltaTable) -> Snapshot:
    check_version(root, table.metadata().configuration)
    make_durable(root, table)
    batch = table.transaction_version(APP) or 0
    live = live_files(root, table)
    check_list(root, table, [APP], live)
    named = {number for file in live for number in (file["min.batch"], file["max.batch"])}
    if named != ({batch} if batch else set()):  # there is always a file
        raise damaged_log(root, f"it stands at batch {batch}, but its files at {sorted(named)}")
    files = sorted(LedgerFile(file["path"], file["num_records"]) for file in live)
    run = files[0].path.rpartition("/")[2].split("-")[1] if files else ""
    return Snapshot(batch, dataset_of(root, files, BALANCE), run, root, files)


def running(
    engine: Engine, journal: Journal, calendar: Calendar, snapshot: Snapshot, *, upto: int, parts: int = 1
) -> dict[Period, tuple[int, int]]:
    """Let `running` be the balances at batch `upto`, less what the snapshot left out.

    Returns the events and micros of each period that they are of.
    """
    billed = register(engine, journal, calendar, after=snapshot.batch, upto=upto)
    before = register_snapshot(engine, snapshot)
    engine.view("running", RUNNING.format(parts=parts))
    return added(billed, before)


def added(
    one: Mapping[Period, tuple[int, int]], other: Mapping[Period, tuple[int, int]]
) -> dict[Period, tuple[int, int]]:
    """Events and micros of two by period, in order."""
    nothing = (0, 0)
    pairs = {period: (one.get(period, nothing), other.get(period, nothing)) for period in sorted({*one, *other})}
    return {period: (mine[0] + theirs[0], mine[1] + theirs[1]) for period, (mine, theirs) in pairs.items()}


def register_snapshot(engine: Engine, snapshot: Snapshot) -> dict[Period, tuple[int, int]]:
    """Let `snapshot` be its rows, once they come to what was written; their events and micros by period."""
    if snapshot.root is None:
        engine.table("snapshot", BALANCE.empty_table())
        return {}
    engine.files("snapshot", snapshot.root, snapshot.files, BALANCE)
    found = engine.rows(
        "select period, count(*), cast(sum(event_count) as bigint), sum(sum_micros) from snapshot group by period"
    )
    rows, events, micros = (sum(int(row[at]) for row in found) for at in (1, 2, 3))
    snapshot.check(rows, events, micros)
    return {period: (events, int(micros)) for period, _, events, micros in found}


def final_view(
    connection: duckdb.DuckDBPyConnection,
    journal: Journal,
    calendar: Calendar,
    snapshot: Snapshot,
    *,
    period: str | None = None,
    customer: str | None = None,
) -> str:
    """Name a view of the entries billed in periods that were final at the snapshot."""
    nothing = "(select * from running where false)"
    if snapshot.batch == 0:
        return nothing
    at_snapshot = journal.batches(after=snapshot.batch - 1, upto=snapshot.batch)[0]
    if period is not None and status_of(period, at_snapshot, calendar) != "final":
        return nothing
    with LocalEngine() as older:
        periods = register(older, journal, calendar, after=0, upto=snapshot.batch)
        final = [p for p in periods if status_of(p, at_snapshot, calendar) == "final"]
        if not final:
            return nothing
        rows = older.connection.sql(
            """
            select period, customer, day, type, sum(amount_micros::decimal(38, 0)) as sum_micros,
                   sum(event_count)::bigint as event_count, max(last_at) as last_at
            from billed where list_contains($final, period) and ($customer is null or customer = $customer)
            group by period, customer, day, type
            """,
            params={"final": final, "customer": customer},
        ).to_arrow_table()
    connection.register("final_billed", rows)
    return "final_billed"


def write_snapshot(journal: Journal, calendar: Calendar, *, open_engine: OpenEngine = open_local) -> int | None:
    """Write the balances at the journal's position. Returns that batch, or None if nothing was to do."""
    root = journal.root.parent / "balances"
    before = latest(journal.root.parent)
    upto = journal.position
    if upto == 0 or (before.batch >= upto and before.belongs_to(journal)):
        return None
    if not before.belongs_to(journal):
        before = empty()
    record = journal.batches(after=upto - 1, upto=upto)[0]
    row_count = before.row_count + journal.entry_rows(after=before.batch)
    with open_engine(f"balances at batch {upto}", row_count) as engine:
        parts = row_count // CHUNK_ROWS + 1
        periods = running(engine, journal, calendar, before, upto=upto, parts=parts)
        keep = sorted(period for period in periods if status_of(period, record, calendar) != "final")
        crash.moment("snapshot")
        try:
            table = _create(root)
            files = _stage(engine, root, {p: periods[p] for p in keep}, upto=upto, run=record.run, parts=parts)
            if (table.transaction_version(APP) or 0) > upto and latest(journal.root.parent).belongs_to(journal):
                return None
            version = table.version()
            write_actions(table, [add_action(file, new=True) for file in files], (APP, upto), mode="overwrite")
            table.update_incremental()
            make_durable(root, table)
            tidy_log(root, table, version, WEEK_KEEPING)
            crash.moment("snapshotted")
            sweep(root, table)
        except CommitFailedError as error:
            if "Concurrent transaction" in str(error):
                return None  # someone else was faster
            raise unwritable(root, error) from error
        except (DeltaError, OSError) as error:
            raise unwritable(root, error) from error
    return upto


class StagedBalances(msgspec.Struct, frozen=True):
    """What a task has written aside, and what it comes to."""

    file: StagedFile
    sums: str  # as its footer keeps them


def _stage(engine: Engine, root: Place, keep: Sums, *, upto: int, run: str, parts: int) -> list[StagedFile]:
    """Write the balances of some periods aside, a file for each range of customers; together they come to `keep`.

    There is always a file: its name tells which batch the snapshot was drawn at.
    """
    if not keep:
        return [_stage_table(BALANCE.empty_table(), root, upto=upto, run=run)]
    wanted = ", ".join(f"'{period}'" for period in keep)
    sql = f"select cast({upto} as bigint) as batch, * from running where period in ({wanted})"
    task = partial(stage_balances, root=root, upto=upto, run=run)
    answers = engine.work(sql, task, parts=parts, order=RUNNING_ORDER)
    staged = [msgspec.json.decode(answer, type=StagedBalances) for answer in answers]
    found = tuple(sum(int(one.sums.split()[at]) for one in staged) for at in (0, 1))
    expected = tuple(sum(sums[at] for sums in keep.values()) for at in (0, 1))
    if found != expected:
        raise LedgerBug(f"balances of {expected} events and micros were to be written, {found} were")
    return [one.file for one in staged]


def stage_balances(part: int, rows: Iterable[pa.RecordBatch], *, root: Place, upto: int, run: str) -> bytes | None:
    """What a task does with its range of customers: it writes their balances aside."""
    batches = [batch for batch in rows if batch.num_rows]
    if not batches:
        return None
    chunk = pa.Table.from_batches(batches).select(BALANCE.names).cast(BALANCE)
    return msgspec.json.encode(StagedBalances(_stage_table(chunk, root, upto=upto, run=run), _sums(chunk)))


def _stage_table(chunk: pa.Table, root: Place, *, upto: int, run: str) -> StagedFile:
    return stage(root, "balance", chunk, run=run, batches=(upto, upto), facts={SUMS_KEY: _sums(chunk)})


def _create(root: Place) -> DeltaTable:
    fields = [pa.field("kind", pa.string()), *(field.with_nullable(True) for field in BALANCE)]
    return create_table(root, pa.schema(fields), keeping=WEEK_KEEPING)


def _sums(chunk: pa.Table) -> str:
    events = pc.sum(chunk["event_count"]).as_py() or 0
    micros = pc.sum(chunk["sum_micros"].cast(pa.decimal256(76, 0))).as_py() or 0  # 38 digits might not hold it
    return f"{events} {int(micros)}"
