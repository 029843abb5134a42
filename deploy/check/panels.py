"""Ask Debian's Prometheus every panel's expression of the dashboard, while it reads a home that really runs.

    python deploy/check/panels.py

Prometheus comes from Debian's package and is unpacked into .tools, so nothing is installed and no service starts.
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from opentab_tools.servers.free_port import free_port

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "opentab.json"
OPENTAB = [sys.executable, "-m", "opentab.cli"]
SECONDS_MAX = 120
SETTINGS = """
[billing]
out_of_orderness = "0s"
[server]
port = {port}
[invoices]
http_url = "http://127.0.0.1:{nobody}/bills"
"""
CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: opentab
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


def expressions() -> Iterator[tuple[str, str]]:
    """Every panel's title with each of its expressions."""
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def prometheus_program() -> str:
    """The one that is installed, or the package's, unpacked."""
    installed = shutil.which("prometheus")
    if installed:
        return installed
    directory = ROOT / ".tools" / "prometheus"
    program = directory / "usr" / "bin" / "prometheus"
    if not program.exists():
        with tempfile.TemporaryDirectory() as aside:
            subprocess.run(
                ["apt-get", "download", "-qq", "prometheus"], cwd=aside, check=True, stderr=subprocess.DEVNULL
            )
            (package,) = Path(aside).glob("*.deb")
            subprocess.run(["dpkg", "-x", package, directory], check=True)
    return str(program)


@contextmanager
def running(command: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def events(number: int) -> bytes:
    """Some events of two months, one of them twice, one without an id and one that cannot be billed."""
    lines = [
        {
            "id": f"{number}-{one}",
            "time": f"2026-0{1 + one % 2}-15T12:00:00Z",
            "customer": "emma",
            "type": "CALL",
            "amount": "1",
        }
        for one in range(20)
    ]
    texts = [json.dumps(line) for line in (*lines, lines[0], {k: v for k, v in lines[0].items() if k != "id"})]
    return "\n".join([*texts, "{"]).encode()


def answer(port: int, expression: str) -> list[Any]:
    """The series that Prometheus answers with; those of a quotient of nothing do not count."""
    try:
        found = httpx.get(f"http://127.0.0.1:{port}/api/v1/query", params={"query": expression}, timeout=5).json()
    except httpx.HTTPError:
        return []
    if found["status"] != "success":
        sys.exit(f"opentab: {expression}: {found['error']}")
    return [one for one in found["data"]["result"] if one["value"][1] != "NaN"]


def main() -> None:
    port, asked = free_port(), free_port()
    with tempfile.TemporaryDirectory() as directory:
        aside = Path(directory)
        home = aside / "home"
        home.mkdir(mode=0o700)
        (home / "opentab.toml").write_text(SETTINGS.format(port=port, nobody=free_port()), encoding="utf-8")
        (aside / "prometheus.yml").write_text(CONFIG.format(port=port), encoding="utf-8")
        prometheus = [
            prometheus_program(),
            f"--config.file={aside}/prometheus.yml",
            f"--storage.tsdb.path={aside}/data",
        ]
        prometheus += [f"--web.listen-address=127.0.0.1:{asked}", "--log.level=error"]
        up = [*OPENTAB, "up", "--home", str(home)]
        with running(up, aside / "up.log"), running(prometheus, aside / "said.log"):
            found = ask_all(home, port, asked)
    for (title, expression), said in found.items():
        sys.stdout.write(f"{title}: {expression}: {len(said)} series, the first is {said[0]['value'][1]}\n")


def ask_all(home: Path, port: int, asked: int) -> dict[tuple[str, str], list[Any]]:
    """Keep the home busy until every expression has an answer."""
    found: dict[tuple[str, str], list[Any]] = {one: [] for one in expressions()}
    deadline = time.monotonic() + SECONDS_MAX
    for number in itertools.count():
        ingest = [*OPENTAB, "ingest", "--home", str(home)]
        subprocess.run(ingest, input=events(number), check=True, capture_output=True)
        with suppress(httpx.HTTPError):
            httpx.get(f"http://127.0.0.1:{port}/v1/overview", timeout=5)
        found = {one: said or answer(asked, one[1]) for one, said in found.items()}
        missing = [one for one, said in found.items() if not said]
        if not missing:
            break
        if time.monotonic() > deadline:
            sys.exit(f"opentab: no answer within {SECONDS_MAX} s: {missing}")
    return found


if __name__ == "__main__":
    main()
