"""Who may read what: every role at every endpoint, and every way a token can be no good."""

from __future__ import annotations

import base64
import json
import stat
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import httpx
import jwt
import pytest

from apps import app_of
from ledgers import bill, new_home
from opentab.core.errors import ConfigError, InputError
from opentab.runtime.config import Home
from opentab.server.guard import is_loopback_name
from opentab.server.revocations import Revocations
from opentab.server.tokens import Gate, Role, TokenRefused, issue, new_key, read_key, token_id
from processes import serving
from product import event, opentab

DAY = timedelta(days=1)
SETTINGS = '[billing]\nout_of_orderness = "0s"\n[server]\nkey_file = "key"\n'


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = new_home(tmp_path_factory.mktemp("guarded") / "home", SETTINGS)
    opentab("token", "key", home=home)
    bill(home, event("ann", "5.00", "2026-01-10T00:00:00Z"), event("c/3", "1.00", "2026-01-10T00:00:00Z"))
    bill(home, event("ann", "2.00", "2026-02-01T12:00:00Z"))
    return home


@pytest.fixture(scope="module")
def url(home: Home) -> Iterator[str]:
    with serving(home) as base:
        wait_until(lambda: ready(base, home))
        yield base


def wait_until(what: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ready(base: str, home: Home) -> bool:
    try:
        answer = httpx.get(f"{base}/v1/periods", headers=bearer(home, Role.ADMIN))
    except httpx.HTTPError:
        return False
    return answer.status_code == 200 and answer.json()["position"] == 2


def key_of(home: Home) -> bytes:
    key = read_key(home)
    assert key is not None
    return key


def bearer(home: Home, role: Role, customer: str | None = None) -> dict[str, str]:
    return {"authorization": f"Bearer {issue(key_of(home), role, customer=customer, lifetime=DAY)}"}


OWN = [
    "/v1/customers/ann",
    "/v1/customers/ann/periods/2026-01",
    "/v1/customers/ann/invoices",
    "/v1/customers/ann/usage",
    "/v1/invoices/2026-01/ann",
    "/v1/invoices/2026-01/ann/1",
]
OTHERS = [
    "/v1/customers/c%2F3",
    "/v1/customers/c%2F3/periods/2026-01",
    "/v1/customers/c%2F3/invoices",
    "/v1/customers/c%2F3/usage",
    "/v1/invoices/2026-01/c%2F3",
    "/v1/invoices/2026-01/c%2F3/1",
    "/v1/customers",
    "/v1/customers?prefix=ann",
    "/v1/types",
    "/v1/types/CALL",
    "/v1/periods",
    "/v1/periods/2026-01",
    "/v1/batches",
    "/v1/overview",
    "/v1/rejections",
    "/v1/stream?types",
    "/v1/stream?overview&pulse",
    "/v1/stream?customer=c%2F3",
    "/v1/stream?customer=ann&customer=c%2F3",
]
STREAM = "/v1/stream?customer=ann"


def status_of(url: str, path: str, headers: dict[str, str]) -> int:
    with httpx.stream("GET", url + path, headers=headers, timeout=10) as answer:
        return answer.status_code


@pytest.mark.parametrize("path", [*OWN, STREAM, *OTHERS])
def test_a_customer_reads_its_own_and_nothing_else(url: str, home: Home, path: str) -> None:
    wanted = 200 if path in (*OWN, STREAM) else 403
    assert status_of(url, path, bearer(home, Role.CUSTOMER, "ann")) == wanted


@pytest.mark.parametrize("path", [*OWN, *OTHERS[:-1], STREAM])
def test_readers_read_and_producers_do_not(url: str, home: Home, path: str) -> None:
    assert status_of(url, path, bearer(home, Role.READER)) == 200
    assert status_of(url, path, bearer(home, Role.ADMIN)) == 200
    assert status_of(url, path, bearer(home, Role.INGEST)) == 403
    assert status_of(url, path, {}) == 401


def test_who_may_post_events(url: str, home: Home) -> None:
    one = json.loads(event("ann", "1.00", "2026-02-02T00:00:00Z"))
    for role, customer, status in (
        (Role.INGEST, None, 202), (Role.ADMIN, None, 202), (Role.READER, None, 403), (Role.CUSTOMER, "ann", 403),
    ):  # fmt: skip
        answer = httpx.post(f"{url}/v1/events", json=one, headers=bearer(home, role, customer))
        assert answer.status_code == status, role
    assert httpx.post(f"{url}/v1/events", json=one).status_code == 401


def test_a_customer_with_a_slash_is_not_another_one(url: str, home: Home) -> None:
    headers = bearer(home, Role.CUSTOMER, "c/3")
    assert status_of(url, "/v1/customers/c%2F3", headers) == 200
    for path in (
        "/v1/customers/c/3",
        "/v1/customers/c%252F3",
        "/v1/customers/..%2Fcustomers/ann",
        "/v1//customers/ann",
    ):
        assert status_of(url, path, headers) in (403, 404), path


def test_tokens_that_are_no_good(url: str, home: Home) -> None:
    key = key_of(home)
    good = issue(key, Role.READER, customer=None, lifetime=DAY)
    head, body, signature = good.split(".")
    claims = jwt.decode(good, options={"verify_signature": False})
    none = base64.urlsafe_b64encode(b'{"alg":"none","typ":"JWT"}').decode().rstrip("=")
    admin = base64.urlsafe_b64encode(json.dumps({**claims, "role": "admin"}).encode()).decode().rstrip("=")
    bad = {
        "expired": issue(key, Role.READER, customer=None, lifetime=DAY, now=time.time() - 2 * 86_400),
        "another key": issue(new_key().encode(), Role.READER, customer=None, lifetime=DAY),
        "alg none": f"{none}.{body}.",
        "tampered": f"{head}.{admin}.{signature}",
        "another algorithm": jwt.encode(claims, key, algorithm="HS512"),
        "no end": jwt.encode({k: v for k, v in claims.items() if k != "exp"}, key, algorithm="HS256"),
        "no id": jwt.encode({k: v for k, v in claims.items() if k != "jti"}, key, algorithm="HS256"),
        "no such role": jwt.encode({**claims, "role": "owner"}, key, algorithm="HS256"),
        "a customer's without a customer": jwt.encode({**claims, "role": "customer"}, key, algorithm="HS256"),
        "noise": "a.b.c",
    }
    for what, text in bad.items():
        answer = httpx.get(f"{url}/v1/periods", headers={"authorization": f"Bearer {text}"})
        assert (answer.status_code, answer.headers.get("www-authenticate")) == (401, "Bearer"), what
        assert answer.headers["content-type"] == "application/problem+json"
    assert httpx.get(f"{url}/v1/periods", headers={"authorization": f"Basic {good}"}).status_code == 401
    assert httpx.get(f"{url}/v1/periods", params={"access_token": good}).status_code == 401, "streams only"
    assert status_of(url, f"/v1/stream?types&access_token={good}", {}) == 200


def test_revoked_at_once_on_every_worker(url: str, home: Home) -> None:
    text = opentab("token", "issue", "--role", "reader", home=home).stdout.strip()
    headers = {"authorization": f"Bearer {text}"}
    assert {httpx.get(f"{url}/v1/periods", headers=headers).status_code for _ in range(10)} == {200}
    opentab("token", "revoke", text, home=home)
    assert {httpx.get(f"{url}/v1/periods", headers=headers).status_code for _ in range(20)} == {401}


def test_signing_in_keeps_the_token_in_a_cookie_for_reads_only(url: str, home: Home) -> None:
    text = issue(key_of(home), Role.CUSTOMER, customer="ann", lifetime=DAY)
    with httpx.Client(base_url=url) as browser:
        before = browser.get("/session").json()
        assert (before["tokens"], before["role"], before["customer"], before["currency"]) == (True, None, None, "EUR")
        assert before["types"] == [], "who has shown no token is not told"
        assert browser.get("/v1/customers/ann").status_code == 401
        answer = browser.post("/session", json={"token": text})
        assert (answer.status_code, answer.json()["role"], answer.json()["customer"]) == (200, "customer", "ann")
        cookie = answer.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
        assert "Secure" not in cookie, "it came over http"
        assert browser.get("/session").json()["customer"] == "ann"
        assert browser.get("/v1/customers/ann").status_code == 200
        assert browser.get("/v1/customers/c%2F3").status_code == 403
        assert browser.get("/v1/overview").status_code == 403
        assert browser.delete("/session").status_code == 204
        assert browser.get("/v1/customers/ann").status_code == 401


def test_behind_a_proxy_that_speaks_https_the_cookie_is_secure(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", SETTINGS + "behind_https_proxy = true\n")
    opentab("token", "key", home=home)
    text = opentab("token", "issue", "--role", "admin", home=home).stdout.strip()
    with serving(home, workers=1) as url:
        cookies = [
            httpx.post(f"{url}/session", json={"token": text}).headers["set-cookie"],
            httpx.delete(f"{url}/session").headers["set-cookie"],
        ]
    assert all("Secure" in cookie.split("; ") for cookie in cookies)


def test_a_cookie_never_posts_events(url: str, home: Home) -> None:
    text = issue(key_of(home), Role.ADMIN, customer=None, lifetime=DAY)
    one = json.loads(event("ann", "1.00", "2026-02-02T00:00:00Z"))
    with httpx.Client(base_url=url) as browser:
        browser.post("/session", json={"token": text})
        assert browser.get("/v1/periods").status_code == 200
        assert browser.post("/v1/events", json=one).status_code == 401
    assert httpx.get(f"{url}/v1/periods", headers={"cookie": f"other=1; opentab_session={text}"}).status_code == 200


def test_hostile_cookies_are_never_parsed_by_the_standard_library(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes seconds for backslashes in quotes."""

    def never(text: str) -> str:
        raise AssertionError(f"{len(text):,} bytes of a cookie were parsed")

    monkeypatch.setattr("http.cookies._unquote", never)
    with app_of(home) as app:
        for path, status in (("/healthz", 200), ("/session", 200), ("/v1/periods", 401)):
            for backslashes, expected in ((60_000, 431), (10_000, status)):
                cookie = 'opentab_session="' + "\\" * backslashes
                assert app.get(path, headers={"cookie": cookie}).status_code == expected, path
        text = issue(key_of(home), Role.READER, customer=None, lifetime=DAY)
        cookie = f"a; b=c=d;opentab_session={text} ; z=1"
        assert app.get("/v1/periods", headers={"cookie": cookie}).status_code == 200


@pytest.mark.parametrize(
    ("content", "media", "status"),
    [
        ('{"token": "a.b.c"}', "application/json", 401), ('{"token": ""}', "application/json", 401),
        ("token=a", "application/x-www-form-urlencoded", 415), ('{"token": "a"}', "text/plain", 415),
        ("{", "application/json", 400), ('{"token": ' + "[" * 8_000, "application/json", 400), ('{"token": 1}', "application/json", 400), ("x" * 9_000, "application/json", 413),
    ],
)  # fmt: skip
def test_signing_in_with_anything_else(url: str, content: str, media: str, status: int) -> None:
    answer = httpx.post(f"{url}/session", content=content, headers={"content-type": media})
    assert (answer.status_code, "set-cookie" in answer.headers) == (status, False)
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("path", ["/", "/management", "/operations", "/web/app.js", "/web/style.css"])
def test_the_page_itself_needs_no_token_and_may_run_nothing_but_itself(url: str, path: str) -> None:
    answer = httpx.get(url + path)
    policy = answer.headers["content-security-policy"]
    assert (answer.status_code, "default-src 'none'" in policy, "unsafe" in policy) == (200, True, False)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    again = httpx.get(url + path, headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    for wrong in ("/web/app.py", "/web/..%2Fguard.py", "/web/", "/web/%2e%2e/guard.py"):
        assert httpx.get(url + wrong).status_code == 404


def test_health_needs_no_token(url: str) -> None:
    assert httpx.get(f"{url}/healthz").status_code == 200
    assert httpx.get(f"{url}/readyz").status_code in (200, 503)


def test_a_key_is_written_once_and_for_its_owner_only(home: Home) -> None:
    path = home.path / "key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = opentab("token", "key", home=home, check=False)
    assert (again.returncode, path.read_text().strip() in again.stderr + again.stdout) == (2, False)


def test_keys_and_tokens_that_cannot_be(tmp_path: Path) -> None:
    keyless = new_home(tmp_path / "keyless", "")
    refused = opentab("token", "issue", "--role", "reader", home=keyless, check=False)
    assert (refused.returncode, "there is no key" in refused.stderr) == (2, True)
    missing = new_home(tmp_path / "missing", '[server]\nkey_file = "nowhere"\n')
    with pytest.raises(ConfigError, match="cannot be read"):
        read_key(missing)
    (missing.path / "nowhere").write_text("short\n")
    with pytest.raises(ConfigError, match="needs 32 at least"):
        read_key(missing)
    with pytest.raises(InputError):
        issue(b"k" * 32, Role.CUSTOMER, customer=None, lifetime=DAY)
    with pytest.raises(InputError):
        token_id("a.b")
    with pytest.raises(TokenRefused):
        Gate(b"k" * 32, Revocations(keyless.ledger, keyless.revoked_path)).check("")


def test_a_clock_that_issues_tokens_a_little_ahead(tmp_path: Path) -> None:
    home, key = new_home(tmp_path / "home", ""), b"k" * 32
    gate = Gate(key, Revocations(home.ledger, home.revoked_path))

    def check(*, ahead: float, lifetime: timedelta = DAY) -> None:
        gate.check(issue(key, Role.READER, customer=None, lifetime=lifetime, now=time.time() + ahead))

    check(ahead=50)
    with pytest.raises(TokenRefused, match="not one of ours"):
        check(ahead=90)
    with pytest.raises(TokenRefused, match="has expired"):
        check(ahead=-10, lifetime=timedelta(seconds=5))


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        ("127.0.0.1", True), ("127.0.0.1:8080", True), ("localhost", True), ("localhost:1", True), ("[::1]", True),
        ("[::1]:8080", True), ("", False), ("evil.example", False), ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:80", False), ("10.0.0.1", False), ("[fe80::1]:80", False),
    ],
)  # fmt: skip
def test_loopback_names(host: str, ours: bool) -> None:
    assert is_loopback_name(host) is ours
