"""Receipts: what became of an event, by its id; and answers that wait until events are in the journal."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from apps import App, app_of
from ledgers import bill, bill_ready, bill_waiting, new_home
from opentab.billing.bill import Job
from opentab.billing.source import open_source
from opentab.cli.tables.receipt import find_receipt
from opentab.client import AsyncClient, Client, NotAllowed, NotThere
from opentab.core.errors import LogUnreachable
from opentab.core.records import KINDS, SEEN, Spot
from opentab.dedupe.lookup import KeyLookup
from opentab.dedupe.sorted_runs import Run, sorted_run, stage_run
from opentab.ledger.journal import Journal
from opentab.ledger.receipt import Receipt, Trails
from opentab.ledger.reread import Reread
from opentab.log import DirectoryLog, Producer, open_producer
from opentab.runtime import config
from opentab.runtime.config import Home
from opentab.runtime.storage import Place
from opentab.server.intake import Intake
from opentab.server.tokens import Role, issue, new_key, read_key
from opentab.tables.files import StagedFile, stage
from opentab.wire.hashing import keys_of
from opentab_tools.servers.broker import Broker
from processes import serving, wait_for
from product import json_lines, opentab

SETTINGS = '[billing]\nout_of_orderness = "0s"\nallowed_lateness = "1d"\n'


def event(id_: str | None, customer: str = "ann", amount: str = "1.00", time: str = "2026-01-10", **more: str) -> str:
    """One event as a line; `source` puts it into an envelope."""
    at = time if "T" in time else f"{time}T12:00:00Z"
    known = {} if id_ is None else {"id": id_}
    data = {"type": "CALL", "amount": amount, **more}
    source = data.pop("source", None)
    if source is None:
        return json.dumps({**known, "time": at, "customer": customer, **data})
    return json.dumps({**known, "specversion": "1.0", "source": source, "subject": customer, "time": at, "data": data})


def reversal(id_: str, customer: str = "ann", amount: str = "1.00", time: str = "2026-01-10", **more: str) -> str:
    return event(None, customer, amount, time, reverses=id_, reason="a mistake", actor="bob", **more)


def found(home: Home, id_: str, source: str | None = None) -> Receipt:
    receipt = find_receipt(home, Journal.open(home.ledger, home.identity), id_, source)
    assert receipt is not None
    return receipt


def knows(home: Home, id_: str, source: str | None = None) -> bool:
    return find_receipt(home, Journal.open(home.ledger, home.identity), id_, source) is not None


# What became of it


def test_an_event_that_counted(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS)
    bill(home, event(None, "bob"), event("a1", amount="1.25"))
    receipt = found(home, "a1")
    assert receipt.as_json() | {"place": ""} == {
        "id": "a1", "source": None, "state": "counted", "batch": 1, "place": "", "day": "2026-01-10",
        "customer": "ann", "type": "CALL", "amount": "1.250000", "period": "2026-01", "invoice": None,
        "reversed": False, "rejections": [],
    }  # fmt: skip
    partition, _, at = receipt.place.partition("/1@")
    assert DirectoryLog(home.log_path).line(partition, 1, int(at)).decode() == event("a1", amount="1.25")
    bill(home, event("a1", amount="1.250"))  # a duplicate
    assert found(home, "a1") == receipt


def test_the_invoice_and_revision_that_an_event_is_in(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS)
    bill(home, event("jan"))
    bill(home, event("feb", time="2026-02-01"))  # closes January
    bill(home, event("late", time="2026-01-11"), revise=True)
    bill(home, event("mar", time="2026-03-05"))  # January is final, February closes
    bill(home, event("beyond", time="2026-01-12"))
    bill(home, event("apr", time="2026-04-05"))

    def invoice(id_: str) -> tuple[str | None, tuple[str, int, int, int] | None]:
        receipt = found(home, id_)
        one = receipt.invoice
        return receipt.period, one and (one.period, one.revision, one.position, one.latest_revision)

    assert invoice("jan") == ("2026-01", ("2026-01", 1, 2, 2))
    assert invoice("late") == ("2026-01", ("2026-01", 2, 3, 2))
    assert invoice("beyond") == ("2026-03", ("2026-03", 1, 6, 1)), "an adjustment of March"
    assert invoice("apr") == ("2026-04", None)
    with app_of(home) as app:
        for id_ in ("jan", "feb", "late", "mar", "beyond", "apr"):
            answer = app.get(f"/v1/events/{id_}").json()
            wanted = found(home, id_).as_json()
            assert {name: answer[name] for name in wanted} == wanted
            assert (answer["position"], answer["invoices_position"]) == (6, 6)


def test_a_rejected_event_and_one_that_was_mended(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS)
    bill(home, event("a1", type="FAX"), event("a1", amount="x"))
    receipt = found(home, "a1")
    assert (receipt.state, receipt.customer, receipt.day, receipt.batch) == ("rejected", "ann", None, 1)
    assert {one.reason for one in receipt.rejections} == {"unknown_type", "bad_amount"}
    bill(home, event("a1"))
    bill(home, event("a1", amount="2.00"))
    receipt = found(home, "a1")
    assert (receipt.state, receipt.batch, receipt.amount_micros) == ("counted", 2, 1_000_000)
    newest = receipt.rejections[0]
    assert (newest.batch, newest.reason) == (3, "conflicting_duplicate")
    assert "batch 2" in (newest.detail or "")
    assert len(receipt.rejections) == 3


def test_what_was_reversed_says_so(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS)
    bill(home, event("a1"), event("a2"), event("a1", source="s"))
    bill(home, reversal("a1"), event(None, reverses="a2", reason="r", actor="x", amount="7.00"))
    assert found(home, "a1").reversed
    assert not found(home, "a2").reversed, "the amount was another one"
    assert not found(home, "a1", "s").reversed, "it is another event"
    bill(home, reversal("a1", source="s"))
    assert found(home, "a1", "s").reversed


def test_a_source_makes_another_id(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS)
    bill(home, event("a1", "ann"), event("a1", "bob", source="s"), event("a1", "eve", source=""))
    assert [found(home, "a1", source).customer for source in (None, "s", "")] == ["ann", "bob", "eve"]
    assert not knows(home, "a1", "t")
    assert not knows(home, "s")


def test_what_is_forgotten_is_unknown_and_what_counted_again_is_told(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS + 'dedupe_window = "1d"\n')
    start = datetime(2026, 3, 1, tzinfo=UTC)

    def bill_at(day: float, *lines: str) -> None:
        body = "".join(f"{line}\n" for line in lines).encode()
        Producer(DirectoryLog(home.log_path), clock=lambda: start + timedelta(days=day)).append(body)
        bill_waiting(home)

    assert not knows(home, "a1"), "nothing was billed yet"
    bill_at(0, event("a1"), event("a2"), event("bad", type="FAX"))
    bill_at(1, event("a1", amount="5.00"))
    assert (found(home, "a1").batch, len(found(home, "a1").rejections)) == (1, 1)
    bill_at(1.5, event("a1", amount="5.00"))
    assert (found(home, "a1").batch, found(home, "a1").amount_micros) == (3, 5_000_000)
    assert not knows(home, "a2"), "it is forgotten, merged away or not"
    assert not knows(home, "bad")


def test_without_a_window_nothing_is_remembered(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS + 'dedupe_window = "off"\n')
    bill(home, event("a1"))
    assert not knows(home, "a1")


def test_a_line_that_the_log_no_longer_holds(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS)
    bill(home, event("a1"))
    bill(home, event("a2"))
    place = found(home, "a1").place
    shutil.rmtree(home.log_path / "archive")
    receipt = found(home, "a1")
    assert (receipt.state, receipt.batch, receipt.place, receipt.customer) == ("counted", 1, place, None)
    assert (receipt.period, receipt.invoice, receipt.amount_micros) == (None, None, None)
    # Another line in its place is not taken for it.
    shutil.rmtree(home.log_path)
    Producer(DirectoryLog(home.log_path)).append(event("b1", "eve").encode())
    assert found(home, "a1").customer is None


def test_rules_that_changed_since_do_not_matter(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS)
    bill(home, event("a1"))
    (home.path / "opentab.toml").write_text(SETTINGS + 'types = ["FAX"]\n')
    assert found(config.load(home.path), "a1").type == "CALL"


def test_it_is_found_in_any_run(tmp_path: Path) -> None:
    """Runs of all sizes, keys that begin alike, row groups that begin or end with a key."""
    root = Place.of(tmp_path)
    rows = {"small": 500, "large": 100_000}
    staged: list[StagedFile] = []
    for name, count in rows.items():
        high, low = keys_of([f"{name}-{n}" for n in range(count)])
        high[::7] = high[1]  # many keys share their first word
        table = pa.table(
            [
                np.full(count, 1), high, low, np.arange(count) + 1, np.arange(count), pa.array(["p"] * count),
                np.arange(count), np.zeros(count, np.int64),
            ],
            schema=SEEN,
        )  # fmt: skip
        run = stage_run(root, iter([sorted_run(table)]), run="run", batches=(1, 1))
        assert run is not None
        staged.append(run)
    runs = [Run(file.path, file.rows) for file in staged]
    remembered = KeyLookup(root)
    for name, count in rows.items():
        high, low = keys_of([f"{name}-{n}" for n in range(count)])
        high[::7] = high[1]
        for n in [*range(0, count, count // 50), 1, 7, count - 1]:
            wanted = np.flatnonzero((high == high[n]) & (low == low[n]))
            answer = remembered.rows(runs, [(int(high[n]), int(low[n]))])
            assert sorted(answer["number"].to_pylist()) == wanted.tolist()
    assert remembered.rows(runs, [(0, 0), (-(2**63), 0), (2**63 - 1, 0)]).num_rows == 0
    assert remembered.rows(runs[:1], [(0, 0)]).num_rows == 0, "one was let go"
    remembered.close()


def test_merged_runs_tell_the_same(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS)
    for n in range(20):
        bill(home, event(f"a{n}", amount=str(n)), event(f"bad{n}", type="FAX"), close=False)
    before = [found(home, f"{kind}{n}") for kind in ("a", "bad") for n in range(20)]
    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None
    assert journal.compact(run="merge", files_max=2)
    assert [found(home, f"{kind}{n}") for kind in ("a", "bad") for n in range(20)] == before


def test_merged_records_can_be_read_one_by_one(tmp_path: Path) -> None:
    """They come in small row groups, so that a receipt of an old journal does not read all of them."""
    for kind, column in (("batch", "record"), ("rejection", "raw")):
        schema = KINDS[kind]
        rows = [{"batch": n, column: b"x" if column == "raw" else "x"} for n in range(10_000)]
        staged = stage(Place.of(tmp_path), kind, pa.Table.from_pylist(rows, schema), run="run", batches=(0, 9_999))
        with pq.ParquetFile(tmp_path / staged.path) as file:
            assert file.metadata.num_row_groups > 2


# The command


def test_the_command(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS)
    assert opentab("receipt", "a1", home=home, check=False).returncode == 1
    bill(home, event("a1"), event("a/1", source="s"), event("bad", type="FAX"))
    printed = json_lines(opentab("receipt", "a/1", "--source", "s", "--format", "json", home=home).stdout)[0]
    assert (printed["state"], printed["source"], printed["customer"], printed["position"]) == ("counted", "s", "ann", 1)
    table = opentab("receipt", "a1", home=home).stdout
    assert "counted" in table and "2026-01-10" in table and "1.000000 EUR" in table and "not issued yet" in table
    assert "unknown_type: 'FAX' is no type of this home" in opentab("receipt", "bad", home=home).stdout
    done = opentab("receipt", "nobody", home=home, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "opentab: no event with the id 'nobody' is known within the dedupe window\n"


# Over HTTP

ODD_IDS = ["a/b", "a%2Fb", "100%", "ä🦉", "..", ".", "a.b.json", "a b?c#d&e=f", "\t\x00", "x" * 900, "+", "null"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = new_home(tmp_path_factory.mktemp("receipts") / "home", SETTINGS)
    bill(home, *(event(id_, amount=f"0.{n:03}") for n, id_ in enumerate(ODD_IDS, 1)))
    bill(home, event("of-ann", "ann"), event("of-bob", "bob"), event("bad-of-bob", "bob", type="FAX"))
    bill(home, event("of-ann", "bob", amount="3.00"), event("of-bob", "bob", amount="4.00"), event("s", source="net"))
    bill(home, event("not-whose", "", type="FAX"), '{"id":"no-customer"}')
    return home


@pytest.fixture(scope="module")
def app(home: Home) -> Iterator[App]:
    with app_of(home) as app:
        yield app


@pytest.mark.parametrize("id_", ODD_IDS)
def test_ids_of_all_kinds(app: App, id_: str) -> None:
    path = quote(id_, safe="").replace(".", "%2E") if set(id_) == {"."} else quote(id_, safe="")
    answer = app.get(f"/v1/events/{path}")
    assert answer.status_code == 200, answer.text
    assert (answer.json()["id"], answer.json()["amount"]) == (id_, f"0.{ODD_IDS.index(id_) + 1:03}000")


def test_an_answer_says_how_fresh_it_is(app: App) -> None:
    answer = app.get("/v1/events/of-ann")
    assert answer.json()["position"] == 4 and answer.json()["watermark"]
    assert answer.headers["opentab-position"] == "4"
    etag = answer.headers["etag"]
    assert app.get("/v1/events/of-ann", headers={"if-none-match": etag}).status_code == 304
    assert app.get("/v1/events/of-ann?min_position=4").status_code == 200
    assert app.get("/v1/events/s?source=net").json()["source"] == "net"
    assert app.get("/v1/events/s?source=").status_code == 404
    assert app.get("/v1/events/s").status_code == 404


def test_an_unknown_id_is_a_problem(app: App) -> None:
    answer = app.get("/v1/events/nobody")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"] == "no event with this id is known within the dedupe window"
    assert answer.json()["position"] == 4
    assert app.get("/v1/events/%FF").status_code == 404
    assert app.get("/v1/events/").status_code == 404


def test_receipts_are_of_the_position_that_the_answer_names(tmp_path: Path) -> None:
    """The ledger is further than the replica: what it knows is told when the replica is there."""
    home = new_home(tmp_path / "home", SETTINGS)
    bill(home, event("a1"))
    with app_of(home) as app:
        bill(home, event("a2"), reversal("a1"))
        assert app.get("/v1/events/a2").status_code == 404
        assert not app.get("/v1/events/a1").json()["reversed"]
    with app_of(home) as app:
        assert app.get("/v1/events/a2").json()["batch"] == 2
        assert app.get("/v1/events/a1").json()["reversed"]


def test_an_empty_home_knows_nothing(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS)
    with app_of(home) as app:
        assert app.get("/v1/events/a1").status_code == 404


# Who may see it


@pytest.fixture(scope="module")
def guarded(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[App, Home]]:
    """The same ledger and log behind a key."""
    path = tmp_path_factory.mktemp("guarded") / "home"
    path.mkdir()
    (path / "key").write_text(new_key())
    places = f'[ledger]\nuri = "{home.ledger}"\n[log]\nuri = "{home.log_path}"\n[server]\nkey_file = "key"\n'
    (path / "opentab.toml").write_text(SETTINGS + places)
    other = config.load(path)
    with app_of(other) as app:
        yield app, other


def ask(guarded: tuple[App, Home], role: Role | None, path: str, customer: str | None = None) -> httpx.Response:
    app, home = guarded
    if role is None:
        return app.get(path)
    key = read_key(home)
    assert key is not None
    token = issue(key, role, customer=customer, lifetime=timedelta(days=1))
    return app.get(path, headers={"authorization": f"Bearer {token}"})


@pytest.mark.parametrize("role", [Role.READER, Role.ADMIN, Role.INGEST])
def test_readers_and_senders_see_all(guarded: tuple[App, Home], role: Role) -> None:
    for id_ in ("of-ann", "of-bob", "bad-of-bob", "a%2Fb", "s?source=net", "no-customer"):
        assert ask(guarded, role, f"/v1/events/{id_}").status_code == 200, id_
    assert ask(guarded, role, "/v1/events/nobody").status_code == 404
    assert len(ask(guarded, role, "/v1/events/of-ann").json()["rejections"]) == 1
    assert ask(guarded, None, "/v1/events/of-ann").status_code == 401


def test_a_customer_sees_its_own_and_is_told_nothing_of_others(guarded: tuple[App, Home]) -> None:
    def ann(id_: str) -> httpx.Response:
        return ask(guarded, Role.CUSTOMER, f"/v1/events/{id_}", "ann")

    def bob(id_: str) -> httpx.Response:
        return ask(guarded, Role.CUSTOMER, f"/v1/events/{id_}", "bob")

    assert ann("of-ann").json()["state"] == "counted"
    assert ann("of-ann").json()["rejections"] == [], "bob's is not told"
    assert ann("s?source=net").status_code == 200
    assert bob("of-bob").json()["rejections"][0]["reason"] == "conflicting_duplicate"
    assert bob("bad-of-bob").json()["state"] == "rejected"
    mine = bob("of-ann").json()
    assert (mine["state"], mine["customer"], mine["amount"]) == ("rejected", "bob", None), "the id was ann's already"
    moving = {"staleness_ms"}
    unknown = {k: v for k, v in ann("nobody").json().items() if k not in moving}
    for id_ in ("of-bob", "bad-of-bob", "not-whose", "no-customer"):
        answer = ann(id_)
        assert answer.status_code == 404
        assert {k: v for k, v in answer.json().items() if k not in moving} == unknown, id_
    assert ask(guarded, Role.CUSTOMER, "/v1/events", "ann").status_code == 403
    assert ask(guarded, Role.INGEST, "/v1/events/of-ann/more").status_code == 403


# Answers that wait


def post(app: App, events: list[str] | str, query: str = "?wait=committed") -> httpx.Response:
    body = events if isinstance(events, str) else f"[{','.join(events)}]"
    return app.request("POST", f"/v1/events{query}", content=body, headers={"content-type": "application/json"})


class Pipeline:
    """Bills whatever comes, in a thread."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._bill)

    def __enter__(self) -> Pipeline:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _bill(self) -> None:
        while not self._ended.wait(0.02):
            bill_waiting(self._home)


def test_a_post_waits_until_its_events_are_committed(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS)
    bill(home, event("a1"), event("a2"))
    with app_of(home) as app, Pipeline(home):
        answer = post(
            app,
            [
                event("a1"),  # counted before
                event("new"), event("new"),  # twice in one request
                event("a2", amount="9.00"),  # conflicts
                event(None), event(None, type="FAX"),
                reversal("a1"), reversal("a1"), reversal("never"),
            ],
        )  # fmt: skip
        assert answer.status_code == 200
        body = answer.json()
        assert (body["accepted"], body["committed"]) == (8, True)
        told = [(r["accepted"], r.get("state"), r.get("reason")) for r in body["results"]]
        assert told == [
            (True, "duplicate", None),
            (True, "counted", None), (True, "duplicate", None),
            (True, "rejected", "conflicting_duplicate"),
            (True, "counted", None), (False, None, "unknown_type"),
            (True, "counted", None), (True, "rejected", "reversal_twice"), (True, "rejected", "reversal_unknown"),
        ]  # fmt: skip
        assert {r["batch"] for r in body["results"] if "batch" in r} == {body["position"]} == {2}
        assert body["results"][3]["detail"] == "the event that counted with this id, in batch 1, has other values"
        single = post(app, event("one"))
        assert (single.status_code, single.json()["results"][0]["state"]) == (200, "counted")
        assert post(app, event("one", type="FAX")).status_code == 422
        none = post(app, [event("one", type="FAX")])
        assert (none.status_code, none.json()["committed"]) == (200, True)


def test_a_wait_that_is_over_says_so_and_the_events_are_safe(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS)
    with app_of(home) as app:
        answer = post(app, [event("a1")], "?wait=committed&timeout=0.1")
        assert (answer.status_code, answer.json()) == (
            202,
            {"accepted": 1, "results": [{"accepted": True}], "committed": False},
        )
        assert post(app, event("a2"), "?wait=durable").status_code == 422
        assert post(app, event("a2"), "?wait=committed&timeout=26").status_code == 422
        plain = post(app, event("a2"), "")
        assert (plain.status_code, plain.json()) == (202, {"accepted": 1, "results": [{"accepted": True}]})
        bill_waiting(home)
        assert found(home, "a1").batch == found(home, "a2").batch == 1


def test_a_wait_where_repeats_are_not_looked_for(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS + 'dedupe_window = "off"\n')
    with app_of(home) as app, Pipeline(home):
        answer = post(app, [event("a1"), event("a1")])
        assert [r["state"] for r in answer.json()["results"]] == ["counted", "counted"]


def test_requests_that_share_a_segment_are_told_their_own(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS)

    async def play(app: App) -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=app.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            bodies = [f"[{event(f'a{n}')},{event(f'a{n}')},{event('all')}]" for n in range(20)]
            headers = {"content-type": "application/json"}
            ask = [client.post("/v1/events?wait=committed", content=body, headers=headers) for body in bodies]
            return list(await asyncio.gather(*ask))

    with app_of(home) as app, Pipeline(home):
        answers = [answer.json()["results"] for answer in asyncio.run(play(app))]
    assert [[r["state"] for r in results[:2]] for results in answers] == [["counted", "duplicate"]] * 20
    assert sorted(results[2]["state"] for results in answers) == ["counted"] + ["duplicate"] * 19


def test_the_client_waits_and_reads_its_own_writes(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS + '[server]\nkey_file = "key"\n')
    opentab("token", "key", home=home)
    key = read_key(home)
    assert key is not None
    tokens = {
        role: issue(key, role, customer="ann" if role is Role.CUSTOMER else None, lifetime=timedelta(days=1))
        for role in Role
    }
    sent: list[dict[str, Any]] = [json.loads(event(id_)) for id_ in ("a/1", "..", "a/1")]
    bill(home, event("before", "bob"))
    with serving(home, workers=2) as url:
        with Client(url, token=tokens[Role.ADMIN]) as tab:
            wait_for(lambda: there(tab, "before"), "the replica was there")
        with Pipeline(home), Client(url, token=tokens[Role.INGEST]) as tab:
            done = tab.ingest([*sent, {**sent[0], "amount": "2"}, {**sent[0], "type": "FAX"}], wait="committed")
            assert (done.accepted, done.committed, done.position, done.duplicates) == (4, True, 2, [2])
            assert [(r.index, r.reason) for r in done.rejected] == [(3, "conflicting_duplicate")]
            assert [(r.index, r.reason) for r in done.refused] == [(4, "unknown_type")]
            receipt = tab.receipt("a/1", min_position=done.position)
            assert (receipt.state, receipt.batch, receipt.amount, receipt.position) == ("counted", 2, "1.000000", 2)
            assert tab.receipt("..").id == ".."
            with pytest.raises(NotThere):
                tab.receipt("a/1", source="s")
        with Client(url, token=tokens[Role.CUSTOMER]) as tab:
            assert tab.receipt("a/1").customer == "ann"
            with pytest.raises(NotThere):
                tab.receipt("before")
        with Client(url) as tab, pytest.raises(NotAllowed):
            tab.receipt("a/1")
        with Pipeline(home):
            asyncio.run(the_same_without_waiting(url, tokens[Role.ADMIN]))
        with Client(url, token=tokens[Role.ADMIN]) as tab:
            late = tab.ingest([json.loads(event("late"))], wait="committed", wait_seconds=0.2)
            assert (late.accepted, late.committed, late.position) == (1, False, None)


def there(tab: Client, id_: str) -> bool:
    try:
        return bool(tab.receipt(id_))
    except NotThere:
        return False


async def the_same_without_waiting(url: str, token: str) -> None:
    async with AsyncClient(url, token=token) as tab:
        done = await tab.ingest([json.loads(event("later", source="net"))], wait="committed")
        assert done.committed and done.position
        receipt = await tab.receipt("later", "net", min_position=done.position)
        assert (receipt.source, receipt.batch) == ("net", done.position)


# Where the lines stand


def test_where_lines_stand_in_a_segment(tmp_path: Path) -> None:
    log = DirectoryLog(tmp_path / "log")
    producer = Producer(log)
    producer.append(b"before")
    lines = [b"one", "zwölf".encode(), b"x" * 511, b"y" * 512, b"z" * 513, b"long" * 5_000, b"3"]
    spots = producer.put(lines)
    assert [log.line(*spot) for spot in spots] == lines
    assert log.lines("default", 2, [spot[2] for spot in spots]) == lines
    assert {spot.position for spot in spots} == {2}


def test_receipts_from_a_topic(tmp_path: Path) -> None:
    """A real broker: offsets are told, lines are read again; and what is known while the broker is gone."""
    with Broker(tmp_path / "broker") as broker:
        (tmp_path / "home").mkdir()
        log = f'[log]\nuri = "kafka://{broker.address}/receipts"\n[kafka]\npartitions = 2\n'
        (tmp_path / "home" / "opentab.toml").write_text(SETTINGS + log)
        home = config.load(tmp_path / "home")
        spots = open_producer(home).put([event(f"a{n}", f"c{n}").encode() for n in range(10)])
        assert {spot.partition for spot in spots} == {"0", "1"}
        bill_topic(home)
        for n, spot in enumerate(spots):
            receipt = found(home, f"a{n}")
            assert (receipt.customer, receipt.place) == (f"c{n}", spot.place)
        intake = Intake(home)
        again = intake.append([event("a1", "c1").encode(), event("b1", "c1").encode()]).result(timeout=60)
        intake.close()
        assert [spot.position for spot in again] == [spots[1].position + k for k in later_in(spots, spots[1])]
        with app_of(home) as app:
            answers: list[httpx.Response] = []
            events = [event("b1", "c1"), event("b2", "c2")]
            thread = threading.Thread(target=lambda: answers.append(post(app, events)))
            thread.start()
            wait_for(lambda: unread(home) == 4, "the events are in the topic")
            bill_topic(home)
            thread.join()
            assert [r["state"] for r in answers[0].json()["results"]] == ["duplicate", "counted"]
        broker.kill()
        receipt = found(home, "b2")
        assert (receipt.state, receipt.batch, receipt.customer) == ("counted", 2, None)
        # Whose it is cannot be told now; that is not the same as unknown.
        journal, reread = Journal.open(home.ledger, home.identity), Reread(home)
        assert journal is not None
        trail = Trails(journal, KeyLookup(journal.root)).of("b2", None, upto=journal.last())
        for _ in range(2):  # the second time at once
            with pytest.raises(LogUnreachable):
                trail.receipt(reread, lambda period, customer: [], home.calendar, customer="c2")
        reread.close()


def later_in(spots: list[Spot], spot: Spot) -> list[int]:
    """How far behind a spot the next two messages of its partition stand."""
    behind = sum(other.partition == spot.partition and other.number > spot.number for other in spots)
    return [behind + 1, behind + 2]


def unread(home: Home) -> int:
    source = open_source(home)
    job = Job(home, Journal.create(home.ledger, home.identity), source, run="run")
    try:
        return source.unread(job.offsets)
    finally:
        source.close()


def bill_topic(home: Home) -> None:
    source = open_source(home)
    job = Job(home, Journal.create(home.ledger, home.identity), source, run="run")
    source.open(job.offsets)
    bill_ready(job)
    source.close()
