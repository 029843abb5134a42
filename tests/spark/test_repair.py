"""Ledgers as a power cut leaves them: torn files are set aside, and a log that lost commits is made again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from ledgers import bill, new_home
from opentab.core.errors import FileDamaged, LedgerError
from opentab.ledger.invoices import Invoices
from opentab.ledger.journal import Journal
from opentab.ledger.repair import recover, repair
from opentab.runtime import config
from opentab.runtime.config import Home
from opentab.tables import delta_log
from opentab.tables.delta_log import LOG_NAME, DeltaLog
from opentab_tools.bench.ledger_age import SyntheticLedger
from product import json_lines, opentab

BATCHES = 12


@pytest.fixture
def ledger(tmp_path: Path) -> SyntheticLedger:
    ledger = SyntheticLedger(tmp_path / "home")
    for _ in range(BATCHES):
        ledger.commit()
    return ledger


def log_of(home: Home, table: str = "journal") -> DeltaLog:
    return DeltaLog((home.ledger / table).path)


def journal_of(home: Home) -> Journal:
    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None
    return journal


def checkpoint_torn(home: Home, table: str = "journal") -> None:
    """What earlier versions could leave: a checkpoint without a byte, and the commits that it covers deleted."""
    handle = DeltaTable(str(home.ledger / table))
    handle.create_checkpoint()
    log = log_of(home, table)
    log.checkpoint_path(handle.version()).write_bytes(b"")
    for version in log.commits():
        log.commit_path(version).unlink()


@pytest.mark.parametrize("tear", [lambda _: b"", lambda data: data[: len(data) // 2], lambda data: bytes(len(data))])
def test_a_torn_commit_at_the_end_is_set_aside(ledger: SyntheticLedger, tear: Callable[[bytes], bytes]) -> None:
    log = log_of(ledger.home)
    last = log.commit_path(log.commits()[-1])
    last.write_bytes(tear(last.read_bytes()))

    (sentence,) = recover(ledger.home.ledger)

    assert last.name in sentence
    assert not last.exists()
    assert journal_of(ledger.home).position == BATCHES - 1
    assert recover(ledger.home.ledger) == []


@pytest.mark.parametrize("back", [1, 2, 3])
def test_a_commit_that_has_all_its_bytes_is_not_torn(ledger: SyntheticLedger, back: int) -> None:
    """It was synced and told of: without it a batch would be billed again, or be missing."""
    log = log_of(ledger.home)
    commit = log.commit_path(log.commits()[-back])
    whole = commit.read_bytes()
    damaged = 0
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << at % 7
        commit.write_bytes(flipped)
        try:
            assert recover(ledger.home.ledger) == [], at
        except FileDamaged as error:
            assert commit.name in str(error), at
            damaged += 1
        assert commit.read_bytes() == flipped, "nothing is set aside"
    assert damaged > 10


@pytest.mark.parametrize("end", [b"\0" * 100, b"\0"])
def test_a_commit_that_ends_in_zeros_is_torn(ledger: SyntheticLedger, end: bytes) -> None:
    log = log_of(ledger.home)
    last = log.commit_path(log.commits()[-1])
    last.write_bytes(last.read_bytes()[: -len(end)] + end)
    assert len(recover(ledger.home.ledger)) == 1
    assert journal_of(ledger.home).position == BATCHES - 1


def test_what_is_left_is_durable_after_a_start(ledger: SyntheticLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(ledger.home)
    log.write_checkpoint(log.commits()[-3])
    synced: list[str] = []
    monkeypatch.setattr(delta_log, "sync", lambda path: synced.append(path.name))
    recover(ledger.home.ledger)
    newest = log.checkpoint_path(log.checkpoints()[-1]).name
    assert {newest, "_last_checkpoint", LOG_NAME, *(log.commit_path(n).name for n in log.commits()[-2:])} == set(synced)


def test_a_torn_checkpoint_is_set_aside_while_its_commits_are_there(ledger: SyntheticLedger) -> None:
    log = log_of(ledger.home)
    version = log.commits()[-1]
    DeltaTable(str(ledger.home.ledger / "journal")).create_checkpoint()
    log.checkpoint_path(version).write_bytes(b"")
    with pytest.raises(LedgerError, match="doctor --repair"):
        journal_of(ledger.home)

    assert len(recover(ledger.home.ledger)) == 2  # the checkpoint, and the hint that names it

    journal = journal_of(ledger.home)
    assert journal.position == BATCHES
    assert journal.entries().count_rows() == BATCHES


def test_a_torn_commit_before_whole_ones_stops_the_start(ledger: SyntheticLedger) -> None:
    log = log_of(ledger.home)
    log.commit_path(log.commits()[-3]).write_bytes(b"")
    with pytest.raises(LedgerError, match="doctor --repair"):
        recover(ledger.home.ledger)


def test_a_log_that_lost_its_commits_is_made_again_from_the_files(ledger: SyntheticLedger) -> None:
    ledger.journal.compact(run=ledger.run, files_max=4)  # the files that it replaced stay for an hour
    ledger.commit()
    dead_task = next((ledger.home.ledger / "journal" / "kind=entry").path.glob(f"*{BATCHES:09d}-*"))
    shutil.copy(dead_task, dead_task.with_name(f"{BATCHES:09d}-dead-task.parquet"))
    before = journal_of(ledger.home).entries().to_table().sort_by("batch")
    checkpoint_torn(ledger.home)
    with pytest.raises(LedgerError, match="doctor --repair"):
        recover(ledger.home.ledger)

    (sentence,) = repair(ledger.home.ledger, ledger.home.identity)

    assert f"up to position {BATCHES + 1}" in sentence
    journal = journal_of(ledger.home)
    assert [record.batch for record in journal.batches()] == list(range(1, BATCHES + 2))
    assert journal.entries().to_table().sort_by("batch").equals(before)
    ledger.journal = journal
    ledger.commit()


def test_files_that_do_not_add_up_are_left_as_they_are(ledger: SyntheticLedger) -> None:
    next((ledger.home.ledger / "journal" / "kind=entry").path.glob(f"*{5:09d}-*")).unlink()
    checkpoint_torn(ledger.home)
    files = {path for path in ledger.home.ledger.path.rglob("*") if path.is_file()}
    with pytest.raises(LedgerError, match=r"add up to what batch 5 has.*restore the ledger from a backup"):
        repair(ledger.home.ledger, ledger.home.identity)
    assert {path for path in ledger.home.ledger.path.rglob("*") if path.is_file()} == files


def test_doctor_repairs_a_real_home(tmp_path: Path) -> None:
    path = tmp_path / "home"
    path.mkdir()
    (path / "opentab.toml").write_text("[pipeline]\nbatch_events_max = 400\ncompact_files = 4\nsnapshot_batches = 3\n")
    home = config.load(path)
    plan = ("--months", "2", "--first-period", "2026-01", "--events", "300", "--bad", "0.02", "--duplicates", "0.05")
    opentab("generate", *plan, home=home)
    opentab("run", "--once", home=home)
    before = opentab("invoices", "--all-revisions", "--format", "json", home=home).stdout
    ids = remembered(home)
    for table in ("journal", "balances", "invoices"):
        checkpoint_torn(home, table)

    refused = opentab("run", "--once", home=home, check=False)
    assert refused.returncode == 1
    assert "doctor --repair" in refused.stderr
    repaired = opentab("doctor", "--repair", home=home).stdout
    assert "balances: commits were lost" in repaired

    shutil.rmtree(home.invoices_path)  # as after a restore: the last position may be issued again
    opentab("run", "--once", home=home)
    assert remembered(home).equals(ids)
    assert _without_issue(opentab("invoices", "--all-revisions", "--format", "json", home=home).stdout) == (
        _without_issue(before)
    )
    (verdict,) = json_lines(opentab("verify", "--format", "json", home=home).stdout)
    assert verdict["agrees"], verdict


@pytest.fixture
def issued(tmp_path: Path) -> Home:
    """Invoices of two positions, the second one with a revision."""
    home = new_home(tmp_path / "issued", '[billing]\nout_of_orderness = "1d"\nallowed_lateness = "40d"\n')
    bill(home, event("a", "2026-01-03"), event("b", "2026-02-03"))
    bill(home, event("c", "2026-01-05"), event("d", "2026-02-20"), event("e", "2026-03-03"))
    return home


def event(id_: str, day: str) -> str:
    fields = {"id": id_, "time": f"{day}T10:00:00Z", "customer": "ann", "type": "CALL", "amount": "1.00"}
    return json.dumps(fields)


def invoice_files(home: Home) -> list[Path]:
    return sorted((home.ledger / "invoices").path.glob("period=*/*.parquet"), key=lambda path: path.name)


def test_the_log_of_invoices_is_made_again(issued: Home) -> None:
    before = Invoices.open(issued.ledger)
    assert before is not None and len(before.files) > 1
    log = log_of(issued, "invoices")
    last = log.commit_path(log.commits()[-1])
    commit = last.read_bytes()
    checkpoint_torn(issued, "invoices")
    last.write_bytes(commit)  # the only one that is left
    repair(issued.ledger, issued.identity)
    after = Invoices.open(issued.ledger)
    assert after is not None and (after.position, after.files) == (before.position, before.files)


def test_an_invoice_that_is_there_twice_is_not_guessed_at(issued: Home) -> None:
    first = invoice_files(issued)[0]
    shutil.copy(first, first.with_name(first.name.replace(".checked", "0.checked")))  # the same run tried it before
    checkpoint_torn(issued, "invoices")
    with pytest.raises(LedgerError, match=r"revision 1 for ann is in .* and in .*"):
        repair(issued.ledger, issued.identity)


def test_a_damaged_file_of_invoices_is_not_left_out(issued: Home) -> None:
    first = invoice_files(issued)[0]
    first.write_bytes(first.read_bytes()[:-1])
    checkpoint_torn(issued, "invoices")
    with pytest.raises(LedgerError, match=f"{first.name} is damaged"):
        repair(issued.ledger, issued.identity)


def remembered(home: Home) -> pa.Table:
    """The ids that count as seen, in one order."""
    return (
        journal_of(home)
        .seen()
        .to_table()
        .sort_by([(name, "ascending") for name in ("key_high", "key_low", "number", "byte")])
    )


def _without_issue(text: str) -> list[dict[str, object]]:
    """Invoices without the time of their issue: those of the last position are issued again."""
    return [{**invoice, "issued_at": None} for invoice in json_lines(text)]
