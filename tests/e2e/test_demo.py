"""`opentab demo`: everything at once, a verdict, and nothing left behind."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx
import psutil
import pytest
from click.testing import CliRunner

from opentab.cli import commands
from opentab.core.errors import MachineError
from opentab_tools.servers.free_port import free_port
from processes import wait_for
from product import OPENTAB, opentab

SHORT = ("--month-seconds", "3", "--events", "300")


def test_it_ends_by_itself_with_a_verdict_where_nobody_watches(tmp_path: Path) -> None:
    port = str(free_port())
    done = opentab("demo", *SHORT, "--port", port, home=tmp_path / "demo")
    assert f"Watch it live: http://127.0.0.1:{port}/" in done.stdout
    assert "Verdict: all 27 invoices are exact" in done.stdout
    assert " closed at batch " in done.stdout
    assert "The ledger agrees with the log" in done.stdout


def test_on_a_terminal_it_serves_until_interrupted_and_leaves_no_process(tmp_path: Path) -> None:
    port = free_port()
    ours, theirs = pty.openpty()
    command = [*OPENTAB, "demo", *SHORT, "--months", "1", "--port", str(port), "--home", str(tmp_path / "demo")]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "50"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    try:
        shown = read_until(ours, f"The page stays at http://127.0.0.1:{port}/ until you press Ctrl-C.", process)
        assert "running totals, EUR" in shown
        assert "Verdict: all 9 invoices are exact" in shown
        answer = httpx.get(f"http://127.0.0.1:{port}/v1/customers/emma").json()
        assert answer["closed"][0]["total"] == "100.000000"
        wait_for(lambda: httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200, "it was ready")
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 4, "pipeline, Java, follower, worker"
        process.send_signal(signal.SIGINT)
        read_until(ours, None, process)
        assert process.wait(timeout=60) == 0
        _, alive = psutil.wait_procs(children, timeout=30)
        assert alive == []
    finally:
        process.kill()
        os.close(ours)


def read_until(terminal: int, text: str | None, process: subprocess.Popen[bytes]) -> str:
    """What a terminal shows up to a text, or to the end."""
    shown, deadline = "", time.monotonic() + 240
    while text is None or text not in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown).replace("\r\n", ""):
        assert time.monotonic() < deadline, shown[-2000:]
        if select.select([terminal], [], [], 1)[0]:
            try:
                shown += os.read(terminal, 65_536).decode(errors="replace")
            except OSError:  # the other end is closed
                break
        elif process.poll() is not None:
            break
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = opentab("demo", "--port", str(port), home=tmp_path / "demo", check=False)
    assert refused.returncode == 2
    assert f"127.0.0.1:{port} cannot be listened on: Address already in use" in refused.stderr


def test_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 99, 1))
    done = CliRunner().invoke(commands, ["demo", "--port", str(free_port()), "--home", str(tmp_path / "demo")])
    assert isinstance(done.exception, MachineError)
    assert "0 MiB of room" in str(done.exception)
