"""A clock that was wrong once: appends are refused, the future is held back, and a restart sets it right."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from law_examples import examples
from ledgers import SETTINGS, bill_ready, new_home, open_job
from opentab.audit.trace import trace
from opentab.audit.verify import verify
from opentab.billing.clock import clocks_of, restart_clock
from opentab.billing.pipeline_lock import HomeLock
from opentab.core.errors import ClockMismatch, HomeLocked
from opentab.core.periods import to_us
from opentab.core.records import BatchRecord
from opentab.dedupe import sorted_runs
from opentab.dedupe.lookup import KeyLookup
from opentab.ledger.journal import Journal
from opentab.ledger.receipt import Trails
from opentab.ledger.totals import customer_totals
from opentab.log import DirectoryLog, Producer, open_producer
from opentab.runtime.config import Home
from opentab.server.intake import Intake
from product import OPENTAB, json_lines, opentab

NOW = datetime(2026, 1, 20, 12, tzinfo=UTC)
WRONG = datetime(2099, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Time:
    """A clock that stands where it is put."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


def line(id_: str, time: datetime = NOW, customer: str = "emma", **more: object) -> bytes:
    fields = {"id": id_, "time": time.isoformat(), "customer": customer, "type": "CALL", "amount": "1", **more}
    return json.dumps(fields).encode()


def put(home: Home, at: datetime, *lines: bytes, partition: str = "default") -> None:
    """Append as a program does that looks at no other clock than its own, whatever the log says."""
    log = DirectoryLog(home.log_path)
    with patch("opentab.log.directory.mismatch", lambda *_: None):
        Producer(log, partition, clock=lambda: at).append(b"\n".join(lines))


def bill_anything(home: Home, now: datetime) -> BatchRecord:
    """Bill as an earlier version did, that held nothing back."""
    with patch("opentab.billing.bill.AHEAD_MAX_US", 2**61):
        return bill(home, lambda: now)


def bill(home: Home, clock: Callable[[], datetime]) -> BatchRecord:
    opened = open_job(home, "run", clock=clock)
    bill_ready(opened)
    assert opened.last is not None
    return opened.last


def check(home: Home) -> Journal:
    """The audit agrees."""
    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None
    report = verify(home, journal)
    assert report.agrees, [sample for check in report.checks for sample in check.samples]
    return journal


def total(home: Home, customer: str = "emma") -> int:
    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None
    return sum(t.amount_micros for t in customer_totals(journal, home.calendar) if t.customer == customer) // 1_000_000


def test_a_setting_says_how_long_a_log_may_be_silent(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", "")
    open_producer(home, clock=lambda: NOW).append(line("a"))
    with pytest.raises(ClockMismatch, match=r"raise log\.silence_max, or: opentab log clock --restart"):
        open_producer(home, clock=lambda: NOW + timedelta(days=31)).append(line("b"))
    longer = home.with_setting("log.silence_max", "40d")
    open_producer(longer, clock=lambda: NOW + timedelta(days=31)).append(line("b"))
    off = home.with_setting("log.silence_max", "off")
    open_producer(off, clock=lambda: NOW + timedelta(days=9999)).append(line("c"))


def test_a_server_takes_nothing_either(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", "")
    put(home, WRONG, line("a"))
    intake = Intake(home)
    with pytest.raises(ClockMismatch, match="ahead of this machine's clock"):
        intake.append([line("b")]).result(timeout=30)
    restart_clock(home)
    assert intake.append([line("b")]).result(timeout=30)[0].number == 2, "it goes on without a new start"
    intake.close()


def test_what_is_stamped_ahead_is_held_back_while_others_go_on(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")
    put(home, NOW, line("a"), partition="good")
    put(home, NOW, line("b"), partition="ahead")
    put(home, NOW + 2 * HOUR, line("c"), partition="ahead")
    put(home, NOW + 2 * HOUR, line("d"), partition="ahead")
    clock = Time(NOW)
    opened = open_job(home, "run", clock=clock)
    bill_ready(opened)
    assert opened.offsets == {"ahead": 1, "good": 1}
    told = opened.trouble()
    assert told is not None and str(told) == (
        "log partition 'ahead' is held back: it goes on with an arrival of 2026-01-20T14:00:00.000Z, and this machine's "
        "clock says 2026-01-20T12:00:00.000Z (if this clock is wrong, set it right; if the arrival is, stop the "
        "pipeline and run: opentab log clock --restart)"
    )
    put(home, NOW, line("e"), partition="good")
    bill_ready(opened)
    assert opened.offsets == {"ahead": 1, "good": 2}
    clock.now = NOW + HOUR - timedelta(seconds=1)
    bill_ready(opened)
    assert opened.offsets["ahead"] == 1, "a second too soon"
    clock.now = NOW + HOUR + timedelta(seconds=1)
    bill_ready(opened)
    assert opened.offsets == {"ahead": 3, "good": 2} and opened.trouble() is None
    assert total(home) == 5
    check(home)


def left_by_an_earlier_version(home: Home) -> BatchRecord:
    """A closed month, ids of today, one append under a clock of 2099, and an id that counted again because of it."""
    put(home, NOW - timedelta(days=25), line("old", datetime(2025, 12, 26, tzinfo=UTC)))
    bill(home, lambda: NOW)
    put(home, NOW, line("a"), line("b"))
    bill(home, lambda: NOW)
    put(home, WRONG, line("c"))
    bill_anything(home, NOW)
    put(home, WRONG, line("b"))
    last = bill_anything(home, NOW)
    assert last.event_count == 1, "b has counted twice"
    assert last.forgotten_us == last.partitions["default"].arrived_us - home.rules.dedupe_us
    return last


def test_a_reversal_does_not_stand_for_an_id_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = new_home(tmp_path / "home", SETTINGS)
    put(home, NOW, line("a"))
    bill(home, lambda: NOW)
    reversal = {**json.loads(line("a")), "id": "r", "reverses": "a", "reason": "a mistake", "actor": "ann"}
    put(home, NOW, line("b"), json.dumps(reversal).encode())
    bill(home, lambda: NOW)
    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None and journal.remembers_from() == 1
    rows = journal.seen().to_table()
    assert rows.num_rows == 4  # the reversal has two
    places = [(row["batch"], row["number"], row["byte"]) for row in rows.to_pylist()]
    gone = next(at for at, place in enumerate(places) if place[0] == 2 and places.count(place) == 1)
    left = ds.dataset(rows.filter(pa.array([at != gone for at in range(4)])))
    monkeypatch.setattr(Journal, "seen", lambda _: left)
    assert journal.remembers_from() == 3


def test_after_a_restart_all_is_as_if_the_clock_had_been_right(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS)
    before = left_by_an_earlier_version(home)
    later = NOW + HOUR
    assert [one.refused is not None for one in clocks_of(home, clock=lambda: later)[1]] == [True]
    restart = restart_clock(home, clock=lambda: later)
    assert (restart.batch, restart.upto, restart.remembers_from) == (before.batch + 1, {"default": 4}, 1)
    assert [one.refused for one in clocks_of(home, clock=lambda: later)[1]] == [None]

    open_producer(home, clock=lambda: later).append(
        b"\n".join([line("a"), line("b"), line("c"), line("new"), line("far", NOW + timedelta(days=300))])
    )
    record = bill(home, lambda: later)
    assert (record.event_count, record.duplicates, record.rejections) == (1, 3, {"time_in_future": 1})
    assert record.partitions["default"].arrived_us == to_us(later) + 1
    assert record.watermark_us == before.watermark_us and record.final_us == before.final_us
    assert record.forgotten_us == to_us(later) + 1 - home.rules.dedupe_us
    assert total(home) == 6, "old, a, b and once more b, c, new"
    journal = check(home)

    # The ids age from the restart on, and are merged away in the end.
    open_producer(home, clock=lambda: later + timedelta(days=7, seconds=1)).append(line("c") + b"\n" + line("new"))
    record = bill(home, lambda: later + timedelta(days=8))
    assert (record.event_count, record.duplicates) == (2, 0)
    trails = Trails(journal, KeyLookup(journal.root))
    journal.refresh()
    assert [len(trails.of(id_, None, upto=journal.last()).counted) for id_ in "ac"] == [0, 1]
    with patch.object(sorted_runs, "TIER_RUNS", 2):
        journal.compact(run="merge", files_max=2)
    journal = check(home)
    events = list(trace(home, journal, "2026-01", "emma").events())
    assert len(events) == 7, "a, b, b, c, new, c and new"


def test_what_was_held_back_is_billed_with_the_time_of_the_restart(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")
    put(home, NOW, line("a"), partition="quiet")
    put(home, WRONG, line("b"), line("far", NOW + timedelta(days=300)))
    put(home, WRONG, line("b"))
    bill(home, lambda: NOW)
    restart_clock(home, clock=lambda: NOW + HOUR)
    open_producer(home, clock=lambda: NOW + HOUR).append(line("b"))
    record = bill(home, lambda: NOW + HOUR)
    assert record.partitions["default"].segment == 3 and record.rejections == {"time_in_future": 1}
    assert (record.event_count, record.duplicates) == (1, 2)
    assert record.partitions["quiet"].idle, "by the restart's time nothing came there for an hour"
    assert total(home) == 2
    check(home)


def test_a_log_that_was_never_billed_can_be_restarted(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")
    put(home, WRONG, line("a"))
    assert restart_clock(home, clock=lambda: NOW).batch == 1
    open_producer(home, clock=lambda: NOW).append(line("a"))
    record = bill(home, lambda: NOW)
    assert (record.event_count, record.duplicates) == (1, 1)
    check(home)


def test_a_restart_needs_the_home_for_itself(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")
    put(home, WRONG, line("a"))
    lock = HomeLock(home.path, take_over=False)
    with pytest.raises(HomeLocked):
        restart_clock(home)
    lock.release()


def test_a_restart_that_was_killed_is_run_again(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS)
    left_by_an_earlier_version(home)
    crash = {**os.environ, "OPENTAB_CRASH_AT": "clock_restarted:1"}
    command = [*OPENTAB, "log", "clock", "--restart", "--home", str(home.path)]
    assert subprocess.run(command, env=crash, capture_output=True, check=False).returncode == -9
    check(home)
    with pytest.raises(ClockMismatch):
        open_producer(home).append(line("a"))

    done = opentab("log", "clock", "--restart", "--format", "json", home=home)
    assert [(row["appends"], row["held_back"]) for row in json_lines(done.stdout)] == [("ok", False)]
    assert "arrival runs anew from" in done.stderr
    open_producer(home).append(b"\n".join([line("b"), line("c"), line("new")]))
    record = bill(home, lambda: datetime.now(UTC))
    assert (record.event_count, record.duplicates, len(record.restarts)) == (1, 2, 2)
    check(home)


def test_the_command_says_what_is_refused_and_held_back(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")
    put(home, WRONG, line("a"))
    told = opentab("log", "clock", home=home, check=False)
    assert told.returncode == 1
    assert "2099-01-01T00:00:00.000Z" in told.stdout and "refused" in told.stdout and "yes" in told.stdout
    assert "nothing is appended" in told.stderr and "this machine's clock" in told.stdout


steps = st.one_of(
    st.tuples(
        st.sampled_from(["a", "b"]),  # partition
        st.sampled_from([0, 0, 0, 5, 40, 9000]),  # days that its clock is ahead
        st.lists(st.sampled_from(["x", "y", "z"]), min_size=1, max_size=3),
    ),
    st.just("restart"),
)


@examples(10)
@given(st.lists(steps, min_size=2, max_size=9), st.sampled_from(["7d", "unbounded", "1h"]), st.booleans())
@example([("a", 0, ["x"]), ("a", 9000, ["y"]), ("b", 0, ["x"]), "restart", ("a", 0, ["x", "y"])], "7d", True)
@example([("a", 0, ["x"]), ("b", 5, ["x"]), ("a", 0, ["x"])], "7d", False)  # a was idle by b's clock
@example([("a", 9000, ["x"]), ("a", 9000, ["x"]), "restart", ("b", 40, ["x"]), "restart", ("a", 0, ["x"])], "7d", True)
def test_the_audit_agrees_after_any_restarts(
    history: list[str | tuple[str, int, list[str]]], window: str, merging: bool
) -> None:
    """Whatever stamps an earlier version took, and whenever it was restarted. Every step an hour passes."""
    with TemporaryDirectory() as directory, patch.object(sorted_runs, "TIER_RUNS", 2 if merging else 16):
        home = new_home(Path(directory) / "home", f'[billing]\ndedupe_window = "{window}"\n')
        counted: set[str] = set()
        for number, step in enumerate(history):
            now = NOW + number * HOUR
            if isinstance(step, str):
                restart_clock(home, clock=lambda now=now: now)
                continue
            partition, days, ids = step
            put(home, now + timedelta(days=days), *(line(id_) for id_ in ids), partition=partition)
            record = bill_anything(home, now)
            if all(one == "restart" or one[1] == 0 for one in history[: number + 1]) and window != "1h":
                assert record.event_count == len(set(ids) - counted)
            counted |= set(ids)
            if merging:
                journal = Journal.open(home.ledger, home.identity)
                assert journal is not None
                journal.compact(run=f"merge{number}", files_max=2)
        if counted:
            check(home)


class Tampered:
    """A journal, some of whose records say something else."""

    def __init__(self, journal: Journal, change: Callable[[BatchRecord], BatchRecord]) -> None:
        self._journal = journal
        self._change = change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def batches(self) -> list[BatchRecord]:
        return [self._change(record) for record in self._journal.batches()]


def test_the_audit_finds_a_restart_that_was_not_so(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")
    left_by_an_earlier_version(home)
    restart = restart_clock(home, clock=lambda: NOW + HOUR)
    open_producer(home, clock=lambda: NOW + HOUR).append(line("a"))
    bill(home, lambda: NOW + HOUR)
    journal = check(home)

    def with_restart(**changed: object) -> Callable[[BatchRecord], BatchRecord]:
        other = msgspec.structs.replace(restart, **changed)
        return lambda record: msgspec.structs.replace(record, restarts=[other] if record.restarts else [])

    changes = {
        "another time": with_restart(at_us=restart.at_us - 1),
        "another moment of forgetting": with_restart(forgotten_us=0),
        "fewer ids are remembered": with_restart(remembers_from=restart.batch),
        "it is not carried on": lambda r: msgspec.structs.replace(r, restarts=r.restarts if not r.taken else []),
    }
    for name, change in changes.items():
        assert not verify(home, Tampered(journal, change)).agrees, name
