"""The hot read and the limits of a connection, over raw sockets to a real server."""

from __future__ import annotations

import asyncio
import http.client
import os
import resource
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
import uvicorn
from uvicorn.server import ServerState

from ledgers import bill, new_home
from opentab.runtime.config import Home
from opentab.server import protocol
from opentab.server.fast_read import FastRead
from opentab.server.guard import LoopbackOnly
from opentab.server.metrics import Counters
from opentab.server.queries import Reply
from opentab.server.tokens import Role, issue, read_key
from processes import free_port, serving, wait_for
from product import event, opentab

MOVING = {"opentab-staleness-ms", "content-length", "date"}
HOT = "/v1/customers/ann"
UNKNOWN = "/v1/customers/nobody"
USUAL = "/v1/customers/ann?min_position=0"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = new_home(tmp_path_factory.mktemp("protocol") / "home", '[billing]\nout_of_orderness = "0s"\n')
    bill(home, event("ann", "5.005", "2026-01-10T00:00:00Z"), event("bob", "0.000001", "2026-01-11T00:00:00Z"))
    bill(home, event("ann", "-2.50", "2026-02-01T12:00:00Z", "DATA"))
    return home


@pytest.fixture(scope="module")
def url(home: Home) -> Iterator[str]:
    with serving(home, workers=1) as base:
        wait_for(lambda: httpx.get(f"{base}/v1/periods").json().get("position") == 2, "it was there")
        yield base


def request(path: str, *lines: str, version: str = "1.1", method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/{version}", "host: 127.0.0.1", *lines, "", ""]).encode()


def connect(url: str) -> socket.socket:
    line = socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), timeout=20)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return line


def answers(line: socket.socket, count: int) -> list[tuple[int, dict[str, str], bytes]]:
    """So many responses, in the order in which they came."""
    found = []
    with line.makefile("rb") as file:
        for _ in range(count):
            status = int(file.readline().split()[1])
            headers = http.client.parse_headers(file)
            found.append((status, dict(headers.items()), file.read(int(headers["content-length"]))))
    return found


def test_the_hot_read_says_what_the_usual_way_says(url: str) -> None:
    for name in ("ann", "bob", "nobody"):
        hot, usual = (httpx.get(f"{url}/v1/customers/{name}{query}") for query in ("", "?min_position=0"))
        assert hot.status_code == usual.status_code
        assert list(hot.json()) == list(usual.json())
        one, other = (
            {key: value for key, value in answer.json().items() if key != "staleness_ms"} for answer in (hot, usual)
        )
        assert one == other
        one, other = (
            {key: value for key, value in answer.headers.items() if key not in MOVING} for answer in (hot, usual)
        )
        assert one == other
        assert "date" in hot.headers
    etag = httpx.get(f"{url}{HOT}").headers["etag"]
    assert httpx.get(f"{url}{HOT}", headers={"if-none-match": f'"other", W/{etag}'}).status_code == 304
    assert httpx.head(f"{url}{HOT}").content == b""
    assert httpx.request("GET", f"{url}{HOT}", content=b"a body").status_code == 200


def test_requests_in_one_piece_are_answered_in_their_order(url: str) -> None:
    """Hot reads, those that turn out to be none, and others, whichever stands behind whichever."""
    paths = [HOT, HOT, UNKNOWN, HOT, USUAL, HOT, UNKNOWN, UNKNOWN, "/healthz", HOT, USUAL, USUAL, UNKNOWN]
    with closing(connect(url)) as line:
        for _ in range(3):
            line.sendall(b"".join(map(request, paths)))
            found = answers(line, len(paths))
            assert [status for status, _, _ in found] == [404 if path == UNKNOWN else 200 for path in paths]
            assert [b'"customer":"ann"' in body for _, _, body in found] == [path in (HOT, USUAL) for path in paths]


def test_a_request_in_many_pieces(url: str) -> None:
    with closing(connect(url)) as line:
        for path in (HOT, UNKNOWN, USUAL):
            for byte in request(path):
                line.sendall(bytes([byte]))
            ((status, _, _),) = answers(line, 1)
            assert status == (404 if path == UNKNOWN else 200)


def test_who_wants_no_more_is_let_go(url: str) -> None:
    for asked in (
        request(HOT, "connection: close"),
        request(HOT, version="1.0"),
        request(UNKNOWN, "connection: close"),
    ):
        with closing(connect(url)) as line:
            line.sendall(asked)
            answers(line, 1)
            assert line.recv(1) == b""


def test_who_goes_without_waiting_is_no_matter(url: str) -> None:
    for _ in range(50):
        with closing(connect(url)) as line:
            line.sendall(request(HOT) * 20 + request(UNKNOWN) * 3)
    assert httpx.get(f"{url}{HOT}").status_code == 200


def test_heads_have_an_end(url: str) -> None:
    large = f"x-large: {'x' * 20_000}"
    for path in (HOT, UNKNOWN, USUAL):
        with closing(connect(url)) as line:
            line.sendall(request(path, large))
            assert answers(line, 1)[0][0] == 431
    with closing(connect(url)) as line:
        line.sendall(f"GET {HOT} HTTP/1.1\r\n".encode())
        with suppress(ConnectionError):
            for _ in range(10_000):  # more than lies between us
                line.sendall(f"x-more: {'x' * 10_000}\r\n".encode())
            pytest.fail("it reads on")


@pytest.mark.parametrize("asked", [b"\x16\x03\x01\x02\x00\x01\x00\x01", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"])
def test_what_is_no_http_is_told_so(url: str, asked: bytes) -> None:
    with closing(connect(url)) as line:
        line.sendall(asked)
        assert line.recv(100).startswith(b"HTTP/1.1 400 ")
    assert httpx.get(f"{url}{HOT}").status_code == 200


def test_trailers_are_not_headers(url: str) -> None:
    body = event("ann").encode()
    with closing(connect(url)) as line:
        head = request("/v1/events", "transfer-encoding: chunked", method="POST")
        line.sendall(head + b"%x\r\n%b\r\n0\r\ncontent-type: application/json\r\n\r\n" % (len(body), body))
        assert answers(line, 1)[0][0] == 415


def test_the_version_of_uvicorn_whose_protocol_is_extended() -> None:
    """Another one: compare its HttpToolsProtocol and RequestResponseCycle with this one's, then change the version."""
    assert uvicorn.__version__ == protocol.UVICORN_VERSION


def test_foreign_names_are_refused(url: str) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example"):
        assert httpx.get(f"{url}{HOT}", headers={"host": host}).status_code == 403
    with closing(connect(url)) as line:
        line.sendall(request(HOT, "host: evil.example"))  # a second one
        assert answers(line, 1)[0][0] == 403


def test_hot_reads_are_counted(home: Home) -> None:
    name = 'opentab_request_seconds_count{method="GET",route="/v1/customers/{customer}",status="200"} '
    with serving(home, workers=2) as url:
        wait_for(lambda: httpx.get(f"{url}/v1/periods").json().get("position") == 2, "it was there")

        def counted() -> float:
            lines = httpx.get(f"{url}/metrics").text.splitlines()
            return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))

        for _ in range(25):
            assert httpx.get(f"{url}{HOT}").status_code == 200
        wait_for(lambda: counted() == 25, "all of them were told")


REFUSED = b"HTTP/1.1 409 Conflict\r\ncontent-length: 0\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"


class NoDesk:
    """Has an answer of some size for everyone, or for nobody."""

    def __init__(self, size: int | None) -> None:
        self._size = size

    def glance(self, customer: str) -> Reply | None:
        if self._size is None:
            raise RuntimeError("a bug")
        return Reply(200, b"x" * self._size, {})


async def _refuse(scope: object, receive: object, send: Any) -> None:
    """An app that reads nothing."""
    await send({"type": "http.response.start", "status": 409, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})


@asynccontextmanager
async def connected(
    size: int | None = 10,
) -> AsyncIterator[tuple[list[protocol.Protocol], asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a server in this process."""
    made: list[protocol.Protocol] = []
    app: Any = FastRead(_refuse, NoDesk(size), LoopbackOnly(_refuse), Counters())  # type: ignore[arg-type]
    config = uvicorn.Config(app, log_config=None, date_header=False)

    def make() -> protocol.Protocol:
        made.append(protocol.Protocol(config=config, server_state=ServerState(), app_state={}))
        return made[0]

    async with await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), limit=2**20)
        yield made, reader, writer
        writer.close()
        for one in made:
            one.transport.abort()
        while tasks := [task for one in made for task in one.tasks]:  # they see that nobody is there
            await asyncio.wait(tasks)


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"\r\n", b""),
        (b"GET /v1/cust", b""),
        (b"POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\n12", REFUSED),
        (CHUNKED + b"2\r\n12\r\n", REFUSED),
        (CHUNKED + b"0\r\na: b\r\n", REFUSED),
    ],
)
def test_who_says_nothing_more_is_not_waited_for(sent: bytes, answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "UNFINISHED_SECONDS_MAX", 1.0)

    async def ask() -> bytes:
        async with connected() as (made, reader, writer):
            while not made:
                await asyncio.sleep(0)
            made[0].timeout_keep_alive = 1.0
            for byte in sent:
                writer.write(bytes([byte]))
                await writer.drain()
            return await asyncio.wait_for(reader.read(), timeout=20)

    assert asyncio.run(ask()) == answer


def test_who_reads_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "UNFINISHED_SECONDS_MAX", 0.5)

    async def ask() -> None:
        async with connected(size=2**22) as (made, _, writer):
            writer.write(request(HOT) * 20)
            async with asyncio.timeout(20):
                while not made or not made[0].transport.is_closing():
                    await asyncio.sleep(0.05)

    asyncio.run(ask())


def test_what_comes_behind_a_body_has_an_end() -> None:
    async def ask() -> None:
        async with connected() as (_, _, writer):
            writer.write(CHUNKED + b"0\r\n")
            with pytest.raises(ConnectionError):
                for _ in range(100_000):
                    writer.write(b"a: " + b"x" * 1_000 + b"\r\n")
                    await writer.drain()

    asyncio.run(ask())


@pytest.mark.parametrize("path", [HOT, "/healthz"])
def test_who_does_not_read_is_not_answered_for_ever(path: str) -> None:
    """What waits to be sent, and what waits to be answered, stays small."""

    async def ask() -> tuple[int, int]:
        async with connected(size=1_000) as (made, _, writer):
            many = request(path) * 1_000
            with suppress(TimeoutError):
                async with asyncio.timeout(2):
                    for _ in range(1_000):
                        writer.write(many)
                        await writer.drain()
            (one,) = made
            return one.transport.get_write_buffer_size(), len(one.pipeline)

    waiting_bytes, waiting_requests = asyncio.run(ask())
    assert waiting_bytes < 8 * 2**20
    assert waiting_requests < 20_000


def test_a_bug_is_met_again_by_the_usual_way() -> None:
    async def ask() -> bytes:
        async with connected(size=None) as (_, reader, writer):
            writer.write(request(HOT) * 2)
            return await asyncio.wait_for(reader.readexactly(2 * len(REFUSED)), timeout=20)

    assert asyncio.run(ask()) == REFUSED * 2


def test_tokens_are_checked(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home", '[server]\nkey_file = "key"\n')
    opentab("token", "key", home=home)
    bill(home, event("ann", "1.00"), event("bob", "2.00"))
    key = read_key(home)
    assert key is not None
    tokens = {
        "ann": issue(key, Role.CUSTOMER, customer="ann", lifetime=timedelta(days=1)),
        "late": issue(key, Role.CUSTOMER, customer="ann", lifetime=timedelta(seconds=-5)),
        "reader": issue(key, Role.READER, customer=None, lifetime=timedelta(days=1)),
        "forged": issue(b"x" * 32, Role.READER, customer=None, lifetime=timedelta(days=1)),
    }
    expected = {"ann": (200, 403), "reader": (200, 200), "late": (401, 401), "forged": (401, 401)}
    with serving(home, workers=1) as url:
        reader = {"authorization": f"Bearer {tokens['reader']}"}
        wait_for(lambda: httpx.get(f"{url}{HOT}", headers=reader).status_code == 200, "it was there")
        for name, token in tokens.items():
            headers = {"authorization": f"Bearer {token}"}
            statuses = tuple(httpx.get(f"{url}/v1/customers/{c}", headers=headers).status_code for c in ("ann", "bob"))
            assert statuses == expected[name], name
            cookies = {"cookie": f"opentab_session={token}"}
            found = tuple(httpx.get(f"{url}/v1/customers/{c}", headers=cookies).status_code for c in ("ann", "bob"))
            assert found == expected[name], name
        assert httpx.get(f"{url}{HOT}").status_code == 401


def test_a_worker_that_is_killed_comes_back(home: Home, tmp_path: Path) -> None:
    port = free_port()
    with serving(home, workers=2, port=port) as url:
        (server,) = (child for child in psutil.Process().children() if str(port) in child.cmdline())

        def workers() -> list[int]:
            return [child.pid for child in server.children() if "opentab.server.worker" in child.cmdline()]

        wait_for(lambda: len(workers()) == 2, "both were there")
        killed = workers()
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        # Whoever asks now waits at the server's own socket.
        assert httpx.get(f"{url}{HOT}", timeout=30).status_code == 200
        wait_for(lambda: len(set(workers()) - set(killed)) == 2, "both were back")


def test_who_says_nothing_keeps_nobody_out(home: Home) -> None:
    few, many = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, many))
    try:
        with ExitStack() as open_lines, serving(home, workers=1) as url:
            resource.setrlimit(resource.RLIMIT_NOFILE, (few, many))
            for _ in range(400):
                open_lines.enter_context(closing(connect(url)))
            assert httpx.get(f"{url}/healthz", timeout=10).status_code == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, many))


def test_a_worker_that_hangs_is_replaced(home: Home) -> None:
    port = free_port()
    with serving(home, workers=1, port=port) as url:
        wait_for(lambda: httpx.get(f"{url}{HOT}").status_code == 200, "it was there")
        (server,) = (child for child in psutil.Process().children() if str(port) in child.cmdline())
        (worker,) = (child for child in server.children() if "opentab.server.worker" in child.cmdline())
        worker.suspend()
        assert httpx.get(f"{url}{HOT}", timeout=60).status_code == 200
        assert not worker.is_running()
