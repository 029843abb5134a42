"""What can go wrong between a client and a server."""

from __future__ import annotations

import msgspec


class ClientError(Exception):
    """The server refused; `status` and `detail` say why."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
        self.detail = detail


class NotAllowed(ClientError):
    """The token is missing, no good, or not good for that (401, 403)."""


class NotThere(ClientError):
    """Nothing was billed there (404)."""


class Unavailable(ClientError):
    """Not right now: stale, overloaded or being made; trying again may help (429, 503)."""


class _Problem(msgspec.Struct):
    detail: str = "no reason given"


def error_of(status: int, body: bytes) -> ClientError:
    """The error that an answer stands for."""
    try:
        detail = msgspec.json.decode(body, type=_Problem).detail
    except msgspec.MsgspecError:
        detail = body[:200].decode("utf-8", errors="replace") or "no reason given"
    kinds = {401: NotAllowed, 403: NotAllowed, 404: NotThere, 429: Unavailable, 503: Unavailable}
    return kinds.get(status, ClientError)(status, detail)
