"""A Redis of our own: on a free port of loopback, gone with the bench."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from opentab_tools.servers.daemon import Daemon
from opentab_tools.servers.free_port import free_port
from opentab_tools.servers.required_tools import find_tools
from opentab_tools.servers.resp import RedisLine

START_SECONDS_MAX = 10


@dataclass(frozen=True, slots=True)
class RedisServer:
    """One that runs."""

    port: int
    pid: int


def find_redis() -> None:
    """Raise if there is no Redis on this machine."""
    find_tools("redis-server")


@contextmanager
def redis_server(directory: Path, options: Mapping[str, str]) -> Iterator[RedisServer]:
    """A Redis with those options that keeps its files in a directory; it ends when we leave."""
    find_redis()
    port = free_port()
    words = {"port": str(port), "bind": "127.0.0.1", "dir": str(directory), **options}
    server = Daemon(
        "redis", ["redis-server", *(w for name, value in words.items() for w in (f"--{name}", value))], directory
    )
    server.start()
    try:
        server.wait_until(lambda: RedisLine.answers(port), seconds_max=START_SECONDS_MAX)
        yield RedisServer(port, server.pid)
    finally:
        server.kill()
