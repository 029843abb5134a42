"""On loopback without tokens, no web page of another site may read or write through a visitor's browser."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable
from typing import Any

from opentab.server.problem import problem

App = Callable[[dict[str, Any], Any, Any], Awaitable[None]]


class LoopbackOnly:
    """Answers only who calls it by a loopback name: a foreign page's requests carry that page's own."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
            if not is_loopback_name(host):
                response = problem(403, "this server answers on loopback names only, such as 127.0.0.1 or localhost")
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


def is_loopback_name(host: str) -> bool:
    """Whether a Host header names this machine by a loopback name."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.rpartition(":")[0] or host
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
