"""Where and when a call is tried, without waiting for anything: the state of one exchange with one of several servers.

A client sends the exchange's request, tells it what came of that, pauses as it says, and goes on until it is done. A
server that cannot be reached, is busy or too stale is left for the next one; once all were asked, the client pauses,
and begins again until `retry_seconds` are over.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

import httpx
import msgspec

from opentab.api.answers import Fresh
from opentab.client.errors import TRY_AGAIN, ClientError, Unreachable, error_of
from opentab.client.requests import Answer, Call, Messages, pause_seconds

STREAM_SILENCE_SECONDS = 60.0  # a stream says something at least every 15 s
MISTAKES = (httpx.LocalProtocolError, httpx.UnsupportedProtocol)  # of ours, such as a line break in the token
TOTALS = "totals"  # the event of a stream that holds totals


class Servers:
    """The addresses of servers with the same answers, and the one that is asked first."""

    def __init__(self, urls: Sequence[str]) -> None:
        if not urls:
            raise ValueError("a client needs the address of a server, such as http://127.0.0.1:8080")
        for url in urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"{url!r} is no address of a server: write it as http://host:port")
        self._urls = [url.rstrip("/") for url in urls]
        self._first = 0

    def __len__(self) -> int:
        return len(self._urls)

    @property
    def url(self) -> str:
        return self._urls[self._first]

    def leave(self, url: str) -> None:
        """Ask the server after this one from now on; another thread may have left it before."""
        if url == self.url:
            self._first = (self._first + 1) % len(self._urls)


@dataclass(frozen=True, slots=True)
class Policy:
    """How long a call is tried, and which answers are good enough."""

    timeout_seconds: float
    retry_seconds: float
    staleness_max_seconds: float | None


Message = TypeVar("Message", bound=Fresh)
Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)


class Connection(ABC, Generic[Http]):
    """What clients of both kinds have in common."""

    def __init__(
        self,
        url: str | Sequence[str],
        *more: str,
        token: str | None = None,
        timeout_seconds: float = 10.0,
        retry_seconds: float = 15.0,
        staleness_max: timedelta | float | None = None,
    ) -> None:
        """Connect to servers of the same home: the next one is asked where one is gone, or its answers are too old.

        `staleness_max` is a timedelta or seconds. A call is tried again for `retry_seconds`.
        """
        if isinstance(staleness_max, timedelta):
            staleness_max = staleness_max.total_seconds()
        self._servers = Servers([*([url] if isinstance(url, str) else url), *more])
        self._policy = Policy(timeout_seconds, retry_seconds, staleness_max)
        self._http: Http = self._open({"authorization": f"Bearer {token}"} if token else {})

    @staticmethod
    @abstractmethod
    def _open(headers: dict[str, str]) -> Http: ...


class _Attempts:
    """Leaves servers, and pauses once all of them were left."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._url = servers.url  # that was asked last
        self._left = 0
        self._asked_all = False
        self.pause_seconds = 0.0

    def _next(self, retry_after: str | None = None) -> None:
        self._servers.leave(self._url)
        self._left += 1
        rounds, rest = divmod(self._left, len(self._servers))
        self._asked_all = rest == 0
        self.pause_seconds = pause_seconds(rounds - 1, retry_after) if self._asked_all else 0.0


class Exchange(_Attempts, Generic[Answer]):
    """One call, until there is an answer or no more hope."""

    def __init__(self, call: Call[Answer], servers: Servers, policy: Policy) -> None:
        super().__init__(servers)
        self._call = call
        self._answer: list[Answer] = []
        self._ends = time.monotonic() + policy.retry_seconds
        self._request: dict[str, Any] = {
            "method": "GET" if call.body is None else "POST",
            "params": dict(call.query),
            "content": call.body,
            "headers": None if call.body is None else {"content-type": "application/json"},
            "timeout": policy.timeout_seconds + call.waits_seconds,
        }
        if call.body is None and policy.staleness_max_seconds is not None:
            self._request["params"].setdefault("max_staleness", policy.staleness_max_seconds)

    def request(self) -> dict[str, Any]:
        """What to send now."""
        self._url = self._servers.url
        return {**self._request, "url": self._url + self._call.path}

    @property
    def is_done(self) -> bool:
        return bool(self._answer)

    @property
    def answer(self) -> Answer:
        return self._answer[0]

    def answered(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Take what a server said; raises what no later try would change."""
        if status in TRY_AGAIN:
            self._again(error_of(status, body), headers.get("retry-after"))
        else:
            self._answer.append(self._call.read(status, body))

    def failed(self, error: httpx.TransportError) -> None:
        """Take note that no answer came."""
        if isinstance(error, MISTAKES):
            raise error
        self._again(Unreachable(f"{self._url} did not answer: {str(error) or type(error).__name__}"), None)

    def _again(self, error: ClientError, retry_after: str | None) -> None:
        self._next(retry_after)
        if self._asked_all and time.monotonic() + self.pause_seconds > self._ends:
            raise error


class Stream(_Attempts, Generic[Message]):
    """A live stream, without end: it goes on where it was, at the next server if need be."""

    def __init__(self, kind: type[Message], query: dict[str, str], servers: Servers, policy: Policy) -> None:
        super().__init__(servers)
        self._kind = kind
        self._messages = Messages()
        self._policy = policy
        self._position = 0
        self.is_stale = False  # this server is: leave it
        # Without a pulse nothing would tell while nothing happens.
        self._query = query if policy.staleness_max_seconds is None else {**query, "pulse": ""}

    def request(self) -> dict[str, Any]:
        """What to send now."""
        self._url = self._servers.url
        return {
            "method": "GET",
            "url": f"{self._url}/v1/stream",
            "params": self._query,
            "headers": {"last-event-id": str(self._position)} if self._position else None,
            "timeout": httpx.Timeout(self._policy.timeout_seconds, read=STREAM_SILENCE_SECONDS),
        }

    def refused(self, status: int, body: bytes) -> None:
        """Take note that a server does not open the stream; raises what no later try would change."""
        if status not in TRY_AGAIN:
            raise error_of(status, body)
        self.ended()

    def take(self, line: str) -> Message | None:
        """The message that a line completes."""
        data = self._messages.take(line)
        limit = self._policy.staleness_max_seconds
        if limit is None:
            self._left = 0
        if data is None:
            return None
        fresh = msgspec.json.decode(data, type=Fresh)
        self.is_stale = limit is not None and (fresh.staleness_ms is None or fresh.staleness_ms > limit * 1000)
        if not self.is_stale:
            self._left = 0
        # A server that is behind the one before may have an older state: it is no news.
        if self.is_stale or self._messages.event != TOTALS or fresh.position < self._position:
            return None
        self._position = fresh.position
        return msgspec.json.decode(data, type=self._kind)

    def failed(self, error: httpx.TransportError) -> None:
        """Take note that the stream broke off; raises what no later try would change."""
        if isinstance(error, MISTAKES):
            raise error
        self.ended()

    def ended(self) -> None:
        """Take note that the stream is over: the next one is asked."""
        self.is_stale = False
        self._next()
