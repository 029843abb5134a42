"""One log for one ledger: another log is refused, and a move to it is recorded and audited."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from apps import app_of
from ledgers import bill, bill_ready, new_home, open_job, waiting_batch
from opentab.audit import trace, verify
from opentab.billing.adopt import adopt_log
from opentab.billing.log_check import LogCheck, join_log, open_checked_producer
from opentab.billing.pipeline_lock import HomeLock
from opentab.cli.doctor import examine
from opentab.core.errors import Fenced, HomeLocked, InputError, LogError, LogMismatch
from opentab.core.money import format_micros
from opentab.core.records import BatchRecord
from opentab.ledger.journal import Journal
from opentab.ledger.totals import customer_totals
from opentab.log import DirectoryLog, Producer
from opentab.runtime import config
from opentab.runtime.config import Home
from product import event, opentab

REFUSED = "is billed from log"


def journal_of(home: Home) -> Journal:
    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None
    return journal


def log_of(home: Home) -> DirectoryLog:
    return DirectoryLog(home.log_path)


def second_home(home: Home, path: Path, log: str = "log") -> Home:
    """A home with the same ledger, and a log directory of its own unless one is named."""
    return new_home(path, f'[ledger]\nuri = "{home.ledger}"\n[log]\nuri = "{log}"\n')


def identified(id_: str, amount: str = "1.00", customer: str = "ann") -> str:
    return json.dumps({"id": id_, **json.loads(event(customer, amount))})


def takes_back(id_: str, amount: str) -> str:
    return json.dumps({**json.loads(event("ann", amount)), "reverses": id_, "reason": "wrong", "actor": "sue"})


def total(home: Home, customer: str = "ann") -> str:
    totals = customer_totals(journal_of(home), home.calendar)
    return format_micros(sum(one.amount_micros for one in totals if one.customer == customer))


def differences(home: Home) -> list[str]:
    """What the audit finds wrong."""
    return [sample for check in verify(home, journal_of(home)).checks for sample in check.samples]


def append(home: Home, *lines: str) -> None:
    Producer(log_of(home)).append("".join(f"{line}\n" for line in lines).encode())


def bill_waiting(home: Home) -> BatchRecord:
    """Bill what waits in the log, as a start of the pipeline does, in one batch."""
    job = open_job(home, "run")
    batch = waiting_batch(job)
    assert batch is not None
    return job.bill(batch)


def test_a_log_is_named_once(tmp_path: Path) -> None:
    log = DirectoryLog(tmp_path / "log")
    assert log.find_id() is None
    assert not log.path.exists(), "a look makes nothing"
    made = log.make_id()
    assert log.make_id() == log.find_id() == made
    assert [path.name for path in log.aside.iterdir()] == []
    log.id_path.write_text("not an id")
    with pytest.raises(LogError, match="holds no log id"):
        log.find_id()


def test_processes_that_name_a_log_at_once_agree(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from opentab.log.directory import DirectoryLog\n"
        "sys.stdin.readline(); print(DirectoryLog(Path(sys.argv[1])).make_id())"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "log")]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    for process in started:
        assert process.stdin is not None
        process.stdin.write("now\n")
        process.stdin.flush()
    assert {process.communicate()[0].strip() for process in started} == {DirectoryLog(tmp_path / "log").find_id()}


def test_another_log_is_refused_by_everyone(tmp_path: Path) -> None:
    """What it took would never be billed."""
    home = new_home(tmp_path / "home")
    bill(home, event("ann", "1.00"))
    other = second_home(home, tmp_path / "other")
    claim = (home.ledger / "pipeline.claim").read() if (home.ledger / "pipeline.claim").exists() else None

    done = opentab("ingest", home=other, stdin=event(), check=False)
    assert done.returncode == 2
    assert REFUSED in done.stderr and "opentab log adopt log" in done.stderr
    assert len(done.stderr.splitlines()) == 2

    done = opentab("run", "--once", home=other, check=False)
    assert done.returncode == 2 and REFUSED in done.stderr
    now = (home.ledger / "pipeline.claim").read() if (home.ledger / "pipeline.claim").exists() else None
    assert now == claim, "the ledger's own pipeline goes on"

    with app_of(other) as app:
        answer = app.request("POST", "/v1/events", json=json.loads(event()))
        assert answer.status_code == 503
        assert REFUSED in answer.json()["detail"] and "opentab log adopt log" in answer.json()["detail"]
        assert app.get("/healthz").status_code == 200
    findings = {finding.name: finding for finding in examine(other)}
    assert not findings["log"].ok and REFUSED in findings["log"].fact
    assert not other.log_path.exists(), "nothing was taken"


def test_a_log_is_bound_before_the_first_batch(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")
    _, log_id = join_log(home)
    assert journal_of(home).log_id() == log_id
    with pytest.raises(LogMismatch, match=REFUSED):
        join_log(second_home(home, tmp_path / "other"))


def test_a_log_that_lost_its_id_is_refused(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")
    bill(home, event("ann", "1.00"))
    log_of(home).id_path.unlink()
    for refused in (lambda: join_log(home), lambda: open_checked_producer(home)):
        with pytest.raises(LogMismatch, match=r"is a directory without a log id .*--same-offsets"):
            refused()
    assert log_of(home).find_id() is None

    adopt_log(home, "log", same_offsets=True)
    bill(home, event("ann", "2.00"))
    assert total(home) == "3.000000"
    assert differences(home) == []


def test_a_log_that_ends_before_the_journal_is_refused(tmp_path: Path) -> None:
    """An older backup of the log: its next segments would get numbers that were billed already."""
    home = new_home(tmp_path / "home")
    bill(home, event("ann", "1.00"))
    shutil.copytree(home.log_path, tmp_path / "backup")
    bill(home, event("ann", "2.00"))
    shutil.rmtree(home.log_path)
    shutil.copytree(tmp_path / "backup", home.log_path)
    with pytest.raises(LogError, match="ends at segment 1, the journal is at 2"):
        open_job(home, "run")


def test_a_directory_that_is_replaced_under_a_pipeline_is_noticed(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")
    bill(home, event("ann", "1.00"))
    job = open_job(home, "run")
    shutil.rmtree(home.log_path)
    log_of(home).make_id()
    append(home, event("bob"))
    append(home, event("bob"))
    with pytest.raises(LogMismatch, match="is not the log any more that this pipeline began to read"):
        bill_ready(job)


def test_a_copy_of_a_home_goes_on(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")
    bill(home, event("ann", "1.00"))
    shutil.copytree(home.path, tmp_path / "copy")
    copy = config.load(tmp_path / "copy")
    open_checked_producer(copy).append(event("ann", "2.00").encode())
    bill_waiting(copy)
    assert (total(copy), total(home)) == ("3.000000", "1.000000")
    assert differences(copy) == []


def test_two_ledgers_read_one_log(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")
    other = new_home(tmp_path / "other", f'[log]\nuri = "{home.log_path}"\n')
    for amount in ("1.00", "2.00"):
        open_checked_producer(home).append(event("ann", amount).encode())
        bill_waiting(home)
        bill_waiting(other)
    assert total(home) == total(other) == "3.000000"
    assert journal_of(home).log_id() == journal_of(other).log_id() == log_of(home).find_id()
    for one in (home, other):
        assert differences(one) == []


def test_a_ledger_of_an_earlier_version_takes_the_id_of_its_log(tmp_path: Path) -> None:
    shutil.copytree(Path(__file__).parents[1] / "golden" / "v1", tmp_path / "home")
    home = config.load(tmp_path / "home")
    assert journal_of(home).log_id() is None and log_of(home).find_id() is None
    open_checked_producer(home).append(event("golden", "1.25", "2026-01-31T12:00:00Z").encode())
    bill_waiting(home)
    assert journal_of(home).log_id() == log_of(home).find_id() is not None
    assert [check.name for check in verify(home, journal_of(home), expected=False).checks if not check.agrees] == []
    with pytest.raises(LogMismatch, match=REFUSED):
        join_log(home.with_setting("log.uri", str(tmp_path / "other")))


def test_a_ledger_of_an_earlier_version_does_not_adopt_its_own_log(tmp_path: Path) -> None:
    """It would be read again from its beginning."""
    shutil.copytree(Path(__file__).parents[1] / "golden" / "v1", tmp_path / "home")
    with pytest.raises(InputError, match="there is nothing to adopt"):
        adopt_log(config.load(tmp_path / "home"), "log", same_offsets=False)


def test_a_ledger_moves_to_another_log(tmp_path: Path) -> None:
    """Ids are remembered across the move, the watermark stays, and the audit reads both logs."""
    home = new_home(tmp_path / "home")
    bill(home, identified("one", "1.00"), event("ann", "10.00", "2026-01-31T00:00:00Z"))
    before = bill(home, identified("two", "2.00"))
    append(second_home(home, tmp_path / "other"), identified("two", "2.00"), identified("three", "4.00"))

    done = opentab("log", "adopt", tmp_path / "other" / "log", home=home)
    assert f"old log: {before.log_id}" in done.stdout
    assert "batch 3 records the move" in done.stdout
    assert f'now set uri = "{tmp_path / "other" / "log"}" under [log]' in done.stdout
    moved = journal_of(home).last()
    assert moved is not None and (moved.adopted, moved.partitions, moved.taken) == ("beginning", {}, {})
    assert (moved.watermark_us, moved.newest_us) == (before.watermark_us, before.newest_us)

    with pytest.raises(LogMismatch, match=REFUSED):
        join_log(home)  # its settings name the old log still
    home = home.with_setting("log.uri", str(tmp_path / "other" / "log"))
    record = bill_waiting(home)
    assert (record.duplicates, record.newest_us) == (1, before.newest_us)
    assert total(home) == "17.000000"
    assert differences(home) == []


@pytest.mark.parametrize("old_log_is_gone", [False, True])
def test_the_audit_after_a_move(tmp_path: Path, old_log_is_gone: bool) -> None:
    home = new_home(tmp_path / "home")
    bill(home, identified("one", "1.00"), "not json")
    bill(home, event("ann", "8.00"), partition="b")
    second = home.with_setting("log.uri", "second")
    append(second, event("bob", "2.00"), "not json either", identified("new", "4.00"), identified("one", "1.00"))
    append(second, identified("one", "9.00"), takes_back("one", "1.00"), identified("two", "0.00"))
    adopt_log(home, "second", same_offsets=False)
    (home.path / "opentab.toml").write_text('[log]\nuri = "second"\n')
    home = config.load(home.path)
    bill_waiting(home)
    if old_log_is_gone:
        shutil.rmtree(home.path / "log")
    bill(home, event("bob", "16.00"), identified("new", "4.00"))
    assert (total(home), total(home, "bob")) == ("12.000000", "18.000000")

    if not old_log_is_gone:
        assert differences(home) == []
        traced_places = [one.place for one in trace(home, journal_of(home), "2026-01", "ann").events()]
        assert len(traced_places) == 5
        return
    done = opentab("verify", home=home, check=False)
    traced = opentab("trace", "--customer", "ann", "--period", "2026-01", "--events", home=home, check=False)
    assert (done.returncode, traced.returncode) == (1, 1)
    sentence = f"batches 1 to 2 cannot be recomputed: their log {journal_of(home).batches()[0].log_id}, last at 'log', is gone or cannot be read"
    assert f"Not all could be verified: {sentence}. The rest agrees." in done.stdout, done.stdout
    assert {one.batch for one in trace(home, journal_of(home), "2026-01", "ann").events()} == {4}
    assert "the log of these batches is gone, so their events are not shown: 1, 2" in traced.stderr


def test_a_move_is_not_made_while_a_pipeline_works(small_home: Home) -> None:
    bill(small_home, event("ann", "1.00"))
    lock = HomeLock(small_home.path, take_over=False)
    with pytest.raises(HomeLocked, match="another pipeline works on"):
        adopt_log(small_home, "second", same_offsets=False)
    lock.release()


def test_a_pipeline_that_starts_during_a_move_stops(tmp_path: Path) -> None:
    """It must not take the new log's offsets for those of the old one: it would read that again from its beginning."""
    home = new_home(tmp_path / "home")
    bill(home, event("ann", "1.00"))
    append(home, event("ann", "2.00"))
    job = open_job(home, "late")
    adopt_log(home, "second", same_offsets=False, leave_unread=True)
    batch = waiting_batch(job)
    assert batch is not None
    with pytest.raises(Fenced):
        job.bill(batch)
    with pytest.raises(LogMismatch, match=r"was moved to log .*set uri = 'second'"):
        job.reload()


def test_what_the_old_log_holds_unread_is_not_left_behind_silently(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")
    bill(home, event("ann", "1.00"))
    append(home, event("ann", "2.00"))
    append(home, event("ann", "4.00"))
    refused = opentab("log", "adopt", "second", home=home, check=False)
    assert refused.returncode == 2
    assert "the old log log has 2 segments that are not billed yet" in refused.stderr
    assert "opentab run --once" in refused.stderr and "--leave-unread" in refused.stderr
    assert not (home.path / "second").exists()

    shutil.copytree(home.log_path, home.path / "copy")
    log_of(home.with_setting("log.uri", "copy")).id_path.unlink()
    append(home, event("ann", "8.00"))  # after it was copied
    with pytest.raises(InputError, match="has 1 segments that are not billed yet"):
        adopt_log(home, "copy", same_offsets=True)
    shutil.rmtree(home.log_path)
    assert adopt_log(home, "copy", same_offsets=True).batch == 2, "nothing can be read from a log that is gone"


def test_unread_events_are_left_if_asked_for(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")
    bill(home, event("ann", "1.00"))
    append(home, event("ann", "2.00"))
    assert "batch 2 records" in opentab("log", "adopt", "second", "--leave-unread", home=home).stdout


def test_the_first_answer_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the ledger has said which log is its own, an append may go to the wrong one."""
    home = new_home(tmp_path / "home")
    bill(home, event("ann", "1.00"))
    look = LogCheck._expected_id

    def slow(check: LogCheck) -> str | None:
        time.sleep(0.3)
        return look(check)

    monkeypatch.setattr("opentab.billing.log_check.WAIT_SECONDS", 0.1)
    monkeypatch.setattr("opentab.billing.log_check.LOOK_SECONDS", 0.0)
    monkeypatch.setattr(LogCheck, "_expected_id", slow)
    with pytest.raises(LogMismatch, match=REFUSED):
        LogCheck(second_home(home, tmp_path / "other")).check()
    check = LogCheck(home)
    check.check()
    began = time.monotonic()
    check.check()
    assert time.monotonic() - began < 0.25, "a later look is not waited for so long"


def test_a_move_to_the_same_log_changes_nothing(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")
    bill(home, event("ann", "1.00"))
    shutil.move(home.log_path, tmp_path / "moved")
    done = opentab("log", "adopt", tmp_path / "moved", home=home)
    assert "billed from this log already" in done.stdout and "nothing was changed" in done.stdout
    assert f'now set uri = "{tmp_path / "moved"}" under [log]' in done.stdout
    assert journal_of(home).position == 1


def test_producers_notice_a_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opentab.billing.log_check.LOOK_SECONDS", 0.0)
    home = new_home(tmp_path / "home")
    producer, check = open_checked_producer(home), LogCheck(home)
    producer.append(event().encode())  # there is no ledger yet
    bill_waiting(home)
    producer.append(event().encode())
    adopt_log(home, "second", same_offsets=False, leave_unread=True)
    with pytest.raises(LogMismatch, match=REFUSED):
        producer.append(event().encode())
    log_of(home).id_path.write_text(f"{journal_of(home).log_id()}\n")  # as if log.uri led to the new one
    producer.append(event().encode())
    check.check()


def test_a_bucket_that_is_gone_does_not_stop_the_log(tmp_path: Path) -> None:
    store = 'aws_endpoint_url = "http://127.0.0.1:1"\naws_allow_http = "true"\naws_access_key_id = "a"\n'
    home = new_home(
        tmp_path / "home",
        f'[ledger]\nuri = "s3://bucket/gone"\n[ledger.storage]\n{store}aws_secret_access_key = "b"\n',
    )
    open_checked_producer(home).append(event().encode())
    assert log_of(home).pending() == {"default": [1]}


def test_a_ledger_that_cannot_be_read_does_not_stop_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opentab.billing.log_check.LOOK_SECONDS", 0.0)
    home = new_home(tmp_path / "home")
    bill(home, event("ann", "1.00"))
    producer = open_checked_producer(home)
    refused = LogCheck(second_home(home, tmp_path / "other"))
    with pytest.raises(LogMismatch, match=REFUSED):
        refused.check()
    log = home.ledger.path / "journal" / "_delta_log"
    for file in log.glob("*.json"):
        file.write_text("damaged")
    producer.append(event().encode())
    LogCheck(home).check()
    with pytest.raises(LogMismatch, match=REFUSED):
        refused.check()  # the last answer holds
