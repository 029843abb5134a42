"""A hostile client for some seconds, next to one that measures: nobody waits, nothing grows, nothing is lost.

`OPENTAB_HOSTILE_SECONDS=300 pytest tests/e2e/test_hostile.py` is the long form, for a machine that does nothing else: it
also holds the p99 to 250 ms. `OPENTAB_HOSTILE_SEED` repeats a run.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import subprocess
import sys
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

import hostile_client
from ledgers import bill, new_home
from opentab.log import DirectoryLog
from opentab.runtime.config import Home
from opentab.server.tokens import Role, issue, read_key
from processes import serving, wait_for
from product import event, opentab

SECONDS = int(os.environ.get("OPENTAB_HOSTILE_SECONDS", "10"))
SEED = int(os.environ.get("OPENTAB_HOSTILE_SEED", random.randrange(1_000_000)))
IS_LONG = "OPENTAB_HOSTILE_SECONDS" in os.environ
SILENT = 2_000 if IS_LONG else 200  # connections
P99_SECONDS_MAX = 0.25 if IS_LONG else 1.0  # other tests run next to the short form
GROWTH_BYTES_MAX = 512 * 2**20
PROBED = ("/healthz", "/v1/customers/ann")


def worker_of(home: Home) -> psutil.Process:
    (found,) = (
        child
        for child in psutil.Process().children(recursive=True)
        if "opentab.server.worker" in child.cmdline() and str(home.path) in child.cmdline()
    )
    return found


def ids_in(home: Home) -> set[str | None]:
    log = DirectoryLog(home.log_path)
    bodies = [log.read("default", number).body for number in log.pending().get("default", [])]
    return {json.loads(line).get("id") for body in bodies for line in bytes(body).splitlines()}


def test_a_hostile_client(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    home = new_home(tmp_path / "home", '[server]\nkey_file = "key"\nrequest_timeout = "5s"\n')
    opentab("token", "key", home=home)
    bill(home, *(event(f"c{number}", time=f"2026-01-{number % 28 + 1:02d}T00:00:00Z") for number in range(2_000)))
    bill(home, event("ann"), event("ann", type="FAX"))
    key = read_key(home)
    assert key is not None
    admin, reader = (issue(key, role, customer=None, lifetime=timedelta(days=1)) for role in (Role.ADMIN, Role.READER))
    headers = {"authorization": f"Bearer {reader}"}
    with serving(home, workers=1) as url:
        wait_for(lambda: httpx.get(url + PROBED[1], headers=headers).status_code == 200, "the replica was there")
        worker, port = worker_of(home), urlsplit(url).port or 0
        before = most = worker.memory_info().rss
        script = Path(hostile_client.__file__)
        command = [sys.executable, str(script), str(port), admin, str(SEED), str(SECONDS), str(SILENT)]
        took: list[float] = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
            until = time.monotonic() + SECONDS
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as line:
                while time.monotonic() < until:
                    for path in PROBED:
                        began = time.monotonic()
                        line.request("GET", path, headers=headers)
                        answer = line.getresponse()
                        answer.read()
                        took.append(time.monotonic() - began)
                        assert answer.status == 200, path
                    most = max(most, worker.memory_info().rss)
            said, _ = client.communicate(timeout=120)
            assert client.returncode == 0, f"OPENTAB_HOSTILE_SEED={SEED}"
        assert worker.is_running(), f"a worker was lost; OPENTAB_HOSTILE_SEED={SEED}"
        assert httpx.get(url + PROBED[1], headers=headers, timeout=30).status_code == 200
    accepted = set(json.loads(said))
    p99 = sorted(took)[len(took) * 99 // 100]
    told = f"{len(took):,} probes, p99 {p99 * 1000:.0f} ms, {(most - before) >> 20} MiB more, {len(accepted):,} events taken"
    told += f"; OPENTAB_HOSTILE_SEED={SEED}"
    said_by_server = capfd.readouterr().err
    if IS_LONG:
        with capfd.disabled():
            sys.stdout.write(f"{told}\n")
    assert accepted, told
    assert accepted <= ids_in(home), f"accepted and lost: {told}"
    assert p99 < P99_SECONDS_MAX, told
    assert most - before < GROWTH_BYTES_MAX, told
    assert "Traceback" not in said_by_server, told
