"""Redis beside us: as many keys, values as large as our answers, read by redis-benchmark without pipelining.

It is a Redis of our own, on a free port of loopback, that writes nothing to the disk and ends with the bench.
"""

from __future__ import annotations

import csv
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from opentab.errors import OpentabError
from opentab.lab.free_port import free_port
from opentab.lab.load import CONNECTIONS, Load

START_SECONDS_MAX = 10
FILL_KEYS = 50_000  # in one go: Redis answers nobody meanwhile
TRIAL_REQUESTS = 50_000
# Names as redis-benchmark asks for them.
FILL = """
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
        for line in self._ask("INFO", "stats").splitlines():
            name, _, value = line.partition(":")
            if name == "keyspace_misses":
                return int(value)
        raise OpentabError("redis does not say how many reads found nothing")

    def fill(self, value: str) -> None:
        for first in range(0, self.keys, FILL_KEYS):
            last = min(first + FILL_KEYS, self.keys) - 1
            self._ask("EVAL", FILL, "0", str(first), str(last), value)
        found = self._ask("DBSIZE").strip()
        if found != str(self.keys):
            raise OpentabError(f"redis holds {found} keys of {self.keys}")

    def answers(self) -> bool:
        return self._ask("PING", check=False).strip() == "PONG"

    def _ask(self, *words: str, check: bool = True) -> str:
        command = ["redis-cli", "-p", str(self.port), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if check and done.returncode != 0:
            raise OpentabError(f"redis-cli {words[0]} failed: {(done.stderr or done.stdout).strip()}")
        return done.stdout


@contextmanager
def redis_peer(work_dir: Path, *, keys: int, value: str) -> Iterator[RedisPeer]:
    """A Redis with that value under each of so many keys; it ends when we leave."""
    peer = RedisPeer(free_port(), keys)
    options = [
        "--port",
        str(peer.port),
        "--bind",
        "127.0.0.1",
        "--dir",
        str(work_dir),
        "--save",
        "",
        "--appendonly",
        "no",
    ]
    process = subprocess.Popen(["redis-server", *options], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not peer.answers():
            if process.poll() is not None or time.monotonic() > deadline:
                raise OpentabError("redis-server did not start")
            time.sleep(0.05)
        peer.fill(value)
        yield peer
        if missed := peer.misses():
            raise OpentabError(f"{missed:,} reads of redis found nothing")
    finally:
        process.terminate()
        process.wait()


def parse_redis_benchmark(text: str) -> Load:
    """Read what redis-benchmark --csv says of GET."""
    for row in csv.DictReader(text.splitlines()):
        if row.get("test") == "GET":
            try:
                return Load(float(row["rps"]), float(row["p50_latency_ms"]), float(row["p99_latency_ms"]))
            except (KeyError, TypeError, ValueError):
                break
    raise OpentabError(f"redis-benchmark said something else than its figures: {text.strip()[-200:]!r}")
