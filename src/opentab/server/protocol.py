"""HTTP as uvicorn speaks it; only that the hot read is answered where it is read, and that nobody fills the memory.

A task, a scope and an app for each request take several times as long as the answer itself.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from opentab.server.fast_read import HotReads

UNFINISHED_BYTES_MAX = 64 * 1024  # of a head, or of what comes behind a body; smaller ones are refused with a problem
UNFINISHED_SECONDS_MAX = 30.0


class Protocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, hot: HotReads, **options: Any) -> None:
        super().__init__(**options)
        self._hot = hot
        self._is_hot = False  # the last request that was read waits for a hot read
        self._in_message = False
        self._steps = 0  # parts of requests that were complete
        self._unfinished_bytes = 0
        self._unfinished_timer: asyncio.TimerHandle | None = None
        self._running: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_a_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_part()
        self.pipeline.clear()
        if self._running is not None:  # uvicorn tells the last request alone, which may be behind it
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        steps = self._steps
        super().data_received(data)
        if self.transport.is_closing():
            return
        self._unfinished_bytes = self._unfinished_bytes + len(data) if self._steps == steps else 0
        if self._unfinished_bytes > UNFINISHED_BYTES_MAX:
            self.transport.close()
        elif self._is_hot or self._is_busy:
            return  # who answers has a limit of its own
        elif not self._in_message:
            self._wait_for_a_request()
        elif self._unfinished_timer is None:
            self._unfinished_timer = self.loop.call_later(UNFINISHED_SECONDS_MAX, self.transport.close)

    def on_message_begin(self) -> None:
        if self._is_hot:
            # Another request behind one that waits: what is answered stays in order.
            self._hot.answer()
        # The scope is left for later: hot reads need none.
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._in_message = True

    def on_headers_complete(self) -> None:
        self._end_part()
        self._is_hot = self._is_hot_read()
        if not self._is_hot:
            self._ask_the_app()

    def on_body(self, body: bytes) -> None:
        self._steps += 1
        if not self._is_hot:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._end_part()
        self._in_message = False
        if not self._is_hot:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.pipeline:
            # uvicorn reads on; then who sends faster than is answered would fill the memory.
            self.flow.pause_reading()

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

    def failed(self, error: Exception) -> None:
        """What was to be done with the response of a hot read went wrong: nobody waits for more."""
        self.logger.error("a hot read could not be answered", exc_info=error)
        self.transport.abort()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    @property
    def _is_busy(self) -> bool:
        """Whether the app is at work."""
        return self.cycle is not None and not self.cycle.response_complete

    def _is_hot_read(self) -> bool:
        """Whether it waits for a hot read now: no other request is before it, and nothing is unusual about it."""
        parser = self.parser
        if self._is_busy or parser.get_method() != b"GET" or not parser.should_keep_alive():
            return False
        # Who does not take what was written is not written more to: the app waits for that.
        if parser.get_http_version() != "1.1" or self.transport.is_closing() or self.flow.write_paused:
            return False
        return self._hot.takes(self.url, self.headers, self.server_state.default_headers, self)

    def _ask_the_app(self) -> None:
        self._unset_keepalive_if_required()
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers
        super().on_headers_complete()
        self.headers = []  # trailers come behind the body, and are none of the request's headers

    def _wait_for_a_request(self) -> None:
        """uvicorn does so behind an answer; who never asks, or sends empty lines, is not waited for either."""
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(UNFINISHED_SECONDS_MAX, self.timeout_keep_alive_handler)

    def _end_part(self) -> None:
        """A head or a request is complete, or there will be no more of it."""
        self._steps += 1
        if self._unfinished_timer is not None:
            self._unfinished_timer.cancel()
            self._unfinished_timer = None
