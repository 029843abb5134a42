"""The page in a real browser, before a real server: it ticks, says how old it is, and runs nothing but itself."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from background import repeated
from ledgers import new_home
from opentab.replica.presence import tell
from opentab.runtime.config import Home
from opentab.server.tokens import Role, issue, read_key
from opentab.sinks.delivery_status import Backlog, write_backlog
from processes import free_port, serving, wait_for
from product import OPENTAB, event, opentab
from scenes import SETTINGS, Scene

DESKTOP, PHONE = (1280, 800), (375, 740)
HOSTILE = "<img src=x onerror=alert(1)>"
RED_SECONDS_MAX = 5.0
VIEWS = {"customer": "/?customer=emma", "management": "/management", "operations": "/operations"}
# What the page's own policy forbids is told to the page; the test asks for it at the end.
WATCH = "window.violations = []; addEventListener('securitypolicyviolation', (e) => violations.push(e.blockedURI))"
TURNS_STALE = """() => new Promise((done) => {
  const look = () => document.querySelector(".stamp").dataset.state === "stale" ? done() : requestAnimationFrame(look);
  look();
})"""

expect.set_options(timeout=20_000)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    scene = Scene(new_home(tmp_path_factory.mktemp("page") / "home", SETTINGS))
    scene.play()
    with scene.beating():
        yield scene


@pytest.fixture(scope="module")
def url(scene: Scene) -> Iterator[str]:
    with serving(scene.home, workers=1) as base:
        wait_for(lambda: position(base) == scene.position, "the replica was there")
        yield base


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    assert chromium, "chromium is missing: scripts/setup installs it"
    with sync_playwright() as playwright:
        # Chromium's own sandbox needs rights that a container may not give.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens pages, and holds each to it: no dialog, no error, no other host, nothing that its policy forbids."""
    opened: list[tuple[Page, list[str], tuple[str, ...]]] = []

    def open_one(
        address: str,
        *,
        size: tuple[int, int] = DESKTOP,
        expects: tuple[str, ...] = (),
        blocked: str | None = None,
        **options: Any,
    ) -> Page:
        wrong: list[str] = []
        options = {"locale": "en-GB", "color_scheme": "light", **options}
        context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **options)
        context.add_init_script(WATCH)
        if blocked:
            context.route(blocked, lambda route: route.abort())
        page = context.new_page()
        host = urlsplit(address).netloc
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("console", lambda said: wrong.append(f"console: {said.text}") if said.type == "error" else None)
        page.on("request", lambda asked: wrong.append(asked.url) if urlsplit(asked.url).netloc != host else None)
        page.goto(address)
        opened.append((page, wrong, (*expects, *(["net::ERR_"] if blocked else []))))
        return page

    yield open_one
    for page, wrong, expects in opened:
        assert page.evaluate("violations") == []
        # A name without invoices is answered by 404, and browsers say so.
        assert [each for each in wrong if not any(part in each for part in ("status of 404", *expects))] == []
        page.context.close()


def position(base: str) -> int:
    answer = httpx.get(f"{base}/v1/overview", timeout=5)
    return int(answer.json()["position"]) if answer.status_code == 200 else 0


def api_total(base: str, customer: str) -> str:
    return str(httpx.get(f"{base}/v1/customers/{customer}").json()["current"]["total"])


def card(page: Page, customer: str) -> Any:
    return page.get_by_role("article", name=customer, exact=True)


@pytest.fixture(autouse=True)
def alive(scene: Scene) -> None:
    scene.alive = True


def expect_live(page: Page) -> None:
    expect(page.locator(".stamp").first).to_have_attribute("data-state", "fresh")


def test_totals_tick_without_a_reload_and_equal_the_api(url: str, scene: Scene, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{url}/?customer=emma&pin=noah")
    page.evaluate("window.never_reloaded = true")
    emma, noah = card(page, "emma").locator(".total"), card(page, "noah").locator(".total")
    before = api_total(url, "emma")
    expect(emma).to_have_attribute("data-total", before)
    expect(noah).to_have_attribute("data-total", api_total(url, "noah"))
    for cents in ("0.25", "1.000001"):
        scene.bill(event("emma", cents, "2026-02-19T23:00:00Z"))
        expect(emma).not_to_have_attribute("data-total", before)
        before = api_total(url, "emma")
        expect(emma).to_have_attribute("data-total", before)
    shown = page.evaluate(
        "([text]) => new Intl.NumberFormat('en-GB', {style: 'currency', currency: 'EUR', minimumFractionDigits: 6}).format(text)",
        [before],
    )
    expect(card(page, "emma").locator(".exact")).to_have_text(f"exactly {shown}")
    assert page.evaluate("window.never_reloaded")
    for stamp in page.locator(".stamp").all():
        expect(stamp).to_have_attribute("data-state", "fresh")


def test_amounts_use_the_locale_of_the_browser(url: str, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{url}/?customer=emma", locale="de-DE")
    expect(card(page, "emma").locator(".total")).to_have_text(
        rounded(api_total(url, "emma")).replace(".", ",") + "\u00a0€"
    )


def rounded(total: str) -> str:
    """As an invoice in euros rounds it."""
    return str(Decimal(total).quantize(Decimal("0.01"), ROUND_HALF_EVEN))


def test_every_number_of_the_page_is_rounded_as_on_the_invoice(
    url: str, scene: Scene, open_page: Callable[..., Page]
) -> None:
    amounts = {"up": "8.089800", "even": "8.125000", "odd": "8.135000", "whole": "8.130000", "credit": "-0.004000"}
    scene.bill(*(event(name, amount, "2026-02-19T22:00:00Z", "CALL") for name, amount in amounts.items()))
    page = open_page(url, locale="en-US")
    for name, amount in amounts.items():
        page.goto(f"{url}/?customer={name}")
        own, shown = card(page, name), f"€{rounded(amount)}" if name != "credit" else "€0.00"
        expect(own.locator(".total")).to_have_text(shown)
        expect(own.locator(".split tbody td").first).to_have_text(shown)
        exactly = f"€{amount}".replace("€-", "-€")
        expect(own.locator(".total")).to_have_attribute("title", exactly)
        expect(own.locator(".exact")).to_have_text(f"exactly {exactly}" if name != "whole" else "\u00a0")


def test_the_timestamp_is_red_soon_after_the_pipeline_died_and_green_again(
    url: str, scene: Scene, open_page: Callable[..., Page]
) -> None:
    customer, operations = open_page(f"{url}/?customer=emma"), open_page(f"{url}/operations")
    expect_live(customer)
    expect_live(operations)
    began = time.monotonic()
    scene.alive = False
    stamp = customer.locator(".stamp")
    customer.evaluate(TURNS_STALE)
    assert time.monotonic() - began < RED_SECONDS_MAX
    expect(stamp).to_contain_text("seconds ago: the pipeline is silent")
    expect(operations.get_by_role("alert")).to_contain_text("Pipeline: it gives no sign of life.")
    expect(operations.locator(".flow-node.down .flow-name")).to_have_text("Pipeline")
    assert api_total(url, "emma") in str(customer.locator(".total").get_attribute("data-total")), "it keeps its numbers"
    scene.alive = True
    expect(stamp).to_have_attribute("data-state", "fresh")
    expect(operations.get_by_role("alert")).to_be_empty()


def test_a_real_pipeline_is_killed_and_comes_back(tmp_path: Path, open_page: Callable[..., Page]) -> None:
    home = new_home(tmp_path / "home")

    def start() -> subprocess.Popen[str]:
        command = [*OPENTAB, "run", "--home", str(home.path)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, text=True)

    def send(base: str, amount: str) -> None:
        one = json.loads(event("emma", amount, "2026-01-15T12:00:00Z"))
        assert httpx.post(f"{base}/v1/events", json=one, timeout=10).status_code == 202

    pipeline = start()
    try:
        with serving(home, workers=1) as base:
            send(base, "1.25")
            page = open_page(f"{base}/?customer=emma", expects=("net::ERR_",))  # the server ends before the page
            total, stamp = card(page, "emma").locator(".total"), page.locator(".stamp").first
            expect(total).to_have_attribute("data-total", "1.250000", timeout=60_000)
            expect(stamp).to_have_attribute("data-state", "fresh", timeout=60_000)
            pipeline.kill()
            began = time.monotonic()
            page.evaluate(TURNS_STALE)
            assert time.monotonic() - began < RED_SECONDS_MAX
            pipeline.wait()
            send(base, "2.50")
            expect(total).to_have_attribute("data-total", "1.250000")
            pipeline = start()
            expect(total).to_have_attribute("data-total", "3.750000", timeout=60_000)
            expect(stamp).to_have_attribute("data-state", "fresh", timeout=60_000)
    finally:
        pipeline.terminate()
        pipeline.wait()


def test_where_streams_are_blocked_it_asks_every_two_seconds(
    url: str, scene: Scene, open_page: Callable[..., Page]
) -> None:
    page = open_page(f"{url}/?customer=emma", blocked="**/v1/stream**")
    operations = open_page(f"{url}/operations", blocked="**/v1/stream**")
    total = card(page, "emma").locator(".total")
    expect(total).to_have_attribute("data-total", api_total(url, "emma"))
    scene.bill(event("emma", "0.5", "2026-02-19T23:10:00Z"))
    wait_for(lambda: position(url) == scene.position, "it was folded")
    expect(total).to_have_attribute("data-total", api_total(url, "emma"))
    expect_live(page)
    expect(operations.locator(".flow-node").last).to_contain_text("polling")


def test_a_hostile_name_stays_text(url: str, scene: Scene, open_page: Callable[..., Page]) -> None:
    scene.bill(event(HOSTILE, "99.00", "2026-02-19T23:20:00Z"))
    page = open_page(url)
    field = page.get_by_role("combobox")
    field.fill("<img")
    page.get_by_role("option", name=HOSTILE).click()
    expect(card(page, HOSTILE).get_by_role("heading", level=2)).to_have_text(HOSTILE)
    expect(card(page, HOSTILE).locator(".total")).to_have_attribute("data-total", "99.000000")
    page.goto(f"{url}/management")
    expect(page.get_by_role("link", name=HOSTILE)).to_be_visible()
    page.get_by_label("Samples of").select_option("not_json")
    samples = page.locator(".samples")
    expect(samples).to_contain_text(r"<script>alert(1)</script> \u{1b}[31m \u{202e}")
    assert page.locator("img").count() == 1, "its own mark, and no other"


def test_the_management_page_says_what_the_api_says(url: str, scene: Scene, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{url}/management")
    overview = httpx.get(f"{url}/v1/overview").json()
    february = overview["periods"][-1]
    revenue = page.locator(".small-total")
    expect(revenue).to_have_attribute("data-total", february["total"])
    months = page.get_by_role("region", name="Months").locator("tbody tr")
    expect(months.locator(".badge")).to_have_text(["open", "closed", "final"])
    expect(months.nth(1)).to_contain_text("in 4 events")
    expect(page.locator(".facts")).to_contain_text("came after their month had closed")
    assert overview["late_events"] == 12
    page.get_by_label("Samples of").select_option("bad_amount")
    expect(page.locator(".samples tbody tr").first).to_contain_text("1e3")
    scene.bill(event("noah", "7.00", "2026-02-19T23:30:00Z"))
    expect(revenue).not_to_have_attribute("data-total", february["total"])


def test_more_types_than_colours_share_one(tmp_path: Path, open_page: Callable[..., Page]) -> None:
    types = [f"type_{letter}" for letter in "abcdefghijkl"]
    scene = Scene(new_home(tmp_path / "home", SETTINGS.replace("[billing]", f"[billing]\ntypes = {json.dumps(types)}")))
    scene.bill(*(event("emma", f"{n}.00", "2026-02-19T12:00:00Z", each) for n, each in enumerate(types, start=1)))
    with scene.beating(), serving(scene.home, workers=1) as base:
        page = open_page(f"{base}/management")
        expect(page.locator(".legend li")).to_have_text([*types[4:], "4 other types"])
        drawn = page.get_by_role("img", name="Usage by type in").locator("rect:not(.touch)")
        expect(drawn).to_have_count(9)
        # The last part, of the colour that is shared, is as high as the types 1 to 4 together: 10 of 78.
        heights = [float(rect.get_attribute("height") or 0) for rect in drawn.all()]
        assert heights[-1] / sum(heights) == pytest.approx(10 / 78, abs=0.01)


def test_the_operations_page_shows_the_flow_and_each_batch(
    url: str, scene: Scene, open_page: Callable[..., Page]
) -> None:
    page = open_page(f"{url}/operations")
    expect(page.locator(".flow-name")).to_have_text(["Log", "Pipeline", "Ledger", "Replica", "You"])
    expect(page.locator(".flow-node.up")).to_have_count(5)
    expect(page.locator(".flow")).to_contain_text(str(scene.position))
    expect(page.get_by_role("img", name="Time by step")).to_be_visible()
    expect(page.locator(".holds")).to_have_text("holds the watermark back")
    scene.bill(event("noah", "1.00", "2026-02-19T23:35:00Z"))
    page.locator(".chart-stack summary").click()
    expect(page.get_by_role("region", name="The last batches").locator("tbody th").first).to_have_text(
        str(scene.position)
    )


def test_the_operations_page_says_why_batches_are_slow_or_late(tmp_path: Path, open_page: Callable[..., Page]) -> None:
    scene = Scene(new_home(tmp_path / "home", SETTINGS.replace('"1s"', '"1h"')))
    for day in (17, 18, 19):
        scene.bill(event("noah", "1.00", f"2026-02-{day}T23:35:00Z"))
    with scene.beating(), serving(scene.home, workers=1) as base:
        page = open_page(f"{base}/operations")
        delays = page.locator(".delays")
        expect(delays.get_by_role("heading", name="Why batches are slow or late")).to_be_visible()
        expect(delays.locator("p")).to_contain_text("Nothing slows the batches down: a batch takes ")
        expect(delays.get_by_role("listitem")).to_have_count(0)
        # Who follows the same ledger from elsewhere, and has stopped.
        tell(scene.home.ledger, tmp_path / "<b>elsewhere", 0, now_us=time.time_ns() // 1000 - 60_000_000)
        expect(delays.get_by_role("listitem")).to_have_count(1)
        expect(delays.get_by_role("listitem")).to_contain_text("Replica behind: Replica ")
        expect(delays.get_by_role("listitem")).to_contain_text(
            "<b>elsewhere is 3 batches behind, and gave no sign of life"
        )
        # A partition whose events come late.
        scene.bill(event("noah", "1.00", "2026-02-19T12:00:00Z"), partition="south")
        lagging = delays.get_by_role("listitem").filter(has_text="Lagging partition")
        expect(lagging).to_contain_text("The events of partition south are 12 h behind")
        (replica, partition) = httpx.get(f"{base}/v1/overview").json()["diagnosis"]["causes"]
        assert (replica["name"], partition["name"]) == ("replica behind", "lagging partition")


def test_the_operations_page_shows_what_waits_to_be_delivered(tmp_path: Path, open_page: Callable[..., Page]) -> None:
    scene = Scene(new_home(tmp_path / "home", f'{SETTINGS}[invoices]\nhttp_url = "http://127.0.0.1:1/bills"\n'))
    scene.bill(event("noah", "1.00", "2026-02-19T23:35:00Z"))
    well = Backlog(0, 1, 7, 2, 0, 11, None, None, gone=False, error=None)
    said = [well]
    with scene.beating(), _saying(scene.home, said), serving(scene.home, workers=1) as base:
        page = open_page(f"{base}/operations")
        row = page.get_by_role("region", name="Invoices over HTTP").locator("tbody tr")
        expect(row).to_contain_text("delivering")
        expect(page.get_by_role("alert")).to_be_empty()
        said[0] = msgspec.structs.replace(well, stuck=2, error="422 <b>no</b>")
        expect(row).to_contain_text("stuck")
        expect(row).to_contain_text("422 <b>no</b>")
        expect(page.get_by_role("alert")).to_contain_text("Invoice sink: the receiver refuses 2 invoices: 422")
        said[0] = msgspec.structs.replace(well, gone=True, error="no answer within 10 s")
        expect(page.get_by_role("alert")).to_contain_text("the receiver takes nothing: no answer within 10 s")
        metrics = httpx.get(f"{base}/metrics").text.splitlines()
        assert {"opentab_receiver_gone 1.0", "opentab_deliveries_waiting 2.0", "opentab_deliveries_total 11.0"} <= set(
            metrics
        )
        assert httpx.get(f"{base}/v1/overview").json()["sink"]["error"] == "no answer within 10 s"


@contextmanager
def _saying(home: Home, said: list[Backlog]) -> Iterator[None]:
    """What a deliverer says, played: five times a second."""
    home.sinks_path.mkdir()

    def say() -> None:
        write_backlog(home.sinks_path, msgspec.structs.replace(said[0], at_us=time.time_ns() // 1000))

    with repeated(say, every_seconds=0.2):
        yield


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", [*VIEWS, "welcome"])
def test_nothing_stands_in_anyones_way(url: str, open_page: Callable[..., Page], view: str, scheme: str) -> None:
    page = open_page(url + VIEWS.get(view, "/"), color_scheme=scheme, reduced_motion="reduce")
    ready(page, view)
    for summary in page.locator("summary").all():
        summary.click()
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def ready(page: Page, view: str) -> None:
    """All that a view asks for is there."""
    if view == "welcome":
        expect(page.locator(".chip")).not_to_have_count(0)
        return
    expect_live(page)
    if view == "customer":
        expect(page.locator(".course .end")).to_be_visible()
        expect(page.locator("details.month")).not_to_have_count(0)
    elif view == "management":
        expect(page.locator(".samples tbody tr")).not_to_have_count(0)
    else:
        expect(page.locator(".chart-stack svg g").first).to_be_attached()


def test_an_empty_home_shows_how_to_send_the_first_event(tmp_path: Path, open_page: Callable[..., Page]) -> None:
    scene = Scene(new_home(tmp_path / "home", SETTINGS))
    with serving(scene.home, workers=1) as base:
        pages = [open_page(base + path) for path in ("/", "/management", "/operations")]
        for page in pages:
            expect(page.get_by_role("heading", name="Send the first event")).to_be_visible()
            expect(page.get_by_text("opentab ingest")).to_be_visible()
            assert Axe().run(page).violations_count == 0
        curl = pages[0].get_by_text("curl ").inner_text()
        assert curl.startswith(f"curl {base}/v1/events ")
        assert json.loads(subprocess.check_output(shlex.split(f"{curl} --silent")))["accepted"] == 1
        terminal = pages[0].get_by_text("opentab ingest").inner_text()
        assert shlex.split(terminal)[2:] == ["|", "opentab", "ingest", "--home", "DIR"]
        scene.bill(shlex.split(terminal)[1])
        for page in pages:
            expect(page.get_by_role("heading", name="Send the first event")).to_be_hidden()
        expect(pages[0].locator(".chip")).to_contain_text("ann")


def test_the_search_finds_names_of_all_months_in_capitals_or_not(
    tmp_path: Path, open_page: Callable[..., Page]
) -> None:
    scene = Scene(new_home(tmp_path / "home", SETTINGS))
    scene.bill(event("Emma GmbH", "1.00", "2026-01-10T00:00:00Z"), event("ÉMILE", "2.00", "2026-01-10T00:00:00Z"))
    scene.bill(event("emma", "3.00", "2026-02-19T00:00:00Z"), event("noah", "4.00", "2026-02-19T00:00:00Z"))
    with scene.beating(), serving(scene.home, workers=1) as base:
        wait_for(lambda: position(base) == scene.position, "the replica was there")
        page = open_page(f"{base}/", locale="en-GB")
        field, options = page.get_by_role("combobox"), page.get_by_role("option")
        for typed in ("emm", "EMM", "eMM"):
            field.fill(typed)
            expect(options).to_have_text(["emma€3.00", "Emma GmbHJan 2026 €1.00"])
        field.fill("émi")
        expect(options).to_have_text(["ÉMILEJan 2026 €2.00"])
        field.fill("emma g")
        expect(options).to_have_text(["Emma GmbHJan 2026 €1.00"])
        options.click()
        expect(card(page, "Emma GmbH")).to_be_visible()
        field.fill("nobody")
        expect(options).to_contain_text(["No name begins like that."])
        answer = httpx.get(f"{base}/v1/customers?any_month=true&prefix=n&period=2026-01")
        assert (answer.status_code, answer.json()["detail"]) == (422, "any_month goes with prefix and limit alone")


def test_an_event_is_looked_up_by_its_id(tmp_path: Path, open_page: Callable[..., Page]) -> None:
    scene = Scene(new_home(tmp_path / "home", SETTINGS))
    good = {**json.loads(event("emma", "8.0898", "2026-01-19T12:00:00Z")), "id": "a/1"}
    scene.bill(json.dumps(good), json.dumps({**good, "id": "a2", "type": "<b>FAX</b>"}))
    scene.bill(event("noah", "1.00", "2026-02-03T00:00:00Z"))
    with scene.beating(), serving(scene.home, workers=1) as base:
        wait_for(lambda: position(base) == scene.position, "the replica was there")
        page = open_page(f"{base}/events", size=(390, 800))
        page.get_by_label("Event id").fill("a/1")
        page.keyboard.press("Enter")
        facts = page.locator(".facts")
        expect(facts).to_contain_text("Counted")
        expect(facts).to_contain_text("€8.09")
        expect(facts.get_by_title("€8.089800")).to_be_visible()
        place = httpx.get(f"{base}/v1/events/a%2F1").json()["place"]
        expect(facts).to_contain_text(place)
        expect(facts.get_by_role("link", name="January 2026, revision 1")).to_be_visible()
        assert Axe().run(page).violations_count == 0
        page.get_by_label("Event id").fill("a2")
        page.get_by_role("button", name="Look up").click()
        expect(facts).to_contain_text("Rejected")
        expect(page.get_by_role("region", name="Rejections of this id")).to_contain_text("unknown_type")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.get_by_label("Event id").fill("a3")
        page.keyboard.press("Enter")
        expect(page.get_by_role("status").filter(has_text="No event")).to_contain_text("within the dedupe window.")
        page.go_back()
        expect(facts).to_contain_text("Rejected")
        page.goto(f"{base}/events?id=a/1")
        page.get_by_role("link", name="emma").click()
        expect(card(page, "emma")).to_be_visible()


def test_the_keyboard_is_enough(url: str, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{url}/management")
    expect_live(page)
    press = page.keyboard.press
    press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    press("Tab")
    press("Tab")
    assert focused(page) == "Customers"
    press("Enter")
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    press("Tab")
    expect(page.get_by_role("combobox")).to_be_focused()
    page.keyboard.type("em")
    expect(page.get_by_role("option")).to_have_count(1)
    press("ArrowDown")
    expect(page.get_by_role("combobox")).to_have_attribute("aria-activedescendant", "found-0")
    press("Enter")
    expect(card(page, "emma")).to_be_visible()
    page.get_by_role("combobox").focus()
    press("Tab")
    assert focused(page).startswith("Pin")
    press("Enter")
    expect(page.get_by_role("button", name="Pinned emma")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("combobox").focus()
    page.keyboard.type("noah")
    press("Enter")
    expect(page.get_by_role("article")).to_have_count(2)
    assert urlsplit(page.url).query == "customer=noah&pin=emma"
    page.go_back()
    expect(page.get_by_role("article")).to_have_count(1)
    outline = page.evaluate("getComputedStyle(document.querySelector('.skip')).outlineStyle")
    assert outline == "none", "only what has the focus is outlined"


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.textContent"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_screenshots(
    url: str, open_page: Callable[..., Page], tmp_path: Path, size: tuple[int, int], scheme: str
) -> None:
    folder = Path(os.environ.get("OPENTAB_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    name = "desktop" if size == DESKTOP else "phone"
    for view, path in {**VIEWS, "pinned": "/?customer=emma&pin=noah&pin=olivia"}.items():
        page = open_page(url + path, size=size, color_scheme=scheme, reduced_motion="reduce")
        expect_live(page)
        if view != "pinned":
            ready(page, view)
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0], "nothing sticks out"
        page.screenshot(path=folder / f"{view}-{name}-{scheme}.png", full_page=True)


# What two texts of a box, or a text and its box, have in common that they should not.
COLLISIONS = """() => [...document.querySelectorAll(".flow-node")].flatMap((node) => {
  const place = (each) => each.getBoundingClientRect(), box = place(node.querySelector("rect"));
  const texts = [...node.querySelectorAll("text")];
  const cut = texts.filter((text) => place(text).left < box.left || place(text).right > box.right);
  const meet = (a, b) => a.left < b.right && b.left < a.right && a.top + 4 < b.bottom && b.top + 4 < a.bottom;
  const met = texts.flatMap((one, n) => texts.slice(n + 1).filter((other) => meet(place(one), place(other))));
  return [...cut, ...met].map((text) => text.textContent);
})"""


@pytest.mark.parametrize("width", [360, 390, 820, 1440])
def test_nothing_overlaps_and_no_total_is_hidden(url: str, open_page: Callable[..., Page], width: int) -> None:
    page = open_page(f"{url}/operations", size=(width, 800), locale="en-US")
    expect(page.locator(".flow")).to_contain_text(re.compile("[AP]M"))
    expect(page.locator(".flow-node.up")).to_have_count(5)
    assert page.evaluate(COLLISIONS) == []
    page.goto(f"{url}/management")
    ready(page, "management")
    page.get_by_text("In numbers").click()
    for region, header in (("Months", "Total"), ("Usage by type and month", "Together")):
        table = page.get_by_role("region", name=region, exact=True)
        expect(table.get_by_role("columnheader").nth(1)).to_have_text(header)
        for total in table.locator("tbody td:nth-child(2)").all():
            box = total.bounding_box()
            assert box is not None and box["x"] + box["width"] <= width, f"{region}: a total is hidden"
        table.evaluate("(each) => { each.scrollLeft = each.scrollWidth }")
        month = table.locator("tbody th").first.bounding_box()
        assert month is not None and month["x"] >= 0, f"{region}: the month scrolls away"
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_month_closes_and_a_late_event_revises_it(url: str, scene: Scene, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{url}/?customer=emma")
    months = card(page, "emma").locator("details.month")
    expect(months).to_have_count(2)
    scene.bill(event("emma", "1.00", "2026-03-03T00:00:00Z"))
    expect(months).to_have_count(3)
    expect(card(page, "emma").locator(".period")).to_have_text("March 2026")
    february = months.first
    expect(february.locator("summary")).to_contain_text("invoiced")
    first = httpx.get(f"{url}/v1/invoices/2026-02/emma").json()["items"][0]
    february.locator("summary").click()
    expect(february.locator(".sheet")).to_have_count(1)
    scene.bill(event("emma", "2.5", "2026-02-20T00:00:00Z"), revise=True)
    expect(february.locator("summary")).to_contain_text("revision 2")
    newest = february.locator(".sheet").first
    expect(newest.locator(".delta")).to_have_attribute("data-delta", "2.50")
    expect(newest).to_contain_text("+€2.50")
    issued = httpx.get(f"{url}/v1/invoices/2026-02/emma").json()["items"]
    assert (issued[0]["total"], len(issued)) == (first["total"], 2)
    with page.expect_popup() as printed:
        newest.get_by_role("link").click()
    expect(printed.value.get_by_role("heading", level=1)).to_have_text("Invoice 2026-02")
    printed.value.close()


def test_the_page_survives_a_restart_of_the_server(scene: Scene, open_page: Callable[..., Page]) -> None:
    port = free_port()
    with serving(scene.home, workers=1, port=port) as url:
        page = open_page(f"{url}/?customer=emma", expects=("net::ERR_", "status of 503"))
        expect_live(page)
        before = page.locator(".total").get_attribute("data-total")
    stamp = page.locator(".stamp")
    expect(stamp).to_have_attribute("data-state", "stale")
    expect(stamp).to_contain_text("no connection to the server")
    assert page.locator(".total").get_attribute("data-total") == before
    scene.bill(event("emma", "0.75", "2026-03-03T01:00:00Z"))
    with serving(scene.home, workers=1, port=port) as url:
        expect_live(page)
        expect(page.locator(".total")).not_to_have_attribute("data-total", str(before))
        expect(page.locator(".total")).to_have_attribute("data-total", api_total(url, "emma"))


@pytest.fixture
def guarded(scene: Scene) -> Iterator[Home]:
    """The same home, with a key from now on."""
    opentab("token", "key", home=scene.home)
    yield scene.home


def test_a_customers_token_opens_its_own_page_and_no_other(guarded: Home, open_page: Callable[..., Page]) -> None:
    os.environ["OPENTAB_KEY"] = (guarded.path / "key").read_text().strip()
    try:
        key = read_key(guarded)
    finally:
        del os.environ["OPENTAB_KEY"]
    assert key is not None

    def token(role: Role, customer: str | None = None) -> str:
        return issue(key, role, customer=customer, lifetime=timedelta(hours=1))

    with serving(guarded, workers=1, OPENTAB_KEY=key.decode()) as url:
        page = open_page(f"{url}/management", expects=("status of 401", "status of 403", "net::ERR_"))
        sign_in(page, "nonsense")
        expect(page.get_by_role("alert")).to_contain_text("the token is not one of ours")
        sign_in(page, token(Role.CUSTOMER, "emma"))
        expect(page.get_by_role("heading", level=1)).to_have_text("Not for this token")
        expect(page.get_by_role("navigation", name="Views")).to_be_hidden()
        refused = page.evaluate(
            "Promise.all(['/v1/overview', '/v1/periods', '/v1/customers/noah', '/v1/stream?overview'].map(async (path) => (await fetch(path)).status))"
        )
        assert refused == [403] * 4
        page.get_by_role("link", name="To your own page").click()
        expect(card(page, "emma")).to_be_visible()
        expect_live(page)
        expect(page.get_by_role("combobox")).to_have_count(0)
        (cookie,) = page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"], "token" in page.url) == (True, "Strict", False)
        assert page.evaluate("document.cookie") == ""
        page.get_by_role("button", name="Sign out").click()
        sign_in(page, token(Role.READER))
        page.get_by_role("link", name="Management").click()
        expect_live(page)


def sign_in(page: Page, token: str) -> None:
    page.get_by_label("Access token").fill(token)
    page.get_by_role("button", name="Sign in").click()
