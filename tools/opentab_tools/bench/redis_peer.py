"""Redis beside us: as many keys, values as large as our answers, read by redis-benchmark without pipelining."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from opentab.core.errors import OpentabError
from opentab_tools.bench.load_result import CONNECTIONS, Load
from opentab_tools.servers.redis_server import redis_server
from opentab_tools.servers.resp import RedisLine

OPTIONS = {"save": "", "appendonly": "no"}  # reads alone are measured, so it writes nothing to the disk
FILL_KEYS = 50_000  # in one go: Redis answers nobody meanwhile
TRIAL_REQUESTS = 50_000
# Names as redis-benchmark asks for them.
FILL = b"""
for key = ARGV[1], ARGV[2] do redis.call('SET', string.format('key:%012d', key), ARGV[3]) end
"""


@dataclass(frozen=True, slots=True)
class RedisPeer:
    """A running Redis with its keys."""

    port: int
    keys: int

    def get(self, seconds: float) -> Load:
        """Read random keys for about so many seconds."""
        trial = self._get(TRIAL_REQUESTS)
        return self._get(max(TRIAL_REQUESTS, round(trial.per_second * seconds)))

    def _get(self, requests: int) -> Load:
        command = ["redis-benchmark", "-p", str(self.port), "-t", "get", "--csv", "-c", str(CONNECTIONS)]
        done = subprocess.run(
            [*command, "-r", str(self.keys), "-n", str(requests)], capture_output=True, text=True, check=False
        )
        return parse_redis_benchmark(done.stdout)

    def misses(self) -> int:
        """How many reads found nothing, since the start."""
        with RedisLine(self.port) as line:
            return int(line.info("stats")["keyspace_misses"])

    def fill(self, value: str) -> None:
        with RedisLine(self.port) as line:
            for first in range(0, self.keys, FILL_KEYS):
                last = min(first + FILL_KEYS, self.keys) - 1
                line.ask(b"EVAL", FILL, b"0", b"%d" % first, b"%d" % last, value.encode())
            found = int(line.ask(b"DBSIZE"))
        if found != self.keys:
            raise OpentabError(f"redis holds {found:,} keys of {self.keys:,}")


@contextmanager
def redis_peer(directory: Path, *, keys: int, value: str) -> Iterator[RedisPeer]:
    """A Redis with that value under each of so many keys; it ends when we leave."""
    with redis_server(directory, OPTIONS) as server:
        peer = RedisPeer(server.port, keys)
        peer.fill(value)
        yield peer
        if missed := peer.misses():
            raise OpentabError(f"{missed:,} reads of redis found nothing")


def parse_redis_benchmark(text: str) -> Load:
    """Read what redis-benchmark --csv says of GET."""
    for row in csv.DictReader(text.splitlines()):
        if row.get("test") == "GET":
            try:
                return Load(float(row["rps"]), float(row["p50_latency_ms"]), float(row["p99_latency_ms"]))
            except (KeyError, TypeError, ValueError):
                break
    raise OpentabError(f"redis-benchmark said something else than its figures: {text.strip()[-200:]!r}")
