"""Who sits in front of the page: a token that was given once and is kept where no script can read it.

The cookie is good for reads alone: whoever writes shows the token itself, so no other site's form can.
"""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie

COOKIE = "opentab_session"


def cookie_of(token: str, *, secure: bool) -> str:
    """The header that keeps a token in the browser, until it is closed."""
    return _header(token, secure=secure)


def no_cookie(*, secure: bool) -> str:
    """The header that lets the browser forget it."""
    return f"{_header('', secure=secure)}; Max-Age=0"


def token_in(cookies: str) -> str:
    """The token that a Cookie header holds; nothing where there is none."""
    try:
        found = SimpleCookie(cookies).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""


def _header(value: str, *, secure: bool) -> str:
    return f"{COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}"
