"""Redis' own protocol, as far as a stream of HINCRBY needs it: written in one go, answers counted."""

from __future__ import annotations

import socket
from collections.abc import Iterable

from opentab.errors import OpentabError

RECEIVE_BYTES = 1 << 20
ANSWER_SECONDS_MAX = 120.0


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
                return line.ask(b"PING") == b"+PONG"
        except OSError:
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
            if b"-" in data and any(line.startswith(b"-ERR") for line in data.split(b"\r\n")):
                raise OpentabError("Redis refused an addition")
            waiting -= data.count(b"\n")

    def info(self, section: str) -> dict[str, str]:
        """What Redis says of itself."""
        lines = self.ask(b"INFO", section.encode()).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def ask(self, *words: bytes) -> bytes:
        """A command that has one line for an answer, or one text."""
        self._socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
        answer = self._received()
        while not answer.endswith(b"\r\n"):
            answer += self._received()
        if answer.startswith(b"$"):
            size = int(answer[1 : answer.index(b"\r\n")])
            begin = answer.index(b"\r\n") + 2
            while len(answer) < begin + size + 2:
                answer += self._received()
            return answer[begin : begin + size]
        return answer.rstrip()

    def _received(self) -> bytes:
        data = self._socket.recv(RECEIVE_BYTES)
        if not data:
            raise OpentabError("Redis closed the connection")
        return data
