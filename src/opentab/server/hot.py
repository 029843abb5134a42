"""The one read that everyone makes, without the framework: GET /v1/customers/{customer}.

It asks the same desk the same question; what is spared is the way there. Whatever is out of the ordinary, a query
or a condition, takes the usual way.
"""

from __future__ import annotations

import time
from typing import Any

from opentab.errors import ReplicaError
from opentab.server.asked import CUSTOMER_BYTES_MAX
from opentab.server.desk import Desk
from opentab.server.metrics import Counters
from opentab.server.paths import App
from opentab.server.problem import Problem

PREFIX = b"/v1/customers/"
ROUTE = "/v1/customers/{customer}"


class HotReads:
    """Answers the common read itself, and leaves the rest to the app."""

    def __init__(self, app: App, desk: Desk, counters: Counters) -> None:
        self._app = app
        self._desk = desk
        self._answered = counters.requests.labels(ROUTE, "GET", "200")
        self._known: tuple[dict[str, str], list[tuple[bytes, bytes]]] | None = None

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or scope["query_string"]:
            await self._app(scope, receive, send)
            return
        name = _customer(scope.get("raw_path") or b"")
        if name is None or any(key == b"if-none-match" for key, _ in scope["headers"]):
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        try:
            reply = self._desk.answer(lambda answers: answers.at_a_glance(name))
        except (Problem, ReplicaError):
            # The usual way says what is wrong.
            await self._app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": reply.status, "headers": self._encoded(reply.headers)})
        await send({"type": "http.response.body", "body": reply.body})
        self._answered.observe(time.perf_counter() - began)

    def _encoded(self, headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
        """Headers as they are sent; many answers have the same ones."""
        if self._known is None or self._known[0] is not headers:
            self._known = (headers, [(key.encode(), value.encode()) for key, value in headers.items()])
        return self._known[1]


def _customer(path: bytes) -> str | None:
    """The customer that a plain path names; None for any other path."""
    if not path.startswith(PREFIX):
        return None
    name = path[len(PREFIX) :]
    if not name or b"/" in name or b"%" in name or b"?" in name or len(name) > CUSTOMER_BYTES_MAX:
        return None
    return name.decode("latin-1") if name.isascii() else None
