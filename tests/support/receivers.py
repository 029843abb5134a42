"""A real receiver of invoices on loopback, in threads of its own: it keeps what it takes, and can be told to misbehave."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentab_tools.servers.free_port import free_port


@dataclass(frozen=True)
class Put:
    """A request as it came."""

    path: str
    headers: Message
    body: bytes
    at: float

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


@dataclass(frozen=True)
class Answer:
    """What a receiver says, after how long, and whether it has taken the invoice."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    takes: bool | None = None  # None: if it says so

    @property
    def taken(self) -> bool:
        return self.status < 300 if self.takes is None else self.takes


class Receiver:
    """What came, in order, and what it holds: one body an id, and at each address the last one."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.puts: list[Put] = []
        self.held: dict[str, bytes] = {}
        self.places: dict[str, bytes] = {}
        self.answer: Callable[[Put], Answer] = lambda put: Answer()
        self._lock = threading.Lock()
        self._over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/bills"

    def take(self, put: Put) -> Answer:
        answer = self.answer(put)
        with self._lock:
            self.puts.append(put)
            if answer.taken:
                assert self.held.setdefault(put.id, put.body) == put.body, "the same id with other bytes"
                self.places[put.path] = put.body
        self._over.wait(answer.seconds)
        return answer

    @contextmanager
    def listening(self, tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
        self._over.clear()
        server = _Server(("127.0.0.1", self.port), _handler(self))
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            server.shutdown()
            thread.join()
            server.server_close()
            server.hang_up()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # the connections stay open until we hang up
    request_queue_size = 64

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._open: list[socket.socket] = []

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.append(request)
        super().process_request(request, client_address)

    def hang_up(self) -> None:
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def new_receiver() -> Receiver:
    return Receiver(free_port())


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_PUT(self) -> None:
            length = int(self.headers["content-length"])
            body = self.rfile.read(length)
            if len(body) < length:  # who sent it was killed in the middle
                self.close_connection = True
                return
            answer = receiver.take(Put(self.path, self.headers, body, time.monotonic()))
            text = b'{"why":"that is how it is"}'
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except OSError:  # who asked did not wait for the answer
                self.close_connection = True

        def log_message(self, *_: object) -> None: ...

    return Handler
