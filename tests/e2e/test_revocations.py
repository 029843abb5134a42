"""Revoked means revoked: on every server over the ledger, on a disk and in a bucket, and for streams that are open."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from apps import App
from ledgers import SETTINGS, bill, new_home
from opentab.core.errors import InputError, LedgerError
from opentab.runtime.config import Home
from opentab.runtime.storage import Place
from opentab.server.app import build
from opentab.server.revocations import STALE_SECONDS_MAX, Revocations, revoke
from opentab.server.tokens import Role, issue, token_id
from opentab_tools.servers.bucket_server import BucketServer
from opentab_tools.servers.free_port import free_port
from processes import serving, wait_for
from product import event, opentab

KEY = "k" * 48
KEYED = SETTINGS + '[server]\nkey_file = "key"\n'
SEEN_SECONDS_MAX = 2.0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketServer]:
    server = BucketServer(tmp_path_factory.mktemp("store") / "moto.log")
    yield server
    server.stop()


@pytest.fixture(scope="module", params=["disk", "bucket"])
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Home, str, str]]:
    """A home, its server, and a server of another home over the same ledger."""
    path = tmp_path_factory.mktemp(request.param)
    if request.param == "disk":
        ledger = f'[ledger]\nuri = "{path / "ledger"}"\n'
    else:
        ledger = request.getfixturevalue("store").settings(path.name)
    home, other = (keyed_home(path / name, ledger) for name in ("home", "other"))
    bill(home, event("ann", "1.00"))
    with serving(home, workers=1) as url, serving(other, workers=1) as other_url:
        for base in (url, other_url):
            wait_for(lambda base=base: read(base, token()) == 200, "the replica was there")  # type: ignore[misc]
        yield home, url, other_url


def keyed_home(path: Path, ledger: str = "") -> Home:
    home = new_home(path, KEYED + ledger)
    (path / "key").write_text(KEY)
    return home


def token(lifetime: timedelta = timedelta(days=1)) -> str:
    return issue(KEY.encode(), Role.READER, customer=None, lifetime=lifetime)


def read(url: str, text: str) -> int:
    return httpx.get(f"{url}/v1/customers/ann", headers={"authorization": f"Bearer {text}"}).status_code


@contextmanager
def streaming(url: str, text: str) -> Iterator[Future[tuple[float, list[str]]]]:
    """A stream that is open and quiet; in the end, when it ended and what came until then."""
    query = {"customer": "ann", "access_token": text}
    with (
        httpx.stream("GET", f"{url}/v1/stream", params=query, timeout=10) as answer,
        ThreadPoolExecutor() as pool,
    ):
        lines = answer.iter_lines()
        while not next(lines).startswith(": alive"):  # the first state comes before it
            pass

        def rest() -> tuple[float, list[str]]:
            found = [line for line in lines if line]
            return time.monotonic(), found

        yield pool.submit(rest)


def test_revoked_tokens_are_refused_by_every_server_and_their_streams_end(servers: tuple[Home, str, str]) -> None:
    home, *urls = servers
    texts = [token(), token()]
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        streams = [stack.enter_context(streaming(url, text)) for url in urls for text in texts]
        list(pool.map(lambda text: opentab("token", "revoke", text, home=home), texts))
        revoked_at = time.monotonic()
        ended = [stream.result() for stream in streams]
    assert [rest for _, rest in ended] == [[]] * 4, "nothing was sent after it"
    assert max(at for at, _ in ended) - revoked_at < SEEN_SECONDS_MAX
    assert {read(url, text) for url in urls for text in texts} == {401}, "two that are revoked at once are both kept"
    assert {read(url, token()) for url in urls} == {200}


def test_a_stream_ends_when_its_token_expires(servers: tuple[Home, str, str]) -> None:
    _, url, _ = servers
    expires_at = time.time() + 2
    with streaming(url, token(timedelta(seconds=2))) as stream:
        _, rest = stream.result()
    assert rest == []
    assert time.time() - expires_at < SEEN_SECONDS_MAX


def test_the_list_of_earlier_versions_counts_too(servers: tuple[Home, str, str]) -> None:
    home, url, _ = servers
    texts = [token(), token()]
    home.revoked_path.parent.mkdir(exist_ok=True)
    home.revoked_path.write_text("".join(f"{token_id(text)}\n" for text in texts))
    wait_for(lambda: read(url, texts[0]) == 401, "the list was read")
    assert read(url, texts[1]) == 401


def test_the_list_of_earlier_versions_is_taken_over(store: BucketServer, tmp_path: Path) -> None:
    """A server of another home over the same ledger has no such list."""
    for home in (keyed_home(tmp_path / "disk"), keyed_home(tmp_path / "bucket", store.settings(tmp_path.name))):
        home.revoked_path.parent.mkdir(exist_ok=True)
        home.revoked_path.write_text("a1\na2\nno/id\n")
        opentab("token", "revoke", "a3", home=home)
        home.revoked_path.write_text("a1\na4\n")
        Revocations(home.ledger, home.revoked_path).start()  # as a server does
        other = Revocations(home.ledger, tmp_path / "none")
        other.start()
        assert [other.holds(id_) for id_ in ("a1", "a2", "a3", "a4", "a5")] == [True] * 4 + [False]


def test_many_that_revoke_at_the_same_time(store: BucketServer, tmp_path: Path) -> None:
    for home in (keyed_home(tmp_path / "disk"), keyed_home(tmp_path / "bucket", store.settings(tmp_path.name))):
        ids = [token_id(token()) for _ in range(20)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda id_, home=home: revoke(home.ledger, id_), ids))  # type: ignore[misc]
        revocations = Revocations(home.ledger, home.revoked_path)
        revocations.start()
        assert all(revocations.holds(id_) for id_ in ids)
        assert not revocations.holds(token_id(token()))
        revocations.close()


def test_a_damaged_file_revokes_and_a_second_revocation_leaves_it(tmp_path: Path) -> None:
    ledger = Place.of(tmp_path / "ledger")
    revocations = Revocations(ledger, tmp_path / "none")
    assert not revocations.holds("a1")
    revoke(ledger, "a1")
    path = ledger.path / "revoked" / "a1"
    for content in (b"\xff", b""):
        path.write_bytes(content)
        assert revocations.holds("a1")
        revoke(ledger, "a1")
        assert path.read_bytes() == content
    for wrong in ("", "../key", "a/b", "x" * 200):
        with pytest.raises(InputError):
            revoke(ledger, wrong)
        assert not revocations.holds(wrong)


def test_a_revocation_survives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut cannot be had here; what it would keep is what was synced, and the name of each in its directory."""
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda file: (synced.append(Path(f"/proc/self/fd/{file}").readlink()), fsync(file))
    )
    revoke(Place.of(tmp_path / "home" / "ledger"), "a1")
    below = [tmp_path / name for name in ("", "home", "home/ledger", "home/ledger/revoked", "home/ledger/revoked/a1")]
    assert set(synced) == set(below)


def test_a_bucket_that_does_not_answer(store: BucketServer, tmp_path: Path) -> None:
    home = keyed_home(tmp_path / "home", store.settings(tmp_path.name))
    revoke(home.ledger, "a1")
    now = 0.0
    revocations = Revocations(home.ledger, home.revoked_path, clock=lambda: now)
    with pytest.raises(LedgerError, match="the list of revoked tokens cannot be read"):
        revocations.holds("b2")
    revocations.start()
    with store.frozen():
        now = STALE_SECONDS_MAX
        assert not revocations.holds("b2"), "the last list counts for a while"
        now += 1
        with pytest.raises(LedgerError):
            revocations.holds("b2")
        assert revocations.holds("a1")
    wait_for(lambda: is_known(revocations, "b2"), "it was listed again")
    revocations.close()


def is_known(revocations: Revocations, id_: str) -> bool:
    try:
        revocations.holds(id_)
    except LedgerError:
        return False
    return True


def test_no_token_is_accepted_before_the_first_list(store: BucketServer, tmp_path: Path) -> None:
    settings = store.settings(tmp_path.name, f"http://127.0.0.1:{free_port()}")
    app = App(build(keyed_home(tmp_path / "home", settings)))
    answer = app.get("/v1/periods", headers={"authorization": f"Bearer {token()}"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["detail"] == "the list of revoked tokens cannot be read now"
    assert app.get("/session", headers={"cookie": f"opentab_session={token()}"}).status_code == 503
    assert app.get("/healthz").status_code == 200


def test_a_disk_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("no directory")
    with pytest.raises(LedgerError):
        Revocations(Place.of(tmp_path / "ledger"), tmp_path / "none").holds("a1")
