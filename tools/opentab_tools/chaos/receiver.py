"""A receiver of invoices in a process of its own. It keeps what it takes, and can be told to misbehave.

    python -m opentab_tools.chaos.receiver PORT DIRECTORY

`DIRECTORY/mode` says how it behaves, `DIRECTORY/taken.jsonl` is what came: one line a request, on the disk before
its answer. An invoice counts when its id comes for the first time.
"""

from __future__ import annotations

import base64
import hmac
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import msgspec

from opentab.runtime.disk import write_new
from opentab_tools.servers.daemon import Daemon
from opentab_tools.servers.free_port import free_port

TIMEOUT_SECONDS = 2.0  # of who delivers
SLOW_SECONDS = 0.5
START_SECONDS_MAX = 60


class Mode(StrEnum):
    """How a receiver behaves."""

    WELL = "well"
    SLOW = "slow"
    FAILS = "fails"  # takes nothing, answers 500
    LATE = "late"  # takes it, and answers when nobody waits any more


class Taken(msgspec.Struct, frozen=True):
    """A request, as it came."""

    path: str
    id: str
    body: str
    mode: Mode
    signed: bool
    took: bool


class Receiver:
    """Starts, stops and tells the receiver's process; reads what it has taken."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.key_path = directory / "key"
        command = [sys.executable, "-m", __spec__.name, str(self.port), str(directory)]
        self.daemon = Daemon("receiver", command, directory)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/invoices"

    def start(self) -> None:
        """Start it, if it does not run; returns when it listens."""
        if self.daemon.runs:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        if not self.key_path.exists():
            key = f"whsec_{base64.b64encode(os.urandom(32)).decode()}\n"
            write_new(self.key_path, key.encode(), mode=0o600)
            self.behave(Mode.WELL)
        ready = self.directory / "listens"
        ready.unlink(missing_ok=True)
        self.daemon.start()
        self.daemon.wait_until(ready.exists, seconds_max=START_SECONDS_MAX)

    def behave(self, mode: Mode) -> None:
        """From the next request on."""
        aside = self.directory / "mode.aside"
        aside.write_text(mode)
        aside.replace(self.directory / "mode")

    def requests(self) -> Iterator[Taken]:
        """All requests so far, in order; the last line of a process that was killed may be torn."""
        path = self.directory / "taken.jsonl"
        if not path.exists():
            return
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                yield _decode(line)

    def held(self) -> dict[tuple[str, str, int], dict[str, str]]:
        """What it holds: of each period, customer and revision the bodies by delivery id."""
        found: dict[tuple[str, str, int], dict[str, str]] = defaultdict(dict)
        for request in self.requests():
            if request.took:
                period, customer, revision = request.path.split("/")[-3:]
                found[period, unquote(customer), int(revision)].setdefault(request.id, request.body)
        return found


_decode = msgspec.json.Decoder(Taken).decode


class _Store:
    """The file of what came. A torn line at its end is ended, so that the next one begins on its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = base64.b64decode((directory / "key").read_text().strip().removeprefix("whsec_"))
        self._lock = threading.Lock()
        path = directory / "taken.jsonl"
        whole = path.read_bytes() if path.exists() else b""
        if not whole.endswith(b"\n"):
            path.write_bytes(whole[: whole.rfind(b"\n") + 1])
        self._file = path.open("ab")

    def mode(self) -> Mode:
        return Mode((self._directory / "mode").read_text())

    def is_signed(self, headers: dict[str, str], body: bytes) -> bool:
        content = b".".join([headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), body])
        right = "v1," + base64.b64encode(hmac.digest(self._key, content, "sha256")).decode()
        return any(hmac.compare_digest(right, one) for one in headers.get("webhook-signature", "").split())

    def keep(self, taken: Taken) -> None:
        with self._lock:
            self._file.write(msgspec.json.encode(taken) + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())


def _handler(store: _Store) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            mode, signed = store.mode(), store.is_signed(headers, body)
            took = signed and mode is not Mode.FAILS
            store.keep(Taken(self.path, headers["webhook-id"], body.decode(), mode, signed, took))
            time.sleep({Mode.SLOW: SLOW_SECONDS, Mode.LATE: 1.5 * TIMEOUT_SECONDS}.get(mode, 0.0))
            self.send_response(200 if took else 500 if signed else 401)
            self.send_header("content-length", "0")
            self.end_headers()

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except ConnectionError:  # who asked did not wait for the answer
                self.close_connection = True

        def log_message(self, *_: object) -> None: ...

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


def _main(port: int, directory: Path) -> None:
    server = _Server(("127.0.0.1", port), _handler(_Store(directory)))
    (directory / "listens").touch()
    server.serve_forever()


if __name__ == "__main__":
    _main(int(sys.argv[1]), Path(sys.argv[2]))
