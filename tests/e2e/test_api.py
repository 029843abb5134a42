"""What the API promises: one shape for each answer, forms of an invoice, limits, and old months from the ledger."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
import threading
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import positive_data_acceptance

from apps import App, app_of, catch_up
from ledgers import bill, new_home
from opentab.ledger import balances
from opentab.ledger.journal import Journal
from opentab.replica.follower import is_whole
from opentab.runtime import config
from opentab.runtime.config import Home
from opentab.server import queries
from opentab.server.limits import HEADER_BYTES_MAX, PATH_BYTES_MAX, InTime
from opentab.server.tokens import Role, issue, read_key
from processes import serving, wait_for
from product import event, json_lines, opentab

SETTINGS = '[billing]\nout_of_orderness = "0s"\nallowed_lateness = "1d"\n'


def january_to_may(path: Path, more: str = "") -> Home:
    """Five months: the first three final, a late event, an adjustment, the last one open."""
    home = new_home(path, SETTINGS + more)
    bill(home, event("ann", "5.005", "2026-01-10T00:00:00Z"), event("c/3", "1.00", "2026-01-11T00:00:00Z", "DATA"))
    bill(home, event("ann", "2.00", "2026-02-01T12:00:00Z", "DATA"))
    bill(home, event("ann", "1.00", "2026-01-12T00:00:00Z"), revise=True)
    bill(home, event("ann", "4.00", "2026-03-05T00:00:00Z"), event("bob", "7.00", "2026-03-05T00:00:00Z"))
    bill(home, event("ann", "0.50", "2026-01-20T00:00:00Z", "MISC"))  # beyond: an adjustment of March
    bill(home, event("ann", "1.00", "2026-04-10T00:00:00Z"))
    bill(home, event("ann", "1.00", "2026-05-10T00:00:00Z"))
    return home


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return january_to_may(tmp_path_factory.mktemp("api") / "home")


@pytest.fixture(scope="module")
def app(home: Home) -> Iterator[App]:
    with app_of(home) as app:
        yield app


READS = [
    "/v1/customers/ann",
    "/v1/customers/c%2F3",
    "/v1/customers?period=2026-01",
    "/v1/customers?period=2026-03&order=-total",
    "/v1/customers?period=2026-03&prefix=b",
    "/v1/customers?period=2026-01&after=ann",
    "/v1/customers/ann/periods/2026-01",
    "/v1/customers/ann/periods/2026-03",
    "/v1/customers/ann/periods/2026-05",
    "/v1/customers/ann/usage?group=day,type",
    "/v1/customers/ann/invoices",
    "/v1/invoices/2026-01/ann",
    "/v1/invoices/2026-01/ann/2",
    "/v1/invoices/2026-03/bob",
    "/v1/types",
    "/v1/types?period=2026-01",
    "/v1/types/MISC?from=2026-01-01&to=2026-03-31&group=day",
    "/v1/periods",
    "/v1/periods/2026-02",
]
MOVING = {"staleness_ms", "source"}


def still(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name not in MOVING}


# Old months


def test_months_that_are_left_to_the_ledger_are_answered_alike(home: Home, app: App, tmp_path: Path) -> None:
    (tmp_path / "cold").mkdir()
    (tmp_path / "cold" / "opentab.toml").write_text(
        f'{SETTINGS}[ledger]\nuri = "{home.ledger}"\n[log]\nuri = "{home.log_path}"\n[server]\nhot_periods = 0\n'
    )
    with app_of(config.load(tmp_path / "cold")) as cold:
        sources = {}
        for path in READS:
            if path == "/v1/customers/ann":
                continue  # shows the last closed months that are hot
            hot_answer, cold_answer = app.get(path).json(), cold.get(path).json()
            assert still(cold_answer) == still(hot_answer), path
            sources[path] = (hot_answer["source"], cold_answer["source"])
        assert sources["/v1/customers/ann/periods/2026-01"] == ("replica", "ledger")
        assert sources["/v1/customers/ann/periods/2026-05"] == ("replica", "replica")
        assert sources["/v1/invoices/2026-01/ann/2"] == ("replica", "ledger")
        assert sources["/v1/customers?period=2026-01"] == ("replica", "ledger")
        glance = cold.get("/v1/customers/ann").json()
        assert ([t["period"] for t in glance["closed"]], glance["current"]["period"]) == ([], "2026-05")
        assert cold.get("/v1/customers/bob").json()["closed"][0]["total"] == "7.000000", "nothing of bob is hot"


def test_a_replica_from_the_balances_knows_how_many_customers_old_months_had(tmp_path: Path) -> None:
    home = january_to_may(tmp_path / "home", "[server]\nhot_periods = 0\n")
    journal = Journal.open(home.ledger, home.identity)
    assert journal is not None
    balances.write_snapshot(journal, home.calendar)
    with app_of(home) as app:
        periods = app.get("/v1/periods").json()["items"]
        assert [p["customers"] for p in periods] == [2, 1, 2, 1, 1]
        assert app.get("/v1/customers/ann/periods/2026-01").json()["source"] == "ledger"
    assert is_whole(home.replica_path)


def test_a_replica_lets_go_of_months_as_they_become_final(tmp_path: Path) -> None:
    home = january_to_may(tmp_path / "home", "[server]\nhot_periods = 1\n")
    catch_up(home)
    bill(home, event("ann", "1.00", "2026-06-10T00:00:00Z"))
    with app_of(home) as app:
        assert app.get("/v1/customers/ann/periods/2026-03").json()["source"] == "ledger"
        april = app.get("/v1/customers/ann/periods/2026-04").json()
        assert (april["source"], april["status"], april["total"]) == ("ledger", "final", "1.000000")
        may = app.get("/v1/customers/ann/periods/2026-05").json()
        assert (may["source"], may["status"]) == ("replica", "final")
    kept = home.path / "opentab.toml"
    kept.write_text(kept.read_text().replace("hot_periods = 1", 'hot_periods = "all"'))
    with app_of(config.load(home.path)) as app:
        assert app.get("/v1/customers/ann/periods/2026-01").json()["source"] == "replica", "it is made anew"


def test_a_type_that_comes_later_widens_what_is_there(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS + 'types = ["CALL"]\n')
    bill(home, event("ann", "1.00", "2026-01-10T00:00:00Z"), event("bob", "3.00", "2026-01-10T00:00:00Z"))
    catch_up(home)
    (home.path / "opentab.toml").write_text(SETTINGS + 'types = ["CALL", "FAX"]\n')
    home = config.load(home.path)
    bill(home, event("ann", "2.00", "2026-01-11T00:00:00Z", "FAX"))
    with app_of(home) as app:
        assert app.get("/v1/customers/ann").json()["current"]["types"] == {"CALL": "1.000000", "FAX": "2.000000"}
        assert app.get("/v1/customers/bob").json()["current"]["types"] == {"CALL": "3.000000"}


# Shapes


def test_periods_have_the_shape_that_the_terminal_prints(home: Home, app: App) -> None:
    printed = json_lines(opentab("periods", "--format", "json", home=home).stdout)
    answered = app.get("/v1/periods").json()["items"]
    places = {(row.pop("position"), row.pop("watermark")) for row in printed}
    assert [{name: row[name] for name in printed[0]} for row in answered] == printed
    assert places == {(7, "2026-05-10T00:00:00.000Z")}
    january, may = answered[0], answered[-1]
    assert (january["customers"], january["invoices"], january["revisions"]) == (2, 2, 1)
    assert [p["complete"] for p in january["partitions"]] == [True]
    assert [(p["partition"], p["complete"], p["complete_upto"]) for p in may["partitions"]] == [
        ("default", False, "2026-05-10T00:00:00.000Z")
    ]


FRESH = "position invoices_position watermark as_of staleness_ms"
TOTAL = "period customer status total types adjustments events position watermark last_event"
INVOICE = "period customer revision currency total previous_total delta lines position issued_at"
PERIOD = (
    "period status start end total customers events last_event invoices revisions invoiced closed_at closed_position "
    "revised_at adjusted adjusted_events missing partitions"
)
ORDER = [
    ("/v1/customers/ann", "", f"customer current_period current open closed source {FRESH}"),
    ("/v1/customers/ann", "current", TOTAL),
    ("/v1/customers/ann", "closed", TOTAL),
    ("/v1/customers?period=2026-01", "", f"period items source {FRESH}"),
    ("/v1/customers?period=2026-01", "items", "customer total events last_event"),
    ("/v1/customers/ann/periods/2026-03", "", f"{TOTAL} source invoices_position as_of staleness_ms"),
    ("/v1/customers/ann/periods/2026-03", "adjustments", "period type amount events"),
    ("/v1/customers/ann/usage?group=day,type", "", f"customer from to items source {FRESH}"),
    ("/v1/customers/ann/usage?group=day,type", "items", "day type total events"),
    ("/v1/customers/ann/usage", "items", "total events"),
    ("/v1/types?from=2026-01-01&group=day", "", f"from to items source {FRESH}"),
    ("/v1/types?from=2026-01-01&group=day", "items", "day type total events"),
    ("/v1/types", "", f"items source {FRESH}"),
    ("/v1/types", "items", "period type total events"),
    ("/v1/customers/ann/invoices", "", f"items source {FRESH}"),
    ("/v1/customers/ann/invoices", "items", INVOICE),
    ("/v1/invoices/2026-03/ann/1", "", f"{INVOICE} source invoices_position watermark as_of staleness_ms"),
    ("/v1/invoices/2026-03/ann/1", "lines", "kind type amount events"),
    ("/v1/periods", "items", PERIOD),
    ("/v1/periods/2026-02", "", f"{PERIOD} source {FRESH}"),
]


@pytest.mark.parametrize(("path", "part", "keys"), ORDER)
def test_keys_stand_in_the_order_that_they_always_had(app: App, path: str, part: str, keys: str) -> None:
    answer = app.get(path).json()
    found = answer[part] if part else answer
    assert " ".join(found[0] if isinstance(found, list) else found) == keys


def test_types_over_any_range_of_days(app: App) -> None:
    def ask(query: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = app.get(f"/v1/types{query}").json()["items"]
        return items

    assert ask("?from=2026-01-11&to=2026-02-01") == [
        {"type": "CALL", "total": "1.000000", "events": 1},
        {"type": "DATA", "total": "3.000000", "events": 2},
        {"type": "MISC", "total": "0.500000", "events": 1},
    ]
    assert ask("/DATA?group=day") == [
        {"day": "2026-01-11", "type": "DATA", "total": "1.000000", "events": 1},
        {"day": "2026-02-01", "type": "DATA", "total": "2.000000", "events": 1},
    ]
    assert app.get("/v1/types/DATA?from=2026-03-01").status_code == 404
    assert ask("?from=2026-01-11&period=2026-01&group=day")[0]["day"] == "2026-01-11"


# Forms


def test_invoices_as_csv(app: App) -> None:
    for ask in ({"headers": {"accept": "text/csv"}}, {"params": {"format": "csv"}}):
        answer = app.get("/v1/invoices/2026-01/ann", **ask)
        assert answer.headers["content-type"] == "text/csv; charset=utf-8"
        rows = list(csv.DictReader(io.StringIO(answer.text)))
        assert [(r["revision"], r["total"], r["delta"], r["type"], r["amount"]) for r in rows] == [
            ("1", "5.00", "5.00", "CALL", "5.005000"),
            ("2", "6.00", "1.00", "CALL", "6.005000"),
        ]
    march = csv.DictReader(io.StringIO(app.get("/v1/invoices/2026-03/ann/1?format=csv").text))
    assert [(r["kind"], r["line_period"]) for r in march] == [("usage", "2026-03"), ("adjustment", "2026-01")]


def test_invoices_as_a_page_to_print(app: App) -> None:
    answer = app.get("/v1/invoices/2026-01/ann", headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "unsafe" not in answer.headers["content-security-policy"]
    text = re.sub(r"<[^>]+>", " ", answer.text)
    assert "Revision 1 was 5.00 EUR; the difference is 1.00." in text
    assert re.search(r"What changed.*CALL\s+1\s+1\.000000", text, re.DOTALL)


def test_names_are_text_on_a_page(tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>"
    home = new_home(tmp_path / "home", SETTINGS)
    bill(home, event(name, "1.00", "2026-01-10T00:00:00Z"))
    bill(home, event("z", "1.00", "2026-02-10T00:00:00Z"))
    with app_of(home) as app:
        page = app.get("/v1/invoices/2026-01/%3Cimg%20src=x%20onerror=alert(1)%3E?format=html").text
    assert "<img" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page


def test_forms_that_do_not_exist(app: App) -> None:
    assert app.get("/v1/invoices/2026-01/ann", headers={"accept": "image/png"}).status_code == 406
    assert app.get("/v1/invoices/2026-01/ann?format=pdf").status_code == 422
    assert app.get("/v1/invoices/2026-01/ann", headers={"accept": "application/json;q=x, text/*"}).status_code == 200


# Limits


def test_requests_that_are_too_large(app: App) -> None:
    assert app.get("/v1/periods", headers={"x-much": "y" * HEADER_BYTES_MAX}).status_code == 431
    assert app.get("/v1/customers/" + "y" * PATH_BYTES_MAX).status_code == 414
    assert app.get("/v1/customers/" + "y" * 600).status_code == 404


def test_requests_that_take_too_long() -> None:
    async def slow(scope: dict[str, Any], receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        await asyncio.Event().wait()

    async def ask(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if not messages:
                await asyncio.Event().wait()
            return messages.pop()

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/v1/events", "headers": []}
        await InTime(slow, seconds_max=0.05)(scope, receive, send)
        return sent

    body = {"type": "http.request", "body": b"", "more_body": False}
    assert asyncio.run(ask([{**body, "more_body": True}]))[0]["status"] == 408
    assert asyncio.run(ask([body]))[0]["status"] == 503


# The whole document


@pytest.fixture(scope="module")
def open_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The document of a real server over a home of its own, which may be written to."""
    home = january_to_may(tmp_path_factory.mktemp("schema") / "home")
    with serving(home, workers=1) as url:
        wait_for(lambda: httpx.get(f"{url}/v1/periods").status_code == 200, "the replica was there")
        yield schemathesis.openapi.from_url(f"{url}/openapi.json")


def test_every_answer_is_what_the_document_says(open_api: Any) -> None:
    """Values that the document allows and values that it does not, for every endpoint but the endless one."""
    tried = set()
    for found in open_api.exclude(path="/v1/stream").get_all_operations():
        operation = found.ok()
        tried.add(operation.label)
        for mode in GenerationMode:

            @given(operation.as_strategy(generation_mode=mode))
            @settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
            def check(case: Any) -> None:
                if isinstance((case.query or {}).get("min_position"), int):
                    case.query["min_position"] %= 8  # a later one is waited for
                if (case.query or {}).get("any_month"):  # no document can say that it goes without these
                    case.query = {k: v for k, v in case.query.items() if k not in ("period", "after", "order")}
                if waits_in_vain(case.query or {}):
                    case.query["timeout"] = 0
                answer = case.call()
                excluded = []
                if answer.status_code == 503 and "retry-after" in answer.headers:
                    # Not ready, or older than asked for: that is an answer, and says when to come back.
                    excluded.append(not_a_server_error)
                if holds_float(case.body):
                    # 1.0 is an integer to JSON Schema, but no plain decimal and no whole milliseconds to us.
                    excluded.append(positive_data_acceptance)
                case.validate_response(answer, excluded_checks=excluded)

            try:
                check()
            except Unsatisfiable:
                assert mode is GenerationMode.NEGATIVE, "nothing about it can be wrong"
    assert len(tried) >= 15, sorted(tried)


def waits_in_vain(query: dict[str, Any]) -> bool:
    """Whether a request is allowed to wait for a pipeline that does not run here."""
    timeout = query.get("timeout", 10)
    return query.get("wait") == "committed" and isinstance(timeout, int | float) and 0 <= timeout <= 25


def holds_float(value: Any) -> bool:
    """Whether a body has a float where a time or an amount stands."""
    fields = (
        {**value, **(value["data"] if isinstance(value.get("data"), dict) else {})} if isinstance(value, dict) else {}
    )
    return any(isinstance(fields.get(name), float) for name in ("time", "amount"))


def test_the_document_has_examples(app: App) -> None:
    document = app.get("/openapi.json").json()
    assert "emma" in json.dumps(document["paths"]["/v1/customers/{customer}"])
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["description"], (method, path)
            assert {"200", "202", "204"} & operation["responses"].keys(), (method, path)


@given(
    st.one_of(
        st.binary(max_size=300),
        st.text(max_size=200).map(str.encode),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
            lambda inner: (
                st.lists(inner, max_size=5)
                | st.dictionaries(
                    st.sampled_from(
                        ["time", "customer", "type", "amount", "id", "currency", "data", "specversion", "x"]
                    ),
                    inner,
                    max_size=6,
                )
            ),
            max_leaves=20,
        ).map(lambda value: json.dumps(value).encode()),
    ),
    st.sampled_from(
        ["application/json", "application/cloudevents+json", "application/cloudevents-batch+json", "text/plain", ""]
    ),
)
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_body_of_events_is_ever_a_fault_of_ours(app: App, body: bytes, media: str) -> None:
    answer = app.request("POST", "/v1/events", content=body, headers={"content-type": media})
    assert answer.status_code in (202, 400, 413, 415, 422), answer.text


def test_reads_of_the_ledger_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty that hang are more than the framework has threads; whoever asks for anything else is answered."""
    home = new_home(tmp_path / "home", '[server]\nkey_file = "key"\nrequest_timeout = "2s"\n')
    opentab("token", "key", home=home)
    bill(home, event("ann"))
    goes_on, running = threading.Event(), []

    def hangs(*args: Any, **options: Any) -> list[dict[str, object]]:
        running.append(1)
        assert goes_on.wait(60)
        return []

    monkeypatch.setattr(queries, "usage", hangs)
    usage, read = "/v1/customers/ann/usage", "/v1/customers/ann?min_position=0"
    key = read_key(home)
    assert key is not None

    async def ask(app: App) -> None:
        async with app.client() as client:

            async def get(path: str, holder: dict[str, str]) -> tuple[int, str | None]:
                answer = await client.get(path, headers=holder)
                return answer.status_code, answer.headers.get("retry-after")

            holders = [
                {"authorization": f"Bearer {issue(key, Role.READER, customer=None, lifetime=timedelta(days=1))}"}
                for _ in range(9)
            ]
            one, other, *others = holders
            many = [asyncio.create_task(get(usage, one)) for _ in range(60)]
            refused = [await first for first in islice(asyncio.as_completed(many), 52)]
            assert refused == [(429, "2")] * 52
            assert [await get(path, one) for path in ("/healthz", read)] == [(200, None)] * 2
            freed = [answer for answer in await asyncio.gather(*many) if answer != (429, "2")]
            assert freed == [(503, "5")] * 8, "a time-out frees whoever asked"
            too_many = [await get(usage, one), *await asyncio.gather(*(get(usage, b) for b in others * 3))]
            assert too_many.count((429, "2")) == 1, "they still run"
            assert too_many.count((503, "2")) == 5, "so many wait for all together"
            assert [await get(path, other) for path in ("/healthz", read)] == [(200, None)] * 2
            assert len(running) == 2
            goes_on.set()
            while (answer := await get(usage, other)) == (503, "2"):
                await asyncio.sleep(0.01)
            assert answer == (200, None)

    with app_of(home) as app:
        try:
            asyncio.run(ask(app))
        finally:
            goes_on.set()
