"""Who sits in front of the page: a token that was given once and is kept where no script can read it.

The cookie is good for reads alone: whoever writes shows the token itself, so no other site's form can.
"""

from __future__ import annotations

from typing import Any

from opentab.server.paths import App

COOKIE = "opentab_session"
COOKIE_TOKEN = "opentab.cookie_token"  # where a request's scope holds the token of its cookie


def cookie_of(token: str, *, secure: bool) -> str:
    """The header that keeps a token in the browser, until it is closed."""
    return _header(token, secure=secure)


def no_cookie(*, secure: bool) -> str:
    """The header that lets the browser forget it."""
    return f"{_header('', secure=secure)}; Max-Age=0"


class CookieTaken:
    """Takes a request's cookies away, and keeps the token of ours.

    The framework would split them for every request by the standard library: seconds for backslashes in quotes.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = scope["headers"]
            cookies = [value for name, value in headers if name == b"cookie"]
            scope = {**scope, COOKIE_TOKEN: token_in(b";".join(cookies).decode("latin-1"))}
            scope["headers"] = [header for header in headers if header[0] != b"cookie"]
        await self._app(scope, receive, send)


def token_in(cookies: str) -> str:
    """The token that a Cookie header holds; nothing where there is none."""
    for cookie in cookies.split(";"):
        name, _, value = cookie.strip().partition("=")
        if name == COOKIE:
            return value
    return ""


def _header(value: str, *, secure: bool) -> str:
    return f"{COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}"
