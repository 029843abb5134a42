"""One flipped bit anywhere in the ledger: every command refuses and says what to do, or its answer is right."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from ledgers import bill, new_home, open_job
from opentab.audit import trace, verify
from opentab.closing.closer import Closer
from opentab.closing.spark_engine import SparkEngine
from opentab.core.errors import FileDamaged, LedgerError, OpentabError
from opentab.core.records import ENTRY, INVOICE, KINDS
from opentab.ledger import balances
from opentab.ledger.engine import connect
from opentab.ledger.invoice_json import statement_texts
from opentab.ledger.invoices import Invoices
from opentab.ledger.journal import Journal
from opentab.ledger.rejections import rejection_rows
from opentab.ledger.repair import recover
from opentab.ledger.sql import VIEWS, run_query
from opentab.ledger.totals import customer_totals
from opentab.replica import blocks
from opentab.replica.follower import Follower
from opentab.runtime import config
from opentab.runtime.config import Home
from opentab.runtime.storage import Place
from opentab.tables import files
from opentab.tables.damage import check_files
from opentab.tables.error_text import reading
from opentab.tables.footer import KEY, checksum_agrees
from product import json_lines, opentab

SETTINGS = '[billing]\nout_of_orderness = "1d"\nallowed_lateness = "40d"\n'
SEED = int(os.environ.get("OPENTAB_SEED", "26"))  # each failure names it, and a new one draws new places
PLACES = ("page", "page header", "footer", "statistics", "any")
LOG_FLIPS = 8
BITS = (0, 1, 3, 5)
PARQUET_KINDS = ("entry", "rejection", "seen", "batch", "balance", "invoice")
LOG_KINDS = ("commit", "checkpoint", "last_checkpoint")


def line(number: int, customer: str, time: str, amount: str = "1.00", type_: str = "CALL") -> str:
    return json.dumps({"id": f"e{number}", "time": time, "customer": customer, "type": type_, "amount": amount})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with a closed month, a snapshot, entries since, and a month that is due but not closed yet."""
    home = new_home(tmp_path_factory.mktemp("flips") / "home", SETTINGS)
    number = 0
    for days in ((3, 9, 15), (16, 22, 28)):
        lines = []
        for day in days:
            for customer in ("ann", "bob", "cyn"):
                number += 1
                type_ = ("CALL", "SMS", "DATA")[number % 3]
                lines.append(line(number, customer, f"2026-01-{day:02}T10:00:00Z", f"{number}.125", type_))
        bill(home, *lines, lines[0], "no event", close=False)  # a repeat, and a rejection
    bill(home, line(100, "ann", "2026-02-03T10:00:00Z"))
    journal = journal_of(home)
    balances.write_snapshot(journal, home.calendar)
    bill(home, line(101, "bob", "2026-01-30T10:00:00Z", "7.00"), line(102, "bob", "2026-02-20T10:00:00Z", "3.00"))
    DeltaTable(str(home.ledger.path / "journal")).create_checkpoint()
    bill(home, line(103, "cyn", "2026-03-05T10:00:00Z", "3.00"), "{}", close=False)
    return home


def journal_of(home: Home) -> Journal:
    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None
    return journal


def closed(home: Home) -> object:
    recover(home.ledger)
    open_job(home, "closing")
    Closer(home, run="closing").close_due(journal_of(home))
    return sorted(text.replace("issued_at", "") for text in statements(home))


def statements(home: Home) -> list[str]:
    invoices = Invoices.open(home.ledger)
    assert invoices is not None
    found = []
    with connect(threads=1) as connection:
        for text in statement_texts(connection, invoices.rows(), currency="EUR", all_revisions=True):
            found.append(json.dumps({**json.loads(text), "issued_at": None}))
    return found


def replica(home: Home) -> object:
    follower = Follower(home)
    try:
        while follower.step() is not None:
            pass
        with follower.store.read() as snapshot:
            return [found for p in (b"2026-01", b"2026-02", b"2026-03") for found in blocks.scan(snapshot, p)]
    finally:
        follower.close()


def verified(home: Home) -> object:
    check_files(home.ledger)
    invoices, snapshot = Invoices.open(home.ledger), balances.latest(home.ledger)
    report = verify(home, journal_of(home), invoices=invoices, balances=snapshot)
    return report.agrees, report.events, report.amount_micros


def queried(home: Home, view: str) -> object:
    skipped = " exclude (issued_at)" if view == "invoices" else ""
    _, rows = run_query(home, journal_of(home), f"select *{skipped} from {view} order by all")
    return list(rows)


COMMANDS: dict[str, Callable[[Home], object]] = {
    "totals": lambda home: [str(total) for total in customer_totals(journal_of(home), home.calendar)],
    "invoices": statements,
    "rejections": lambda home: list(rejection_rows(journal_of(home))),
    "trace": lambda home: trace(home, journal_of(home), "2026-01", "bob").lines,
    **{f"sql {view}": (lambda home, view=view: queried(home, view)) for view in VIEWS},
    "verify": verified,
    "replica": replica,
    "run --once": closed,  # the last: it changes the ledger
}


def answers(home: Home, where: str) -> dict[str, object]:
    """What each command answers; None where it refuses and says why."""
    found: dict[str, object] = {}
    for name, command in COMMANDS.items():
        try:
            with reading(home.ledger):
                found[name] = command(home)
        except OpentabError as error:
            assert error.hint, f"{name}, {where}: {error}"
            assert not error.retry_helps, f"{name}, {where}: {error}"
            assert any(part in error.fact for part in ("/ledger/", "batch", "home")), f"{name}, {where}: {error}"
            found[name] = None
    return found


@pytest.fixture(scope="module")
def right(home: Home, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    found = answers(copy_of(home, tmp_path_factory.mktemp("right")), "undamaged")
    assert None not in found.values()
    assert found["verify"][0] is True  # type: ignore[index]
    return found


def copy_of(home: Home, parent: Path) -> Home:
    shutil.copytree(home.path, parent / "home")
    return config.load(parent / "home")


def parquet_files(home: Home, kind: str) -> list[Path]:
    ledger = home.ledger.path
    directory = {"balance": "balances/kind=balance", "invoice": "invoices/*"}.get(kind, f"journal/kind={kind}")
    return sorted(ledger.glob(f"{directory}/*.parquet"))


def log_files(home: Home, kind: str) -> list[Path]:
    pattern = {"commit": "*.json", "checkpoint": "*.checkpoint.parquet", "last_checkpoint": "_last_checkpoint"}[kind]
    return sorted(home.ledger.path.glob(f"*/_delta_log/{pattern}"))


def bytes_of(path: Path, place: str) -> list[int]:
    """Where the bytes of a place lie in a Parquet file."""
    data = path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(metadata.num_columns)]
    firsts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
    if place == "page header":
        return [at + offset for at in firsts for offset in range(20)]
    if place == "page":
        return list(range(4, footer))
    if place == "footer":
        return list(range(footer, len(data)))
    if place == "statistics":
        numbers = [c.statistics.min for c in chunks if c.statistics is not None and isinstance(c.statistics.min, int)]
        found = [data.find(number.to_bytes(8, "little", signed=True), footer) for number in numbers]
        return [at + offset for at in found if at > 0 for offset in range(8)] or list(range(footer, len(data)))
    return list(range(len(data)))


def flip(path: Path, at: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def check_flip(home: Home, right: dict[str, object], parent: Path, file: Path, at: int, bit: int) -> int:
    """How many commands refused; the others must be right."""
    damaged = copy_of(home, parent)
    flip(damaged.path / file.relative_to(home.path), at, bit)
    where = f"bit {bit} of byte {at} of {file.relative_to(home.path)}, seed {SEED}"
    found = answers(damaged, where)
    for name, answer in found.items():
        assert answer is None or answer == right[name], f"{name} is wrong: {where}"
    shutil.rmtree(damaged.path)
    return sum(answer is None for answer in found.values())


@pytest.mark.parametrize("kind", PARQUET_KINDS)
def test_a_flipped_bit_in_a_parquet_file_is_never_billed(
    kind: str, home: Home, right: dict[str, object], tmp_path: Path
) -> None:
    chance = random.Random(f"{SEED} {kind}")
    refused = 0
    for place in PLACES:
        file = chance.choice(parquet_files(home, kind))
        at, bit = chance.choice(bytes_of(file, place)), chance.randrange(8)
        refused += check_flip(home, right, tmp_path, file, at, bit)
    assert refused, f"no command noticed anything, seed {SEED}"


@pytest.mark.parametrize("kind", LOG_KINDS)
def test_a_flipped_bit_in_the_delta_log_is_never_billed(
    kind: str, home: Home, right: dict[str, object], tmp_path: Path
) -> None:
    chance = random.Random(f"{SEED} {kind}")
    for _ in range(LOG_FLIPS):
        file = chance.choice(log_files(home, kind))
        check_flip(home, right, tmp_path, file, chance.randrange(file.stat().st_size), chance.randrange(8))


def state_of(home: Home, table: str) -> object:
    """All that a bill takes from a table's log: where the table stands, and which files it has."""
    if table == "journal":
        journal = journal_of(home)
        return journal.position, [journal.entry_files(), journal.runs(), journal.batches()]
    if table == "balances":
        snapshot = balances.latest(home.ledger)
        return snapshot.batch, snapshot.run, snapshot.files
    invoices = Invoices.open(home.ledger)
    assert invoices is not None
    return invoices.position, invoices.files, invoices.id


def flipped_states(home: Home, table: str, spans: Callable[[bytes], list[tuple[int, int]]]) -> list[FileDamaged | None]:
    """Flip bits in spans of every commit file: the table is refused, or stands where it stood."""
    state = state_of(home, table)
    found: list[FileDamaged | None] = []
    for file in sorted((home.ledger.path / table / "_delta_log").glob("*.json")):
        whole = file.read_bytes()
        for at in (at for begin, end in spans(whole) for at in range(begin, end)):
            for bit in BITS:
                flip(file, at, bit)
                where = f"bit {bit} of byte {at} of {file.relative_to(home.path)}"
                try:
                    assert state_of(home, table) == state, where
                    found.append(None)
                except FileDamaged as error:
                    assert f"/ledger/{table}/_delta_log is damaged" in str(error), where
                    assert error.hint, where
                    found.append(error)
                file.write_bytes(whole)
    return found


@pytest.mark.parametrize("table", ["journal", "balances", "invoices"])
def test_every_bit_of_a_transaction_is_checked(table: str, home: Home, tmp_path: Path) -> None:
    copy = copy_of(home, tmp_path)
    for file in (copy.ledger.path / table / "_delta_log").glob("*checkpoint*"):
        file.unlink()  # so that every commit is read
    found = flipped_states(
        copy, table, lambda data: [match.span() for match in re.finditer(rb'\{"txn".*', data, re.MULTILINE)]
    )
    assert any(found)


def test_every_bit_of_the_invoices_id_is_checked(home: Home, tmp_path: Path) -> None:
    copy = copy_of(home, tmp_path)
    invoices = Invoices.open(copy.ledger)
    assert invoices is not None
    id_ = invoices.id.encode()
    line = rb'\{"metaData":\{"id":"%s"' % id_
    found = flipped_states(
        copy, "invoices", lambda data: [(m.end() - 37, m.end() - 1) for m in re.finditer(line, data)]
    )
    assert len(found) == len(id_) * len(BITS)
    assert all(found), "invoices are delivered under this id"


@pytest.mark.parametrize("table", ["journal", "balances", "invoices"])
@pytest.mark.parametrize("wrong", [0, 1, 9])
def test_a_wrong_number_of_a_table_is_not_billed(table: str, wrong: int, home: Home, tmp_path: Path) -> None:
    copy = copy_of(home, tmp_path)
    for file in (copy.ledger.path / table / "_delta_log").glob("*checkpoint*"):
        file.unlink()
    for file in (copy.ledger.path / table / "_delta_log").glob("*.json"):
        file.write_bytes(
            re.sub(rb'("opentab-%s","version":)\d+' % table.encode(), rb"\g<1>%d" % wrong, file.read_bytes())
        )
    with pytest.raises(FileDamaged, match=f"{table}/_delta_log is damaged"):
        state_of(copy, table)
    assert answers(copy, f"{table} at {wrong}")["run --once"] is None


def test_a_checkpoint_over_which_delta_rs_panics_is_refused(home: Home, tmp_path: Path) -> None:
    copy = copy_of(home, tmp_path)
    journal = journal_of(copy)
    (file,) = (copy.ledger.path / "journal" / "_delta_log").glob("*.checkpoint.parquet")
    whole = file.read_bytes()
    panics = 0
    for at in range(0, len(whole), 7):
        flip(file, at, 0)
        try:
            journal_of(copy)
        except LedgerError as error:
            assert error.hint, at
            panics += type(error.__cause__).__name__ == "PanicException"
        file.write_bytes(whole)
        if panics:
            break
    assert panics, "no byte makes delta-rs panic any more: no_panic can go"

    class PanicException(BaseException):
        """As delta-rs raises it while a follower reads on."""

    class Table:
        def update_incremental(self) -> None:
            raise PanicException

    journal._table = Table()  # type: ignore[assignment]
    with pytest.raises(FileDamaged, match="_delta_log is damaged"):
        journal.refresh()


def flip_in_pages(file: Path) -> None:
    """Change an amount, as the finding did: in the middle of the pages."""
    metadata = pq.read_metadata(file)
    column = metadata.row_group(0).column(metadata.schema.names.index("amount_micros"))
    flip(file, column.data_page_offset + column.total_compressed_size - 1, 2)


def test_a_month_is_not_closed_over_a_flipped_bit(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS)
    lines = [line(number, f"c{number:03}", "2026-01-10T10:00:00Z", "2.00") for number in range(400)]
    opentab("ingest", home=home, stdin="\n".join(lines))
    opentab("run", "--once", home=home)
    (file,) = parquet_files(home, "entry")
    whole = file.read_bytes()
    flip_in_pages(file)
    opentab("ingest", home=home, stdin=line(1_000, "c000", "2026-03-05T10:00:00Z"))
    refused = opentab("run", "--once", home=home, check=False)
    assert refused.returncode == 1
    assert f"{file} is damaged" in refused.stderr
    assert "restore this file from a backup" in refused.stderr
    assert json_lines(opentab("invoices", "--format", "json", home=home).stdout) == []
    for command in (["totals"], ["verify"], ["sql", "select sum(amount_micros) from entries"]):
        done = opentab(*command, home=home, check=False)
        assert (done.returncode, str(file) in done.stderr) == (1, True), done.stderr

    file.write_bytes(whole)  # from the backup
    opentab("run", "--once", home=home)
    issued = json_lines(opentab("invoices", "--period", "2026-01", "--format", "json", home=home).stdout)
    assert [invoice["total"] for invoice in issued] == ["2.00"] * 400
    assert json_lines(opentab("verify", "--format", "json", home=home).stdout)[0]["unverified_files"] == 0


@pytest.mark.parametrize("vectorized", ["true", "false"])
def test_spark_checks_pages(vectorized: str, home: Home, tmp_path: Path, spark: Any) -> None:
    from py4j.protocol import Py4JJavaError

    copy = copy_of(home, tmp_path)
    file = parquet_files(copy, "entry")[0]
    setting = "spark.sql.parquet.enableVectorizedReader"
    spark.conf.set(setting, vectorized)
    try:
        assert len(spark.read.parquet(str(file)).collect()) == pq.read_metadata(file).num_rows
        flip_in_pages(file)
        with pytest.raises(Py4JJavaError, match="could not verify page integrity"):
            spark.read.parquet(str(file)).collect()
    finally:
        spark.conf.unset(setting)


@pytest.mark.parametrize("kind", ["entry", "seen", "rejection"])
def test_every_bit_of_a_footer_is_checked(kind: str, home: Home) -> None:
    data = parquet_files(home, kind)[0].read_bytes()
    footer = data[len(data) - 8 - int.from_bytes(data[-8:-4], "little") : -8]
    assert checksum_agrees(footer)
    in_key = range(footer.rindex(KEY.encode()), footer.rindex(KEY.encode()) + len(KEY) + 2)
    for at in range(len(footer)):
        changed = bytearray(footer)
        changed[at] ^= 1 << at % 8
        # Without its key the footer looks like one of an earlier version; the file's name says that it is not.
        assert checksum_agrees(bytes(changed)) is (None if at in in_key else False), at


def test_a_checked_file_without_its_key_is_damaged(home: Home, tmp_path: Path) -> None:
    copy = copy_of(home, tmp_path)
    file = parquet_files(copy, "entry")[0]
    flip(file, file.read_bytes().rindex(KEY.encode()), 0)
    with pytest.raises(FileDamaged, match="footer does not match its checksum"):
        journal_of(copy).entries()


def test_a_file_must_have_the_rows_and_columns_that_were_committed(home: Home) -> None:
    place = home.ledger / "journal" / str(parquet_files(home, "entry")[0].relative_to(home.ledger.path / "journal"))
    rows = pq.read_metadata(place.path).num_rows
    files.check_footer(place, ENTRY, rows)
    with pytest.raises(FileDamaged, match=f"has {rows} rows instead of {rows + 1}"):
        files.check_footer(place, ENTRY, rows + 1)
    with pytest.raises(FileDamaged, match="columns"):
        files.check_footer(place, KINDS["seen"], rows)


def test_a_closing_by_sparks_tasks_names_the_file(home: Home, tmp_path: Path, spark: Any) -> None:
    copy = copy_of(home, tmp_path)
    file = parquet_files(copy, "entry")[-1]
    column = pq.read_metadata(file).row_group(0).column(ENTRY.get_field_index("customer"))
    flip(file, column.data_page_offset + column.total_compressed_size - 1, 2)
    with pytest.raises(FileDamaged, match=f"{file.name} is damaged"):
        Closer(copy, run="closing", open_engine=partial(SparkEngine, spark)).close_due(journal_of(copy))


def test_entries_without_checksums_must_add_up(tmp_path: Path) -> None:
    shutil.copytree(Path(__file__).parents[1] / "golden" / "v1-invoices", tmp_path / "home")
    home = config.load(tmp_path / "home")
    assert check_files(home.ledger) > 0, "files of an earlier version cannot be checked, and are counted"
    file = max(parquet_files(home, "entry"), key=lambda path: path.stat().st_size)
    read = pq.read_table(file, partitioning=None)["amount_micros"]
    column = pq.read_metadata(file).row_group(0).column(ENTRY.get_field_index("amount_micros"))
    for back in range(1, column.total_compressed_size):
        flip(file, column.data_page_offset + column.total_compressed_size - back, 0)
        try:
            if pq.read_table(file, partitioning=None)["amount_micros"] != read:
                break
        except OSError:
            pass
        flip(file, column.data_page_offset + column.total_compressed_size - back, 0)
    with pytest.raises(FileDamaged, match=r"entries of batch \d+ come to"):
        list(customer_totals(journal_of(home), home.calendar))


def test_a_reader_that_stays_open_notices_later_damage(home: Home, tmp_path: Path) -> None:
    copy = copy_of(home, tmp_path)
    invoices = Invoices.open(copy.ledger)
    journal = journal_of(copy)
    assert invoices is not None
    invoices.rows(), journal.entries()
    for kind in ("invoice", "entry"):
        for file in parquet_files(copy, kind):
            flip(file, file.stat().st_size - 20, 1)  # in the footer
    with pytest.raises(FileDamaged, match="footer does not match its checksum"):
        invoices.rows()
    with pytest.raises(FileDamaged, match="footer does not match its checksum"):
        journal.entries()


def test_invoices_and_ids_are_counted(tmp_path: Path) -> None:
    """A row that a scan passes over is missed, whatever hid it."""
    root = Place.of(tmp_path)
    for kind, schema, hidden in (("seen", KINDS["seen"], "number"), ("2026-01", INVOICE, "revision")):
        column = "kind" if kind == "seen" else "period"
        fields = pa.schema([field.with_nullable(True) for field in schema])
        rows = pa.Table.from_pylist([{}, {}], schema=fields)
        for name in files.READ_ALWAYS:
            if name in schema.names:
                values = [1, None if name == hidden else 2]
                at = schema.get_field_index(name)
                rows = rows.set_column(at, fields.field(at), pa.array(values, fields.field(at).type))
        staged = files.stage(root, kind, rows, run="run", batches=(1, 1), column=column)
        file = files.LedgerFile(staged.path, 2)
        files.dataset_of(root, [file], schema)
        with pytest.raises(FileDamaged, match="has 1 rows instead of 2"):
            files.dataset_of(root, [file], schema, counts=True)


def test_damage_is_not_merged_into_a_checked_file(home: Home, tmp_path: Path) -> None:
    copy = copy_of(home, tmp_path)
    journal = journal_of(copy)
    live = len(journal.entry_files())
    place = journal.root / journal.entry_files()[0].path
    read = files.read_table

    def without_checksums(place_: Place, schema: pa.Schema, rows: int) -> pa.Table:
        """As of a file of an earlier version, with one bit of an amount flipped."""
        table = read(place_, schema, rows)
        if place_ != place:
            return table
        amounts = [table["amount_micros"][0].as_py() ^ 4, *table["amount_micros"].to_pylist()[1:]]
        at = schema.get_field_index("amount_micros")
        return table.set_column(at, schema.field(at), pa.array(amounts, schema.field(at).type))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("opentab.ledger.journal.read_table", without_checksums)
        with pytest.raises(FileDamaged, match=r"entries of batch \d+ come to"):
            journal.compact(run="merging", files_max=2)
    assert len(journal_of(copy).entry_files()) == live
    assert journal.compact(run="merging", files_max=2)


def test_a_snapshot_must_come_to_what_was_written(home: Home) -> None:
    snapshot = balances.latest(home.ledger)
    assert snapshot.sums is not None
    snapshot.check(snapshot.row_count, *snapshot.sums)
    events, micros = snapshot.sums
    for wrong in ((snapshot.row_count - 1, events, micros), (snapshot.row_count, events, micros + 1)):
        with pytest.raises(FileDamaged, match="not to what was written"):
            snapshot.check(*wrong)
