"""The typed client, against a real server: reads, ingest with retries, live streams that go on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from ledgers import bill, bill_waiting, new_home
from opentab.client import AsyncClient, Client, ClientError, NotAllowed, NotThere, Unavailable
from opentab.client.requests import Messages, batches, pause_seconds
from opentab.runtime.config import Home
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
