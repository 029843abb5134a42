"""HTTP as uvicorn speaks it, with the limits of a connection that it has no settings for.

A head, or what comes behind a body, may have 64 KiB. A connection may say and read nothing for 30 s to a minute. Of
requests that are sent ahead, a piece at a time is read. Trailers are not headers.

Methods and attributes of HttpToolsProtocol are overridden and read that uvicorn does not promise to keep. They are
those of UVICORN_VERSION, and tests/test_protocol.py fails with another one: compare the two protocols then.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

UVICORN_VERSION = "0.54.0"
UNFINISHED_BYTES_MAX = 64 * 1024  # smaller heads are refused with a problem
UNFINISHED_SECONDS_MAX = 30.0


class Protocol(HttpToolsProtocol):
    """One connection."""

    _heads = 0  # that were complete
    _unfinished_bytes = 0
    _running: RequestResponseCycle | None = None
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = self.loop.call_later(UNFINISHED_SECONDS_MAX, self._look, (0, 0))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.pipeline.clear()
        if self._running is not None:  # uvicorn tells the last request alone, which may be behind it
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unfinished_bytes += len(data)
        super().data_received(data)
        if self._unfinished_bytes > UNFINISHED_BYTES_MAX:
            self.transport.close()

    def on_headers_complete(self) -> None:
        self._heads += 1
        self._unfinished_bytes = 0
        super().on_headers_complete()
        self.headers = []  # the app has the others; trailers are none of it

    def on_body(self, body: bytes) -> None:
        self._unfinished_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unfinished_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.pipeline:
            # uvicorn reads on; then who sends faster than is answered would fill the memory.
            self.flow.pause_reading()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _look(self, seen: tuple[int, int]) -> None:
        """Let go of whoever has asked and read nothing since the last look.

        While the app works on an answer, it has a limit of its own; between requests uvicorn has.
        """
        now = self._heads, self.transport.get_write_buffer_size()
        works = self.cycle is not None and not self.cycle.response_complete
        if now == seen and (now[1] or not (works or self.timeout_keep_alive_task)):
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(UNFINISHED_SECONDS_MAX, self._look, now)
