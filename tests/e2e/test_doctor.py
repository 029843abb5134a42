"""opentab doctor calls what the home names, and says what will not work before it is started."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ledgers import SETTINGS, bill, new_home
from opentab.cli.doctor import Finding, examine
from opentab.log import DirectoryLog, Producer
from opentab.replica.flags import write_following
from opentab.runtime.config import Home
from product import event, opentab
from receivers import new_receiver

SECONDS_MAX = 30


def found(home: Home, name: str) -> Finding:
    (one,) = [finding for finding in examine(home) if finding.name == name]
    return one


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that a program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def closed() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def test_what_does_not_answer_is_named_within_seconds(tmp_path: Path, closed: int) -> None:
    settings = f"""
[log]
uri = "kafka://127.0.0.1:{closed}/usage"
[ledger]
uri = "s3://opentab/home"
[ledger.storage]
aws_endpoint_url = "http://127.0.0.1:{closed}"
aws_allow_http = true
[invoices]
http_url = "http://127.0.0.1:{closed}/bills"
"""
    home = new_home(tmp_path / "home", SETTINGS + settings)
    began = time.monotonic()
    said = opentab("doctor", home=home, check=False)
    assert said.returncode == 3
    assert time.monotonic() - began < SECONDS_MAX
    missing = {line.split()[1] for line in said.stdout.splitlines() if line.startswith("MISSING")}
    assert missing >= {"Kafka", "bucket", "invoices"} and not missing & {"ledger", "log", "clock"}, said.stdout


def test_a_receiver_that_answers(tmp_path: Path) -> None:
    with new_receiver().listening() as receiver:
        home = new_home(tmp_path / "home", f'{SETTINGS}[invoices]\nhttp_url = "{receiver.url}"\n')
        assert found(home, "invoices").ok


def test_a_port_that_is_taken(tmp_path: Path, taken: int) -> None:
    home = new_home(tmp_path / "home", f"{SETTINGS}[server]\nport = {taken}\n[spark]\ndriver.port = {taken}\n")
    ports = found(home, "ports")
    assert (ports.ok, ports.fix) == (False, "end what listens there, or set another server.port")
    assert f"127.0.0.1:{taken} cannot be listened on" in ports.fact
    home.replica_path.mkdir()
    write_following(home.replica_path, caught_up=True)  # a server of this home runs
    assert found(home, "ports").fix == "end what listens there, or set another spark.driver.port"


def python(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("body", "fact"),
    [
        ("echo 3 9 0.1.0 4.0.5", "tasks are to run on Python 3.9, opentab 0.1.0, pyspark 4.0.5, and here is Python 3."),
        ("echo No module named opentab >&2; exit 1", "lacks something: No module named opentab"),
        (None, "is not here"),
    ],
)
def test_a_python_that_tasks_cannot_run_on(tmp_path: Path, body: str | None, fact: str) -> None:
    other = tmp_path / "python" if body is None else python(tmp_path / "python", body)
    home = new_home(tmp_path / "home", f'{SETTINGS}[spark]\npyspark.python = "{other}"\n')
    tasks = found(home, "tasks")
    assert not tasks.ok and fact in tasks.fact


def test_a_python_that_tasks_can_run_on(tmp_path: Path) -> None:
    ours = python(tmp_path / "python", f'exec {sys.executable} "$@"')
    assert found(new_home(tmp_path / "home", f'{SETTINGS}[spark]\npyspark.python = "{ours}"\n'), "tasks").ok
    there = f'{SETTINGS}[spark]\nmaster = "yarn"\npyspark.python = "./env/bin/python"\n'
    assert "cannot be seen from here" in found(new_home(tmp_path / "other", there), "tasks").fact


def test_a_clock_that_contradicts_the_log(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")
    bill(home, event("ann", "1.00"))
    assert found(home, "clock").ok
    Producer(DirectoryLog(home.log_path), clock=lambda: datetime.now(UTC) + timedelta(hours=1)).append(
        event("ann", "1.00").encode()
    )
    assert not found(home, "clock").ok


def test_the_disk_of_temporary_files_is_looked_at(tmp_path: Path) -> None:
    disk = found(new_home(tmp_path / "home"), "disk")
    assert disk.ok == (os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize >= 2**30)
