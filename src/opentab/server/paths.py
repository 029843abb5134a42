"""Paths whose parts may hold any text: a customer named `a/b` is `/v1/customers/a%2Fb`.

Frameworks route on the decoded path, where that slash is lost. So each part is decoded alone, and what would
break the path apart again is kept encoded until a handler asks for the name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote, unquote_to_bytes

App = Callable[[dict[str, Any], Any, Any], Awaitable[None]]


class RawPaths:
    """Gives an app paths that can be taken apart at their slashes."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        raw = scope.get("raw_path")
        if scope["type"] == "http" and raw and b"%" in raw:
            scope = {**scope, "path": "/".join(map(_kept, raw.split(b"?", 1)[0].split(b"/")))}
        await self._app(scope, receive, send)


def name_of(part: str) -> str:
    """The text that a part of a path stands for."""
    return unquote(part)


def _kept(part: bytes) -> str:
    text = unquote_to_bytes(part).decode("utf-8", errors="replace")
    return text.replace("%", "%25").replace("/", "%2F")
