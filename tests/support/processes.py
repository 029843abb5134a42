"""Real processes of the product: started, watched, killed, and held to an exact bill afterwards."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil

from opentab.runtime.config import Home
from opentab.runtime.heartbeat import read_heartbeat
from opentab_tools.servers.free_port import free_port
from product import OPENTAB, json_lines, opentab

SMALL_BATCHES = "[pipeline]\nbatch_events_max = 400\ncompact_files = 4\nsnapshot_batches = 3\n"
PATIENCE_SECONDS = 90


def wait_for(what: Callable[[], bool], why: str, *, seconds: float = PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"waited too long until {why}"
        time.sleep(0.05)


def streams(home: Home, process: subprocess.Popen[str]) -> bool:
    beat = read_heartbeat(home.ledger)
    assert process.poll() is None, process.communicate()[0]
    return beat is not None and beat.pid == process.pid and beat.streaming


def position(home: Home) -> int:
    beat = read_heartbeat(home.ledger)
    return beat.position if beat else 0


def caught_up_us(home: Home) -> int:
    beat = read_heartbeat(home.ledger)
    return beat.caught_up_us or 0 if beat else 0


def check_exact(home: Home) -> None:
    """All of the log is billed, and the independent audit agrees, down to the simulator's own bills."""
    opentab("run", "--once", home=home)
    verdict = json_lines(opentab("verify", "--format", "json", home=home, check=False).stdout)[0]
    assert verdict["agrees"], verdict
    assert verdict["not_yet_billed_segments"] == 0


def on_its_own_disk(scene: str, path: Path) -> str:
    """Play a scene that mounts a file system of its own, so that it can be filled; what it printed."""
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    command = [*unshare, sys.executable, str(Path(__file__).with_name(f"{scene}.py")), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def serving(
    home: Home,
    *options: str,
    workers: int = 2,
    port: int | None = None,
    verify: ssl.SSLContext | bool = True,
    **environment: str,
) -> Iterator[str]:
    """A real server of a home; yields its address once it answers."""
    port = port or free_port()
    command = [*OPENTAB, "serve", "--home", str(home.path), "--port", str(port), "--workers", str(workers), *options]
    process = subprocess.Popen(command, start_new_session=True, env={**os.environ, **environment})
    url = f"{'http' if verify is True else 'https'}://127.0.0.1:{port}"
    try:
        wait_for(lambda: answers(url, verify), "the server answered")
        yield url
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def answers(url: str, verify: ssl.SSLContext | bool = True) -> bool:
    try:
        return httpx.get(f"{url}/healthz", timeout=5, verify=verify).status_code == 200
    except httpx.HTTPError:
        return False


def planner_of(process: subprocess.Popen[str] | psutil.Process) -> psutil.Process:
    """The process in which Spark plans the batches of its newest query over a Python data source."""
    return max(pythons_of(process, "python_streaming_source_runner"), key=psutil.Process.create_time)


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    """Spark's Python workers. Each environment that tasks asked for has a daemon of its own, which forks them."""
    daemons = pythons_of(process, "opentab.billing.daemon pyspark.worker")
    return [worker for daemon in daemons for worker in daemon.children()]


def pythons_of(process: subprocess.Popen[str] | psutil.Process, what: str) -> list[psutil.Process]:
    """What Spark's Java has started with such words in its command."""
    found = []
    for java in javas_of(process):
        for one in java.children():
            with suppress(psutil.NoSuchProcess):
                if what in " ".join(one.cmdline()):
                    found.append(one)
    return found


def javas_of(process: subprocess.Popen[str] | psutil.Process) -> list[psutil.Process]:
    """The Java processes below a command. Others come and go meanwhile, and that is no matter."""
    return [child for child in psutil.Process(process.pid).children(recursive=True) if name_of(child) == "java"]


def name_of(process: psutil.Process) -> str | None:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return None


def parent_of(process: psutil.Process) -> int | None:
    try:
        return int(process.ppid())
    except psutil.NoSuchProcess:
        return None
