"""Reads of random customers over HTTP, by wrk: one thread, 32 connections, as fast as they are answered or paced.

An answer that is not 2xx and an error of a connection make a load worthless, so they end the bench.
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from opentab.core.errors import OpentabError
from opentab_tools.bench.load_result import CONNECTIONS, Load

FOREVER_SECONDS = 86_400
# Names are those of simulator/telecom.py; they need no percent-encoding.
SCRIPT = """\
math.randomseed({seed})

function request()
  return wrk.format("GET", string.format("/v1/customers/c%07d", math.random(0, {customers} - 1)))
end
"""
# wrk asks before every request how many milliseconds that connection is to wait.
PACE = """\

function delay()
  return {delay_ms}
end
"""

RATE = re.compile(r"^Requests/sec:\s+([\d.]+)", re.MULTILINE)
LATENCY = re.compile(r"^\s+(50|99)%\s+([\d.]+)(us|ms|s|m)$", re.MULTILINE)
UNIT_MS = {"us": 0.001, "ms": 1.0, "s": 1_000.0, "m": 60_000.0}
NOT_2XX = re.compile(r"Non-2xx or 3xx responses: (\d+)")
SOCKET_ERRORS = re.compile(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)")


def script(customers: int, *, seed: int, per_second: int | None = None) -> str:
    """What wrk is to ask for; `per_second` is about met as long as answers come fast."""
    text = SCRIPT.format(seed=seed, customers=customers)
    if per_second is not None:
        text += PACE.format(delay_ms=round(1000 * CONNECTIONS / per_second))
    return text


def parse_wrk(text: str) -> Load:
    """Read what wrk says at its end."""
    rate = RATE.search(text)
    latency_ms = {share: float(value) * UNIT_MS[unit] for share, value, unit in LATENCY.findall(text)}
    if rate is None or latency_ms.keys() != {"50", "99"}:
        raise OpentabError(f"wrk said something else than its figures: {text.strip()[-200:]!r}")
    refused = NOT_2XX.search(text)
    errors = SOCKET_ERRORS.search(text)
    refused_count = int(refused[1]) if refused else 0
    error_count = sum(map(int, errors.groups())) if errors else 0
    if refused_count or error_count:
        raise OpentabError(
            f"{refused_count:,} answers were not 2xx, and {error_count:,} connections had errors",
            hint="figures of such a load mean nothing: find out why first",
        )
    return Load(float(rate[1]), latency_ms["50"], latency_ms["99"])


@dataclass(frozen=True, slots=True)
class WrkRun:
    """A load under way."""

    process: subprocess.Popen[str]

    def stop(self) -> None:
        """End it early; what it came to until now counts."""
        self.process.send_signal(signal.SIGINT)

    def result(self) -> Load:
        """Wait for its end, and say what it came to."""
        said, _ = self.process.communicate()
        return parse_wrk(said)


@contextmanager
def wrk_run(url: str, script_path: Path, text: str, *, seconds: int = FOREVER_SECONDS) -> Iterator[WrkRun]:
    """Start a load, for so long or until it is stopped."""
    script_path.write_text(text, encoding="utf-8")
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "--latency", "-s", str(script_path), url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield WrkRun(process)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def wrk_load(url: str, script_path: Path, text: str, *, seconds: int) -> Load:
    """A load of so many seconds."""
    with wrk_run(url, script_path, text, seconds=seconds) as run:
        return run.result()
