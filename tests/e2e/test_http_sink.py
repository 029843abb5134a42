"""Invoices over HTTP: a real receiver that is gone, slow, wrong or full, and a deliverer that is killed."""

from __future__ import annotations

import base64
import json
import re
import shutil
import signal
import sqlite3
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from urllib.parse import unquote

import pytest
import trustme

from ledgers import SETTINGS, bill, new_home
from opentab.core.errors import ConfigError, HomeLocked, SinkError
from opentab.ledger.engine import connect
from opentab.ledger.invoice_json import statement_texts
from opentab.ledger.invoices import Invoices
from opentab.runtime import config
from opentab.runtime.config import Home
from opentab.sinks.deliver import deliver as send
from opentab.sinks.delivery_status import read_backlog
from opentab.sinks.http import Outcome, Verdict, judge, receiver_of, signed
from opentab.sinks.outbox import Failure, Outbox
from opentab.sinks.pace import GONE_FAILURES, GONE_REFUSALS, Pace, pause_of
from opentab.sinks.parcel import Parcel, parcel_of
from opentab_tools.servers.free_port import free_port
from processes import wait_for
from product import event, json_lines, opentab
from receivers import Answer, Put, Receiver, new_receiver

CLOSES_JANUARY = event("ann", "0", "2026-02-02T00:00:01Z")
ODD_NAMES = [
    "a/b",
    "50%",
    "%2F",
    "a%2Fb",
    "🦊 & co",
    "..a",
    "a..",
    "x?y=1#z",
    "a+b",
    "é",
    "e\u0301",
    "a;b,c:@",
    "...",
    "~",
]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with new_receiver().listening() as listening:
        yield listening


def home_for(path: Path, receiver: Receiver, more: str = "") -> Home:
    return new_home(path / "home", f'{SETTINGS}[invoices]\nhttp_url = "{receiver.url}/"\n{more}')


@pytest.fixture
def home(tmp_path: Path, receiver: Receiver) -> Home:
    return home_for(tmp_path, receiver)


def issue(home: Home, *customers: str) -> None:
    """January's invoices of some customers."""
    bill(home, *(event(customer, f"{n + 1}.25") for n, customer in enumerate(customers)), CLOSES_JANUARY)


def revise(home: Home, *customers: str) -> None:
    bill(home, *(event(customer, "0.50") for customer in customers), revise=True)


def names(count: int) -> list[str]:
    return [f"c{n:04d}" for n in range(count)]


def statements(home: Home) -> list[str]:
    """As `opentab invoices --all-revisions --format json` prints them."""
    issued = Invoices.open(home.ledger)
    assert issued is not None
    with connect() as connection:
        return list(statement_texts(connection, issued.rows(), currency="EUR", all_revisions=True))


def held(receiver: Receiver) -> list[str]:
    """What the receiver has taken, an id once."""
    return sorted(body.decode() for body in receiver.held.values())


def check_all_delivered(home: Home, receiver: Receiver) -> None:
    """Every revision once in effect, each under its own address, in the shape that `opentab invoices` prints."""
    expected = statements(home)
    assert expected
    assert held(receiver) == sorted(expected)
    for path, body in receiver.places.items():
        _, _, period, customer, revision = path.split("/")
        said = json.loads(body)
        assert (said["period"], said["customer"], said["revision"]) == (period, unquote(customer), int(revision))
    assert len(receiver.places) == len(expected)


def deliver(home: Home, *, patience: timedelta = timedelta(seconds=30)) -> list[str]:
    """What `opentab deliver --once` does, in this process; what it said."""
    said: list[str] = []
    send(home, once=True, patience=patience, say=said.append)
    return said


def test_every_revision_is_delivered_once(home: Home, receiver: Receiver) -> None:
    issue(home, "ann", "bob")
    said = opentab("deliver", "--once", home=home)
    assert "2 delivered in all, 0 waiting" in said.stderr
    printed = opentab("invoices", "--all-revisions", "--format", "json", home=home).stdout
    assert printed.splitlines() == held(receiver) == statements(home)
    revise(home, "bob")
    deliver(home)
    check_all_delivered(home, receiver)
    assert len(receiver.puts) == 3
    backlog = read_backlog(home.sinks_path)
    assert backlog is not None
    assert (backlog.waiting, backlog.stuck, backlog.delivered, backlog.error) == (0, 0, 3, None)
    assert backlog.position == 2


def test_a_home_without_invoices_has_nothing_to_deliver(home: Home, receiver: Receiver) -> None:
    deliver(home)
    assert receiver.puts == []


def test_customers_of_any_name_have_an_address(home: Home, receiver: Receiver) -> None:
    issue(home, *ODD_NAMES)
    deliver(home)
    check_all_delivered(home, receiver)
    assert "/bills/2026-01/a%252Fb/1" in receiver.places
    assert "/bills/2026-01/a%2Fb/1" in receiver.places


def test_it_follows_what_is_issued_and_ends_on_a_signal(
    home: Home, receiver: Receiver, start: Callable[..., subprocess.Popen[str]]
) -> None:
    process = start("deliver", home=home)
    issue(home, "ann", "bob")
    wait_for(lambda: len(receiver.held) == 2, "the first ones were delivered")
    with pytest.raises(HomeLocked, match=f"are being delivered already: process {process.pid} "):
        deliver(home)
    revise(home, "ann")
    wait_for(lambda: len(receiver.held) == 3, "the revision was delivered")
    process.terminate()
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 0, output
    assert "3 delivered in all, 0 waiting" in output
    check_all_delivered(home, receiver)


def test_a_receiver_that_is_gone_gets_all_once_it_is_back(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    receiver = new_receiver()
    home = home_for(tmp_path, receiver)
    issue(home, *names(300))
    process = start("deliver", home=home)
    wait_for(lambda: _backlog(home, lambda b: b.gone and b.waiting == 300 and b.error is not None), "it noticed")
    with receiver.listening():
        wait_for(lambda: len(receiver.held) == 300, "all were delivered")
    # Gone again, in the middle of its work: what comes then waits, too.
    revise(home, *names(300))
    wait_for(lambda: _backlog(home, lambda b: b.gone and b.waiting == 300), "it noticed again")
    with receiver.listening():
        wait_for(lambda: len(receiver.held) == 600, "all were delivered")
        wait_for(lambda: _backlog(home, lambda b: not b.waiting and not b.gone), "it knows")
    process.terminate()
    assert process.wait(timeout=20) == 0
    check_all_delivered(home, receiver)


def test_once_says_that_the_receiver_is_gone(tmp_path: Path) -> None:
    home = home_for(tmp_path, new_receiver())
    issue(home, "ann")
    said = opentab("deliver", "--once", "--patience", "1s", home=home, check=False)
    assert said.returncode == 1
    assert f"{home['invoices.http_url']} does not take invoices: " in said.stderr
    assert "1 are waiting" in said.stderr


def test_a_receiver_that_answers_500_gets_all_once_it_is_well(home: Home, receiver: Receiver) -> None:
    receiver.answer = lambda put: Answer(500 if len(receiver.puts) < 12 else 200)
    issue(home, *names(100))
    deliver(home)
    check_all_delivered(home, receiver)
    assert len(receiver.puts) == 112


def test_single_answers_of_500_are_tried_again(home: Home, receiver: Receiver) -> None:
    seen: dict[str, int] = {}

    def answer(put: Put) -> Answer:
        seen[put.id] = seen.get(put.id, 0) + 1
        return Answer(500 if "/c0007/" in put.path and seen[put.id] < 4 else 200)

    receiver.answer = answer
    issue(home, *names(50))
    deliver(home)
    check_all_delivered(home, receiver)
    assert sorted(seen.values()) == [1] * 49 + [4]


def test_an_answer_after_the_timeout_is_not_a_second_invoice(tmp_path: Path, receiver: Receiver) -> None:
    """The receiver has taken it, and we do not know: it comes again, as the same delivery."""
    home = home_for(tmp_path, receiver, 'http_timeout = "300ms"\n')
    late: set[str] = set()

    def answer(put: Put) -> Answer:
        first = put.id not in late
        late.add(put.id)
        return Answer(seconds=2.0 if first else 0.0)

    receiver.answer = answer
    issue(home, *names(10))
    deliver(home)
    check_all_delivered(home, receiver)
    assert len(receiver.puts) == 20
    assert {put.headers["idempotency-key"] for put in receiver.puts} == set(receiver.held)


def test_a_slow_receiver_is_waited_for(home: Home, receiver: Receiver) -> None:
    receiver.answer = lambda put: Answer(seconds=0.5)
    issue(home, *names(16))
    deliver(home)
    check_all_delivered(home, receiver)
    assert len(receiver.puts) == 16


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("9" * 4_301, 86_400), ("0" * 4_301 + "7", 7), ("000", 0), (" 12 ", 12), ("\u00b2", None), ("soon", None), ("", None),
        ("Jan +99999999999999 99:99 \t 32", None), ("Fri, 31 Dec 9999 23:59:59 -2359", 86_400),
        ("Mon, 01 Jan 0001 00:00:00 +2359", 0), ("Thu, 01 Jan 2026 00:00:30 GMT", 30), ("32 Foo 99999", None),
    ],
)  # fmt: skip
def test_whatever_a_receiver_says_of_later_is_a_try_that_failed(said: str, seconds: int | None) -> None:
    found = judge(503, {"retry-after": said}, "", at=datetime(2026, 1, 1, tzinfo=UTC))
    assert found.outcome is Outcome.LATER
    assert found.retry_after == (None if seconds is None else timedelta(seconds=seconds))


def test_retry_after_is_honoured(tmp_path: Path, receiver: Receiver) -> None:
    home = home_for(tmp_path, receiver, "http_parallel = 1\n")

    def answer(put: Put) -> Answer:
        return Answer(429, {"retry-after": "2"}) if not receiver.puts else Answer()

    receiver.answer = answer
    issue(home, *names(5))
    deliver(home)
    check_all_delivered(home, receiver)
    assert receiver.puts[1].at - receiver.puts[0].at >= 2


def test_an_invoice_that_is_refused_holds_up_no_other(home: Home, receiver: Receiver) -> None:
    bad = "/bills/2026-01/c0003/1"
    receiver.answer = lambda put: Answer(422) if put.path == bad else Answer()
    issue(home, *names(20))
    revise(home, "c0003", "c0004")
    said = opentab("deliver", "--once", home=home, check=False)
    assert said.returncode == 1
    assert "refuses 1 invoices: 422 " in said.stderr
    assert "1 later revisions wait behind them" in said.stderr
    assert len(receiver.held) == 20  # 19 of January, and a revision
    backlog = read_backlog(home.sinks_path)
    assert backlog is not None
    assert (backlog.waiting, backlog.stuck) == (2, 1)
    assert sum(put.path == bad for put in receiver.puts) == 1
    # Mended, and told so by a new start.
    receiver.answer = lambda put: Answer()
    deliver(home)
    check_all_delivered(home, receiver)


def test_an_earlier_revision_comes_before_a_later_one(home: Home, receiver: Receiver) -> None:
    dice = Random(7)
    customers = names(30)
    receiver.answer = lambda put: Answer(dice.choice([200, 200, 500]))
    issue(home, *customers)
    revise(home, *customers)
    revise(home, *customers)
    deliver(home)
    check_all_delivered(home, receiver)
    for customer in customers:
        tried = [int(put.path.rsplit("/", 1)[1]) for put in receiver.puts if f"/{customer}/" in put.path]
        assert tried == sorted(tried)
        assert set(tried) == {1, 2, 3}


@pytest.mark.parametrize("moment", ["queueing:2", "queued:2", "delivered:1"])
def test_killed_it_loses_nothing_and_repeats_the_same(home: Home, receiver: Receiver, moment: str) -> None:
    issue(home, *names(40))
    revise(home, *names(10))
    revise(home, *names(5))
    died = opentab("deliver", "--once", home=home, check=False, OPENTAB_CRASH_AT=moment)
    assert died.returncode == -signal.SIGKILL, died
    deliver(home)
    check_all_delivered(home, receiver)
    if moment == "delivered:1":
        assert len(receiver.puts) > 55


def test_killed_at_random_it_loses_nothing(
    home: Home, receiver: Receiver, start: Callable[..., subprocess.Popen[str]]
) -> None:
    dice = Random(20170613)
    receiver.answer = lambda put: Answer(seconds=0.01)
    issue(home, *names(600))
    for _ in range(3):
        process = start("deliver", home=home)
        goal = len(receiver.puts) + dice.randint(1, 150)
        wait_for(lambda: len(receiver.puts) >= goal, "some were delivered")  # noqa: B023
        process.kill()
        process.wait()
    deliver(home)
    check_all_delivered(home, receiver)


def test_a_damaged_outbox_is_set_aside_and_all_is_delivered_again(home: Home, receiver: Receiver) -> None:
    issue(home, *names(5))
    deliver(home)
    (home.sinks_path / "http.sqlite").write_bytes(b"this is no database" * 1000)
    (said,) = deliver(home)
    assert "the outbox is damaged" in said
    assert (home.sinks_path / "http.damaged").exists()
    check_all_delivered(home, receiver)
    assert len(receiver.puts) == 10


def test_an_outbox_of_another_home_is_begun_anew(tmp_path: Path, home: Home, receiver: Receiver) -> None:
    issue(home, *names(3))
    deliver(home)
    other = new_home(tmp_path / "other", (home.path / "opentab.toml").read_text())
    shutil.copytree(home.sinks_path, other.sinks_path)
    issue(other, "ann")
    (said,) = deliver(other)
    assert "the outbox is of another ledger" in said
    assert len(receiver.held) == 4


def test_a_ledger_that_was_restored_is_delivered_from_there(tmp_path: Path, home: Home, receiver: Receiver) -> None:
    issue(home, *names(3))
    deliver(home)
    shutil.copytree(home.ledger.path, tmp_path / "backup")
    receiver.answer = lambda put: Answer(422)
    revise(home, *names(3))
    with pytest.raises(SinkError, match="refuses 3 invoices"):
        deliver(home)
    shutil.rmtree(home.ledger.path)
    shutil.copytree(tmp_path / "backup", home.ledger.path)
    receiver.answer = lambda put: Answer()
    (said,) = deliver(home)
    assert "the ledger was restored to an earlier position" in said
    assert len(receiver.held) == 3
    # What is issued again is another delivery; what was delivered before does not come again.
    revise(home, *names(2))
    deliver(home)
    assert len({put.path for put in receiver.puts}) == 6
    assert sum(put.path.endswith("/1") for put in receiver.puts) == 3
    assert len(receiver.held) == 3 + len([s for s in json_lines("\n".join(statements(home))) if s["revision"] == 2])


def test_headers_of_the_users_own_go_with_each_delivery(tmp_path: Path, receiver: Receiver) -> None:
    home = home_for(tmp_path, receiver, 'http_header_file = "headers"\n')
    (home.path / "headers").write_text("Authorization: Bearer abc:def\n\nX-Tenant: 7\n")
    issue(home, "ann")
    deliver(home)
    (put,) = receiver.puts
    assert (put.headers["authorization"], put.headers["x-tenant"]) == ("Bearer abc:def", "7")
    assert put.headers["content-type"] == "application/json"
    assert put.headers["webhook-signature"] is None


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ('http_url = ""', "there is nowhere to deliver invoices to"),
        ('http_url = "ftp://127.0.0.1/x"', "invoices.http_url = 'ftp://127.0.0.1/x' is wrong"),
        ('http_url = "https://u:secret@example.com/"', "without a name and password"),
        ('http_url = "https://example.com/?a=1"', "without a query"),
        ('http_url = "https://example.com/bills"', "invoices would go to https://example.com/bills without a signature"),
        ('http_url = "http://[::1"', "invoices.http_url = 'http://[::1' is wrong"),
        ('http_url = "http://127.0.0.1:1/"\nhttp_key_file = "nokey"', "nokey cannot be read: No such file"),
        ('http_url = "http://127.0.0.1:1/"\nhttp_key_file = "short"', "has 5 bytes, and needs 24 at least"),
        ('http_url = "http://127.0.0.1:1/"\nhttp_key_file = "wrong"', "is no base64 behind whsec_"),
        ('http_url = "http://127.0.0.1:1/"\nhttp_header_file = "short"', "has a line that is no header"),
        ('http_url = "http://127.0.0.1:1/"\nhttp_timeout = "0s"', "invoices.http_timeout = '0s' is wrong"),
        ('http_url = "http://127.0.0.1:1/"\nhttp_parallel = 0', "invoices.http_parallel = 0 is wrong"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_settings_gets_a_sentence(tmp_path: Path, settings: str, sentence: str) -> None:
    (tmp_path / "opentab.toml").write_text(f"[invoices]\n{settings}\n")
    (tmp_path / "short").write_text("short\n")
    (tmp_path / "wrong").write_text("whsec_a\n")
    with pytest.raises(ConfigError) as error:
        receiver_of(config.load(tmp_path))
    assert sentence in error.value.fact
    assert "secret" not in str(error.value)


def test_a_mistake_in_the_settings_ends_the_command_with_2(tmp_path: Path) -> None:
    (tmp_path / "opentab.toml").write_text('[invoices]\nhttp_url = "https://example.com/bills"\n')
    said = opentab("deliver", home=tmp_path, check=False)
    assert said.returncode == 2, said
    assert "invoices would go to https://example.com/bills without a signature" in said.stderr
    assert "http_key_file" in said.stderr


def test_signatures_are_those_of_standard_webhooks(tmp_path: Path) -> None:
    """The example of the specification's own libraries, and beside it that of a second key."""
    (tmp_path / "opentab.toml").write_text('[invoices]\nhttp_url = "https://example.com"\nhttp_key_file = "keys"\n')
    (tmp_path / "keys").write_text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\na-key-of-words-is-as-good\n")
    keys = receiver_of(config.load(tmp_path)).keys
    parcel = Parcel("2026-01", "ann", 1, "msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}')
    headers = signed(parcel, keys, at=datetime.fromtimestamp(1614265330, UTC))
    assert headers["webhook-id"] == headers["idempotency-key"] == parcel.id
    assert headers["webhook-timestamp"] == "1614265330"
    first, second = headers["webhook-signature"].split(" ")
    assert first == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert second.startswith("v1,")


def test_the_id_is_that_of_an_issued_revision_of_one_ledger() -> None:
    ids = [
        parcel_of(_statement(), ledger="one").id,
        parcel_of(_statement(), ledger="two").id,
        parcel_of(_statement(revision=2), ledger="one").id,
        parcel_of(_statement(position=8), ledger="one").id,
        parcel_of(_statement(customer="bob"), ledger="one").id,
    ]
    assert len(set(ids)) == 5
    assert parcel_of(_statement(), ledger="one").id == ids[0]


def _statement(**facts: object) -> str:
    said = {"period": "2026-01", "customer": "ann", "revision": 1, "position": 7, "issued_at": "2026-02-01T00:00:00Z"}
    return json.dumps({**said, **facts})


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        *((code, Outcome.DELIVERED) for code in (200, 201, 202, 204, 299)),
        *((code, Outcome.LATER) for code in (408, 425, 429, 500, 502, 503, 504)),
        *((code, Outcome.REFUSED) for code in (301, 307, 400, 401, 403, 404, 409, 410, 413, 422)),
    ],
)
def test_what_an_answer_means(status: int, outcome: Outcome) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    verdict = judge(status, {"retry-after": "Thu, 01 Jan 2026 00:00:30 GMT"}, "no\x1b[31m\n\nway", at=at)
    assert verdict.outcome is outcome
    assert verdict.retry_after == (timedelta(seconds=30) if outcome is Outcome.LATER else None)
    assert verdict.error == ("" if outcome is Outcome.DELIVERED else f"{status} no [31m way")


def test_the_pace_falls_to_a_probe_and_comes_back() -> None:
    pace, later, well = Pace(8, Random(1)), Verdict(Outcome.LATER), Verdict(Outcome.DELIVERED)
    for _ in range(GONE_FAILURES):
        assert pace.room(0.0) == 8
        pace.saw(later, 0.0)
    assert pace.gone
    assert pace.room(10.0) == 1
    now, pauses = 10.0, []
    for _ in range(200):
        began = now
        pace.saw(later, now)
        while not pace.room(now):
            now += 0.01
        pauses.append(now - began)
        assert pace.room(now) == 1
    assert 2 < sum(pauses) / len(pauses) < 10
    assert pace.saw(well, now)
    assert pace.room(now) == 8
    assert not pace.saw(well, now)


def test_single_failures_and_refusals_do_not_slow_down_the_rest() -> None:
    pace = Pace(8, Random(1))
    for n in range(1000):
        pace.saw(Verdict([Outcome.LATER, Outcome.REFUSED, Outcome.DELIVERED][n % 3]), float(n))
        assert pace.room(float(n)) == 8
    for n in range(GONE_REFUSALS):
        assert pace.room(1000.0) == 8, n
        pace.saw(Verdict(Outcome.REFUSED), 1000.0)
    assert pace.gone


def test_what_waits_after_which_answer() -> None:
    dice = Random(1)
    refused, later = Verdict(Outcome.REFUSED), Verdict(Outcome.LATER)
    asked = Verdict(Outcome.LATER, retry_after=timedelta(seconds=900))
    assert all(timedelta(hours=1) <= pause_of(refused, n, dice) <= timedelta(hours=1.5) for n in range(50))
    assert all(pause_of(later, 0, dice) <= timedelta(seconds=1) for _ in range(50))
    assert all(pause_of(later, n, dice) <= timedelta(minutes=10) for n in range(50))
    assert max(pause_of(later, 20, dice) for _ in range(50)) > timedelta(minutes=5)
    assert pause_of(asked, 0, dice) == timedelta(seconds=900)


def test_the_outbox_survives_what_it_is_told_twice(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "o.sqlite")
    parcels = [parcel_of(_statement(customer=name), ledger="l") for name in ("a", "b", "c")]
    outbox.take_up("f", parcels[:2], whole=False, now_us=1)
    outbox.take_up("f", parcels[2:], whole=True, now_us=2)
    assert outbox.files() == {"f": (3, True)}
    first = outbox.due(5, 2, without=())
    assert [parcel.customer for parcel in first] == ["a", "b"]
    assert [parcel.customer for parcel in outbox.due(5, 2, without={first[0].number})] == ["b", "c"]
    outbox.settle(first[:1], [Failure(first[1], "no", 9, stuck=False)], now_us=6)
    outbox.settle(first[:1], [], now_us=6)
    assert [parcel.customer for parcel in outbox.due(5, 9, without=())] == ["c"]
    assert [parcel.customer for parcel in outbox.due(9, 9, without=())] == ["b", "c"]
    outbox.close()
    again = Outbox(tmp_path / "o.sqlite")
    assert again.counts().waiting == 2
    again.close()
    assert sqlite3.connect(tmp_path / "o.sqlite").execute("pragma integrity_check").fetchone() == ("ok",)


def _backlog(home: Home, holds: Callable[..., bool]) -> bool:
    backlog = read_backlog(home.sinks_path)
    return backlog is not None and holds(backlog)


def test_the_documented_receiver_checks_signatures_and_keeps_each_invoice_once(
    tmp_path: Path, start_example: Callable[..., str]
) -> None:
    key = "whsec_" + base64.b64encode(b"x" * 32).decode()
    folder = tmp_path / "kept"
    folder.mkdir()
    url = start_example(key, folder)
    home = new_home(tmp_path / "home", f'{SETTINGS}[invoices]\nhttp_url = "{url}"\nhttp_key_file = "key"\n')
    (home.path / "key").write_text(f"another-key-that-was-there-before\n{key}\n")
    issue(home, *names(20))
    deliver(home)
    assert sorted(path.read_text() for path in folder.iterdir()) == sorted(statements(home))
    # Delivered again, they are the same.
    (home.sinks_path / "http.sqlite").unlink()
    deliver(home)
    assert len(list(folder.iterdir())) == 20
    # With another key nothing is taken.
    (home.path / "key").write_text("an-attackers-key-is-long-enough-too\n")
    (home.sinks_path / "http.sqlite").unlink()
    with pytest.raises(SinkError, match="refuses 20 invoices: 401"):
        deliver(home)


@pytest.fixture
def start_example(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """The receiver of docs/sinks.md, as a process."""
    document = Path(__file__).parents[2] / "docs" / "sinks.md"
    (code,) = re.findall(r"```python\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "receiver.py").write_text(code)
    started: list[subprocess.Popen[bytes]] = []

    def start(key: str, folder: Path) -> str:
        port = free_port()
        command = [sys.executable, str(tmp_path / "receiver.py"), str(port), key, str(folder)]
        started.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        return f"http://127.0.0.1:{port}"

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_https_is_checked_against_the_systems_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    secret = new_receiver()
    url = secret.url.replace("http:", "https:")
    home = new_home(tmp_path / "home", f'{SETTINGS}[invoices]\nhttp_url = "{url}"\n')
    issue(home, "ann")
    with secret.listening(context):
        with pytest.raises(SinkError, match="CERTIFICATE_VERIFY_FAILED"):
            deliver(home, patience=timedelta(seconds=1))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        deliver(home)
    check_all_delivered(home, secret)
