"""Paths whose parts may hold any text: a customer named `a/b` is `/v1/customers/a%2Fb`.

Frameworks route on the decoded path, where that slash is lost. So each part is decoded alone, and what would
break the path apart again is kept encoded until a handler asks for the name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import unquote, unquote_to_bytes

Headers = Sequence[tuple[bytes, bytes]]
App = Callable[[dict[str, Any], Any, Any], Awaitable[None]]


class RawPaths:
    """Gives an app paths that can be taken apart at their slashes."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http" and b"%" in (scope.get("raw_path") or b""):
            scope = {**scope, "path": "/".join(map(_kept, parts_of(scope)))}
        await self._app(scope, receive, send)


def parts_of(scope: dict[str, Any]) -> list[str]:
    """The parts of a request's path, each decoded alone."""
    raw = scope.get("raw_path") or scope["path"].encode()
    return [unquote_to_bytes(part).decode("utf-8", errors="replace") for part in raw.split(b"?", 1)[0].split(b"/")]


def name_of(part: str) -> str:
    """The text that a part of a path stands for."""
    return unquote(part)


def _kept(part: str) -> str:
    return part.replace("%", "%25").replace("/", "%2F")
