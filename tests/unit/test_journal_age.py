"""An old journal is as quick as a young one, because its log is cleared; nobody may be hurt by that."""

from __future__ import annotations

import errno
import os
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from opentab.core.errors import Fenced, LedgerError
from opentab.ledger import balances, invoices
from opentab.ledger import journal as module
from opentab.ledger.journal import Journal
from opentab.tables.delta_log import DeltaLog
from opentab.tables.table import JOURNAL_KEEPING, WEEK_KEEPING, LogKeeping
from opentab_tools.bench.ledger_age import SyntheticLedger

CHECKPOINT = 5
DAY_S = 24 * 3600
QUICKLY = LogKeeping(kept_seconds=0, checkpoint_commits=CHECKPOINT)


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SyntheticLedger:
    """A ledger whose log is cleared at every checkpoint."""
    monkeypatch.setattr(module, "JOURNAL_KEEPING", QUICKLY)
    return SyntheticLedger(tmp_path / "home")


def opened(ledger: SyntheticLedger) -> Journal:
    journal = Journal.open(ledger.home.ledger, ledger.home.identity)
    assert journal is not None
    return journal


def commit(ledger: SyntheticLedger, times: int) -> None:
    for _ in range(times):
        ledger.commit()


def test_the_log_does_not_grow_with_the_batches(ledger: SyntheticLedger) -> None:
    commit(ledger, 4 * CHECKPOINT)
    young = ledger.log_files()
    commit(ledger, 8 * CHECKPOINT)
    assert ledger.log_files() <= young + CHECKPOINT


def test_commits_go_once_a_checkpoint_covers_them_and_they_are_old_enough(
    ledger: SyntheticLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "JOURNAL_KEEPING", LogKeeping(kept_seconds=60, checkpoint_commits=CHECKPOINT))
    log = DeltaLog(ledger.journal.root.path)
    commit(ledger, CHECKPOINT + 2)
    assert log.checkpoints() == [CHECKPOINT]
    assert log.commits() == list(range(CHECKPOINT + 3))  # all of them are young

    minute_ago = time.time() - 61
    for version in log.commits():
        os.utime(log.commit_path(version), (minute_ago, minute_ago))
    commit(ledger, CHECKPOINT)
    assert log.checkpoints()[-1] == 2 * CHECKPOINT
    assert log.commits()[0] == CHECKPOINT + 3  # the first one that is younger than a minute


def test_no_commit_is_deleted_while_checkpoints_fail(
    ledger: SyntheticLedger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    commit(ledger, CHECKPOINT - 1)
    with monkeypatch.context() as broken:
        broken.setattr(DeltaLog, "write_checkpoint", full)
        ledger.commit()  # the batch is in the journal, so it is no failure
    assert "no space left on device" in caplog.text
    log = DeltaLog(ledger.journal.root.path)
    assert log.commits() == list(range(CHECKPOINT + 1))
    assert opened(ledger).position == CHECKPOINT
    ledger.commit()
    assert log.checkpoints() == [CHECKPOINT + 1], "the next commit tries again"


def test_a_checkpoint_is_written_though_others_committed_beside(ledger: SyntheticLedger) -> None:
    commit(ledger, CHECKPOINT - 1)
    assert ledger.journal.compact(run=ledger.run, files_max=2)
    ledger.journal.refresh()  # whoever commits next has seen the commit that was due for one
    commit(ledger, 1)
    assert len(DeltaLog(ledger.journal.root.path).checkpoints()) == 1


def reads(times: int, ledger: SyntheticLedger) -> float:
    """How often the whole process reads from files during a commit, delta-rs included."""

    def so_far() -> int:
        fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return int(fields["syscr"])

    before = so_far()
    commit(ledger, times)
    return (so_far() - before) / times


@pytest.mark.slow
def test_a_commit_on_an_old_ledger_reads_as_few_files(ledger: SyntheticLedger) -> None:
    commit(ledger, 4 * CHECKPOINT)
    young = reads(4 * CHECKPOINT, ledger)
    commit(ledger, 60 * CHECKPOINT)
    assert reads(4 * CHECKPOINT, ledger) < 1.5 * young


@pytest.mark.parametrize("module", [invoices, balances], ids=["invoices", "balances"])
def test_invoices_and_balances_keep_their_commits_for_a_week(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WEEK_KEEPING", replace(WEEK_KEEPING, checkpoint_commits=CHECKPOINT))
    ledger = SyntheticLedger(tmp_path / "home")

    def commit_there() -> None:
        ledger.commit()
        if module is invoices:
            invoices.Invoices.create(ledger.home.ledger).commit(ledger.journal.position, [])
        else:
            balances.write_snapshot(ledger.journal, ledger.home.calendar)

    for _ in range(CHECKPOINT - 2):
        commit_there()
    (path,) = (path for path in ledger.home.ledger.path.iterdir() if module.APP.endswith(path.name))
    log = DeltaLog(path)
    while not log.checkpoints():
        commit_there()
    written = log.commits()
    for age_s, version in ((8 * DAY_S, written[1]), (7 * DAY_S - 60, written[2])):
        os.utime(log.commit_path(version), (time.time() - age_s,) * 2)
    while len(log.checkpoints()) < 2:
        commit_there()
    assert set(written) - set(log.commits()) == {written[1]}


def test_how_long_commits_are_kept() -> None:
    assert JOURNAL_KEEPING.kept_seconds == 60
    assert WEEK_KEEPING.configuration["delta.logRetentionDuration"] == f"interval {7 * 24 * 3600} seconds"


@pytest.mark.slow
def test_batches_are_committed_while_files_are_merged_and_the_log_is_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Commits outlive a second, so that whoever merges can read what came meanwhile.
    monkeypatch.setattr(module, "JOURNAL_KEEPING", LogKeeping(kept_seconds=1, checkpoint_commits=CHECKPOINT))
    ledger = SyntheticLedger(tmp_path / "home")
    done = threading.Event()

    def merge() -> None:
        while not done.is_set():
            with suppress(LedgerError):  # one that took too long is tried again, as upkeep does
                ledger.journal.compact(run=ledger.run, files_max=2)

    merging = threading.Thread(target=merge)
    merging.start()
    try:
        commit(ledger, 300)
    finally:
        done.set()
        merging.join()
    assert opened(ledger).entries().count_rows() == 300


def test_a_reader_outlives_the_log_it_was_opened_on(ledger: SyntheticLedger) -> None:
    commit(ledger, 3)
    reader = opened(ledger)
    commit(ledger, 4 * CHECKPOINT)
    assert not (reader.root.path / "_delta_log" / f"{3:020d}.json").exists()

    assert reader.position == 3
    assert [record.batch for record in reader.batches()] == [1, 2, 3]
    assert reader.entries().count_rows() == 3

    reader.refresh()
    assert reader.position == 3 + 4 * CHECKPOINT
    assert reader.entries().count_rows() == 3 + 4 * CHECKPOINT


@pytest.mark.parametrize("batches", [1, 2, CHECKPOINT, 4 * CHECKPOINT])
@pytest.mark.parametrize("asleep_before", ["staging", "writing"])
def test_a_pipeline_that_slept_is_fenced_however_long(
    ledger: SyntheticLedger, monkeypatch: pytest.MonkeyPatch, batches: int, asleep_before: str
) -> None:
    commit(ledger, 3)
    sleeper = SyntheticLedger(ledger.home.path)
    owner, name = module, "stage" if asleep_before == "staging" else "write_actions"
    real = getattr(owner, name)

    def slept(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(owner, name, real)
        commit(ledger, batches)
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, slept)
    with pytest.raises(Fenced):
        sleeper.commit()
    journal = opened(ledger)
    assert journal.position == 3 + batches
    assert {record.run for record in journal.batches()} == {ledger.run}
    assert journal.entries().count_rows() == 3 + batches


def test_a_commit_that_went_into_cleared_log_is_fenced(
    ledger: SyntheticLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one moment at which nothing stops the write: its number is free again, and nobody sees it."""
    commit(ledger, 3)
    sleeper = SyntheticLedger(ledger.home.path)
    real = module.write_actions

    def written_into_the_past(*args: Any, **kwargs: Any) -> None:
        monkeypatch.setattr(module, "write_actions", real)
        commit(ledger, 4 * CHECKPOINT)
        (sleeper.journal.root.path / "_delta_log" / f"{4:020d}.json").write_text("{}\n")

    monkeypatch.setattr(module, "write_actions", written_into_the_past)
    with pytest.raises(Fenced):
        sleeper.commit()
    assert opened(ledger).position == 3 + 4 * CHECKPOINT
