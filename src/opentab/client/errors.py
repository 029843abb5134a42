"""What can go wrong between a client and a server."""

from __future__ import annotations

import msgspec

TRY_AGAIN = frozenset((429, 502, 503, 504))  # 502 and 504: a proxy's word that the server is gone


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
    """Not right now: stale, overloaded or being made; trying again may help (429, 502 to 504)."""


class Unreachable(Unavailable):
    """No server answered, or none in time; `status` is 0."""

    def __init__(self, detail: str) -> None:
        super().__init__(0, detail)

    def __str__(self) -> str:
        return self.detail


KINDS = {401: NotAllowed, 403: NotAllowed, 404: NotThere, **dict.fromkeys(TRY_AGAIN, Unavailable)}


class _Problem(msgspec.Struct):
    detail: str = "no reason given"


def error_of(status: int, body: bytes) -> ClientError:
    """The error that an answer stands for."""
    try:
        detail = msgspec.json.decode(body, type=_Problem).detail
    except msgspec.MsgspecError:
        detail = body[:200].decode("utf-8", errors="replace") or "no reason given"
    return KINDS.get(status, ClientError)(status, detail)
