"""Live answers over HTTP, from a real server in processes of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from ledgers import bill, new_home
from opentab.config import Home
from product import OPENTAB, event, json_lines, opentab

SETTINGS = '[billing]\nout_of_orderness = "0s"\n'
ODD = ["c/3", "100%", "a%2Fb", "emoji 🧾", "dots..", "q?x=1#y", "spa ce", "ü"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = new_home(tmp_path_factory.mktemp("served") / "home", SETTINGS)
    bill(home, event("ann", "5.005", "2026-01-10T00:00:00Z"), *(event(c, "1.00", "2026-01-11T00:00:00Z") for c in ODD))
    bill(home, event("ann", "2.00", "2026-02-01T12:00:00Z", "DATA"))
    bill(home, event("ann", "1.00", "2026-01-12T00:00:00Z"), revise=True)
    return home


@pytest.fixture(scope="module")
def url(home: Home) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [*OPENTAB, "serve", "--home", str(home.path), "--port", str(port), "--workers", "2"], start_new_session=True
    )
    base = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: position(base) == 3)
        yield base
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


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


def test_an_answer_says_how_fresh_it_is_and_is_not_sent_twice(url: str) -> None:
    answer = httpx.get(f"{url}/v1/periods")
    assert answer.headers["opentab-position"] == "3"
    assert answer.json()["as_of"] is not None
    again = httpx.get(f"{url}/v1/periods", headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_the_pipeline_is_down_and_that_is_said(url: str) -> None:
    ready = httpx.get(f"{url}/readyz")
    assert ready.status_code in (200, 503)
    assert httpx.get(f"{url}/healthz").json() == {"status": "alive"}


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


def test_other_machines_are_refused_while_there_are_no_tokens(tmp_path: Path) -> None:
    refused = opentab("serve", "--host", "0.0.0.0", home=tmp_path, check=False)
    assert refused.returncode == 2
    assert "there are no tokens yet" in refused.stderr
