"""The typed client, against real servers: reads, ingest with retries, live streams, and servers that go and come."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import date, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest

from background import repeated
from ledgers import bill, bill_waiting, new_home
from opentab.client import AsyncClient, Client, ClientError, LiveTypes, NotAllowed, NotThere, Unavailable, Unreachable
from opentab.client.exchange import Policy, Servers, Stream
from opentab.client.requests import Messages, batches, pause_seconds
from opentab.runtime import config
from opentab.runtime.config import Home
from opentab_tools.servers.free_port import free_port
from processes import serving, wait_for
from product import event, opentab

SETTINGS = '[billing]\nout_of_orderness = "0s"\n[server]\nkey_file = "key"\n'


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = new_home(tmp_path_factory.mktemp("client") / "home", SETTINGS)
    opentab("token", "key", home=home)
    bill(home, event("c/3", "5.00", "2026-01-10T00:00:00Z"))
    bill(home, event("c/3", "2.00", "2026-02-01T12:00:00Z"))
    return home


@pytest.fixture(scope="module")
def url(home: Home) -> Iterator[str]:
    with serving(home, workers=1) as base:
        yield base


@pytest.fixture(scope="module")
def token(home: Home) -> str:
    return opentab("token", "issue", "--role", "admin", home=home).stdout.strip()


def test_reads_are_typed(url: str, token: str) -> None:
    with Client(url, token=token) as tab:
        wait_for(lambda: there(tab), "the replica was there")
        found = tab.customer("c/3", min_position=2)
        assert found.current is not None
        assert (found.current.total, [t.total for t in found.closed], found.position) == ("2.000000", ["5.000000"], 2)
        assert tab.total("c/3", "2026-01").types == {"CALL": "5.000000"}
        (invoice,) = tab.invoices("c/3")
        assert (invoice.total, invoice.revision, invoice.lines[0].amount) == ("5.00", 1, "5.000000")


def test_usage_periods_and_types_are_typed(url: str, token: str) -> None:
    with Client(url, token=token) as tab:
        wait_for(lambda: there(tab), "the replica was there")
        assert [(one.day, one.type, one.total) for one in tab.usage("c/3", group="day,type")] == [
            ("2026-01-10", "CALL", "5.000000"),
            ("2026-02-01", "CALL", "2.000000"),
        ]
        assert [one.events for one in tab.usage("c/3", date(2026, 1, 1), "2026-01-31")] == [1]
        assert next((one.period, one.status, one.invoiced) for one in tab.periods()) == ("2026-01", "closed", "5.00")
        february = tab.period("2026-02", min_position=2)
        assert (february.status, february.missing and february.missing.for_) == ("open", "close")
        assert [(one.type, one.total) for one in tab.types(period="2026-01")] == [("CALL", "5.000000")]
        assert [one.day for one in tab.types("CALL", last="2026-01-31", group="day")] == ["2026-01-10"]
        first = next(iter(tab.live()))
        assert (first.types[0].period, first.types[0].total) == ("2026-01", "5.000000")
        with pytest.raises(NotThere):
            tab.types("DATA")


def there(tab: Client) -> bool:
    try:
        tab.customer("c/3", min_position=2)
    except ClientError:
        return False
    return True


def test_refusals_are_told_apart(url: str, token: str) -> None:
    with Client(url, token=token) as tab:
        with pytest.raises(NotThere):
            tab.customer("nobody")
        with pytest.raises(Unavailable, match="is not there yet"):
            tab.total("c/3", "2026-01", min_position=10**9)
        with pytest.raises(ClientError, match="422"):
            tab.total("c/3", "January")
    with Client(url) as tab, pytest.raises(NotAllowed, match="a token is needed"):
        tab.customer("c/3")
    with Client(url, token=f"{token}\n") as tab, pytest.raises(httpx.LocalProtocolError):
        tab.customer("c/3")


def test_ingest_says_what_became_of_each(url: str, token: str, home: Home) -> None:
    good = json.loads(event("new", "0.50", "2026-02-02T00:00:00Z"))
    with Client(url, token=token) as tab:
        done = tab.ingest([good, {**good, "type": "FAX"}, good] * 3_000)
        assert done.accepted == 6_000
        assert [(r.index, r.reason) for r in done.refused[:2]] == [(1, "unknown_type"), (4, "unknown_type")]
        assert done.refused[-1].index == 8_998
        bill_waiting(home)
        wait_for(lambda: there_is(tab, "new"), "it was folded")
        assert tab.total("new", "2026-02").total == "3000.000000"


def there_is(tab: Client, customer: str) -> bool:
    try:
        tab.customer(customer)
    except NotThere:
        return False
    return True


def test_a_server_that_cannot_take_more_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(len(request.content))
        if len(asked) < 3:
            return httpx.Response(503, headers={"retry-after": "0"}, json={"detail": "not now"})
        return httpx.Response(202, json={"accepted": 1, "results": [{"accepted": True}]})

    tab = Client("http://server")
    monkeypatch.setattr(tab, "_http", httpx.Client(transport=httpx.MockTransport(answer), base_url="http://server"))
    assert tab.ingest([{"customer": "ann"}]).accepted == 1
    assert len(asked) == 3
    tab.close()


def test_a_live_stream_goes_on_where_it_was(url: str, token: str, home: Home) -> None:
    bill(home, event("live", "1.00", "2026-02-03T00:00:00Z"))
    with Client(url, token=token) as tab:
        wait_for(lambda: there_is(tab, "live"), "it was folded")
        stream = tab.live(customer="live")
        assert next(stream).totals[0].total == "1.000000"
        bill(home, event("live", "2.00", "2026-02-03T00:00:00Z"))
        assert next(stream).totals[0].total == "3.000000"
        stream.close()


def test_the_same_without_waiting(url: str, token: str, home: Home) -> None:
    async def play() -> tuple[str, list[str]]:
        async with AsyncClient(url, token=token) as tab:
            done = await tab.ingest([json.loads(event("async", "1.00", "2026-02-04T00:00:00Z"))])
            assert done.accepted == 1
            await asyncio.to_thread(bill_waiting, home)
            stream = tab.live(customer="async")
            async for message in stream:
                if message.totals:
                    break
            await stream.aclose()  # type: ignore[attr-defined]
            found = await tab.customer("async")
            assert found.current is not None
            return found.current.total, [invoice.total for invoice in await tab.invoices("c/3")]

    assert asyncio.run(play()) == ("1.000000", ["5.00"])


def test_what_both_clients_share() -> None:
    messages = Messages()
    lines = ["retry: 1000", "", "id: 7", "event: totals", 'data: {"a":', "data: 1}", "", ": alive", ""]
    found = [data for line in lines if (data := messages.take(line)) is not None]
    assert (found, messages.last_id) == (['{"a":\n1}'], "7")
    sizes: list[Any] = [(first, len(json.loads(body))) for first, body in batches({} for _ in range(12_000))]
    assert sizes == [(0, 5_000), (5_000, 5_000), (10_000, 2_000)]
    assert (pause_seconds(0, "3"), pause_seconds(50, None), pause_seconds(0, "soon")) == (3.0, 10.0, 0.2)
    assert pause_seconds(100_000, None) == 10.0, "a server may be gone for days"


# Servers that go and come

EVENT = json.loads(event("retry", "1.00", "2026-02-05T00:00:00Z"))
PATIENT = {"retry_seconds": 90.0}


@pytest.fixture
def open_home(tmp_path: Path) -> Home:
    """A home whose server needs no token, with an invoice of emma and an open month of ann."""
    home = new_home(tmp_path / "home", '[billing]\nout_of_orderness = "0s"\n')
    bill(home, event("emma", "3.00", "2026-01-10T00:00:00Z"))
    bill(home, event("ann", "1.00", "2026-02-01T00:00:00Z"))
    return home


def reader_of(home: Home, path: Path) -> Home:
    """Another home over the same log and ledger, with a replica of its own."""
    path.mkdir()
    (path / "opentab.toml").write_text(f'[ledger]\nuri = "{home.ledger}"\n[log]\nuri = "{home.log_path}"\n')
    return config.load(path)


def while_down(
    ask: Callable[[], Any], *, failed: threading.Event, back: Callable[[], AbstractContextManager[str]]
) -> Any:
    """What a call that met a server that is down answers once the server is back."""
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(ask()))
    asking.start()
    assert failed.wait(60), "the server was not asked, or did not fail"
    with back():
        asking.join(60)
    assert answers, "it gave up"
    return answers[0]


class Failures(httpx.HTTPTransport):
    """The real network; says when a server did not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = threading.Event()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return super().handle_request(request)
        except httpx.TransportError:
            self.seen.set()
            raise


def test_calls_outlast_a_restart_of_the_server(open_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    tab = Client(f"http://127.0.0.1:{port}", **PATIENT)
    with serving(open_home, workers=1, port=port):
        assert tab.ingest([EVENT]).accepted == 1
    asks: list[tuple[Callable[[], object], object]] = [
        (lambda: tab.ingest([EVENT]).accepted, 1),
        (lambda: tab.customer("ann").customer, "ann"),
    ]
    for ask, wanted in asks:
        network = Failures()
        monkeypatch.setattr(tab, "_http", httpx.Client(transport=network))
        restarted = partial(serving, open_home, workers=1, port=port)
        assert while_down(ask, failed=network.seen, back=restarted) == wanted
    tab.close()


def test_an_event_without_an_id_counts_once_although_it_is_sent_twice(
    open_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LosesAnAnswer(httpx.HTTPTransport):
        asked = 0

        def handle_request(self, request: httpx.Request) -> httpx.Response:
            answer = super().handle_request(request)
            self.asked += 1
            if self.asked == 1:
                raise httpx.ReadError("the connection broke before the answer came")
            return answer

    with serving(open_home, workers=1) as base, Client(base) as tab:
        network = LosesAnAnswer()
        monkeypatch.setattr(tab, "_http", httpx.Client(transport=network))
        assert tab.ingest([EVENT, EVENT, {**EVENT, "id": ""}, {**EVENT, "id": "own"}]).accepted == 4
        assert network.asked == 2
        bill_waiting(open_home)
        wait_for(lambda: there_is(tab, "retry"), "it was folded")
        found = tab.customer("retry").current
        assert found is not None
        assert (found.total, found.events) == ("4.000000", 4)
        assert tab.receipt("own").state == "counted"


def test_the_next_server_is_asked_where_one_is_gone(open_home: Home, tmp_path: Path) -> None:
    other = reader_of(open_home, tmp_path / "other")
    with serving(other, workers=1) as second:
        with serving(open_home, workers=1) as first:
            tab = Client(first, second, **PATIENT)
            wait_for(lambda: there_is(tab, "ann"), "the replica was there")
            stream = tab.live(customer="ann")
            assert next(stream).totals[0].total == "1.000000"
            assert Client([first, second]).customer("ann").customer == "ann"
        assert tab.customer("ann").customer == "ann"
        assert tab.ingest([EVENT]).accepted == 1
        bill(open_home, event("ann", "2.00", "2026-02-06T00:00:00Z"))
        assert next(stream).totals[0].total == "3.000000"
        stream.close()
        tab.close()

        async def play() -> str:
            async with AsyncClient(first, second, **PATIENT) as tab:
                return (await tab.customer("ann")).customer

        assert asyncio.run(play()) == "ann"


def test_the_next_server_is_asked_where_one_is_too_stale(open_home: Home, tmp_path: Path) -> None:
    limit = timedelta(seconds=15)
    left = new_home(tmp_path / "left", '[billing]\nout_of_orderness = "0s"\n')
    bill(left, event("ann", "9.00", "2026-02-01T00:00:00Z"))  # nothing has been billed there since
    with serving(left, workers=1) as first, serving(open_home, workers=1) as second:
        with Client(first) as tab:
            wait_for(lambda: there_is(tab, "ann"), "the replica was there")
            wait_for(lambda: (tab.customer("ann").staleness_ms or 0) > 15_000, "it was stale")
        bill(open_home, event("ann", "2.00", "2026-02-06T00:00:00Z"))
        with Client(first, second, staleness_max=limit, **PATIENT) as tab:
            found = tab.customer("ann").current
            assert found is not None
            assert found.total == "3.000000"
        with Client(first, second, staleness_max=limit, **PATIENT) as tab:
            bill(open_home, event("ann", "2.00", "2026-02-06T00:00:00Z"))
            assert next(tab.live(customer="ann")).totals[0].total in ("3.000000", "5.000000")
        with Client(first, staleness_max=15, retry_seconds=0) as tab, pytest.raises(Unavailable, match="older"):
            tab.customer("ann")


def test_a_stream_never_goes_back_to_an_older_state() -> None:
    def take(position: int) -> int | None:
        fresh = {"position": position, "invoices_position": 1, "watermark": None, "as_of": None, "staleness_ms": 1}
        lines = ["event: totals", f"data: {json.dumps({'types': [], **fresh})}", ""]
        found = [message for line in lines if (message := stream.take(line)) is not None]
        return found[0].position if found else None

    stream = Stream(LiveTypes, {"types": ""}, Servers(["http://a", "http://b"]), Policy(10.0, 10.0, None))
    assert take(8) == 8
    stream.ended()
    request = stream.request()
    assert (request["url"], request["headers"]) == ("http://b/v1/stream", {"last-event-id": "8"})
    assert [take(7), take(8), take(9)] == [None, 8, 9]


def test_no_server_at_all_is_said_in_one_sentence() -> None:
    port = free_port()
    with Client(f"http://127.0.0.1:{port}", retry_seconds=0) as tab, pytest.raises(Unreachable) as refused:
        tab.customer("ann")
    assert str(refused.value).startswith(f"http://127.0.0.1:{port} did not answer: ")
    for wrong in ("127.0.0.1:8080", []):
        with pytest.raises(ValueError, match="http://"):
            Client(wrong)


# The document

LIVE = 'tab.live(customer="emma")'  # has no end: one message is enough


def test_the_snippets_of_the_document_run(open_home: Home) -> None:
    emma = json.loads(event("emma", "1.00", "2026-02-01T12:00:00Z"))
    bill(open_home, json.dumps({**emma, "id": "01J9"}))
    text = (Path(__file__).parents[2] / "docs" / "http.md").read_text(encoding="utf-8")
    snippets = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(snippets) >= 8
    assert sum("tab.live(" in snippet for snippet in snippets) == text.count(LIVE) == 1, "it would never end"
    names: dict[str, Any] = {"TOKEN": "any", "events": [emma], "islice": islice}
    with serving(open_home, workers=1) as base, billed_at_once(open_home):
        with Client(base) as tab:
            wait_for(lambda: there_is(tab, "emma"), "the replica was there")
        for snippet in snippets:
            code = re.sub(r"http://[\d.]+:8080", base, snippet).replace("staleness_max=10)", "staleness_max=1000)")
            exec(code.replace(LIVE, f"islice({LIVE}, 1)"), names)
    assert names["done"].committed is True


@contextmanager
def billed_at_once(home: Home) -> Iterator[None]:
    """What comes is billed, as by a pipeline."""
    with repeated(lambda: bill_waiting(home), every_seconds=0.1):
        yield
