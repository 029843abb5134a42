"""Real power cuts: the home lies on a disk that loses everything that was not synced, at seeded random moments."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import httpx
import psutil
import pytest

from opentab.runtime import config
from opentab.runtime.config import Home
from opentab.tables.delta_log import DeltaLog
from opentab_tools.servers.free_port import free_port
from opentab_tools.servers.loop_disk import LoopDisk
from processes import answers, check_exact, wait_for
from product import json_lines, opentab
from receivers import Receiver, new_receiver

LEAVE_OUT = "OPENTAB_WITHOUT_POWER_CUT"
pytestmark = pytest.mark.skipif(LEAVE_OUT in os.environ, reason=f"{LEAVE_OUT} is set")

CUTS = 4
UP_SECONDS = (4.0, 12.0)  # from the first answer to the cut
CUTS_AT_CHECKPOINTS = 2  # the first ones: they come this long after a checkpoint of the journal got its name
CHECKPOINT_SECONDS_MAX = 300  # a hundred batches, on two cores that do other work
AFTER_CHECKPOINT_SECONDS = (0.0, 0.2)
CUSTOMERS = ("emma", "jan", "lena")
FIRST_DAY = datetime(2024, 1, 1, tzinfo=UTC)
EVENTS_A_DAY = 120  # with the pause, so few that none is in the future after some minutes
PAUSE_SECONDS = 0.02
SETTINGS = """\
[billing]
out_of_orderness = "1h"
allowed_lateness = "1d"

[pipeline]
batch_pause = "20ms"
compact_files = 8
snapshot_batches = 20

[server]
port = {port}
workers = 1
key_file = "key"

[invoices]
http_url = "{receiver}"
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    """A disk of its own whose power can be cut."""
    disk = LoopDisk(tmp_path / "disk.img", tmp_path / "disk", megabytes=1024)
    yield disk
    disk.close()


class Sender:
    """Posts events, and remembers what it was told: each day a few, day after day, so that months close."""

    def __init__(self, url: str, token: str) -> None:
        self._url = f"{url}/v1/events"
        self._headers = {"authorization": f"Bearer {token}"}
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.sent = 0
        self.accepted: set[str] = set()
        self.ingested: set[str] = set()

    def start(self) -> None:
        self._over.clear()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        assert self._thread is not None
        self._thread.join()

    def _send(self) -> None:
        with httpx.Client(headers=self._headers, timeout=5) as client:
            while not self._over.is_set():
                time.sleep(PAUSE_SECONDS)
                events = [self._event() for _ in range(20)]
                with suppress(httpx.HTTPError):
                    if client.post(self._url, json=events).status_code == 202:
                        self.accepted |= {event["id"] for event in events}

    def ingest(self, home: Home) -> None:
        """Append some with `opentab ingest`, which returns once they are durable."""
        events = [self._event() for _ in range(20)]
        opentab("ingest", home=home, stdin="".join(f"{json.dumps(event)}\n" for event in events))
        self.ingested |= {event["id"] for event in events}

    def _event(self) -> dict[str, str]:
        at = FIRST_DAY + timedelta(days=self.sent / EVENTS_A_DAY)
        customer = CUSTOMERS[self.sent % len(CUSTOMERS)]
        self.sent += 1
        return {
            "id": f"{self.sent:08d}-{secrets.token_hex(4)}",
            "time": at.isoformat(),
            "customer": customer,
            "type": "CALL",
            "amount": "1.25",
        }


def test_nothing_that_was_acknowledged_is_lost(disk: LoopDisk, start: Start) -> None:
    seed = int(os.environ.get("OPENTAB_SEED", secrets.randbelow(2**32)))
    sys.stdout.write(f"OPENTAB_SEED={seed}\n")
    dice = Random(seed)
    with new_receiver().listening() as receiver:
        home = home_on(disk, receiver)
        url = f"http://127.0.0.1:{home['server.port']}"
        token = issued(home, "--role", "admin")
        sender = Sender(url, token)
        revoked: list[str] = []
        for cut in range(CUTS):
            up = start("up", home=home)
            wait_for(lambda: answers(url), "the server answered")
            before = len(sender.accepted)
            sender.start()
            wait_for(lambda before=before: len(sender.accepted) > before, "events were accepted")  # type: ignore[misc]
            revoked.append(issued(home, "--role", "reader"))
            opentab("token", "revoke", revoked[-1], home=home)
            sender.ingest(home)
            if cut < CUTS_AT_CHECKPOINTS:
                log = DeltaLog(home.ledger.path / "journal")
                known = max(log.checkpoints(), default=0)
                wait_for(
                    lambda log=log, known=known: max(log.checkpoints(), default=0) > known,  # type: ignore[misc]
                    "the journal had a checkpoint",
                    seconds=CHECKPOINT_SECONDS_MAX,
                )
                time.sleep(dice.uniform(*AFTER_CHECKPOINT_SECONDS))
            else:
                time.sleep(dice.uniform(*UP_SECONDS))  # until the moment of the cut
            disk.cut()
            kill(up)
            sender.stop()
            disk.restore()
        check_exact(home)
        assert len(sender.ingested) == 20 * CUTS
        check_told(home, receiver, sender.accepted | sender.ingested)
        up = start("up", "--without", "run", home=home)
        wait_for(lambda: answers(url), "the server answered")
        for text, status in [*((text, 401) for text in revoked), (token, 200)]:
            assert httpx.get(f"{url}/v1/periods", headers={"authorization": f"Bearer {text}"}).status_code == status
        kill(up)


def home_on(disk: LoopDisk, receiver: Receiver) -> Home:
    path = disk.mount / "home"
    opentab("token", "key", home=path)
    (path / "opentab.toml").write_text(SETTINGS.format(port=free_port(), receiver=receiver.url))
    os.sync()  # what an operator wrote yesterday
    return config.load(path)


def issued(home: Home, *options: str) -> str:
    return opentab("token", "issue", *options, home=home).stdout.strip()


def kill(up: subprocess.Popen[str]) -> None:
    """Kill `opentab up` and all that it has started, at once."""
    for process in [psutil.Process(up.pid), *psutil.Process(up.pid).children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    up.wait()


def check_told(home: Home, receiver: Receiver, accepted: set[str]) -> None:
    """All that POST and `ingest` accepted is in the log, and every invoice that the receiver was given is in the ledger."""
    lines = [path.read_bytes().splitlines()[1:] for path in home.log_path.rglob("*.seg")]
    in_log = [json.loads(line)["id"] for segment in lines for line in segment]
    assert accepted <= set(in_log)
    in_ledger = {
        (invoice["period"], invoice["customer"], invoice["revision"]): invoice
        for invoice in json_lines(opentab("invoices", "--all-revisions", "--format", "json", home=home).stdout)
    }
    delivered = [json.loads(body) for body in receiver.held.values()]
    assert len(delivered) > len(CUSTOMERS), "months closed, and the receiver was given their invoices"
    for invoice in delivered:
        issued = in_ledger[invoice["period"], invoice["customer"], invoice["revision"]]
        assert {name: invoice[name] for name in issued} == issued
    assert opentab("invoices", "--export", home=home).returncode == 0
