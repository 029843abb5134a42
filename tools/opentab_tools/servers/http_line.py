"""One kept connection to a server: cheap, because the client runs on the machine that it measures."""

from __future__ import annotations

import http.client
from typing import Any

import msgspec

TIMEOUT_SECONDS = 30.0


class HttpLine:
    """Asks one question after the other."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)

    def get(self, path: str) -> tuple[int, Any]:
        """The status, and the answer's JSON."""
        self._connection.request("GET", path)
        return self._answer()

    def post(self, path: str, body: bytes) -> tuple[int, Any]:
        """The status, and the answer's JSON."""
        self._connection.request("POST", path, body, {"content-type": "application/json"})
        return self._answer()

    def close(self) -> None:
        self._connection.close()

    def _answer(self) -> tuple[int, Any]:
        with self._connection.getresponse() as response:
            return response.status, msgspec.json.decode(response.read())
