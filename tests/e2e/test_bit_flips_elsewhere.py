"""Flipped bits in the log, in replicas, outboxes and invoice files: found, or harmless, and never a wrong number.

Every test that draws places at random has a seed, which it prints when it fails.
"""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import httpx
import msgspec
import numpy as np
import pyarrow as pa
import pytest

from apps import App, app_of
from ledgers import SETTINGS, batch_of_segments, bill, log_of, names_of, new_home, open_job
from opentab.audit import verify
from opentab.audit.raw import RawDirectory
from opentab.billing import cross_task
from opentab.cli.tables.receipt import find_receipt
from opentab.cli.tail import follow_log
from opentab.core.errors import ConfigError, OpentabError, ReplicaDamaged, SegmentDamaged, SinkError
from opentab.ledger.engine import connect
from opentab.ledger.invoice_json import statement_texts
from opentab.ledger.invoices import Invoices
from opentab.ledger.journal import Journal
from opentab.log import DirectoryLog, Producer
from opentab.log.segment import MAGIC
from opentab.replica import blocks, row
from opentab.replica.flags import report_damage, reported_damage
from opentab.replica.follower import Follower, inode_of
from opentab.replica.presence import present, tell
from opentab.replica.store import Store
from opentab.runtime import config
from opentab.runtime.config import Home
from opentab.runtime.heartbeat import Heartbeat, read_heartbeat, write_heartbeat
from opentab.runtime.lock import Lock
from opentab.runtime.storage import Place
from opentab.server.app import build
from opentab.sinks.deliver import deliver
from opentab.sinks.delivery_status import Backlog, read_backlog, write_backlog
from opentab.sinks.outbox import Outbox, OutboxDamaged
from processes import serving, wait_for
from product import event, opentab
from receivers import Answer, Receiver, new_receiver

SEED = 20261118
BODY = (event("ann", "1.25") + "\n" + event("bob", "2.50") + "\n").encode()


@contextmanager
def flipped(path: Path, bit: int) -> Iterator[None]:
    """The file with one bit flipped, for a while."""
    whole = path.read_bytes()
    harmed = bytearray(whole)
    harmed[bit // 8] ^= 1 << bit % 8
    path.write_bytes(harmed)
    try:
        yield
    finally:
        path.write_bytes(whole)


def journal_of(home: Home) -> Journal:
    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None
    return journal


# Segments of the log


def refuses(read: Callable[..., object], *place: str | int) -> bool:
    try:
        read(*place)
    except SegmentDamaged:
        return True
    return False


def test_every_bit_of_a_segment_is_checked_by_pipeline_and_audit(tmp_path: Path) -> None:
    log, dice = DirectoryLog(tmp_path), random.Random(SEED)
    number = Producer(log, "p1").append(BODY)
    path, raw = log.incoming_path("p1", number), RawDirectory(tmp_path)
    header_bits = 8 * (path.read_bytes().index(b"\n") + 1)
    body_bits = dice.sample(range(header_bits, 8 * path.stat().st_size), 200)
    for bit in (*range(header_bits), *body_bits):
        with flipped(path, bit):
            assert refuses(log.read, "p1", number), f"seed {SEED}, bit {bit}"
            assert refuses(raw.read, "p1", number, number), f"seed {SEED}, bit {bit}"
            if bit < header_bits:
                assert refuses(log.header, "p1", number), f"bit {bit}"
                assert raw.stamp_from("p1", number) is None, f"bit {bit}"
    assert bytes(log.read("p1", number).body) == BODY


def test_a_segment_under_another_name_is_refused(tmp_path: Path) -> None:
    log = DirectoryLog(tmp_path)
    first, second = (Producer(log).append(BODY) for _ in range(2))
    one, two = (log.incoming_path("default", number) for number in (first, second))
    other = log.incoming_path("other", first)
    shutil.copy(one, other)
    one.rename(tmp_path / "aside.seg")
    two.rename(one)
    for name in ("default", "other"):
        with pytest.raises(SegmentDamaged, match="says that it is number"):
            log.read(name, 1)
        with pytest.raises(SegmentDamaged, match="is not that of its header"):
            RawDirectory(tmp_path).read(name, 1, 1)


def without_checksum(path: Path) -> None:
    """Rewrite a segment as earlier versions wrote it."""
    header, _, body = path.read_bytes().partition(b"\n")
    fields = json.loads(header.removeprefix(MAGIC))
    del fields["header_crc32"]
    path.write_bytes(MAGIC + msgspec.json.encode(fields) + b"\n" + body)


def test_segments_of_earlier_versions_are_read_and_counted(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")
    bill(home, event("ann", "1.25"))
    bill(home, event("bob", "2.50"))
    log = DirectoryLog(home.log_path)
    without_checksum(log.path_of("default", 1))
    assert log.header("default", 1).header_crc32 is None
    (check, *_) = (check for check in verify(home, journal_of(home)).checks if check.name == "log")
    assert check.agrees
    assert check.note == "1 segments of earlier versions, whose headers have no checksum"
    # A field that is no field is damage, and not an earlier version.
    path = log.path_of("default", 2)
    path.write_bytes(path.read_bytes().replace(b"header_crc32", b"header_crc33", 1))
    with pytest.raises(SegmentDamaged):
        log.header("default", 2)
    with pytest.raises(SegmentDamaged):
        RawDirectory(home.log_path).read("default", 2, 2)


def test_earlier_versions_read_the_segments_of_this_one(tmp_path: Path) -> None:
    class Earlier(msgspec.Struct):
        partition: str
        number: int
        arrived_us: int
        lines: int
        bytes: int
        crc32: int

    log = DirectoryLog(tmp_path)
    path = log.incoming_path("default", Producer(log).append(BODY))
    header = msgspec.json.decode(path.read_bytes().partition(b"\n")[0].removeprefix(MAGIC), type=Earlier)
    assert (header.number, header.bytes) == (1, len(BODY))


def test_a_changed_arrival_is_not_billed_and_the_audit_names_the_segment(tmp_path: Path) -> None:
    """The arrival decides whether an event is in the future: with one bit of it another event would count."""
    home = new_home(tmp_path / "home")
    bill(home, event("ann", "1.25"))
    bill(home, event("bob", "2.50"))
    Producer(DirectoryLog(home.log_path)).append(BODY)
    log = DirectoryLog(home.log_path)
    for number in (1, 3):
        path = log.path_of("default", number)
        digit = path.read_bytes().index(b'"arrived_us":') + len(b'"arrived_us":') + 9
        with flipped(path, 8 * digit):
            if number == 1:
                (check, *_) = (check for check in verify(home, journal_of(home)).checks if check.name == "log")
                assert check.samples == [
                    "batch 1: segment 1 of log partition 'default' is damaged: its header is not what was written"
                ]
            else:
                with pytest.raises(SegmentDamaged, match=f"{path.name} is damaged"):
                    open_job(home, "run")
                with pytest.raises(SegmentDamaged, match=f"{path.name} is damaged"):
                    list(follow_log(home, lines=10, follow=False))
                with pytest.raises(SegmentDamaged, match=f"{path.name} is damaged"):
                    Producer(log).append(BODY)
    assert verify(home, journal_of(home)).agrees


def with_id(id_: str, amount: str) -> str:
    return json.dumps({"id": id_, **json.loads(event("ann", amount))})


def test_a_receipt_shows_no_flipped_amount(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")
    bill(home, with_id("a1", "1.25"))
    path = DirectoryLog(home.log_path).path_of("default", 1)
    receipt = find_receipt(home, journal_of(home), "a1", None)
    assert receipt is not None
    assert receipt.amount_micros == 1_250_000
    amount = path.read_bytes().index(b"1.25")
    for byte in (amount, amount + 2, path.read_bytes().index(b"ann"), path.read_bytes().index(b"01-15")):
        with flipped(path, 8 * byte):
            receipt = find_receipt(home, journal_of(home), "a1", None)
            assert receipt is not None
            assert (receipt.state, receipt.amount_micros, receipt.customer) == ("counted", None, None)


def test_a_correction_is_not_made_of_a_flipped_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks took the same id; the line of one of them is read again to take it back, and has changed by then."""
    home = new_home(tmp_path / "home")
    producer = Producer(DirectoryLog(home.log_path))
    for _ in range(2):
        producer.append(with_id("a1", "1.25").encode())
    job = open_job(home, "run")
    log = log_of(job)
    frame = batch_of_segments(job, names_of(log, log.unread(job.offsets), 2), tasks=2)
    path = log.path_of("default", 2)
    real = cross_task._set_right

    def harmed(*args: object) -> object:
        data = path.read_bytes()
        path.write_bytes(data.replace(b"1.25", b"1.24"))
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(cross_task, "_set_right", harmed)
    with pytest.raises(SegmentDamaged, match=path.name):
        job.bill(frame)
    assert journal_of(home).position == 0


# Replicas


def flip(path: Path, what: bytes, *, all_of_them: bool = False) -> None:
    """Flip a bit of some bytes in a file that others may have mapped."""
    whole = path.read_bytes()
    at = whole.find(what)
    assert at >= 0
    with path.open("r+b") as file:
        while at >= 0:
            file.seek(at)
            file.write(bytes([what[0] ^ 4]))
            at = whole.find(what, at + 1) if all_of_them else -1


def catch_up(follower: Follower) -> None:
    while follower.step() is not None:
        pass


def micros(amount: str) -> bytes:
    """An amount as it stands in a customer's row."""
    return struct.pack("<q", int(Decimal(amount) * 10**6))


def test_a_worker_that_meets_a_flipped_bit_answers_503_until_the_replica_is_made_anew(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")
    bill(home, event("ann", "1.25", "2026-01-05T00:00:00Z"), event("bob", "2.50", "2026-01-06T00:00:00Z"))
    with app_of(home) as app:
        assert app.get("/v1/customers/ann").status_code == 200
        flip(home.replica_path / "data.mdb", micros("1.25"), all_of_them=True)
        for path in ("/v1/customers/ann", "/v1/customers?period=2026-01", "/v1/types?from=2026-01-01&to=2026-01-31"):
            answer = app.get(path)
            assert (answer.status_code, answer.json()["detail"]) == (503, "the replica is damaged and is being rebuilt")
        assert app.get("/v1/customers/bob").json()["current"]["total"] == "2.500000"
        damage = reported_damage(home.replica_path)
        assert damage is not None
        assert damage.inode == inode_of(home.replica_path)
    with app_of(home) as app:  # its follower makes another copy
        assert app.get("/v1/customers/ann").json()["current"]["total"] == "1.250000"
        assert app.get("/v1/customers/bob").json()["current"]["total"] == "2.500000"


@pytest.mark.parametrize("name", ["y" * 600, "ann%00bob", "zzz", "%F0%9F%A6%8A"])
def test_no_question_makes_a_sound_replica_look_damaged(tmp_path: Path, name: str) -> None:
    home = new_home(tmp_path / "home")
    bill(home, event("ann", "1.25", "2026-01-05T00:00:00Z"), event("bob", "2.50", "2026-01-06T00:00:00Z"))
    with app_of(home) as app:
        assert app.get(f"/v1/customers/{name}").status_code in (404, 422)
        for period in ("2026-01", "2026-02", "1999-12"):
            assert app.get(f"/v1/customers/{name}/{period}").status_code in (404, 422)
            for more in (f"after={name}", f"prefix={name}", f"after={name}&by=total"):
                assert app.get(f"/v1/customers?period={period}&{more}").status_code in (200, 404, 422)
            assert app.get(f"/v1/invoices/{period}/{name}").status_code in (200, 404, 422)
            assert app.get(f"/v1/periods/{period}").status_code in (200, 404)
    assert reported_damage(home.replica_path) is None


def test_a_report_is_of_one_copy(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")
    follower = Follower(home)
    follower.check_reports()
    report_damage(home.replica_path, "it is damaged", inode=inode_of(home.replica_path) + 1)
    follower.check_reports()
    assert reported_damage(home.replica_path) is None, "it was of an earlier copy"
    report_damage(home.replica_path, "it is damaged", inode=inode_of(home.replica_path))
    with pytest.raises(ReplicaDamaged, match="it is damaged"):
        follower.check_reports()
    follower.begin_anew()
    follower.check_reports()
    follower.close()


def test_a_copy_that_is_being_made_is_not_asked(tmp_path: Path) -> None:
    """An empty copy would say that nothing was billed."""
    home = new_home(tmp_path / "home")
    bill(home, event("ann", "1.25", "2026-01-05T00:00:00Z"))
    Follower(home).close()
    answer = App(build(home)).get("/v1/customers/ann")
    assert (answer.status_code, answer.json()["detail"]) == (503, "the replica is being made")
    # A home without a ledger has nothing, and says so.
    empty = new_home(tmp_path / "empty")
    with app_of(empty) as app:
        assert app.get("/v1/customers/ann").status_code == 404


def test_a_flipped_row_is_not_folded_on(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")
    bill(home, event("ann", "1.25", "2026-01-05T00:00:00Z"))
    follower = Follower(home)
    catch_up(follower)
    flip(home.replica_path / "data.mdb", micros("1.25"), all_of_them=True)
    bill(home, event("ann", "2.00", "2026-01-06T00:00:00Z"))
    with pytest.raises(ReplicaDamaged):
        follower.step()
    follower.begin_anew()
    catch_up(follower)
    with follower.store.read() as snapshot:
        found = blocks.find(snapshot, b"2026-01", b"ann")
    assert found is not None
    assert sum(amount for amount, _ in found[0]) == 3_250_000
    follower.close()


def test_every_bit_of_a_block_is_checked(tmp_path: Path) -> None:
    """Whatever is asked of a block with a flipped bit, the answer is the right one or none."""
    store, period, dice = Store(tmp_path, writable=True), b"2026-01", random.Random(SEED)
    names = [b"c%03d" % number for number in range(40)]
    amounts = np.arange(40, dtype=np.int64)
    rows = row.summed(3, amounts, amounts % 3, amounts.view(np.uint64), None, amounts + 1, amounts)
    with store.write() as change:
        blocks.add(change, period, pa.array(names), rows)
    with store.read() as snapshot:
        ((key, value),) = snapshot.scan_blocks(b"")
        wanted = {name: blocks.find(snapshot, period, name) for name in (*names, b"a", b"c0", b"zz")}
    for bit in dice.sample(range(8 * len(value)), 400):
        harmed = bytearray(value)
        harmed[bit // 8] ^= 1 << bit % 8
        with store.write() as change:
            change.put_blocks([(key, bytes(harmed))])
        refused = 0
        with store.read() as snapshot:
            for name, found in wanted.items():
                try:
                    assert blocks.find(snapshot, period, name) == found, f"seed {SEED}, bit {bit}, {name!r}"
                except ReplicaDamaged:
                    refused += 1
            with pytest.raises(ReplicaDamaged):
                list(blocks.scan(snapshot, period))
        assert refused, f"seed {SEED}, bit {bit}"
    store.close()


def test_a_value_under_another_key_is_damage(tmp_path: Path) -> None:
    store = Store(tmp_path, writable=True)
    with store.write() as change:
        change.put("facts", [(b"2026-01", b"one"), (b"2026-03", b"two")])
    flip(tmp_path / "data.mdb", b"2026-03")
    with store.read() as snapshot:
        for key in (b"2026-02", b"2026-03", b"6026-03"):
            with pytest.raises(ReplicaDamaged):
                snapshot.get("facts", key)
        with pytest.raises(ReplicaDamaged):
            list(snapshot.scan("facts", b""))
        assert snapshot.get("facts", b"2026-01") == b"one"
    store.close()


def test_no_flipped_bit_of_a_replica_changes_an_answer(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")
    names = [f"customer {number}" for number in range(700)]
    for month in (1, 2, 3):
        bill(home, *(event(name, "1.25", f"2026-{month:02d}-05T00:00:00Z") for name in names))
    bill(home, *(event(name, "0.75", "2026-01-10T00:00:00Z", "SMS") for name in names[::10]))
    follower = Follower(home)
    catch_up(follower)
    follower.close()
    (home.path / "customers.json").write_text(json.dumps(names[::50]))
    scene = Path(__file__).parents[1] / "support" / "scene_flipped_replica.py"
    command = [sys.executable, str(scene), str(home.path), str(SEED), "60"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert result["wrong"] == [], done.stdout + done.stderr
    assert result["found"]["refused"] >= 5, done.stdout


def test_a_server_rebuilds_its_damaged_replica_by_itself(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")
    bill(home, event("ann", "1.25", "2026-01-05T00:00:00Z"))

    def total(url: str) -> str | int:
        answer = httpx.get(f"{url}/v1/customers/ann", timeout=30)
        return answer.json()["current"]["total"] if answer.status_code == 200 else answer.status_code

    with serving(home, workers=1) as url:
        wait_for(lambda: total(url) == "1.250000", "the replica was made")
        inode = (home.replica_path / "data.mdb").stat().st_ino
        flip(home.replica_path / "data.mdb", micros("1.25"), all_of_them=True)
        assert total(url) == 503
        said = []
        wait_for(lambda: said.append(total(url)) or said[-1] == "1.250000", "the replica was made anew")
        assert set(said) <= {503, "1.250000"}
        assert (home.replica_path / "data.mdb").stat().st_ino != inode


# The outbox


class Waiting(NamedTuple):
    """A home with invoices that wait in its outbox, and the outbox as it is."""

    home: Home
    receiver: Receiver
    outbox: Path
    whole: bytes
    expected: list[str]

    def deliver(self) -> list[str]:
        """Deliver from the outbox as the file is now, and check that nothing else than the invoices has arrived."""
        self.receiver.held.clear()
        self.receiver.places.clear()
        said: list[str] = []
        deliver(self.home, once=True, patience=timedelta(seconds=20), say=said.append)
        assert sorted(body.decode() for body in self.receiver.held.values()) == self.expected
        for path, body in self.receiver.places.items():
            statement = json.loads(body)
            assert path.endswith("/{period}/{customer}/{revision}".format(**statement))
        return said


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Waiting]:
    with new_receiver().listening() as receiver:
        home = new_home(tmp_path / "home", f'{SETTINGS}[invoices]\nhttp_url = "{receiver.url}/"\n')
        customers = [event(f"c{number:02d}", f"{number}.25") for number in range(30)]
        bill(home, *customers, event("c01", "0", "2026-02-02T00:00:01Z"))
        receiver.answer = lambda _: Answer(500)
        with pytest.raises(SinkError):
            deliver(home, once=True, patience=timedelta(seconds=0.2), say=lambda _: None)
        receiver.answer = lambda _: Answer()
        invoices = Invoices.open(home.ledger)
        assert invoices is not None
        with connect() as connection:
            texts = sorted(statement_texts(connection, invoices.rows(), currency="EUR", all_revisions=True))
        outbox = home.sinks_path / "http.sqlite"
        yield Waiting(home, receiver, outbox, outbox.read_bytes(), texts)


@pytest.mark.parametrize(
    "harm", ["body = cast(replace(body, '7.25', '3.25') as blob)", "customer = 'c0w'", "id = 'inv_0'", "revision = 3"]
)
def test_a_flipped_parcel_is_made_again_and_not_sent(waiting: Waiting, harm: str) -> None:
    with sqlite3.connect(waiting.outbox) as db:
        db.execute(f"update parcel set {harm} where customer = 'c07'")
    db.close()
    (said,) = waiting.deliver()
    assert "is damaged; all invoices of this file are delivered again" in said


def test_a_flipped_note_of_what_was_taken_up_loses_no_invoice(waiting: Waiting) -> None:
    with sqlite3.connect(waiting.outbox) as db:
        db.execute("delete from parcel where customer = 'c29'")  # as if it had not been taken up yet
        db.execute("update file set taken = taken + 64")
    db.close()
    (said,) = waiting.deliver()
    assert "the outbox is damaged (its note of" in said


def test_an_outbox_of_an_earlier_version_is_delivered(waiting: Waiting) -> None:
    with sqlite3.connect(waiting.outbox) as db:
        for table in ("parcel", "file"):
            db.execute(f"alter table {table} drop column crc32")
    db.close()
    assert waiting.deliver() == []


def test_a_flipped_index_of_an_outbox_holds_no_invoice_back(waiting: Waiting) -> None:
    """The index says which parcel is due: one that disagrees with the parcels would leave some of them for ever."""
    with closing(sqlite3.connect(waiting.outbox)) as db:
        db.execute("vacuum")  # no byte of a page is left over between its entries
        (root,) = db.execute("select rootpage from sqlite_master where name = 'parcel_due'").fetchone()
        (size,) = db.execute("pragma page_size").fetchone()
    whole, page = waiting.outbox.read_bytes(), (root - 1) * size
    first = int.from_bytes(whole[page + 5 : page + 7], "big")  # its entries fill the page from here to its end
    for byte in range(page + first, page + size):
        waiting.outbox.write_bytes(whole[:byte] + bytes([whole[byte] ^ 1]) + whole[byte + 1 :])
        with pytest.raises(OutboxDamaged):
            Outbox(waiting.outbox).close()


def test_no_flipped_bit_of_an_outbox_is_delivered(waiting: Waiting) -> None:
    dice = random.Random(SEED)
    for bit in dice.sample(range(8 * len(waiting.whole)), 25):
        for path in waiting.home.sinks_path.glob("http.*"):
            path.unlink()
        waiting.outbox.write_bytes(waiting.whole)
        with waiting.outbox.open("r+b") as file:
            file.seek(bit // 8)
            file.write(bytes([waiting.whole[bit // 8] ^ 1 << bit % 8]))
        try:
            waiting.deliver()
        except OpentabError as error:
            assert waiting.outbox.name in str(error), f"seed {SEED}, bit {bit}: {error}"
        except AssertionError as error:
            raise AssertionError(f"seed {SEED}, bit {bit}") from error


# Other files of a home


def test_verify_names_an_invoice_file_that_has_changed_and_it_is_written_again(tmp_path: Path) -> None:
    home, dice = new_home(tmp_path / "home"), random.Random(SEED)
    customers = [event(f"c{number}", f"{number}.25") for number in range(30)]
    bill(home, *customers, event("c1", "0", "2026-02-02T00:00:01Z"))
    opentab("invoices", "--export", home=home)
    files = sorted(path for path in home.invoices_path.rglob("*") if path.is_file())
    assert [path.suffix for path in files] == [".csv", ".jsonl", ".csv"]
    assert "agrees   files                     3 compared" in opentab("verify", home=home).stdout
    harmed = dice.choice(files)
    whole = harmed.read_bytes()
    bit = dice.randrange(8 * len(whole))
    with harmed.open("r+b") as file:
        file.seek(bit // 8)
        file.write(bytes([whole[bit // 8] ^ 1 << bit % 8]))
    done = opentab("verify", home=home, check=False)
    assert done.returncode == 1, f"seed {SEED}, bit {bit} of {harmed}"
    assert f"{harmed} is not what the ledger says: delete it" in done.stdout
    assert "The invoice files DO NOT agree with the ledger." in done.stdout
    harmed.unlink()
    opentab("invoices", "--export", home=home)
    assert harmed.read_bytes() == whole
    opentab("verify", home=home)


def test_a_flipped_heartbeat_is_none(tmp_path: Path) -> None:
    ledger = Place.of(tmp_path)
    beat = Heartbeat(1_760_000_000_000_000, "run", 1, True, 7, True, 1_760_000_000_000_000, unread_segments=3)
    write_heartbeat(ledger, beat)
    path = tmp_path / "heartbeat.json"
    for bit in range(8 * path.stat().st_size):
        with flipped(path, bit):
            found = read_heartbeat(ledger)
        # A flipped name of the last field is one that an earlier version did not know.
        assert found is None or msgspec.structs.replace(found, crc32=None) == beat, f"bit {bit}"
    assert read_heartbeat(ledger) is not None


def test_small_files_with_a_flipped_bit_are_as_good_as_none(tmp_path: Path) -> None:
    """What processes last said of themselves: no bit of it makes a reader fail."""
    home = new_home(tmp_path / "home")
    home.sinks_path.mkdir()
    home.ledger.make()
    write_backlog(home.sinks_path, Backlog(1, 2, 3, 4, 5, 6, 7, 8, False, "gone"))
    tell(home.ledger, home.path, 3, now_us=5)
    lock = Lock(home.path / "pipeline.lock")
    assert lock.take_if_free()
    presence = next((home.path / "ledger" / "replicas").iterdir())
    for path, read in (
        (home.sinks_path / "http.json", lambda: read_backlog(home.sinks_path)),
        (presence, lambda: present(home.ledger, now_us=6)),
        (home.path / "pipeline.lock", lock.holder),
    ):
        for bit in range(8 * path.stat().st_size):
            with flipped(path, bit):
                read()
    lock.release()


def test_settings_with_a_flipped_bit_are_a_sentence(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", '[billing]\nzone = "Europe/Berlin"\ncurrency = "EUR"\n[log]\nuri = "log"\n')
    path = home.path / "opentab.toml"
    for bit in range(8 * path.stat().st_size):
        with flipped(path, bit):
            try:
                config.load(home.path)
            except ConfigError:
                continue
