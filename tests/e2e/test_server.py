"""Live answers over HTTP, from a real server in processes of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psutil
import pytest

from ledgers import bill, bill_waiting, new_home
from opentab.runtime.config import Home
from processes import free_port, serving
from product import event, json_lines, opentab

SETTINGS = '[billing]\nout_of_orderness = "0s"\n'
ODD = ["c/3", "100%", "a%2Fb", "emoji 🧾", "dots..", "q?x=1#y", "spa ce", "ü"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = new_home(tmp_path_factory.mktemp("served") / "home", SETTINGS)
    bill(home, event("ann", "5.005", "2026-01-10T00:00:00Z"), *(event(c, "1.00", "2026-01-11T00:00:00Z") for c in ODD))
    bill(home, event("ann", "2.00", "2026-02-01T12:00:00Z", "DATA"))
    bill(home, event("ann", "1.00", "2026-01-12T00:00:00Z"), "not json \x1b", event(type="FAX"), revise=True)
    return home


@pytest.fixture(scope="module")
def url(home: Home) -> Iterator[str]:
    with serving(home) as base:
        wait_until(lambda: position(base) == 3)
        yield base


def position(base: str) -> int:
    try:
        return int(httpx.get(f"{base}/v1/periods", timeout=5).json().get("position", 0))
    except httpx.HTTPError:
        return 0


def wait_until(what: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_totals_have_the_shape_that_the_terminal_prints(url: str, home: Home) -> None:
    printed = json_lines(opentab("totals", "--format", "json", home=home).stdout)
    for total in printed:
        path = f"/v1/customers/{quote(str(total['customer']), safe='')}/periods/{total['period']}"
        answer = httpx.get(url + path).json()
        assert {name: answer[name] for name in total} == total
        assert answer["invoices_position"] == 3


def test_a_customer_at_a_glance(url: str) -> None:
    answer = httpx.get(f"{url}/v1/customers/ann").json()
    assert answer["current"]["period"] == "2026-02"
    assert answer["current"]["total"] == "2.000000"
    assert [t["total"] for t in answer["closed"]] == ["6.005000"]


@pytest.mark.parametrize("customer", ODD)
def test_customers_with_odd_names_work_in_every_url(url: str, customer: str) -> None:
    name = quote(customer, safe="")
    assert httpx.get(f"{url}/v1/customers/{name}").json()["customer"] == customer
    assert httpx.get(f"{url}/v1/customers/{name}/periods/2026-01").json()["customer"] == customer
    assert httpx.get(f"{url}/v1/invoices/2026-01/{name}/1").json()["customer"] == customer


def test_invoices_are_those_of_the_terminal(url: str, home: Home) -> None:
    printed = json_lines(
        opentab("invoices", "--all-revisions", "--customer", "ann", "--format", "json", home=home).stdout
    )
    answer = httpx.get(f"{url}/v1/customers/ann/invoices").json()
    assert answer["items"] == printed
    assert [i["revision"] for i in httpx.get(f"{url}/v1/invoices/2026-01/ann").json()["items"]] == [1, 2]
    assert httpx.get(f"{url}/v1/invoices/2026-01/ann/3").status_code == 404


def test_usage_over_any_range_of_days(url: str) -> None:
    def ask(**params: str) -> list[dict[str, Any]]:
        answer = httpx.get(f"{url}/v1/customers/ann/usage", params=params).json()
        assert (answer["source"], answer["customer"]) == ("ledger", "ann")
        return answer["items"]

    assert ask() == [{"total": "8.005000", "events": 3}]
    assert ask(**{"from": "2026-01-11", "to": "2026-01-31"}) == [{"total": "1.000000", "events": 1}]
    assert ask(group="day,type", to="2026-01-10") == [
        {"day": "2026-01-10", "type": "CALL", "total": "5.005000", "events": 1}
    ]
    assert [row["type"] for row in ask(group="type")] == ["CALL", "DATA"]
    for wrong in ({"from": "yesterday"}, {"group": "hour"}):
        assert httpx.get(f"{url}/v1/customers/ann/usage", params=wrong).status_code == 422


def test_types_and_periods(url: str) -> None:
    types = httpx.get(f"{url}/v1/types", params={"period": "2026-01"}).json()["items"]
    assert [(t["type"], t["total"]) for t in types] == [("CALL", "14.005000")]
    assert httpx.get(f"{url}/v1/types/DATA").json()["items"][0]["period"] == "2026-02"
    january = httpx.get(f"{url}/v1/periods/2026-01").json()
    assert (january["status"], january["total"], january["missing"]["for"]) == ("closed", "14.005000", "final")


def test_customers_are_listed_by_name_in_pages(url: str) -> None:
    first = httpx.get(f"{url}/v1/customers", params={"period": "2026-01", "limit": 4}).json()["items"]
    second = httpx.get(
        f"{url}/v1/customers", params={"period": "2026-01", "limit": 100, "after": first[-1]["customer"]}
    ).json()["items"]
    names = [c["customer"] for c in (*first, *second)]
    assert names == sorted([*ODD, "ann"], key=str.encode)
    found = httpx.get(f"{url}/v1/customers", params={"period": "2026-01", "prefix": "a"}).json()["items"]
    assert [c["customer"] for c in found] == ["a%2Fb", "ann"]
    top = httpx.get(f"{url}/v1/customers", params={"period": "2026-01", "order": "-total", "limit": 2}).json()["items"]
    assert [(c["customer"], c["total"]) for c in top] == [("ann", "6.005000"), ("100%", "1.000000")]


def test_an_answer_says_how_fresh_it_is_and_is_not_sent_twice(url: str) -> None:
    answer = httpx.get(f"{url}/v1/periods")
    assert answer.headers["opentab-position"] == "3"
    assert answer.json()["as_of"] is not None
    again = httpx.get(f"{url}/v1/periods", headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_the_last_batches_and_what_they_took(url: str) -> None:
    batches = httpx.get(f"{url}/v1/batches").json()["items"]
    assert [one["batch"] for one in batches[:3]] == [1, 2, 3]
    third = batches[2]
    assert (third["events"], third["late_events"], third["rejections"]) == (1, 1, 2)
    assert {"waiting", "tasks", "committing"} <= third["steps_ms"].keys()
    assert (third["files"], third["input_bytes"] > 0, third["watermark"]) == (2, True, "2026-02-01T12:00:00.000Z")
    assert [one["batch"] for one in httpx.get(f"{url}/v1/batches?limit=1").json()["items"]] == [position(url)]
    assert httpx.get(f"{url}/v1/batches?limit=0").status_code == 422


def test_rejections_by_reason_with_the_newest_of_them(url: str) -> None:
    answer = httpx.get(f"{url}/v1/rejections").json()
    assert (answer["source"], answer["counts"]) == ("ledger", {"not_json": 1, "unknown_type": 1})
    assert [(one["reason"], one["batch"]) for one in answer["items"]] == [("unknown_type", 3), ("not_json", 3)]
    (only,) = httpx.get(f"{url}/v1/rejections", params={"reason": "not_json", "limit": 1}).json()["items"]
    assert (only["raw"], only["bytes"], only["place"].partition("/")[0]) == ("not json \x1b", 10, "default")
    assert httpx.get(f"{url}/v1/rejections", params={"reason": "ugly"}).status_code == 422


def test_an_overview_is_all_of_one_position(url: str) -> None:
    answer = httpx.get(f"{url}/v1/overview").json()
    assert (answer["current_period"], answer["batch"]["batch"]) == ("2026-02", answer["position"])
    assert [one["period"] for one in answer["periods"]] == ["2026-01", "2026-02"]
    assert [(t["type"], t["total"]) for t in answer["types"] if t["period"] == "2026-01"] == [("CALL", "14.005000")]
    assert answer["top"][0]["customer"] == "ann"
    assert (answer["late_events"], answer["rejections"]) == (1, {"not_json": 1, "unknown_type": 1})
    assert (answer["pipeline"], answer["trouble"]) == (None, None)


def test_no_token_is_needed_here_and_the_page_is_told_so(url: str) -> None:
    told = httpx.get(f"{url}/session").json()
    types = ["MESSAGE", "DATA", "CALL", "PACK", "MISC"]
    assert told == {
        "tokens": False, "role": None, "customer": None, "currency": "EUR", "zone": "UTC", "types": types
    }  # fmt: skip
    assert httpx.post(f"{url}/session", json={"token": "a"}).status_code == 404
    assert httpx.get(url).headers["content-type"] == "text/html; charset=utf-8"


def test_the_pipeline_is_down_and_that_is_said(url: str) -> None:
    ready = httpx.get(f"{url}/readyz")
    assert ready.status_code in (200, 503)
    assert httpx.get(f"{url}/healthz").json() == {"status": "alive"}


def test_metrics_tell_operators(url: str) -> None:
    httpx.get(f"{url}/v1/customers/nobody%20there")
    text = httpx.get(f"{url}/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    assert float(values["opentab_replica_position"]) >= 3
    assert float(values["opentab_events_total"]) >= 11
    assert "opentab_watermark_lag_seconds" in values
    counted = [name for name in values if name.startswith("opentab_request_seconds_count")]
    assert any('route="/v1/customers/{customer}",status="404"' in name for name in counted), counted


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/customers/nobody", 404),
        ("/v1/customers/ann/periods/January", 422),
        ("/v1/customers?limit=0", 422),
        ("/v1/nothing", 404),
    ],
)
def test_errors_have_one_shape(url: str, path: str, status: int) -> None:
    answer = httpx.get(url + path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert {"type", "title", "status", "detail"} <= answer.json().keys()


def test_a_new_batch_is_visible_within_a_second(url: str, home: Home) -> None:
    bill(home, event("zoe", "3.00", "2026-02-02T00:00:00Z"))
    began = time.monotonic()
    wait_until(lambda: httpx.get(f"{url}/v1/customers/zoe").status_code == 200, seconds=10)
    assert time.monotonic() - began < 5


def test_events_over_http_are_durable_and_judged(url: str, home: Home) -> None:
    good = json.loads(event("http", "1.50", "2026-02-03T00:00:00Z"))
    answer = httpx.post(f"{url}/v1/events", json=[good, {**good, "type": "FAX"}, {**good, "amount": 2}])
    assert answer.status_code == 202
    assert [r.get("reason") for r in answer.json()["results"]] == [None, "unknown_type", None]
    pretty = json.dumps({**good, "amount": "0.25"}, indent=2)
    headers = {"content-type": "application/json"}
    assert httpx.post(f"{url}/v1/events", content=pretty, headers=headers).json()["accepted"] == 1
    cloud = {
        "specversion": "1.0", "id": "a", "source": "s", "type": "usage", "subject": "http",
        "time": "2026-02-03T00:00:00Z", "data": {"type": "CALL", "amount": "0.25"},
    }  # fmt: skip
    headers = {"content-type": "application/cloudevents-batch+json"}
    assert httpx.post(f"{url}/v1/events", content=json.dumps([cloud]), headers=headers).json()["accepted"] == 1
    bill_waiting(home)
    wait_until(lambda: httpx.get(f"{url}/v1/customers/http").status_code == 200)
    assert httpx.get(f"{url}/v1/customers/http").json()["current"]["total"] == "4.000000"


@pytest.mark.parametrize(
    ("content", "media", "status"),
    [
        ("{}", "text/plain", 415),
        ("{}", "application/x-www-form-urlencoded", 415),
        ("[{]", "application/json", 400),
        ("[" * 50_000, "application/json", 400),
        ('{"a":' * 50_000, "application/json", 422),
        ("", "application/json", 422),
        ("[]", "application/json", 202),
        ("[1, null, []]", "application/json", 202),
        ("[" + ",".join(["{}"] * 10_001) + "]", "application/json", 413),
        ('{"a":"\xff"}'.encode("latin-1"), "application/json", 422),
        (b"\x00" * 100, "application/json", 422),
        ('{"a":"' + "x" * 70_000 + '"}', "application/json", 422),
    ],
)
def test_bad_bodies_are_refused_and_never_a_fault(url: str, content: str | bytes, media: str, status: int) -> None:
    answer = httpx.post(f"{url}/v1/events", content=content, headers={"content-type": media})
    assert answer.status_code == status, answer.text


def test_no_web_page_can_call_it_by_another_name(url: str) -> None:
    refused = httpx.get(f"{url}/v1/periods", headers={"host": "evil.example"})
    assert (refused.status_code, refused.headers["content-type"]) == (403, "application/problem+json")
    assert httpx.get(f"{url}/v1/periods", headers={"host": "localhost:1"}).status_code == 200


def test_callers_may_ask_for_a_position_or_an_age(url: str) -> None:
    at = position(url)
    assert httpx.get(f"{url}/v1/periods", params={"min_position": at}).status_code == 200
    late = httpx.get(f"{url}/v1/periods", params={"min_position": at + 1000}, timeout=20)
    assert (late.status_code, late.headers["retry-after"]) == (503, "1")
    assert httpx.get(f"{url}/v1/periods", params={"max_staleness": "0"}).status_code == 503
    assert httpx.get(f"{url}/v1/periods", params={"max_staleness": "100000"}).status_code == 200
    assert httpx.get(f"{url}/v1/periods", params={"max_staleness": "soon"}).status_code == 422


def test_a_stream_sends_a_snapshot_and_then_what_changed(url: str, home: Home) -> None:
    bill(home, event("live", "1.00", "2026-02-03T00:00:00Z"))
    wait_until(lambda: httpx.get(f"{url}/v1/customers/live").status_code == 200)
    with httpx.stream("GET", f"{url}/v1/stream", params={"customer": "live"}, timeout=30) as stream:
        messages = sse(stream)
        first = next(messages)
        assert first["totals"][0]["total"] == "1.000000"
        bill(home, event("other", "5.00", "2026-02-03T00:00:00Z"))
        bill(home, event("live", "2.00", "2026-02-03T00:00:00Z"))
        second = next(messages)
        assert second["totals"][0]["total"] == "3.000000"
        assert second["position"] == first["position"] + 2, "a batch that did not touch it is not told"
    seen = {"last-event-id": str(second["position"])}
    with httpx.stream("GET", f"{url}/v1/stream", params={"customer": "live"}, headers=seen, timeout=30) as stream:
        messages = sse(stream)
        bill(home, event("live", "4.00", "2026-02-03T00:00:00Z"))
        assert next(messages)["totals"][0]["total"] == "7.000000", "nothing is sent again that was seen"
    with httpx.stream("GET", f"{url}/v1/stream", params={"types": ""}, timeout=30) as stream:
        assert {t["type"] for t in next(sse(stream))["types"]} == {"CALL", "DATA"}
    seen = {"last-event-id": "9" * 5_000}
    with httpx.stream("GET", f"{url}/v1/stream?types", headers=seen, timeout=30) as stream:
        assert stream.status_code == 200
    assert httpx.get(f"{url}/v1/stream").status_code == 422
    assert httpx.get(f"{url}/v1/stream?types&overview").status_code == 422
    assert httpx.get(f"{url}/v1/stream", params={"customer": ["a"] * 21}).status_code == 422


def test_one_stream_for_several_customers_and_how_fresh_it_is(url: str) -> None:
    query = {"customer": ["ann", "ü"], "pulse": ""}
    with httpx.stream("GET", f"{url}/v1/stream", params=query, timeout=30) as stream:
        messages = sse(stream)
        first = next(messages)
        assert [one["customer"] for one in first["customers"]] == ["ann", "ü"]
        assert first["current_period"] == "2026-02"
        pulse = next(messages)
        assert (pulse["position"], "customers" in pulse) == (first["position"], False)
        assert next(messages)["staleness_ms"] > pulse["staleness_ms"], "it is told again though nothing happened"
    with httpx.stream("GET", f"{url}/v1/stream?overview&pulse", timeout=30) as stream:
        messages = sse(stream)
        assert next(messages)["current_period"] == "2026-02"
        assert "pipeline" in next(messages)


def test_a_stop_does_not_wait_for_streams(home: Home) -> None:
    port = free_port()
    with serving(home, workers=1, port=port) as base:
        wait_until(lambda: position(base) > 0)
        (server,) = (child for child in psutil.Process().children() if str(port) in child.cmdline())
        with httpx.stream("GET", f"{base}/v1/stream?types", timeout=30) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.terminate()
            assert [line for line in lines if line.startswith("event")] == ["event: totals"], "it ends as a whole"
            server.wait(timeout=4)


def sse(stream: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in stream.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def test_other_machines_are_refused_without_a_key(tmp_path: Path) -> None:
    refused = opentab("serve", "--host", "0.0.0.0", home=tmp_path, check=False)
    assert refused.returncode == 2
    assert "there is no key to check tokens with" in refused.stderr


def test_an_empty_home_answers_at_position_0(tmp_path: Path) -> None:
    with serving(new_home(tmp_path / "home"), workers=1) as url:
        wait_until(lambda: httpx.get(f"{url}/v1/periods").status_code == 200)
        answer = httpx.get(f"{url}/v1/periods").json()
        assert (answer["items"], answer["position"], answer["watermark"]) == ([], 0, None)
        assert httpx.get(f"{url}/v1/customers/emma").status_code == 404
