"""A server in front of a store that lets two writers send the same commit before either of them gets an answer."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

from opentab_tools.servers.bucket_server import KEY_ID, SECRET

PATIENCE_SECONDS = 60
# What belongs to one connection, not to what is sent over it.
NOT_PASSED_ON = {"host", "connection", "transfer-encoding", "content-length"}
OWN_HEADERS = {"connection", "transfer-encoding", "content-length", "content-encoding", "date", "server"}


class CommitGate(ThreadingHTTPServer):
    """Passes everything on; once closed, it holds back puts of one name until two of them are there."""

    daemon_threads = True

    def __init__(self, store: str, *, drops_condition: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.store = store
        self.drops_condition = drops_condition  # as a store does that has never heard of it
        self.held = ""  # how the name ends
        self.both = threading.Barrier(2)
        self.swallowed = ""  # how the name ends whose first put is passed on and never answered
        self.broken = False  # nothing is passed on, and what is said of it has the secrets in it
        self.one_by_one = threading.Lock()
        self.answers: list[tuple[str | None, int]] = []  # the condition that was sent, and the answer

    def handle_error(self, request: object, client_address: object) -> None:
        """Who asked is gone, killed say. Nothing else may happen here."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: CommitGate
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        gate = self.server
        body = self._body()
        headers = {name: value for name, value in self.headers.items() if name.lower() not in NOT_PASSED_ON}
        condition = self.headers.get("if-none-match")
        if gate.drops_condition:
            headers = {name: value for name, value in headers.items() if name.lower() != "if-none-match"}
        if gate.broken:
            self._complain()
            return
        held = bool(gate.held) and self.command == "PUT" and self.path.endswith(gate.held)
        if held:
            gate.both.wait(PATIENCE_SECONDS)
        with gate.one_by_one:
            url = f"{gate.store}{self.path}"
            answer = httpx.request(self.command, url, headers=headers, content=body, timeout=PATIENCE_SECONDS)
            swallowed = bool(gate.swallowed) and self.command == "PUT" and self.path.endswith(gate.swallowed)
            if held or swallowed:
                gate.answers.append((condition, answer.status_code))
        if swallowed:
            gate.swallowed = ""
            self.close_connection = True
            return
        self.send_response(answer.status_code)
        for name, value in answer.headers.items():
            if name.lower() not in OWN_HEADERS:
                self.send_header(name, value)
        length = answer.headers.get("content-length", "0") if self.command == "HEAD" else str(len(answer.content))
        self.send_header("content-length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.content)

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _complain(self) -> None:
        text = f"<Error><Code>AccessDenied</Code><Message>{KEY_ID} {SECRET}</Message></Error>".encode()
        self.send_response(403)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def commit_gate(store: str, *, drops_condition: bool = False) -> Iterator[CommitGate]:
    """A gate that is open, until it is told what to hold back."""
    with CommitGate(store, drops_condition=drops_condition) as gate:
        thread = threading.Thread(target=gate.serve_forever, daemon=True)
        thread.start()
        yield gate
        gate.shutdown()
        thread.join()
