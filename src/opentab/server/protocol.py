"""HTTP as uvicorn speaks it; only that the hot read is answered where it is read, and that heads have limits.

A task, a scope and an app for each request take several times as long as the answer itself.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from opentab.server.hot import HotReads

HEAD_BYTES_MAX = 64 * 1024  # of a request line and its headers; below that a request is refused with a problem
HEAD_SECONDS_MAX = 30.0


class Protocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, hot: HotReads, **options: Any) -> None:
        super().__init__(**options)
        self._hot = hot
        self._is_hot = False  # the last request that was read waits for a hot read
        self._in_head = False
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # uvicorn arms it behind an answer; who never asks is not waited for either.
        self.timeout_keep_alive_task = self.loop.call_later(HEAD_SECONDS_MAX, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_over()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._in_head:
            return
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES_MAX:
            self.transport.close()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS_MAX, self.transport.close)

    def on_message_begin(self) -> None:
        if self._is_hot:
            # Another request behind one that waits: what is answered stays in order.
            self._hot.answer()
        # The scope is left for later: hot reads need none.
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._in_head = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_is_over()
        self._is_hot = self._is_hot_read()
        if not self._is_hot:
            self._ask_the_app()

    def on_body(self, body: bytes) -> None:
        if not self._is_hot:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_hot:
            super().on_message_complete()

    def answered(self, response: bytes | None) -> None:
        """What came of a hot read."""
        self._is_hot = False
        if self.transport.is_closing():
            return
        if response is None:
            self._ask_the_app()
            super().on_message_complete()
            return
        self.transport.write(response)
        self.on_response_complete()

    def _is_hot_read(self) -> bool:
        """Whether it waits for a hot read now: no other request is before it, and nothing is unusual about it."""
        parser = self.parser
        is_next = self.cycle is None or self.cycle.response_complete
        if not is_next or parser.get_method() != b"GET" or not parser.should_keep_alive():
            return False
        if parser.get_http_version() != "1.1" or self.transport.is_closing():
            return False
        return self._hot.takes(self.url, self.headers, self.server_state.default_headers, self)

    def _ask_the_app(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers
        super().on_headers_complete()

    def _head_is_over(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
