"""What requests may take: so many bytes of headers and bodies, and so much time. Streams have a limit of their own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from opentab.server.paths import App
from opentab.server.problem import Problem, problem

HEADER_BYTES_MAX = 16 * 1024
PATH_BYTES_MAX = 8 * 1024
STREAM_PATH = "/v1/stream"
# Bodies of all requests together, from their first byte until they are written to the log.
UNDER_WAY_BYTES_MAX = 64 * 2**20
UNDER_WAY_HOLDER_BYTES_MAX = 32 * 2**20
RETRY = {"retry-after": "5"}


class SmallOnly:
    """Refuses headers and addresses that are too large."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEADER_BYTES_MAX:
            await problem(431, f"the headers are larger than {HEADER_BYTES_MAX:,} bytes")(scope, receive, send)
            return
        if len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"") > PATH_BYTES_MAX:
            await problem(414, f"the address is longer than {PATH_BYTES_MAX:,} bytes")(scope, receive, send)
            return
        await self._app(scope, receive, send)


class InTime:
    """Gives up requests that take too long."""

    def __init__(self, app: App, *, seconds_max: float) -> None:
        self._app = app
        self._seconds_max = seconds_max

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] == STREAM_PATH:
            await self._app(scope, receive, send)
            return
        started = complete = False

        async def sent(message: dict[str, Any]) -> None:
            nonlocal started
            started = True
            await send(message)

        async def received() -> Any:
            nonlocal complete
            message = await receive()
            complete = complete or not message.get("more_body", False)
            return message

        try:
            async with asyncio.timeout(self._seconds_max):
                await self._app(scope, received, sent)
        except TimeoutError:
            if started:
                return  # the server ends the connection, and says so in a line
            slow_body = scope["method"] == "POST" and not complete
            status, what = (408, "the body took") if slow_body else (503, "the answer takes")
            refusal = problem(status, f"{what} longer than {self._seconds_max:g} s", headers={"retry-after": "5"})
            await refusal(scope, receive, send)


class BytesUnderWay:
    """How many bytes of bodies this worker holds, and for whom. For one thread: that of the loop."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()

    @contextmanager
    def body(self, holder: str) -> Iterator[Callable[[int], None]]:
        """A body; the function takes what has come of it, and raises a problem where that is too much."""
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            if self._held[holder] + size > UNDER_WAY_HOLDER_BYTES_MAX:
                raise Problem(429, "your other requests are too large together: wait for their answers", headers=RETRY)
            if self._held.total() + size > UNDER_WAY_BYTES_MAX:
                raise Problem(503, "all requests together are too large", headers=RETRY)
            self._held[holder] += size
            taken += size

        try:
            yield take
        finally:
            self._held[holder] -= taken
            if not self._held[holder]:
                del self._held[holder]
