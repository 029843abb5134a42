"""The one read that everyone makes, without the framework: GET /v1/customers/{customer}.

It asks the same desk the same question; what is spared is the way there. Whatever is out of the ordinary, a query,
a condition or a body, takes the usual way, and so does whoever may not ask: that way says why not.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import Protocol

from opentab.core.events import CUSTOMER_BYTES_MAX
from opentab.server.guard import Guard
from opentab.server.limits import HEADER_BYTES_MAX
from opentab.server.metrics import Counters, Times
from opentab.server.paths import Headers
from opentab.server.queries import Desk, Reply

# "?" and "#" end a path, and what is escaped has to be taken apart first.
PLAIN = re.compile(rb"/v1/customers/([!$&-.0->@-~]{1,%d})" % CUSTOMER_BYTES_MAX).fullmatch
ROUTE = "/v1/customers/{customer}"
UNUSUAL = frozenset((b"if-none-match", b"content-length", b"transfer-encoding", b"expect", b"upgrade"))


class Asker(Protocol):
    """Who waits for an answer."""

    def answered(self, response: bytes | None) -> None:
        """Take the whole response; None: ask the usual way."""

    def failed(self, error: Exception) -> None:
        """Give up: what it did with its response went wrong."""


class HotReads:
    """Answers common reads: all that came in one turn of the loop together, from one snapshot.

    One behind the other they take half the time of each by itself between two looks at the network: the processor
    has at hand what it needs for them.
    """

    def __init__(self, desk: Desk, guard: Guard, counters: Counters) -> None:
        self._desk = desk
        self._guard = guard
        self._times = Times(counters.requests.labels(ROUTE, "GET", "200"))
        self._head: tuple[dict[str, str], Headers, bytes] | None = None
        self._waiting: list[tuple[str, Asker]] = []
        self._every: Headers = ()

    def takes(self, url: bytes, headers: Headers, every: Headers, asker: Asker) -> bool:
        """Whether a GET is such a read; if so, its asker is answered before the loop looks at the network again.

        `every` are headers that every response has.
        """
        plain = PLAIN(url)
        if plain is None or not _is_usual(headers):
            return False
        name = plain[1].decode("ascii")
        if not self._guard.lets_read(name, headers):
            return False
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.answer)
        self._waiting.append((name, asker))
        self._every = every
        return True

    def answer(self) -> None:
        """Answer all that wait; who cannot be answered here is told so."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        began = time.perf_counter()
        responses: list[bytes | None]
        try:
            replies = self._desk.glances([name for name, _ in waiting])
            responses = [None if reply is None else self._response(reply) for reply in replies]
        except Exception:  # whatever it is, the usual way meets it again and says so, to who asked and in the log
            responses = [None] * len(waiting)
        self._times.add(time.perf_counter() - began, sum(response is not None for response in responses))
        for (_, asker), response in zip(waiting, responses, strict=True):
            try:
                asker.answered(response)
            except Exception as error:  # who waits behind it is answered all the same
                asker.failed(error)

    def _response(self, reply: Reply) -> bytes:
        known = self._head
        if known is None or known[0] is not reply.headers or known[1] is not self._every:
            # All before the number of the body's bytes: for a millisecond they all have the same.
            lines = [*self._every, *((key.encode(), value.encode()) for key, value in reply.headers.items())]
            text = b"HTTP/1.1 200 OK\r\n" + b"".join(b"%b: %b\r\n" % line for line in lines) + b"content-length: "
            known = self._head = (reply.headers, self._every, text)
        return b"%b%d\r\n\r\n%b" % (known[2], len(reply.body), reply.body)


def _is_usual(headers: Headers) -> bool:
    size = 0
    for key, value in headers:
        if key in UNUSUAL:
            return False
        size += len(key) + len(value)
    return size <= HEADER_BYTES_MAX
