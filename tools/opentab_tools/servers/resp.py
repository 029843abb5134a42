"""Redis' own protocol, as far as the bench needs it: a question and its answer, or HINCRBYs all in one go."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable

from opentab.core.errors import OpentabError

RECEIVE_BYTES = 1 << 20
ANSWER_SECONDS_MAX = 120.0
REFUSED = re.compile(rb"-[A-Z]")  # a sum below zero begins with a colon


class RedisLine:
    """One connection to a Redis on this machine."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS_MAX)

    def __enter__(self) -> RedisLine:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    @classmethod
    def answers(cls, port: int) -> bool:
        try:
            with cls(port) as line:
                return line.ask(b"PING") == b"PONG"
        except (OSError, OpentabError):  # not there yet, or still starting
            return False

    def add(self, additions: Iterable[tuple[bytes, bytes, int]]) -> None:
        """HINCRBY key field number, all of them in one pipeline; returns when all are answered."""
        parts = []
        for key, field, number in additions:
            text = b"%d" % number
            parts.append(
                b"*4\r\n$7\r\nHINCRBY\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n"
                % (len(key), key, len(field), field, len(text), text)
            )
        self._socket.sendall(b"".join(parts))
        waiting = len(parts)
        while waiting > 0:
            data = self._received()
            if b"-" in data and any(REFUSED.match(line) for line in data.split(b"\r\n")):
                raise OpentabError("Redis refused an addition")
            waiting -= data.count(b"\n")

    def info(self, section: str) -> dict[str, str]:
        """What Redis says of itself."""
        lines = self.ask(b"INFO", section.encode()).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def ask(self, *words: bytes) -> bytes:
        """A command that has one line for an answer, or one text; raise if Redis refuses it."""
        self._socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
        answer = self._received()
        while not answer.endswith(b"\r\n"):
            answer += self._received()
        if answer.startswith(b"$"):
            size = int(answer[1 : answer.index(b"\r\n")])
            if size < 0:
                return b""  # nothing, as a script has for an answer that returns nothing
            begin = answer.index(b"\r\n") + 2
            while len(answer) < begin + size + 2:
                answer += self._received()
            return answer[begin : begin + size]
        if answer.startswith(b"-"):
            raise OpentabError(f"Redis refused {words[0].decode()}: {answer[1:].decode().strip()}")
        return answer[1:].rstrip()

    def _received(self) -> bytes:
        data = self._socket.recv(RECEIVE_BYTES)
        if not data:
            raise OpentabError("Redis closed the connection")
        return data
